"""One container: started with everything taken from it that the service does not need, asked, ended."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from container.engines import Engine, EngineFailed

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
"""No root that can be written to, no capability, no way to get one, and limits."""

READY_SECONDS: Final = 180.0
END_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Container:
    """A container by name; it may have ended."""

    engine: Engine
    name: str

    def python(self, code: str) -> str:
        """What a few lines of Python inside print. Raises EngineFailed."""
        return self.engine.run("exec", self.name, "python3", "-c", code)

    def logs(self, lines: int = 60) -> str:
        """The end of what it said."""
        done = self.engine.try_run("logs", "--tail", str(lines), self.name)
        return done.stdout + done.stderr

    def state(self) -> dict[str, Any]:
        """What the engine knows of it: Running, ExitCode, OOMKilled, …"""
        [found] = json.loads(self.engine.run("container", "inspect", self.name))
        state: dict[str, Any] = found["State"]
        return state

    def address(self, port: int = 8000) -> str:
        """Where its port is on this machine."""
        published = self.engine.run("port", self.name, f"{port}/tcp").splitlines()[0]
        return f"http://127.0.0.1:{published.rpartition(':')[2]}"

    def is_healthy(self) -> bool:
        """The image's own health check, run now where the engine can, else as it was found last."""
        if self.engine.name == "podman":
            return self.engine.try_run("healthcheck", "run", self.name).returncode == 0
        health: dict[str, Any] = self.state().get("Health") or {}
        return health.get("Status") == "healthy"

    def kill(self, signal: str) -> None:
        """Send a signal to its first process."""
        self.engine.run("kill", f"--signal={signal}", self.name)

    def wait(self) -> int:
        """Its exit code, once it has ended. Raises EngineFailed if it does not."""
        return int(self.engine.run("wait", self.name, timeout=END_SECONDS).splitlines()[-1])

    def remove(self) -> None:
        """Away with it, running or not."""
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
    """A container for the length of the block, its port 8000 published on a free one of loopback."""
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


def once(
    engine: Engine, image: str, *command: str, volume: str, environ: Mapping[str, str] | None = None
) -> str:
    """What a command prints, run in a container of its own like all others. Raises EngineFailed."""
    settings = [f"--env={key}={value}" for key, value in (environ or {}).items()]
    return engine.run(
        "run", "--rm", *NOTHING_MORE, f"--volume={volume}:/data", *settings, image, *command, timeout=120.0
    )


def until(what: str, holds: Callable[[], bool], seconds: float = READY_SECONDS) -> float:
    """Seconds until something holds. Raises EngineFailed naming it when that takes too long."""
    started = time.monotonic()
    while not holds():
        if time.monotonic() - started > seconds:
            raise EngineFailed(f"Not within {seconds:.0f} s: {what}.")
        time.sleep(0.1)
    return time.monotonic() - started


def is_ready(address: str) -> bool:
    """Whether the server there would take requests."""
    try:
        return httpx.get(f"{address}/readyz", timeout=5.0, trust_env=False).is_success
    except httpx.TransportError:
        return False


def remove_volume(engine: Engine, name: str) -> None:
    """Away with a volume, if there is one."""
    engine.try_run("volume", "rm", "--force", name)
