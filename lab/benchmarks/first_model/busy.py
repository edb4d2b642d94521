"""A job on a machine that others use, and queries beside a job.

The other programs are eight busy loops in one session, as those of a parallel build or a test run are. Where
the kernel shares the processor by session they count as one program, otherwise as eight.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import numpy as np

from app.commands.demo.temporary_server import TemporaryServer, temporary_server
from app.processes.os_process import terminate_with_parent
from lab.benchmarks.first_model.files import FILES
from lab.benchmarks.first_model.jobs import trained
from stms_client import Client

LOOPS: Final = 8
FORMER_NICENESS: Final = "19"
"""Of solvers beside queries, in earlier releases."""
_ROUNDS: Final = 2
_SECONDS: Final = 6.0
_RATE: Final = 200.0
_COLUMNS, _CLASSES, _ROWS = 64, 10, 30_000
_SMALL_ROWS: Final = 500
_SMALL: Final = {"teacher": {"max_epochs": 5}, "student": {"max_epochs": 5}}
_ENDLESS: Final = {
    "features": {"kind": "nystroem", "n_components": 800},
    "teacher": {"tolerance": 1e-9},
    "student": {"tolerance": 1e-9},
}
_START_SECONDS: Final = 60.0
_LOOP: Final = f"""
import os
for _ in range({LOOPS - 1}):
    if os.fork() == 0:
        break
while True:
    pass
"""


@contextmanager
def busy_loops() -> Iterator[None]:
    """Eight processes in a session of their own that compute without a pause."""
    with subprocess.Popen(
        [sys.executable, "-c", _LOOP],
        start_new_session=True,
        preexec_fn=terminate_with_parent(),  # noqa: PLW1509
    ) as loops:
        try:
            yield
        finally:
            os.killpg(loops.pid, signal.SIGKILL)


def busy_ratio(folder: Path) -> float:
    """Seconds of a job beside eight busy loops over those of the same job on the machine as it is."""
    files = FILES["titanic"](folder)
    with temporary_server(folder) as server:
        trained(server, files, "warm")
        quiet = min(trained(server, files, f"quiet-{turn}")["seconds"] for turn in range(2))
        with busy_loops():
            busy = trained(server, files, "busy")["seconds"]
    print(f"job {quiet:.2f} s, beside {LOOPS} busy loops {busy:.2f} s", file=sys.stderr, flush=True)
    return float(busy / quiet)


def query_p99s(folder: Path) -> dict[str, float]:
    """Milliseconds of queries, quiet and beside a job whose solver has the niceness of today and the former.

    Two servers take turns; the 99 % quantiles are of all queries of a kind, 200 a second.
    """
    latencies: dict[str, list[float]] = {"quiet": [], "beside_job": [], "beside_job_formerly": []}
    with ExitStack() as stack:
        asked = []
        for kind, settings in {
            "beside_job": {},
            "beside_job_formerly": {"STMS_SOLVER_NICENESS": FORMER_NICENESS},
        }.items():
            inside = folder / kind
            inside.mkdir()
            server = stack.enter_context(temporary_server(inside, **settings))
            client = stack.enter_context(Client(server.address, server.key))
            asked.append((kind, _Asked(server, client, inside)))
        for _ in range(_ROUNDS):
            for kind, one in asked:
                latencies["quiet"] += one.ask()
                with one.job():
                    latencies[kind] += one.ask()
    return {
        f"query_p99_{kind}_ms": round(1e3 * float(np.quantile(seconds, 0.99)), 2)
        for kind, seconds in latencies.items()
    }


class _Asked:
    """A server with a model that is asked, and a data set whose job does not end by itself."""

    def __init__(self, server: TemporaryServer, client: Client, folder: Path) -> None:
        self._client, self._key = client, server.key
        small, self._large = (_upload(client, folder, rows) for rows in (_SMALL_ROWS, _ROWS))
        client.submit_job(small, "asked", _SMALL).wait()
        label = client.dataset(small)["classes"][0]
        self._path = f"/v1/models/asked/classes/{label}:query"
        self._host = str(urlsplit(server.address).netloc)

    @contextmanager
    def job(self) -> Iterator[None]:
        """A job in its teacher stage, which is cancelled at the end."""
        job = self._client.submit_job(self._large, "busy", _ENDLESS)["id"]
        deadline = time.monotonic() + _START_SECONDS
        while self._client.job(job)["stage"] != "teacher":
            if time.monotonic() > deadline:
                raise RuntimeError("The job did not reach its teacher.")
            time.sleep(0.1)
        yield
        self._client.cancel_job(job)
        while self._client.job(job)["state"] == "cancelling":
            time.sleep(0.1)

    def ask(self) -> list[float]:
        """Seconds from the time at which each query is due until it is answered."""
        body = json.dumps({"x": np.random.default_rng(1).normal(size=_COLUMNS).round(6).tolist()})
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self._host, timeout=30.0)
        seconds, due = [], time.monotonic()
        for _ in range(int(_SECONDS * _RATE)):
            due += 1.0 / _RATE
            time.sleep(max(0.0, due - time.monotonic()))
            connection.request("POST", self._path, body, headers)
            response = connection.getresponse()
            response.read()
            if response.status != http.client.OK:
                raise RuntimeError(f"a query was answered with {response.status}")
            seconds.append(time.monotonic() - due)
        connection.close()
        return seconds


def _upload(client: Client, folder: Path, rows: int) -> str:
    rng = np.random.default_rng(rows)
    y = rng.integers(0, _CLASSES, rows)
    X = rng.normal(size=(_CLASSES, _COLUMNS))[y] + rng.normal(size=(rows, _COLUMNS)) * 2
    file = folder / f"{rows}.npz"
    np.savez(file, X_train=X.astype(np.float32), y_train=y)
    return str(client.upload_dataset(file)["id"])
