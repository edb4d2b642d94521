"""`stms ping`: health check of a server or a worker, also used by containers."""

from __future__ import annotations

import socket
import ssl
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
from stms_client.calls import get

_SERVES = {"serve", "api"}
_TRAINS = {"serve", "worker"}


@dataclass(frozen=True, slots=True)
class ServiceCommand:
    """The command line of a service process; None for options that come from the environment."""

    command: str
    host: str | None = None
    port: int | None = None
    data_dir: Path | None = None

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> ServiceCommand:
        """Parse a command line, ignoring everything before the command. Raises CommandFailed for others."""
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
            "The first process of this container is not `stms serve`, `stms api` or `stms worker`."
        )


def ping(
    server: Annotated[
        str | None,
        typer.Option(
            envvar="STMS_URL", help="Address of the server.", show_default="from STMS_HOST and STMS_PORT"
        ),
    ] = None,
    worker: Annotated[
        bool, typer.Option("--worker", help="Check the heartbeat of this machine's worker instead.")
    ] = False,
    container: Annotated[
        bool, typer.Option("--container", help="Check the service that process 1 of the container runs.")
    ] = False,
) -> None:
    """Check that a server is ready or that a worker is running; exit code 0 if so.

    The check fails for a server or a worker that cannot reach its database. That of a container succeeds
    for a server which still answers queries of loaded models.

    Example:  stms ping --server http://127.0.0.1:8000
    """
    if not container:
        settings = read_settings()
        if worker:
            ping_worker(settings)
        else:
            ping_server(server) if server else ping_own_server(settings, "/readyz")
        return
    running = ServiceCommand.parse(first_command_line())
    settings = read_settings(host=running.host, port=running.port, data_dir=running.data_dir)
    if running.command in _SERVES:
        ping_own_server(settings, "/readyz/queries")
    if running.command in _TRAINS:
        ping_worker(settings)


def ping_server(address: str, path: str = "/readyz", ca: ssl.SSLContext | None = None) -> None:
    """Check that a server is ready by what it answers at ``path``. Raises CommandFailed if it is not.

    ca: what it must show; by default a certificate that this machine trusts.
    """
    with connect(address, None, ca=ca) as client:
        client.do(get(path, object))
    say(f"{address} is ready.")


def ping_own_server(settings: Settings, path: str) -> None:
    """As `ping_server` for the server of these settings, whose certificate may be made for any name."""
    ca = None
    if settings.tls_certificate is not None:
        ca = ssl.create_default_context(cafile=settings.tls_certificate)
        ca.check_hostname = False
        ca.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if settings.tls_client_ca is not None and settings.tls_key is not None:
            # The server accepts it if one of those authorities has signed it, too.
            ca.load_cert_chain(settings.tls_certificate, settings.tls_key)
    ping_server(own_address(settings, settings.port), path, ca)


def ping_worker(settings: Settings) -> None:
    """Check that a worker of this machine has a recent heartbeat. Raises CommandFailed if none has."""
    host = socket.gethostname()[:255]
    with open_store(settings.data_dir) as store, store.read() as uow:
        now = uow.workers.clock()
        ages = [now - worker.beat_at for worker in uow.workers.all() if worker.host == host]
    if not any(age <= settings.takeover_seconds for age in ages):
        last = f"the last heartbeat is {min(ages):.0f} s old" if ages else "there is no heartbeat"
        raise CommandFailed(f"No worker of {host} is running: {last}.")
    say(f"A worker of {host} is running.")


def first_command_line() -> list[str]:
    """The command line of process 1: in a container the service itself, or its init program."""
    return Path("/proc/1/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")


def _value(options: Sequence[str], name: str) -> str | None:
    """The value of an option, given as ``--name value`` or ``--name=value``."""
    for position, option in enumerate(options):
        if option.startswith(f"{name}="):
            return option.partition("=")[2]
        if option == name and position + 1 < len(options):
            return options[position + 1]
    return None
