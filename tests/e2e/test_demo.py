"""`stms demo` as a newcomer runs it: real processes, real data, an empty folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def start(folder: Path) -> subprocess.Popen[str]:
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "app.cli", "demo"],
        cwd=folder,
        # What the surroundings say about a server does not count, even a database out of reach.
        env=surroundings | {"TMPDIR": str(folder), "STMS_DATABASE_URL": "postgresql://127.0.0.1:1/none"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def started_by(folder: Path) -> list[int]:
    """Processes that work in ``folder``: the demo's own server is started there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            at = (process / "cwd").readlink()
        except OSError:  # it has ended, or belongs to another user
            continue
        if at.is_relative_to(folder):
            found.append(int(process.name))
    return found


def test_the_demo_ends_with_a_complete_report(tmp_path):
    demo = start(tmp_path)
    output, _ = demo.communicate(timeout=500)
    assert demo.returncode == 0, output
    means = re.search(r"^ *mean +([\d. ]+)$", output, re.MULTILINE)
    assert means, output
    measures = [float(number) for number in means[1].split()]
    # accuracy, F, AUC of teacher, SVM, gSVM-0, gSVM
    assert len(measures) == 12
    assert measures[1] > 0.96, "the teacher's mean F"
    assert measures[10] > 0.95, "gSVM's mean F"
    assert all(measure > 0.99 for measure in measures[0::3])
    for text in (
        "job queued",
        "job succeeded",
        "published digits version 1",
        '"match": true',
        "teacher / student",
    ):
        assert text in output
    for label in range(10):
        assert re.search(rf"^ *{label} +[\d.]+ ", output, re.MULTILINE), f"no line for class {label}"
    assert not list(tmp_path.iterdir()), "files were left behind"
    assert not started_by(tmp_path), "processes were left behind"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path, number):
    demo = start(tmp_path)
    assert demo.stdout is not None
    while "Uploading" not in demo.stdout.readline():
        assert demo.poll() is None
    assert started_by(tmp_path)
    demo.send_signal(number)
    demo.communicate(timeout=300)
    assert demo.returncode != 0
    assert not list(tmp_path.iterdir())
    assert not started_by(tmp_path)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_the_processes_of_a_killed_demo_end_with_it(tmp_path):
    demo = start(tmp_path)
    assert demo.stdout is not None
    while "Uploading" not in demo.stdout.readline():
        assert demo.poll() is None
    demo.kill()
    demo.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while started_by(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not started_by(tmp_path)
