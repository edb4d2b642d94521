"""`stms serve`, `stms api`, `stms worker`: start the processes of the service."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.markup import escape

from app.commands.options import DataOption, read_settings
from app.commands.output import CommandFailed, error_console, failures_printed
from app.domain.installation import has_jobs, require_training
from app.logs import message_line
from app.processes.listener import CannotListen, ProcessContext, listen, require_free
from app.processes.manager import Manager
from app.processes.tuning import leave_out_of_collections
from app.settings import Settings

if TYPE_CHECKING:
    from app.services.first_key import FirstKey

HostOption = Annotated[
    str | None, typer.Option("--host", help="Address to listen on.", show_default="STMS_HOST or 127.0.0.1")
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--port", min=0, max=65535, help="Port; 0 picks a free one.", show_default="STMS_PORT or 8000"
    ),
]
ApiProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--api-processes",
        min=1,
        max=64,
        help="Processes that answer queries.",
        show_default="STMS_API_PROCESSES or 1",
    ),
]
BundleOption = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        help="Serve this bundle, or those of this folder, without a database.",
        show_default="STMS_BUNDLE",
    ),
]
BundleModelOption = Annotated[
    str | None,
    typer.Option(
        "--model-name", help="Name of its model.", show_default="STMS_BUNDLE_MODEL, or what the bundle says"
    ),
]
NoKeysOption = Annotated[
    bool,
    typer.Option(
        "--no-keys",
        help="Answer requests from this machine without an API key.",
        show_default="STMS_REQUIRE_KEYS",
    ),
]

_BESIDE_QUERIES: Final = 5
"""Niceness of solvers beside query processes: a third of the weight of these."""


def serve(
    host: HostOption = None,
    port: PortOption = None,
    data_dir: DataOption = None,
    api_processes: ApiProcessesOption = None,
    no_keys: NoKeysOption = False,
) -> None:
    """Start the API and one worker together; Ctrl-C stops both.

    Migrates the database first. The first start makes an API key in the file admin.key of the data folder,
    where the other commands find it. A worker that crashes is restarted.

    Example:  stms serve --port 9000 --data-dir /var/lib/stms
    """
    from app.commands.database import upgrade_database
    from app.database_check import check_database
    from app.services.first_key import FILE_NAME

    require_training()
    settings = _read_settings(host, port, data_dir, api_processes, no_keys)
    if settings.bundle is not None:
        # The keys of the file would replace those of the database.
        raise CommandFailed("STMS_BUNDLE is for `stms api`, which answers queries alone: leave it out here.")
    _check_certificate(settings)
    _check_grpc(settings)
    try:
        free_port = require_free(settings.host, settings.port)
    except CannotListen as error:
        raise CommandFailed(str(error), ["Choose another with --port or STMS_PORT."]) from error
    upgrade_database(settings.app_database_url)
    address = own_address(settings, free_port)
    _report_first_key(check_database(settings), _reporter(settings, "stms serve"))
    file = settings.data_dir / FILE_NAME
    has_file = settings.require_keys and file.exists()
    if settings.dashboard:
        entry = f": sign in with the key in {file}" if has_file else ""
        _report(f"Dashboard: {address}/{entry}")
    if has_file:
        trusted = "" if settings.tls_certificate is None else f"--cacert {settings.tls_certificate} "
        _report(f'Try: curl {trusted}-H "Authorization: Bearer $(cat {file})" {address}/v1/models')
    _manage(settings, free_port, "stms serve", address, worker=True)


def api(
    host: HostOption = None,
    port: PortOption = None,
    data_dir: DataOption = None,
    api_processes: ApiProcessesOption = None,
    # What the manager passes to its processes.
    context: Annotated[str | None, typer.Option("--process-context", hidden=True)] = None,
    control_socket: Annotated[Path | None, typer.Option("--control-socket", hidden=True)] = None,
    no_keys: NoKeysOption = False,
    bundle: BundleOption = None,
    model_name: BundleModelOption = None,
) -> None:
    """Start only the API. Run `stms db upgrade` first, and `stms worker` for training.

    Like `stms serve`, it makes the first API key. Queries are answered by processes of their own, and all
    other requests by a control process behind them. SIGHUP replaces all processes one at a time without
    dropping requests.

    With --bundle it needs no database: it answers queries of the models in files, with the keys of
    STMS_KEYS_FILE, and SIGHUP reads the files again.

    Example:  stms api --api-processes 4
    """
    settings = _read_settings(
        host, port, data_dir, api_processes, no_keys, bundle=bundle, bundle_model=model_name
    )
    _check_certificate(settings)
    if context is not None:
        raise typer.Exit(_serve_process(settings, context, control_socket))
    _check_grpc(settings)
    if settings.bundle is not None:
        _serve_bundles(settings)
    from app.database_check import check_database

    _report_first_key(check_database(settings), _reporter(settings, "stms api"))
    _manage(settings, require_free(settings.host, settings.port), "stms api")


def _serve_bundles(settings: Settings) -> NoReturn:
    """Store models and keys of files in a new database, which is deleted at the end, and serve them."""
    from app.bundle_server import open_bundle_server
    from app.store.schema import create_schema

    port = require_free(settings.host, settings.port)
    folder = Path(tempfile.mkdtemp(prefix="stms-bundle-"))
    try:
        settings = settings.model_copy(update={"data_dir": folder, "dashboard": False})
        create_schema(settings.app_database_url)
        with open_bundle_server(settings, _reporter(settings, "stms api")):
            pass
        _manage(settings, port, "stms api")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve_process(settings: Settings, context: str, control_socket: Path | None) -> int:
    """Run a query process, or without the socket of the control process that process itself."""
    process = ProcessContext.inherited(*map(int, context.split(":")))
    if control_socket is None:
        from app.main import run_control

        return run_control(settings, process)
    from app.query_process import run_query_process

    return run_query_process(settings, process, control_socket)


class _Forks:
    """The processes of a manager, which are forks of this one. has_jobs: whether the service trains."""

    def __init__(self, *, has_jobs: bool) -> None:
        self._has_jobs = has_jobs

    def load(self) -> None:
        """Load the job engine and the specification of jobs, with all learners that it names."""
        if not self._has_jobs:
            return
        import app.jobs.engine.client
        import app.services.training  # noqa: F401

        leave_out_of_collections()

    def serve(self, context: str, control: Path | None) -> int:
        """A server process."""
        return _exit_code(lambda: _serve_process(read_settings(), context, control))

    def work(self) -> int:
        """A worker."""
        from app.jobs.worker import run_worker

        return _exit_code(lambda: run_worker(read_settings()))


def _exit_code(run: Callable[[], int]) -> int:
    try:
        with failures_printed():
            return run()
    except typer.Exit as ended:
        return ended.exit_code


def _manage(settings: Settings, port: int, name: str, address: str = "", *, worker: bool = False) -> NoReturn:
    """Run the processes of a server until a signal, and exit."""
    # What all of them need, once: they are forks of this process.
    import app.query_process  # noqa: F401

    leave_out_of_collections()
    listener = listen(settings.host, port)
    manager = Manager(
        listener,
        _environment(settings, listener.getsockname()[1]),
        _reporter(settings, name),
        size=settings.api_processes,
        grace=settings.drain_seconds,
        worker=worker,
        address=address,
        forks=_Forks(has_jobs=has_jobs(settings.bundle)),
    )
    raise typer.Exit(manager.run())


def worker(data_dir: DataOption = None) -> None:
    """Start only a worker process, which runs queued training jobs until it receives SIGTERM."""
    require_training()
    from app.jobs.worker import run_worker

    raise typer.Exit(run_worker(read_settings(data_dir=data_dir)))


def own_address(settings: Settings, port: int) -> str:
    """URL by which local processes reach a server with these settings that listens at ``port``."""
    host = settings.host
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    scheme = "http" if settings.tls_certificate is None else "https"
    return f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"


def _environment(settings: Settings, port: int) -> dict[str, str]:
    """Environment of the child processes: this one, with the options of the command line.

    A worker among them has query processes beside it, so that its solvers have a smaller share.
    """
    niceness = _BESIDE_QUERIES if settings.solver_niceness is None else settings.solver_niceness
    return os.environ | {
        "STMS_SOLVER_NICENESS": str(niceness),
        "STMS_HOST": settings.host,
        "STMS_PORT": str(port),
        "STMS_DATA_DIR": str(settings.data_dir.absolute()),
        "STMS_API_PROCESSES": str(settings.api_processes),
        "STMS_REQUIRE_KEYS": str(settings.require_keys).lower(),
        "STMS_DASHBOARD": str(settings.dashboard).lower(),
        **({"STMS_BUNDLE": str(settings.bundle.absolute())} if settings.bundle else {}),
        **({"STMS_BUNDLE_MODEL": settings.bundle_model} if settings.bundle_model else {}),
    }


def _read_settings(
    host: str | None,
    port: int | None,
    data_dir: Path | None,
    api_processes: int | None,
    no_keys: bool,
    **options: Any,
) -> Settings:
    settings = read_settings(
        host=host,
        port=port,
        data_dir=data_dir,
        api_processes=api_processes,
        require_keys=False if no_keys else None,
        **options,
    )
    _check_issuers(settings)
    _check_bundle_keys(settings)
    return settings


def _check_issuers(settings: Settings) -> None:
    """Raise CommandFailed or SetupError if tokens of the issuers in the settings cannot be verified."""
    if not settings.token_issuers:
        return
    try:
        from app.auth.jwks import check_files
    except ImportError as error:
        advice = "Install them with: pip install 'stms[oidc]'"
        message = f"STMS_TOKEN_ISSUERS needs PyJWT and cryptography ({error})."
        raise CommandFailed(message, [advice]) from error
    check_files(settings.token_issuers)


def _check_bundle_keys(settings: Settings) -> None:
    """Raise CommandFailed if signatures of bundles cannot be verified as the settings ask for."""
    if settings.bundle_keys is None:
        return
    try:
        from app.domain.errors import ServiceError
        from app.ingest.bundle_signature import read_keys
        from app.services.bundle_import import trusted_keys
    except ImportError as error:
        advice = "Install it with: pip install 'stms[signing]'"
        raise CommandFailed(f"STMS_BUNDLE_KEYS needs cryptography ({error}).", [advice]) from error
    try:
        read_keys(trusted_keys(settings) or "")
    except (ServiceError, ValueError) as error:
        raise CommandFailed(f"{settings.bundle_keys} cannot be used: {error}.") from error


def _check_certificate(settings: Settings) -> None:
    """Raise SetupError if the settings name a certificate that cannot be used."""
    from app.server.tls import certificate_of

    certificate_of(settings)


def _check_grpc(settings: Settings) -> None:
    """Raise CommandFailed if the settings want gRPC, and it is not installed or its port is in use."""
    if settings.grpc_port is None:
        return
    try:
        from app.server import grpc_listener  # noqa: F401
        from app.serving.open_inference.grpc import descriptors  # noqa: F401
    except ImportError as error:
        advice = "Install them with: pip install 'stms[grpc]'"
        raise CommandFailed(f"STMS_GRPC_PORT needs grpcio and protobuf ({error}).", [advice]) from error
    try:
        # Processes share the port, so that one of another service would get a part of the connections.
        require_free(settings.host, settings.grpc_port)
    except CannotListen as error:
        raise CommandFailed(str(error), ["Choose another with STMS_GRPC_PORT."]) from error


def _report_first_key(first: FirstKey, report: Callable[[str], None]) -> None:
    """Say what was done about the first API key; if one was made, how to use it and how to do without."""
    if first.note is not None:
        report(first.note)
    if first.made is not None:
        error_console().print(
            "[bold]stms[/] Requests need an API key, and there was none: the first one is now in "
            f"{first.made}.\n"
            "Commands and the Python client find it on this machine if STMS_DATA_DIR or the working folder "
            "leads there; other programs send it as: Authorization: Bearer …\n"
            "Without keys, for this machine alone: --no-keys or STMS_REQUIRE_KEYS=false."
        )


def _reporter(settings: Settings, name: str) -> Callable[[str], None]:
    """Writes messages of a parent process to standard error, in the format of the log."""
    if settings.log_format == "json":
        return lambda line: print(message_line(name, line), file=sys.stderr, flush=True)
    return lambda line: error_console().print(f"[bold]{name}[/] {escape(line)}")


def _report(line: str) -> None:
    error_console().print(f"[bold]stms serve[/] {line}")
