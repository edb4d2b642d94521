"""Measures the latency of one query: student against teacher, over HTTP and in process."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from app.commands.demo.temporary_server import TemporaryServer
from app.commands.output import CommandFailed

_HTTP_REPEATS = 400
_LOCAL_REPEATS = 2000
_WARM_UP = 50


@dataclass(frozen=True, slots=True)
class Cost:
    """Median seconds for one row."""

    http_seconds: float
    local_seconds: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one student, and of the teacher that scores all classes."""

    student: Cost
    teacher: Cost


def measure_costs(server: TemporaryServer, model: str, label: str, x: NDArray[np.float64]) -> Costs:
    """Measure repeated queries of one row ``x`` (d,); the caches are warm, so no query reads the database."""
    from app.serving.loader import DatabaseSource
    from app.settings import Settings
    from app.store.blob_cache import BlobCache
    from app.store.engine import open_engine
    from app.store.unit_of_work import Store

    settings = Settings(data_dir=server.data_dir)
    store = Store(open_engine(f"sqlite:///{server.data_dir / 'stms.sqlite'}"))
    source = DatabaseSource(store, BlobCache.of(settings))
    try:
        version = source.resolve(model)
        student, _ = source.student(version, label)
        teacher, _ = source.teacher(version)
    finally:
        store.dispose()
    rows = x[np.newaxis]
    query, predict = f"/v1/models/{model}/classes/{label}:query", f"/v1/models/{model}:predict"
    return Costs(
        Cost(http_median(server, query, x), _median(lambda: student.score(x), _LOCAL_REPEATS)),
        Cost(http_median(server, predict, x), _median(lambda: teacher.scores(rows), _LOCAL_REPEATS)),
    )


def http_median(server: TemporaryServer, path: str, x: NDArray[np.float64]) -> float:
    """Median seconds of a POST of one row on a persistent connection."""
    url = urlsplit(server.address)
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=30)
    body = json.dumps({"x": x.tolist()}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {server.key}"}

    def send_query() -> None:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status != http.HTTPStatus.OK:
            raise CommandFailed(f"{path} answered {response.status}: {answer[:200]!r}")

    try:
        return _median(send_query, _HTTP_REPEATS)
    finally:
        connection.close()


def _median(function: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call, without `_WARM_UP` first calls."""
    seconds = []
    for repeat in range(_WARM_UP + repeats):
        started = time.perf_counter()
        function()
        if repeat >= _WARM_UP:
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
