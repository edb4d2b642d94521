"""Checks that run inside a container."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from deploy.container.containers import Container
from deploy.container.report import Report

TOOLS: Final = (
    "cc",
    "gcc",
    "c++",
    "g++",
    "clang",
    "cpp",
    "ld",
    "as",
    "strip",
    "make",
    "pip",
    "pip3",
    "wheel",
)

_EXAMINE: Final = """
import ctypes, importlib.util, json, os, shutil
status = dict(line.split(":\\t", 1) for line in open("/proc/1/status").read().splitlines() if ":\\t" in line)
def writable(folder):
    try:
        open(os.path.join(folder, "probe"), "w").close()
        os.remove(os.path.join(folder, "probe"))
        return True
    except OSError:
        return False
def first(*files):
    return next((open(name).read().strip() for name in files if os.path.exists(name)), None)
folders = ("/", "/etc", "/usr", "/opt/venv", "/var/lib", "/data", "/tmp")
print(json.dumps({
    "uids": status["Uid"].split(), "gids": status["Gid"].split(),
    "capabilities": [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "writable": [folder for folder in folders if writable(folder)],
    "tools": [tool for tool in %(tools)r if shutil.which(tool)],
    "modules": [name for name in ("pip", "setuptools", "ensurepip") if importlib.util.find_spec(name)],
    "set_user": [os.path.join(at, name) for at, _, names in os.walk("/usr") for name in names
                 if os.lstat(os.path.join(at, name)).st_mode & 0o6000],
    "memory": first("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    "processes": first("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"),
    "bytecode": importlib.util.find_spec("stms.app.main").cached,
    "compiled": os.path.exists(importlib.util.find_spec("stms.app.main").cached),
}))
"""

_PEAK: Final = """
import os
os.chdir("/sys/fs/cgroup")
names = ("memory.peak", "memory/memory.max_usage_in_bytes", "memory.current")
print(next(open(name).read() for name in names if os.path.exists(name)))
"""

_SIGNAL: Final = """
import os, pathlib, signal
for place in pathlib.Path("/proc").glob("[0-9]*/comm"):
    try:
        name = place.read_text().strip()
    except OSError:
        continue
    if name == "stms worker":
        os.kill(int(place.parent.name), signal.%s)
        break
else:
    raise SystemExit("There is no worker.")
"""

_SOLVERS: Final = """
import pathlib, time
def ticks():
    found = {}
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if "stms.app.jobs.solver" in (place / "cmdline").read_text().split("\\0"):
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                found[place.name] = int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return found
before = ticks()
time.sleep(0.5)
print(sum(now > before.get(pid, now) for pid, now in ticks().items()))
"""


def examine(container: Container, report: Report) -> None:
    """User, privileges, writable paths, tools and limits of the first process. Raises Refuted."""
    found: dict[str, Any] = json.loads(container.python(_EXAMINE % {"tools": TOOLS}))
    report.holds({*found["uids"], *found["gids"]} == {"10001"}, "It runs as user and group 10001.")
    report.holds(not any(found["capabilities"]), "It has no capability and cannot be given one.")
    report.holds(found["no_new_privileges"] == "1", "It cannot get new privileges.")
    report.holds(found["set_user"] == [], "No program in it runs as somebody else.")
    report.holds(
        found["writable"] == ["/data", "/tmp"], f"It can write to {' and '.join(found['writable'])} only."
    )
    report.holds(
        found["tools"] == found["modules"] == [],
        f"There is neither compiler nor installer in it{_listed(found['tools'] + found['modules'])}.",
    )
    report.holds(found["compiled"], "Its modules are compiled.")
    limits = int(found["memory"]), int(found["processes"])
    report.holds(
        limits == (2 * 1024**3, 256), f"Its limits are {limits[0] / 1e9:.1f} GB and {limits[1]} processes."
    )


def memory_peak(container: Container) -> int:
    """Peak memory of all processes in bytes; the current value if the kernel records no peak."""
    return int(container.python(_PEAK))


def first_key(container: Container) -> str:
    """The API key that the service made at its first start."""
    return container.python("print(open('/data/stms/admin.key').read())").strip()


def signal_worker(container: Container, name: str) -> None:
    """Send a signal to the worker process of `stms serve`."""
    container.python(_SIGNAL % name)


def busy(containers: Sequence[Container]) -> list[Container]:
    """Processes in which a solver is computing."""
    return [container for container in containers if int(container.python(_SOLVERS)) > 0]


def _listed(found: list[str]) -> str:
    return f" (but: {', '.join(found)})" if found else ""
