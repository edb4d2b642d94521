"""Nothing that lies in the working folder is run, however the service is started there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.import_path import leave_out_working_folder
from app.processes.listener import require_free
from app.settings import Settings

ROOT = Path(__file__).parents[2]
STMS = Path(sys.executable).with_name("stms")
FILES = (
    *("typer.py", "click.py", "rich.py", "numpy/__init__.py", "uvicorn.py", "sqlalchemy.py", "dbos.py"),
    *(
        "app/__init__.py",
        "core/__init__.py",
        "pydantic.py",
        "sitecustomize.py",
        "usercustomize.py",
        "numba.py",
    ),
)
"""Modules that the service imports, and those that Python imports by itself."""
HOSTILE = """
import os, sys
with open({mark!r}, "a") as mark:
    mark.write(__file__ + " in " + " ".join(sys.orig_argv) + "\\n")
os._exit(7)
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder in which another user has left files; what runs one of them writes to the file ``mark``."""
    folder = tmp_path / "hostile"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(HOSTILE.format(mark=str(tmp_path / "mark")), encoding="utf-8")
    (folder / ".env").write_text("STMS_HOST=0.0.0.0\nSTMS_REQUIRE_KEYS=false\n", encoding="utf-8")
    (folder / "alembic.ini").write_text("[alembic]\nscript_location = .\n", encoding="utf-8")
    return folder


@pytest.fixture
def start(hostile: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a command in the hostile folder."""
    started: list[subprocess.Popen[bytes]] = []

    def start_(command: list[str | Path], **variables: str) -> subprocess.Popen[bytes]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("STMS_", "PYTHON"))}
        environment = kept | {"STMS_DATA_DIR": str(tmp_path / "data")} | variables
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=hostile, env=environment, stdout=log, stderr=log)
        started.append(process)
        return process

    yield start_
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def wait_for(log: Path, process: subprocess.Popen[bytes], *texts: str) -> None:
    deadline = time.monotonic() + 60
    while not all(text in log.read_text(encoding="utf-8") for text in texts):
        assert process.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("path", ["", f".:{ROOT}:"], ids=["unset", "relative"])
def test_serve_runs_no_file_of_the_folder_it_is_started_in(
    path: str, start: Callable[..., Any], tmp_path: Path
):
    # With a relative PYTHONPATH the parent itself is lost before its first line, so it is started with none,
    # and a program in between sets it: what counts is what the children get.
    code = (
        f"import os, sys; os.environ['PYTHONPATH'] = {path!r}; sys.argv[0] = 'stms'\n"
        "from app.cli import main; main()"
    )
    port = str(require_free("127.0.0.1", 0))
    command = [sys.executable, "-P", "-c", code, "serve", "--port", port]
    wait_for(tmp_path / "log", start(command), "STMS listens at", "takes jobs")
    assert not (tmp_path / "mark").exists(), (tmp_path / "mark").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["api", "--api-processes", "2", "--port", "0"], "listens at"),
        (["worker"], "takes jobs"),
    ],
    ids=["api", "worker"],
)
def test_no_other_process_runs_a_file_of_the_folder_it_is_started_in(
    arguments: list[str], said: str, start: Callable[..., Any], tmp_path: Path
):
    assert start([STMS, "db", "upgrade"]).wait(120) == 0
    wait_for(tmp_path / "log", start([STMS, *arguments]), said)
    assert not (tmp_path / "mark").exists(), (tmp_path / "mark").read_text(encoding="utf-8")


def test_python_m_looks_up_no_library_in_the_working_folder(hostile: Path, tmp_path: Path):
    for name in ("app", "core"):
        (hostile / name / "__init__.py").unlink()
        (hostile / name).rmdir()
    command = [sys.executable, "-m", "app.cli", "version"]
    done = subprocess.run(command, cwd=hostile, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("stms ")
    assert not (tmp_path / "mark").exists()


def test_absolute_folders_and_that_of_the_program_stay_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "", str(tmp_path / "lib"), "/opt/lib", str(ROOT)])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["lib", "", "/opt/lib"]))
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    leave_out_working_folder()
    assert sys.path == ["/opt/lib", str(ROOT)]
    assert (os.environ["PYTHONPATH"], os.environ["PYTHONSAFEPATH"]) == ("/opt/lib", "1")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", ["", "/opt/lib"])
    monkeypatch.setenv("PYTHONPATH", "")
    leave_out_working_folder()
    assert sys.path == ["", "/opt/lib"]
    assert os.environ["PYTHONPATH"] == str(ROOT)


def test_a_relative_file_of_sqlite_is_that_of_the_folder_where_the_service_was_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    assert Settings(database_url="sqlite:///x.db?a=b").app_database_url == f"sqlite:///{tmp_path}/x.db?a=b"
    for absolute in ("sqlite:////x.db", "sqlite://", "sqlite:///:memory:", "postgresql://h/x"):
        assert Settings(database_url=absolute).app_database_url == absolute
