"""Programs that are started in a folder with planted modules: none of these may be imported.

Each planted module leaves a mark when it is imported. The programs are those of an installation: `stms
serve`, `stms api` with two processes and `stms worker`; the first one also reads a file and trains.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import httpx

from lab.verification.limits.judgement import Judgement
from lab.verification.limits.stage import ENDED, small_csv, submit, upload
from tests.system.deployment import environment
from tests.system.processes import Process, free_port

STMS: Final = Path(sys.executable).with_name("stms")
MODULES: Final = (
    *("app", "core", "numpy", "typer", "click", "sitecustomize", "usercustomize", "sqlalchemy", "uvicorn"),
    *("pydantic", "httpx", "pyarrow", "numba", "scipy", "dbos", "psycopg", "json", "zmq"),
)
PACKAGES: Final = ("app", "core", "numpy")
"""The ones of `MODULES` that are planted as packages."""
_PLANTED: Final = """
import os, sys
with open(os.path.join({marks!r}, __name__ + "-" + str(os.getpid())), "w") as mark:
    mark.write(" ".join(sys.orig_argv))
raise ImportError("This module was planted in the working folder.")
"""
_OF_PYTHON: Final = ("PYTHONPATH", "PYTHONSAFEPATH")
_JOB_SECONDS: Final = 60.0
_WORKER_SECONDS: Final = 60.0


def measure(judgement: Judgement, cores: str, *, quick: bool) -> None:  # noqa: ARG001
    """Start each program in such a folder."""
    for name, command in {
        "serve": ["serve"],
        "api": ["api", "--api-processes", "2"],
        "worker": ["worker"],
    }.items():
        with tempfile.TemporaryDirectory(prefix="stms-folders-") as folder:
            outcome, marks = start_in_planted_folder(Path(folder), command, cores)
        judgement.equal(f"folders_{name}_outcome", outcome, "works")
        judgement.equal(f"folders_{name}_imported", marks, [])


def start_in_planted_folder(folder: Path, command: list[str], cores: str) -> tuple[str, list[str]]:
    """Run a program in a folder with planted modules: "works" or what failed, and which were imported."""
    working, marks, data = folder / "working", folder / "marks", folder / "data"
    for each in (working, marks, data):
        each.mkdir(mode=0o700)
    plant(working, marks)
    # What the caller's environment says about modules and settings is not what is measured.
    environ = environment({"STMS_DATA_DIR": str(data)})
    environ = {name: value for name, value in environ.items() if name not in _OF_PYTHON}
    if command[0] != "serve":
        upgrade: list[str | Path] = [STMS, "db", "upgrade"]
        subprocess.run(upgrade, env=environ, check=True, capture_output=True, cwd=folder)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    is_worker = command[0] == "worker"
    program: list[str | Path] = [STMS, *command, *([] if is_worker else ["--port", str(port)])]
    probe = "" if is_worker else f"{url}/livez"
    try:
        with Process(command[0], program, working, environ, cores=cores, url=probe) as process:
            if is_worker:
                outcome = _takes_jobs(process)
            else:
                outcome = _train(url, data / "admin.key") if command[0] == "serve" else "works"
    except (RuntimeError, OSError, httpx.HTTPError) as error:
        outcome = f"{type(error).__name__}: {str(error)[-300:]}"
    return outcome, sorted({mark.name.partition("-")[0] for mark in marks.iterdir()})


def _takes_jobs(worker: Process) -> str:
    """Wait until an idle worker says that it takes jobs; the one of `stms serve` trains, with a solver."""
    deadline = time.monotonic() + _WORKER_SECONDS
    while worker.is_running and time.monotonic() < deadline:
        if "takes jobs" in worker.said():
            return "works"
        time.sleep(0.2)
    return "takes no jobs" if worker.is_running else "ended"


def plant(folder: Path, marks: Path) -> None:
    """Put the modules into a folder. marks: where each leaves a file when it is imported."""
    for name in MODULES:
        path = folder / name / "__init__.py" if name in PACKAGES else folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(_PLANTED.format(marks=str(marks)), encoding="utf-8")


def _train(url: str, key: Path) -> str:
    """Upload a file and train on it, so that the reader of files, the worker and a solver run."""
    headers = {"Authorization": f"Bearer {key.read_text(encoding='ascii').strip()}"}
    deadline = time.monotonic() + _JOB_SECONDS
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
        dataset = upload(client, small_csv(0)).raise_for_status().json()["id"]
        job = submit(client, dataset, "planted").raise_for_status().json()
        while job["state"] not in ENDED and time.monotonic() < deadline:
            time.sleep(0.5)
            job = client.get(f"/v1/training-jobs/{job['id']}").raise_for_status().json()
    return "works" if job["state"] == "succeeded" else f"the job is {job['state']}"
