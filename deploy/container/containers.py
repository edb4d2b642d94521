"""Runs one container with the minimal privileges that the service needs."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from deploy.container.engines import Engine, EngineFailed

MEMORY: Final = "2g"
PROCESSES: Final = 256
NOTHING_MORE: Final = (
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--tmpfs=/tmp:rw,nosuid,nodev,size=512m",
    f"--memory={MEMORY}",
    f"--pids-limit={PROCESSES}",
)
"""Read-only root, no capabilities, no new privileges, and resource limits."""

READY_SECONDS: Final = 180.0
END_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Container:
    """A container by name, running or not."""

    engine: Engine
    name: str

    def python(self, code: str) -> str:
        """Run Python code in the container; returns its standard output. Raises EngineFailed."""
        return self.engine.run("exec", self.name, "python3", "-c", code)

    def logs(self, lines: int = 60) -> str:
        """The last lines of its log."""
        done = self.engine.try_run("logs", "--tail", str(lines), self.name)
        return done.stdout + done.stderr

    def state(self) -> dict[str, Any]:
        """State reported by the engine: Running, ExitCode, OOMKilled, …"""
        [found] = json.loads(self.engine.run("container", "inspect", self.name))
        state: dict[str, Any] = found["State"]
        return state

    def address(self, port: int = 8000) -> str:
        """URL of its published port on this machine."""
        published = self.engine.run("port", self.name, f"{port}/tcp").splitlines()[0]
        return f"http://127.0.0.1:{published.rpartition(':')[2]}"

    def is_healthy(self) -> bool:
        """Result of the image's health check, run now if the engine supports it, otherwise the last one."""
        if self.engine.name == "podman":
            return self.engine.try_run("healthcheck", "run", self.name).returncode == 0
        health: dict[str, Any] = self.state().get("Health") or {}
        return health.get("Status") == "healthy"

    def kill(self, signal: str) -> None:
        """Send a signal to process 1."""
        self.engine.run("kill", f"--signal={signal}", self.name)

    def wait(self) -> int:
        """Wait for the exit code. Raises EngineFailed if the container does not exit."""
        return int(self.engine.run("wait", self.name, timeout=END_SECONDS).splitlines()[-1])

    def remove(self) -> None:
        """Remove it, running or not."""
        self.engine.try_run(
            "rm", "--force", "--time=0" if self.engine.name == "podman" else "--volumes", self.name
        )


@contextlib.contextmanager
def running(
    engine: Engine,
    name: str,
    image: str,
    *command: str,
    volume: str,
    environ: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Iterator[Container]:
    """Run a container for the length of the block, with port 8000 published on a free loopback port."""
    container = Container(engine, name)
    container.remove()
    settings = [f"--env={key}={value}" for key, value in (environ or {}).items()]
    where = ("--publish=127.0.0.1::8000", f"--volume={volume}:/data", f"--name={name}", "--detach")
    try:
        engine.run("run", *where, *NOTHING_MORE, *settings, *options, image, *command)
        yield container
    except BaseException:
        print(f"--- the end of what {name} said:\n{container.logs()}---", flush=True)
        raise
    finally:
        container.remove()


def until(what: str, holds: Callable[[], bool], seconds: float = READY_SECONDS) -> float:
    """Wait for a condition; returns the seconds. Raises EngineFailed with its name after the time limit."""
    started = time.monotonic()
    while not holds():
        if time.monotonic() - started > seconds:
            raise EngineFailed(f"Not within {seconds:.0f} s: {what}.")
        time.sleep(0.1)
    return time.monotonic() - started


def is_ready(address: str) -> bool:
    """Whether the server at an address is ready."""
    try:
        return httpx.get(f"{address}/readyz", timeout=5.0, trust_env=False).is_success
    except httpx.TransportError:
        return False


def remove_volume(engine: Engine, name: str) -> None:
    """Remove a volume if it exists."""
    engine.try_run("volume", "rm", "--force", name)
