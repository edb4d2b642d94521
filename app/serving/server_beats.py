"""Writes the live figures of this group of server processes into one row of the database every two seconds.

One process of the group writes for all: the first one that serves. Any other process can thus read what all
machines do, without Prometheus.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Final

from app.domain.entities import Json
from app.domain.errors import Unavailable
from app.domain.figures import ServerRow
from app.processes.exposition import ModelCounts
from app.processes.metrics import Metrics
from app.processes.periodic import BackgroundTask, PeriodicWork, until_beat
from app.serving.model_figures import HISTORY, ModelFigures, is_refusal, latency_of
from app.store.unit_of_work import Store

BEAT_SECONDS: Final = 2.0
RATE_SECONDS: Final = 10.0
"""Rates are computed over this many last seconds."""
LATENCY_SECONDS: Final = 60.0
"""Latencies are those of the queries of this many last seconds."""
FORGET_SECONDS: Final = 3600.0
"""Rows of servers that have been silent for this long are deleted."""


class Figures:
    """Live figures computed from the counters of all processes at successive times.

    `step` returns JSON. Totals since the group started: queries, rows, failed_queries, refused (queries with
    a status from 400 to 499), requests, errors (responses of all requests from 500). queries_per_second,
    refused_per_second, errors_per_second: of the last ten seconds. Of the last minute: latency, the p50, p95
    and p99 in seconds of the successful queries, null without one; buckets, their histogram as in
    `ModelCounts`; unanswered, the numbers of all other queries by status. models: see `ModelFigures`.
    history: at most 60 [time, queries per second, errors per second, p99, refused per second, p50], oldest
    first.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Json, list[float], dict[str, float]]] = deque()
        self._history: deque[list[float | None]] = deque(maxlen=HISTORY)
        self._models = ModelFigures()

    def step(self, now: float, models: Mapping[str, ModelCounts], routes: Sequence[ModelCounts]) -> Json:
        """The figures at ``now``, seconds since the epoch."""
        totals = _totals(list(models.values()), routes)
        unanswered = _unanswered(models.values())
        columns = zip(*(counts.buckets for counts in models.values()), strict=True)
        buckets = [sum(column) for column in columns]
        while self._samples and now - self._samples[0][0] > LATENCY_SECONDS:
            self._samples.popleft()
        _, _, old_buckets, old_unanswered = (
            self._samples[0] if self._samples else (now, totals, buckets, unanswered)
        )
        recent = next((s for s in self._samples if now - s[0] <= RATE_SECONDS), None)
        rates = {"queries_per_second": 0.0, "errors_per_second": 0.0, "refused_per_second": 0.0}
        if recent is not None and now > recent[0]:
            for name, total in zip(rates, ("queries", "errors", "refused"), strict=True):
                rates[name] = max(0.0, (totals[total] - recent[1][total]) / (now - recent[0]))
        counts = [max(0.0, new - old) for new, old in zip(buckets, old_buckets, strict=True)]
        latency = latency_of(counts)
        new = {status: number - old_unanswered.get(status, 0.0) for status, number in unanswered.items()}
        self._samples.append((now, totals, buckets, unanswered))
        queries, errors, refused = rates.values()
        self._history.append([now, queries, errors, latency["p99"], refused, latency["p50"]])
        return {
            **totals,
            **rates,
            "latency": latency,
            "buckets": counts,
            "unanswered": {status: number for status, number in new.items() if number > 0.0},
            "models": self._models.step(now, models),
            "history": list(self._history),
        }


def _unanswered(models: Iterable[ModelCounts]) -> dict[str, float]:
    """Queries that were not answered, by status."""
    found: dict[str, float] = {}
    for counts in models:
        for status, number in counts.statuses.items():
            if status != "200":
                found[status] = found.get(status, 0.0) + number
    return found


def _totals(models: Sequence[ModelCounts], routes: Sequence[ModelCounts]) -> Json:
    statuses = [(name, number) for counts in models for name, number in counts.statuses.items()]
    others = [(name, number) for counts in routes for name, number in counts.statuses.items()]
    return {
        "queries": sum(number for name, number in statuses if name == "200"),
        "rows": sum(counts.rows for counts in models),
        "failed_queries": sum(number for name, number in statuses if name != "200"),
        "refused": sum(number for name, number in statuses if is_refusal(name)),
        "requests": sum(number for _, number in others),
        "errors": sum(number for name, number in [*statuses, *others] if name.startswith("5")),
    }


class ServerBeats:
    """The background task of one process, which writes if it is the first of its group.

    store: preferably with its own connection. group: id that all processes of the group share. periodic: runs
    the part "figures".
    """

    def __init__(
        self, store: Store, metrics: Metrics, group: str, periodic: PeriodicWork | None = None
    ) -> None:
        self._periodic = periodic or PeriodicWork(["figures"])
        self._store = store
        self._metrics = metrics
        self._figures = Figures()
        self._row = ServerRow(
            group, socket.gethostname(), os.getpid(), metadata.version("stms"), time.time(), 0.0, {}
        )
        self._wrote = False
        self._beats = 0
        self._background = BackgroundTask("stms-beats")

    def start(self) -> None:
        """Start the background task."""
        self._background.start(self._run())

    async def stop(self) -> None:
        """Stop the task, and delete the row if this process is the last of its group."""
        await self._background.stop(self._leave_if_last, BEAT_SECONDS)

    async def _leave_if_last(self) -> None:
        others = self._metrics.processes().serving - (0 if self._metrics.slot.is_control else 1)
        if self._wrote and others <= 0:
            await self._background.in_thread(self._leave)

    def beat(self) -> None:
        """Write the row, if this process is the one that does. Blocks. Raises Unavailable."""
        routes = list(self._metrics.route_counts().values())
        figures = self._figures.step(time.time(), self._metrics.counts(), routes)
        if not self._metrics.is_first():
            return
        counts = self._metrics.processes()
        figures |= {"processes": counts.serving, "target_processes": counts.target}
        row = ServerRow(
            self._row.id, self._row.host, self._row.pid, self._row.program, self._row.started_at, 0.0, figures
        )
        with self._store.single() as uow:
            uow.servers.beat(row)
        self._wrote = True
        if self._beats % 300 == 0:
            with self._store.single() as uow:
                uow.servers.forget_silent(FORGET_SECONDS)
        self._beats += 1

    def _leave(self) -> None:
        with contextlib.suppress(Unavailable), self._store.single() as uow:
            uow.servers.forget(self._row.id)

    async def _run(self) -> None:
        while True:
            await self._background.in_thread(partial(self._periodic.run, "figures", self.beat))
            await asyncio.sleep(until_beat(BEAT_SECONDS))
