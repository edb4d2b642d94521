"""The command line as a test calls it, and a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

from app.cli import build
from app.commands.demo.temporary_server import TemporaryServer, temporary_server

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("jobs", "list")`: output, error output and exit code; no settings from the surroundings."""
    for name in ("STMS_URL", "STMS_API_KEY", "STMS_DATABASE_URL", "STMS_DATA_DIR", "STMS_HOST", "STMS_PORT"):
        monkeypatch.delenv(name, raising=False)
    runner = CliRunner()

    def call(*arguments: str, **environment: str) -> Result:
        # A wide terminal: messages are not broken into lines.
        return runner.invoke(build(*arguments[:1]), list(arguments), env={"COLUMNS": "300", **environment})

    return call


@pytest.fixture(scope="package")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryServer]:
    """A real `stms serve`, shared by the tests that only add to it."""
    quick = {"STMS_SPARE_SOLVER": "false", "STMS_SOLVER_NICENESS": "0"}
    with temporary_server(tmp_path_factory.mktemp("live"), "--no-keys", **quick) as server:
        yield server
