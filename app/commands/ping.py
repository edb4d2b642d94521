"""`stms ping`: whether a process of the service does its work. The health check of containers."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from app.commands.database import open_store
from app.commands.options import read_settings
from app.commands.output import CommandFailed, say
from app.commands.processes import own_address
from app.commands.remote import connect
from app.settings import Settings

_SERVES = {"serve", "api"}
_TRAINS = {"serve", "worker"}


@dataclass(frozen=True, slots=True)
class Started:
    """How a process of the service was started; None for what was left to the environment."""

    command: str
    host: str | None = None
    port: int | None = None
    data_dir: Path | None = None

    @classmethod
    def by(cls, arguments: Sequence[str]) -> Started:
        """From a command line, whatever stands before the command. Raises CommandFailed if it is another."""
        for position, argument in enumerate(arguments):
            if argument in _SERVES | _TRAINS:
                options = arguments[position + 1 :]
                port, folder = _value(options, "--port"), _value(options, "--data-dir")
                return cls(
                    argument,
                    _value(options, "--host"),
                    None if port is None else int(port),
                    None if folder is None else Path(folder),
                )
        raise CommandFailed(
            "The first process of this container is neither of `stms serve`, `api`, `worker`."
        )


def ping(
    server: Annotated[
        str | None,
        typer.Option(
            envvar="STMS_URL", help="Address of the server. [default: the one of STMS_HOST, STMS_PORT]"
        ),
    ] = None,
    worker: Annotated[
        bool, typer.Option("--worker", help="Ask after this machine's worker instead, by its heartbeat.")
    ] = False,
    container: Annotated[
        bool, typer.Option("--container", help="Ask after whatever the first process here is to do.")
    ] = False,
) -> None:
    """Ask whether a server is ready, or a worker at work; exit code 0 if so (health checks use this).

    A server that cannot reach its database is not ready, a worker that cannot is not at work.

    Example:  stms ping --server http://127.0.0.1:8000
    """
    if not container:
        settings = read_settings()
        if worker:
            ping_worker(settings)
        else:
            ping_server(server or own_address(settings.host, settings.port))
        return
    started = Started.by(first_command_line())
    settings = read_settings(host=started.host, port=started.port, data_dir=started.data_dir)
    if started.command in _SERVES:
        ping_server(own_address(settings.host, settings.port))
    if started.command in _TRAINS:
        ping_worker(settings)


def ping_server(address: str) -> None:
    """Say that a server is ready. Raises CommandFailed if it is not."""
    with connect(address, None) as client:
        client.get("/readyz")
    say(f"{address} is ready.")


def ping_worker(settings: Settings) -> None:
    """Say that a worker of this machine is at work. Raises CommandFailed if none was heard of lately."""
    host = socket.gethostname()[:255]
    with open_store(settings.data_dir) as store, store.read() as uow:
        ages = [time.time() - worker.beat_at for worker in uow.workers.all() if worker.host == host]
    if not any(age <= settings.takeover_seconds for age in ages):
        last = f"the last beat is {min(ages):.0f} s old" if ages else "there is no heartbeat"
        raise CommandFailed(f"No worker of {host} is at work: {last}.")
    say(f"A worker of {host} is at work.")


def first_command_line() -> list[str]:
    """Of process 1, which in a container is the service itself or the init program that was given it."""
    return Path("/proc/1/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")


def _value(options: Sequence[str], name: str) -> str | None:
    """What was given for an option, as ``--name value`` or ``--name=value``."""
    for position, option in enumerate(options):
        if option.startswith(f"{name}="):
            return option.partition("=")[2]
        if option == name and position + 1 < len(options):
            return options[position + 1]
    return None
