"""One of two servers gets SIGTERM while queries come through a balancer that notices three seconds late."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.processes import free_port
from tests.rollout import assert_nothing_was_lost, import_faces, roll_out, start_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

STMS = Path(sys.executable).with_name("stms")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], int]]]:
    """Starts `stms api` on one database without keys; returns the process and its port."""
    processes: list[subprocess.Popen[bytes]] = []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
    subprocess.run([STMS, "db", "upgrade", "--data-dir", tmp_path], env=environment, check=True)
    environment |= {"STMS_REQUIRE_KEYS": "false", "STMS_DATA_DIR": str(tmp_path)}

    def start_one(count: int = 1) -> tuple[subprocess.Popen[bytes], int]:
        port = free_port()
        command = [STMS, "api", "--port", port, "--api-processes", count]
        processes.append(start_server(command, port, environment))
        return processes[-1], port

    yield start_one
    for process in processes:
        process.terminate()
    for process in processes:
        assert process.wait(60) == 0


@pytest.mark.parametrize("count", [1, 2])
def test_no_query_is_lost(start: Callable[..., tuple[subprocess.Popen[bytes], int]], count: int):
    (old, old_port), (_, new_port) = start(count), start()
    import_faces(new_port)
    found = roll_out(old, old_port, new_port)
    assert_nothing_was_lost(found)
    assert found.ended_after < 30
