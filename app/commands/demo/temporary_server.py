"""Runs a real `stms serve` in a temporary folder on a free port, and deletes the folder afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.commands.output import CommandFailed
from app.processes.listener import require_free
from app.processes.os_process import terminate_with_parent
from app.services.first_key import FILE_NAME

_READY_SECONDS = 180.0
_END_SECONDS = 20.0
_LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class TemporaryServer:
    """Address, API key and files of the server."""

    address: str
    data_dir: Path
    log: Path

    @property
    def key(self) -> str:
        """The API key that the server made at its start."""
        return (self.data_dir / FILE_NAME).read_text(encoding="ascii").strip()

    def last_lines(self) -> list[str]:
        """The last lines of its log, for an error message."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-_LOG_LINES:]


@contextmanager
def temporary_server(folder: Path, *options: str, **settings: str) -> Iterator[TemporaryServer]:
    """Run API and worker on a free loopback port, with all data in ``folder``; the block's end stops both.

    options: of `stms serve`, such as ``--no-keys``. settings: variables STMS_* to set; those of the
    surroundings are ignored. Raises CommandFailed with the last lines of the log if the server does not
    become ready.
    """
    port = require_free("127.0.0.1", 0)
    server = TemporaryServer(f"http://127.0.0.1:{port}", folder / "stms-data", folder / "server.log")
    settings |= {"STMS_HOST": "127.0.0.1", "STMS_PORT": str(port), "STMS_DATA_DIR": str(server.data_dir)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
    with server.log.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", "app.cli", "serve", *options],
            env=environment | settings,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=terminate_with_parent(),  # noqa: PLW1509
        )
        try:
            _wait_until_ready(server, process)
            yield server
        finally:
            _end(process)


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Convert SIGTERM to SystemExit, so that context managers and finally clauses run."""
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_until_ready(server: TemporaryServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    with httpx.Client(base_url=server.address, timeout=5, trust_env=False) as client:
        while not _is_ready(client):
            if process.poll() is not None:
                raise CommandFailed(
                    f"The server ended with exit code {process.returncode}.", server.last_lines()
                )
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"The server was not ready after {_READY_SECONDS:.0f} s.", server.last_lines()
                )
            time.sleep(0.05)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").is_success
    except httpx.TransportError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        # Its children end when it dies.
        process.kill()
        process.wait()


@contextmanager
def with_log(server: TemporaryServer) -> Iterator[None]:
    """Add the last lines of the server's log to a failure."""
    try:
        yield
    except CommandFailed as failure:
        lines = [*failure.details, "Last lines of the server's log:", *server.last_lines()]
        raise CommandFailed(failure.message, lines) from failure
