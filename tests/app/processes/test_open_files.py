"""The limit of open files: raised at the start, obeyed by the limit of connections, and never fatal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.processes.open_files import HARD_LIMIT, affordable_connections

IN_A_PROCESS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 60))
from app.processes.open_files import open_files, raise_open_files
from app.processes.os_process import memory_bytes
assert raise_open_files() == 60
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (60, 60)
memory_bytes()
held = []
try:
    while True:
        held.append(open("/dev/null"))
except OSError:
    pass
virtual, resident = memory_bytes()
assert virtual > resident > 10**6, (virtual, resident)
if sys.platform == "linux" and tuple(map(int, platform.release().split(".")[:2])) >= (6, 2):
    assert open_files() == 60
"""


def test_memory_and_open_files_are_read_without_a_free_descriptor():
    program = "import platform, sys" + IN_A_PROCESS
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("limit", [64, 256, 1024, 4096, 20_000, 2**20])
@pytest.mark.parametrize("pool_size", [1, 8, 200])
def test_connections_leave_files_for_everything_else(limit: int, pool_size: int):
    connections = affordable_connections(limit, pool_size)
    left = limit - int(connections * HARD_LIMIT) - connections
    assert connections >= 1
    assert left >= min(limit // 2, 224 + 4 * pool_size)
    assert connections <= affordable_connections(limit + 1, pool_size)


def test_the_usual_hard_limits_allow_the_default_number_of_connections():
    assert affordable_connections(524_288, 8) > affordable_connections(9472, 8) == 4096
    assert affordable_connections(256, 8) == 56
    assert affordable_connections(12_544, 8, beside=0.75) == 4096
