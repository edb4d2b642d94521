"""What processes have used, and what is said of one that does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.processes import Process, cpu_seconds, family, free_port

SPINNING_CHILD = r"""
import subprocess, sys
spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ntime.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", spin])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.long
def test_cpu_time_is_that_of_a_process_and_its_children():
    process = subprocess.Popen([sys.executable, "-c", SPINNING_CHILD], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.stdout.readline()
        pids = family(process.pid)
        assert pids == [process.pid, child]
        assert 0.28 <= cpu_seconds(pids) - cpu_seconds(pids[:1]) < 1.0
        os.kill(child, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_does_not_answer_is_reported_with_its_log(tmp_path: Path):
    command = [sys.executable, "-c", "print('no such luck')"]
    core = min(os.sched_getaffinity(0))
    process = Process("unlucky", command, tmp_path, cores=core, url=f"http://127.0.0.1:{free_port()}/")
    with pytest.raises(RuntimeError, match="no such luck"), process:
        pass
