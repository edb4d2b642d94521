"""`stms serve`, `stms api`, `stms worker`: start the processes of the service."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from app.commands.options import DataOption, read_settings
from app.commands.output import CommandFailed, error_console
from app.processes.listener import CannotListen, ProcessContext, listen, require_free
from app.processes.supervisor import Supervisor
from app.settings import Settings

HostOption = Annotated[
    str | None, typer.Option("--host", help="Address to listen on. [default: STMS_HOST or 127.0.0.1]")
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Port; 0 picks a free one. [default: STMS_PORT or 8000]"),
]
ApiProcessesOption = Annotated[
    int | None,
    # The second name is the old one.
    typer.Option(
        "--api-processes",
        "--workers",
        min=1,
        max=64,
        help="Server processes. [default: STMS_API_PROCESSES or 1]",
    ),
]


def serve(
    host: HostOption = None,
    port: PortOption = None,
    data_dir: DataOption = None,
    api_processes: ApiProcessesOption = None,
) -> None:
    """Start the API and one worker together; Ctrl-C stops both.

    Migrates the database first. A worker that crashes is restarted.

    Example:  stms serve --port 9000 --data-dir /var/lib/stms
    """
    from app.commands.database import upgrade_database

    settings = read_settings(host=host, port=port, data_dir=data_dir, api_processes=api_processes)
    try:
        free_port = require_free(settings.host, settings.port)
    except CannotListen as error:
        raise CommandFailed(str(error), ["Choose another with --port or STMS_PORT."]) from error
    upgrade_database(settings.app_database_url)
    supervisor = Supervisor(
        own_address(settings.host, free_port),
        _environment(settings, free_port),
        _report,
        can_roll=settings.api_processes > 1,
        grace=settings.drain_seconds,
    )
    raise typer.Exit(supervisor.run())


def api(
    host: HostOption = None,
    port: PortOption = None,
    data_dir: DataOption = None,
    api_processes: ApiProcessesOption = None,
    # A parent of an older release passes the second name during a rolling restart.
    context: Annotated[str | None, typer.Option("--process-context", "--place", hidden=True)] = None,
) -> None:
    """Start only the API. Run `stms db upgrade` first, and `stms worker` for training.

    With several processes, SIGHUP replaces them one at a time without dropping requests.

    Example:  stms api --api-processes 4
    """
    from app.auth.authenticator import InsecureBinding
    from app.main import run_api
    from app.processes.scoreboard import ScoreboardMismatch
    from app.store.migrate import SchemaOutdated

    settings = read_settings(host=host, port=port, data_dir=data_dir, api_processes=api_processes)
    try:
        if context is not None:
            code = run_api(settings, ProcessContext.inherited(*map(int, context.split(":"))))
        else:
            code = _run_prefork(settings) if settings.api_processes > 1 else run_api(settings)
    except (SchemaOutdated, InsecureBinding, ScoreboardMismatch, CannotListen) as error:
        raise CommandFailed(str(error)) from error
    raise typer.Exit(code)


def _run_prefork(settings: Settings) -> int:
    from app.main import check_database
    from app.processes.prefork import Prefork

    check_database(settings)
    listener = listen(settings.host, settings.port)
    return Prefork(
        listener,
        _environment(settings, listener.getsockname()[1]),
        lambda line: error_console().print(f"[bold]stms api[/] {line}"),
        size=settings.api_processes,
        grace=settings.drain_seconds,
    ).run()


def worker(data_dir: DataOption = None) -> None:
    """Start only a worker process, which runs queued training jobs until it receives SIGTERM."""
    from app.jobs.worker import run_worker

    raise typer.Exit(run_worker(read_settings(data_dir=data_dir)))


def own_address(host: str, port: int) -> str:
    """URL by which local processes reach a server that listens on ``host``."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _environment(settings: Settings, port: int) -> dict[str, str]:
    """Environment of the child processes: this one, with the options of the command line."""
    return os.environ | {
        "STMS_HOST": settings.host,
        "STMS_PORT": str(port),
        "STMS_DATA_DIR": str(settings.data_dir.absolute()),
        "STMS_API_PROCESSES": str(settings.api_processes),
    }


def _report(line: str) -> None:
    error_console().print(f"[bold]stms serve[/] {line}")
