"""What a child gave up, shown inside a process that did: files, processes, connections, endless work."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.encoders.pool import EncoderPool
from app.encoders.specification import RND
from tests.pictures import good

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system calls are filtered on Linux")

ATTEMPTS = """
import ctypes, json, os, socket, sys
from app.encoders.sandbox import processor_seconds, restrict
call = ctypes.CDLL(None, use_errno=True).syscall
given = restrict(64 << 20, sys.argv[1])
def errno_of(attempt):
    try:
        attempt()
    except OSError as error:
        return error.errno
    except MemoryError:
        return "memory"
    return 0
attempts = {
    "open": lambda: open("/etc/passwd"),
    "socket": socket.socket,
    "fork": os.fork,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "kill": lambda: os.kill(os.getppid(), 0),
    "unlink": lambda: os.unlink("/nowhere"),
    "memory": lambda: bytearray(256 << 20),
    "clock": lambda: None,
}
if given == "limits":  # Another process would take the place of this one.
    del attempts["exec"], attempts["fork"]
result = json.dumps([given, {name: errno_of(attempt) for name, attempt in attempts.items()}])
os.write(1, result.encode())
processor_seconds(0.05)
while True:
    pass
"""


def attempts(sandbox: str) -> tuple[list, int]:
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPTS, sandbox], stdout=subprocess.PIPE, timeout=60, check=False
    )
    return json.loads(done.stdout), done.returncode


def test_the_kernel_refuses_calls_and_ends_endless_work():
    [given, errors], code = attempts("seccomp")
    assert given == "seccomp", f"no table of calls for {platform.machine()}"
    refused = dict.fromkeys(("open", "socket", "fork", "exec", "kill", "unlink"), 1)
    assert errors == {**refused, "memory": "memory", "clock": 0}
    assert code == -signal.SIGPROF


def test_limits_remain_where_calls_are_not_refused():
    [given, errors], code = attempts("limits")
    assert given == "limits"
    assert (errors["memory"], code) == ("memory", -signal.SIGPROF)


async def test_a_child_has_these_limits_and_its_environment_no_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STMS_DATABASE_URL", "postgresql://secret")
    pool = EncoderPool()
    try:
        await pool.vector(RND, good()["png"], tenant="t")
        [pid] = pool.pids
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert (lines["Seccomp"].strip(), lines["NoNewPrivs"].strip()) == ("2", "1")
        limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
        soft = {line[:26].strip(): line[26:47].strip() for line in limits.splitlines()}
        assert (soft["Max core file size"], soft["Max file size"]) == ("0", "0")
        assert int(soft["Max address space"]) < 2 << 30
        assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        opened = {path.readlink().name.split(":")[0] for path in Path(f"/proc/{pid}/fd").iterdir()}
        assert opened <= {"socket", "null"}
    finally:
        await pool.close()
