"""Our server as it runs in earnest: `stms api` on its own database, with API keys, limits and metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.services.keys import create_key
from app.settings import Settings
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from benchmarks.processes import family, free_port, running, wait_until_it_answers
from benchmarks.published import linear_student, linear_teacher, publish

FEATURES = 64
CLASSES = 10


@dataclass(frozen=True, slots=True)
class Service:
    """A running service. key: may query. admin: may everything. log: file with what it says."""

    process: subprocess.Popen[bytes]
    url: str
    key: str
    admin: str
    log: Path

    def query(self, model: str, label: str, *, action: str = ":query") -> str:
        """Where to ask one class; without a label the model."""
        return f"{self.url}/v1/models/{model}" + (f"/classes/{label}" if label else "") + action

    def headers(self, **more: str) -> dict[str, str]:
        """Of a query in JSON; more: others, with _ for -."""
        given = {name.replace("_", "-"): value for name, value in more.items()}
        return {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"} | given

    def ask(self, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """One answer. Raises urllib.error.HTTPError unless it is one."""
        request = urllib.request.Request(url, body, dict(headers))
        with urllib.request.urlopen(request, timeout=30) as answer:
            data: bytes = answer.read()
            return data

    def pids(self) -> list[int]:
        """The server process, or the parent of several and these."""
        return family(self.process.pid)


@contextmanager
def service(
    publish_models: Callable[[Store], None],
    core: int | str | None,
    *,
    api_processes: int = 1,
    command: str = "api",
    settings: Mapping[str, str] | None = None,
    open_files: int | None = None,
) -> Iterator[Service]:
    """A service of ``api_processes`` processes, with the models that the function publishes.

    core: the one on which all its processes run, as in `running`. command: "serve" starts a worker, too.
    settings: environment variables other than the defaults. open_files: soft and hard limit of open files of
    a process.
    """
    with tempfile.TemporaryDirectory(prefix="stms-serve-") as name:
        folder = Path(name)
        keys = _prepare(folder, publish_models, settings or {})
        port = free_port()
        limits = [] if open_files is None else ["prlimit", f"--nofile={open_files}:{open_files}"]
        # The service runs with its default settings; the caller's STMS_ variables are unset.
        unset = [f"--unset={name}" for name in os.environ if name.startswith("STMS_")]
        given = [f"{name}={value}" for name, value in (settings or {}).items()]
        program = [*limits, "env", *unset, *given, sys.executable, "-P", "-m", "app.cli", command]
        program += ["--port", str(port), "--data-dir", str(folder / "data")]
        program += ["--api-processes", str(api_processes)]
        path = {"PYTHONPATH": str(Path(__file__).parents[2])}
        with running(program, core, folder, path) as process:
            url = f"http://127.0.0.1:{port}"
            wait_until_it_answers(process, f"{url}/readyz", folder)
            yield Service(process, url, *keys, folder / "log")


def _prepare(
    folder: Path, publish_models: Callable[[Store], None], settings: Mapping[str, str]
) -> tuple[str, str]:
    """A new database; returns a key for queries and one for everything."""
    (folder / "data").mkdir()
    address = settings.get("STMS_DATABASE_URL") or Settings(data_dir=folder / "data").app_database_url
    upgrade(address)
    store = Store(open_engine(address))
    try:
        publish_models(store)
        query = create_key(store, "benchmark", {"query"})[1]
        return query, create_key(store, "administrator", {"admin"})[1]
    finally:
        store.dispose()


def digits(store: Store) -> None:
    """A model of ten classes, each one weight vector."""
    weights = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    students = {str(k): linear_student(str(k), row) for k, row in enumerate(weights)}
    publish(store, "digits", students, linear_teacher(list(students), weights))


def row(features: int = FEATURES) -> list[float]:
    """One row of numbers with six digits."""
    values: list[float] = np.random.default_rng(1).normal(size=features).round(6).tolist()
    return values
