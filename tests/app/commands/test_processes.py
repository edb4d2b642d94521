"""What the processes of a service are started with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.commands.processes import _environment
from app.settings import Settings


@pytest.mark.parametrize(("setting", "niceness"), [({}, "5"), ({"solver_niceness": 0}, "0")])
def test_solvers_beside_query_processes_have_a_smaller_share_unless_a_setting_says_otherwise(
    setting, niceness
):
    assert _environment(Settings(**setting), 9000)["STMS_SOLVER_NICENESS"] == niceness


WORKER = """
import os
from app.jobs import worker
from app.settings import Settings

class Started:
    def __init__(self, _settings, on_lost):
        print(os.getpriority(os.PRIO_PROCESS, 0))
        raise SystemExit

worker.Worker = Started
worker.run_worker(Settings())
"""


@pytest.mark.parametrize(("beside", "niceness"), [({}, 0), ({"STMS_SOLVER_NICENESS": "5"}, 2)])
def test_a_worker_without_query_processes_beside_it_has_the_usual_niceness(beside, niceness, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        env=os.environ | {"STMS_DATA_DIR": str(tmp_path)} | beside,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == max(niceness, os.getpriority(os.PRIO_PROCESS, 0))
