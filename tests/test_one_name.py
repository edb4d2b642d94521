"""The distribution has one import name, beside which a project may have packages called app and core."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import core
import stms
import stms_client
from stms_client.build_steps.setuptools_command import MOVED, under_one_name

ROOT = Path(__file__).parents[1]
_ALL_MODULES = """
import pkgutil, sys
from importlib import import_module
import app, core, stms
from stms import Client, STMSClassifier
for module in pkgutil.walk_packages(stms.__path__, "stms."):
    if not module.name.startswith(("stms.migrations.env", "stms.migrations.versions")):
        import_module(module.name)
assert (app.OWNER, core.OWNER) == ("user", "user")
short = {name.partition(".")[0] for name in sys.modules} & {"migrations"}
print(STMSClassifier.__module__, Client.__module__, len(sys.modules) > 600, sorted(short))
print(sorted(name for name in sys.modules if name.startswith(("app.", "core."))))
"""
_DEMO = "import sys; sys.argv = ['stms', 'demo']; from stms.cli import main; main()"


def test_public_names_are_those_of_the_learners_and_of_the_client():
    names = set(stms.__all__)
    assert names == {*core.__all__, *stms_client.__all__}
    assert len(names) == len(core.__all__) + len(stms_client.__all__)
    assert stms.STMSClassifier is core.STMSClassifier
    assert stms.Client is stms_client.Client
    with pytest.raises(AttributeError, match="'stms' has no attribute 'Servant'"):
        _ = stms.Servant


def test_imports_and_names_of_modules_are_rewritten_and_nothing_else():
    source = '''"""See `core.run`: app and core."""
import app.store.live_tables  # noqa
import core as learners
import application
from core.run import Run
    from app import cli
COMMAND = ("-m", "app.jobs.solver")
NAME = f"app.commands.{name}"
WORDS = ("app", "core values", "x.app.y", "core")
'''
    assert (
        under_one_name(source)
        == '''"""See `core.run`: app and core."""
import stms.app.store.live_tables  # noqa
import stms.core as learners
import application
from stms.core.run import Run
    from stms.app import cli
COMMAND = ("-m", "stms.app.jobs.solver")
NAME = f"stms.app.commands.{name}"
WORDS = ("app", "core values", "x.app.y", "core")
'''
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel contains, and no editable installation beside it."""
    folder = tmp_path_factory.mktemp("wheel")
    copied = folder / "source"
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    files = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        if name.startswith((*MOVED, "stms", "pyproject.toml", "README.md")) and (ROOT / name).exists():
            target = copied / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, copied], check=True, timeout=600)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with packages of a person's own."""
    for name in ("app", "core"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('OWNER = "user"\n', encoding="utf-8")
    return tmp_path


def ran(program: str, installed: Path, project: Path) -> str:
    """What a program prints in the folder, without the files that add paths to this environment."""
    path = os.pathsep.join([str(installed), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=project,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_modules_of_a_wheel_work_beside_packages_called_app_and_core(installed: Path, project: Path):
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} == {
        "stms",
        "stms_client",
    }
    modules, foreign = ran(_ALL_MODULES, installed, project).splitlines()
    assert modules == "stms.core.estimators.classifiers stms_client.sync.client True []"
    assert foreign == "[]"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_servers_and_workers_of_a_wheel_do_the_main_job_there(installed: Path, project: Path):
    assert "Server and worker have ended" in ran(_DEMO, installed, project)
