"""Writes the live figures of this group of server processes into one row of the database every two seconds.

One process of the group writes for all: the first one that serves. Readers of any other process see what all
machines do, without Prometheus.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Final

from app.domain.entities import Json
from app.domain.errors import Unavailable
from app.domain.figures import ServerRow
from app.processes.exposition import BUCKETS, ModelCounts
from app.processes.metrics import Metrics
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

BEAT_SECONDS: Final = 2.0
RATE_SECONDS: Final = 10.0
"""Rates are those of the last so many seconds."""
LATENCY_SECONDS: Final = 60.0
"""Latencies are those of the queries of the last so many seconds."""
FORGET_SECONDS: Final = 3600.0
"""Rows of servers that have been silent for so long are deleted."""
_HISTORY: Final = 60
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Figures:
    """Live figures made of the counters of all processes at successive times.

    `step` returns JSON. Totals since the group started: queries, rows, failed_queries, requests, errors
    (responses of other requests from 500). queries_per_second, errors_per_second: of the last ten seconds.
    latency: p50, p95 and p99 in seconds of the successful queries of the last minute; null without one.
    history: at most 60 [time, queries per second, errors per second, p99], oldest first.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Json, list[float]]] = deque()
        self._history: deque[list[float | None]] = deque(maxlen=_HISTORY)

    def step(self, now: float, models: Sequence[ModelCounts], routes: Sequence[ModelCounts]) -> Json:
        """The figures at ``now``, seconds since the epoch."""
        totals = _totals(models, routes)
        buckets = [sum(column) for column in zip(*(counts.buckets for counts in models), strict=True)]
        while self._samples and now - self._samples[0][0] > LATENCY_SECONDS:
            self._samples.popleft()
        oldest = self._samples[0][2] if self._samples else buckets
        recent = next((s for s in self._samples if now - s[0] <= RATE_SECONDS), None)
        rates = {"queries_per_second": 0.0, "errors_per_second": 0.0}
        if recent is not None and now > recent[0]:
            for name, total in (("queries_per_second", "queries"), ("errors_per_second", "errors")):
                rates[name] = max(0.0, (totals[total] - recent[1][total]) / (now - recent[0]))
        counts = [max(0.0, new - old) for new, old in zip(buckets, oldest, strict=True)]
        latency = {name: quantile(counts, share) for name, share in _QUANTILES.items()}
        self._samples.append((now, totals, buckets))
        self._history.append([now, *rates.values(), latency["p99"]])
        return {**totals, **rates, "latency": latency, "history": list(self._history)}


def quantile(counts: Sequence[float], share: float) -> float | None:
    """A quantile of a histogram over `BUCKETS`, linear within a bucket; None if it is empty."""
    total, below = sum(counts), 0.0
    if total == 0:
        return None
    for index, count in enumerate(counts):
        if count and below + count >= share * total:
            low = BUCKETS[index - 1] if index else 0.0
            high = BUCKETS[min(index, len(BUCKETS) - 1)]
            return low + (high - low) * (share * total - below) / count
        below += count
    return BUCKETS[-1]


def _totals(models: Sequence[ModelCounts], routes: Sequence[ModelCounts]) -> Json:
    statuses = [(name, number) for counts in models for name, number in counts.statuses.items()]
    others = [(name, number) for counts in routes for name, number in counts.statuses.items()]
    return {
        "queries": sum(number for name, number in statuses if name == "200"),
        "rows": sum(counts.rows for counts in models),
        "failed_queries": sum(number for name, number in statuses if name != "200"),
        "requests": sum(number for _, number in others),
        "errors": sum(number for name, number in [*statuses, *others] if name.startswith("5")),
    }


class ServerBeats:
    """The background task of one process, which writes if it is the first of its group.

    store: best with a connection of its own. group: id that all processes of the group share.
    """

    def __init__(self, store: Store, metrics: Metrics, group: str) -> None:
        self._store = store
        self._metrics = metrics
        self._figures = Figures()
        self._row = ServerRow(
            group, socket.gethostname(), os.getpid(), metadata.version("stms"), time.time(), 0.0, {}
        )
        self._wrote = False
        self._failing = False
        self._beats = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stms-beats")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the background task."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop the task, and delete the row if this process is the last of its group."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._wrote and self._metrics.processes().serving <= 1:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await asyncio.get_running_loop().run_in_executor(self._thread, self._leave)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def beat(self) -> None:
        """Write the row, if this process is the one that does. A failure is logged once. Blocks."""
        models = list(self._metrics.counts().values())
        figures = self._figures.step(time.time(), models, list(self._metrics.route_counts().values()))
        if not self._metrics.is_first():
            return
        counts = self._metrics.processes()
        figures |= {"processes": counts.serving, "target_processes": counts.target}
        row = ServerRow(
            self._row.id, self._row.host, self._row.pid, self._row.program, self._row.started_at, 0.0, figures
        )
        try:
            with self._store.single() as uow:
                uow.servers.beat(row)
            if self._beats % 300 == 0:
                with self._store.single() as uow:
                    uow.servers.forget_silent(FORGET_SECONDS)
            self._beats += 1
            self._wrote, self._failing = True, False
        except Unavailable as error:
            if not self._failing:
                logger.warning("the figures of this server cannot be stored: %s", error)
            self._failing = True

    def _leave(self) -> None:
        with contextlib.suppress(Unavailable), self._store.single() as uow:
            uow.servers.forget(self._row.id)

    async def _run(self) -> None:
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self.beat)
            except Exception:
                logger.exception("the figures of this server could not be made")
            await asyncio.sleep(BEAT_SECONDS)
