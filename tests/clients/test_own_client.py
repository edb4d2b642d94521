"""Our own client as its users have it: its wheel in an empty environment, beside packages app and core."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import PathDistribution, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stms_client.build_steps.generate import generated
from tests.system.environments import Offline, environment

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
REQUIRED = {"httpx", "msgspec"}
BUILT = ("__pycache__", "*.egg-info", "build", "*.so")
PIP = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with client and core, and without what builds generate."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("stms_client", "core"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*BUILT))
    for path in generated():
        (folder / path.relative_to(ROOT)).unlink()
    return folder


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the client, built without an index by the packages of this environment."""
    return wheel_of(clone / "stms_client", tmp_path_factory.mktemp("wheel"))


def wheel_of(source: Path, folder: Path) -> Path:
    subprocess.run([*PIP, "-w", folder, source], check=True, timeout=300)
    [wheel] = folder.glob("*.whl")
    return wheel


def modules_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def needed(requirements: list[str] | None) -> Iterator[str]:
    """Names of the distributions of these requirements without their extras, and of all that those need."""
    for text in requirements or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            name = canonicalize_name(requirement.name)
            yield name
            yield from needed(distribution(name).requires)


def copy_distribution(name: str, packages: Path) -> None:
    """Install a distribution of this environment into another one without an index."""
    for file in distribution(name).files or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), target)


@pytest.fixture(scope="module")
def dependencies(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        found = PathDistribution(zipfile.Path(archive, metadata.removesuffix("METADATA"))).requires
    direct = {Requirement(text).name for text in found or [] if "extra" not in text}
    assert direct == REQUIRED
    return set(needed(found))


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path):
    here = {
        f"stms_client/{path.relative_to(ROOT / 'stms_client')}"
        for pattern in ("*.py", "*.pyi", "py.typed", "js/*.mjs")
        for path in (ROOT / "stms_client").rglob(pattern)
    }
    assert {name for name in here if not {"build", "build_steps"} & {*name.split("/")}} == modules_in(wheel)


def test_a_source_distribution_makes_the_same_wheel(clone: Path, wheel: Path, tmp_path: Path):
    program = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=clone / "stms_client", check=True, timeout=300, capture_output=True)
    [source] = tmp_path.glob("*.tar.gz")
    assert modules_in(wheel_of(source, tmp_path)) == modules_in(wheel)


def test_the_wheel_works_in_an_empty_environment_beside_other_packages_called_app_and_core(
    wheel: Path, dependencies: set[str], service: Any, tmp_path: Path
):
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    [packages] = home.glob("lib/python3*/site-packages")
    for name in dependencies:
        copy_distribution(name, packages)
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*install, wheel], check=True, timeout=300)
    for name in ("app", "core"):
        (tmp_path / "user" / name).mkdir(parents=True)
        (tmp_path / "user" / name / "__init__.py").write_text('OWNER = "user"\n', encoding="utf-8")
    command = [
        python,
        "-I",
        HERE / "drivers" / "own_client.py",
        tmp_path / "user",
        f"http://{service.address}",
        service.key,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("owners") == ["user", "user"]
    assert found.pop("file").startswith(str(home))
    assert found == {
        "is_class": True,
        "matches": [True, False],
        "several": {"cat": True, "dog": False},
        "scopes": ["train"],
        "asynchronous": [True, False],
        "optional": [],
        "missing": "Figures need matplotlib: pip install matplotlib",
    }
    size = sum(path.stat().st_size for path in (packages / "stms_client").rglob("*.py"))
    figures = {
        "wheel_bytes": wheel.stat().st_size,
        "installed_bytes": size,
        "direct_dependencies": sorted(REQUIRED),
        "all_dependencies": sorted(dependencies),
    }
    print(json.dumps(figures))
    assert wheel.stat().st_size < 250_000
    assert len(dependencies) <= 10


def driven(name: str, wheel: Path, service: Any) -> dict[str, Any]:
    """What a driver finds, in an environment with libraries of data frames."""
    try:
        home = environment(HERE / "requirements" / "frames.txt")
    except Offline as error:
        pytest.skip(str(error))
    driver = HERE / "drivers" / f"{name}.py"
    command = [home / "bin" / "python", "-I", driver, wheel, f"http://{service.address}", service.key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_frames_of_every_library_are_asked_about_as_records_and_uploaded(wheel: Path, service: Any):
    found = driven("frames", wheel, service)
    assert found["records"]
    assert found["series"]
    assert set(found["frames"].values()) == {True}, found["frames"]
    assert found["unseen"] == [[], [], ["job"]]
    schemas = found["schemas"]
    assert {json.dumps(schema) for schema in schemas.values()} == {json.dumps(schemas["arrow"])}
    assert schemas["arrow"] == {
        "member": "boolean",
        "age": "number",
        "hours": "number",
        "job": "category",
        "grade": "number",
        "since": "date",
        "place": "vector",
    }


def test_rows_of_pandas_are_asked_and_uploaded(wheel: Path, service: Any):
    found = driven("pandas_rows", wheel, service)
    assert "of numbers is needed" in found.pop("text")
    assert found == {
        "frame": [True, False],
        "nullable": [True, False],
        "float32": [1.0, 0.0],
        "turned": [True, False],
        "turned row": True,
        "mapping": True,
        "row": True,
        "rows": [True, False],
        "uploaded": 6,
        "names": ["a", "b", "c"],
        "labels": ["cat", "cat", "", "dog", "dog", "dog"],
    }
