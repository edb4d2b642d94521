"""What the server processes count, for Prometheus: each in its own seat of the board, summed when asked for.

prometheus_client's own multi-process mode costs 5 µs a query (four writes through a lock, a dictionary and
`struct` each) and leaves files behind; here a query costs four additions in shared memory.
"""

from __future__ import annotations

import struct
import threading
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from app.processes.scoreboard import Board, Seat, State

# fmt: off
BUCKETS: Final = (
    50e-6, 75e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6, 750e-6, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7.5e-3,
    10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)
"""Seconds. The lowest is below the cost of the smallest query, the highest above the largest."""
STATUSES: Final = (200, 304, 400, 401, 403, 404, 405, 406, 408, 409, 411, 412, 413, 415, 422, 428, 429, 431,
                   499, 500, 501, 503, 504)
# fmt: on

MAX_MODELS: Final = 1000
"""Models with series of their own in one process; the queries of all others are counted together."""
OTHERS: Final = "_others"
"""The model label of queries beyond `MAX_MODELS`; no model can have this name."""

CONTENT_TYPE = CONTENT_TYPE_LATEST

# A record: the model's name, then its numbers.
_NAME: Final = 13
_ROWS: Final = len(STATUSES) + 1
_PREDICTIONS, _SECONDS, _BUCKETS = _ROWS + 1, _ROWS + 2, _ROWS + 3
_RECORD: Final = _NAME + _BUCKETS + len(BUCKETS) + 1
_STATUS_AT: Final = {status: place for place, status in enumerate(STATUSES)}
_OTHER_STATUS: Final = len(STATUSES)

# A seat: how many records, the watched values by checksum of their names, the records.
_WATCHED: Final = 64
_FIRST_RECORD: Final = 1 + 2 * _WATCHED
_LIMITS: Final = [*map(repr, BUCKETS), "+Inf"]
_LAYOUT: Final = float(zlib.crc32(repr((STATUSES, BUCKETS, _NAME, _WATCHED)).encode()))
_PROCESS_GAUGES: Final = {"process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds"}


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """What all processes counted of one model. statuses: queries by status, only those that occurred.

    rows: decided. predictions: answers of the full teacher. seconds: in all, of the queries that succeeded.
    buckets: those queries by time, one number a bucket of `BUCKETS`, and those beyond.
    """

    statuses: dict[str, float]
    rows: float
    predictions: float
    seconds: float
    buckets: list[float]


@dataclass(frozen=True, slots=True)
class Processes:
    """Server processes. leaving: whether the one that is asked is about to end."""

    serving: int
    wanted: int
    leaving: bool


@dataclass(frozen=True, slots=True)
class _Watch:
    name: str
    text: str
    value: Callable[[], float]
    place: int
    base: float | None
    """What the predecessors counted; None for a gauge."""
    reason: str = ""
    """A label; none if empty."""

    @property
    def key(self) -> str:
        """Names it in the seats."""
        return f"{self.name} {self.reason}" if self.reason else self.name


class Metrics:
    """The counters of this process, and the sums of all processes of its board. Safe to call from any thread.

    A model's name is a label only once the model was found, so a caller cannot make up labels.
    """

    def __init__(self, board: Board | None = None, seat: Seat | None = None) -> None:
        self._board = board or Board.alone()
        self._seat = seat or self._board.seats[0]
        self._seat.arrange(_LAYOUT)
        self._numbers = self._seat.numbers
        self._lock = threading.Lock()
        self._watches: list[_Watch] = []
        self._records = {
            name: _FIRST_RECORD + place * _RECORD + _NAME for place, name in enumerate(_names(self._seat))
        }
        self._registry = CollectorRegistry()
        self._registry.register(_Everything(self))
        self._process = ProcessCollector(registry=None)
        self._process_places = {name: self._place(name) for name in sorted(_PROCESS_GAUGES)}
        self.watch_count("process_cpu_seconds", "User and system CPU time.", time.process_time)
        self.record("")
        self.record(OTHERS)

    def answered(self, model: str, rows: int, seconds: float) -> None:
        """Count a query that succeeded."""
        record = self._records.get(model) or self.record(model)
        numbers = self._numbers
        with self._lock:
            numbers[record] += 1.0
            numbers[record + _ROWS] += rows
            numbers[record + _SECONDS] += seconds
            numbers[record + _BUCKETS + bisect_left(BUCKETS, seconds)] += 1.0

    def refused(self, model: str, status: int) -> None:
        """Count a query that failed; model is empty where it was not found."""
        record = self._records.get(model) or self.record(model)
        with self._lock:
            self._numbers[record + _STATUS_AT.get(status, _OTHER_STATUS)] += 1.0

    def predicted(self, model: str) -> None:
        """Count an answer of the full teacher."""
        record = self._records.get(model) or self.record(model)
        with self._lock:
            self._numbers[record + _PREDICTIONS] += 1.0

    def record(self, model: str) -> int:
        """Where the numbers of a model are; those of `OTHERS` once there are too many."""
        encoded = model.encode()
        with self._lock:
            if model in self._records:
                return self._records[model]
            count = len(self._records)
            if count >= MAX_MODELS or len(encoded) > 8 * _NAME - 1:
                return self._records[OTHERS]
            start = _FIRST_RECORD + count * _RECORD
            self._seat.memory[8 * start : 8 * start + 1 + len(encoded)] = bytes([len(encoded)]) + encoded
            self._records[model] = start + _NAME
            # Last: from now on the others read the record.
            self._numbers[0] = count + 1
            return start + _NAME

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge: the sum of what ``value`` gives in every process, at most half a second ago in others."""
        place = self._place(name)
        self._numbers[place] = 0.0
        self._watches.append(_Watch(name, text, value, place, None))

    def watch_count(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A counter that somebody else keeps: ``value`` begins at 0 with the process and never falls."""
        place = self._place(name)
        self._watches.append(_Watch(name, text, value, place, self._numbers[place]))

    def watch_reasons(self, name: str, text: str, counts: Mapping[str, int]) -> None:
        """A counter with the label ``reason`` that somebody else keeps. counts: begin at 0, never fall."""
        for reason in counts:
            value = partial(counts.__getitem__, reason)
            watch = _Watch(name, text, value, 0, None, reason)
            place = self._place(watch.key)
            self._watches.append(replace(watch, place=place, base=self._numbers[place]))

    def watch_jobs(self, count: Callable[[], Mapping[str, int] | None]) -> None:
        """Training jobs by state; ``count`` gives None while the database cannot be reached."""
        self._registry.register(_Jobs(count))

    def publish(self) -> None:
        """Write down the watched values for the other processes; to be called a few times a second."""
        for watch in self._watches:
            self._numbers[watch.place] = watch.value() + (watch.base or 0.0)
        for family in self._process.collect():
            if family.name in self._process_places:
                self._numbers[self._process_places[family.name]] = family.samples[0].value

    def processes(self) -> Processes:
        """How many there are, and whether this one stays."""
        serving = len(self._board.serving())
        return Processes(serving, max(self._board.wanted, 1), self._seat.state is State.DRAINING)

    def counts(self) -> dict[str, ModelCounts]:
        """What all processes counted, by model; "" stands for models that were not found."""
        sums: dict[str, NDArray[np.float64]] = {}
        for seat in self._seats():
            names = _names(seat)
            table = np.frombuffer(seat.memory, np.float64, len(names) * _RECORD, 8 * _FIRST_RECORD)
            for name, row in zip(names, table.reshape(-1, _RECORD)[:, _NAME:].copy(), strict=True):
                sums[name] = sums[name] + row if name in sums else row
        return {name: _counts(row.tolist()) for name, row in sums.items()}

    def families(self) -> Iterable[Metric]:
        """What belongs to no model, except jobs."""
        self.publish()
        reasons: dict[str, CounterMetricFamily] = {}
        for watch in self._watches:
            total = self._total(watch.key, counter=watch.base is not None)
            if watch.reason:
                family = CounterMetricFamily(watch.name, watch.text, labels=["reason"])
                reasons.setdefault(watch.name, family).add_metric([watch.reason], total)
            elif watch.base is None:
                yield GaugeMetricFamily(watch.name, watch.text, total)
            else:
                yield CounterMetricFamily(watch.name, watch.text, total)
        yield from reasons.values()
        for name in self._process_places:
            yield GaugeMetricFamily(name, "Of all server processes.", self._total(name, counter=False))
        alive = [seat for seat in self._board.seats if seat.state is not State.FREE]
        yield GaugeMetricFamily("stms_processes", "Server processes that run.", len(alive))
        yield CounterMetricFamily(
            "stms_process_deaths", "Server processes that ended by themselves.", self._board.deaths
        )

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return _model_text(self.counts()).encode() + generate_latest(self._registry)

    def _total(self, name: str, *, counter: bool) -> float:
        """Over all processes; of a gauge those that still run."""
        key, total = _key(name), 0.0
        for seat in self._seats():
            if counter or seat.state is not State.FREE:
                watched = seat.numbers[1:_FIRST_RECORD].tolist()
                total += sum(watched[i + 1] for i in range(0, 2 * _WATCHED, 2) if watched[i] == key)
        return total

    def _seats(self) -> list[Seat]:
        """Those whose numbers can be read: during a rolling restart another release may count otherwise."""
        return [seat for seat in self._board.seats if seat.layout == _LAYOUT]

    def _place(self, name: str) -> int:
        """Where this process writes a watched value: where its predecessor did, else the next free place."""
        key = _key(name)
        for place in range(1, _FIRST_RECORD, 2):
            if self._numbers[place] in (key, 0.0):
                self._numbers[place] = key
                return place + 1
        raise ValueError(f"At most {_WATCHED} values are watched.")


class _Everything(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()

    def describe(self) -> Iterable[Metric]:
        # Registering must not look at numbers that are not there yet.
        return []


class _Jobs(Collector):
    def __init__(self, count: Callable[[], Mapping[str, int] | None]) -> None:
        self._count = count

    def collect(self) -> Iterable[Metric]:
        counts = self._count()
        up = GaugeMetricFamily("stms_database_up", "1 while the database answers.")
        up.add_metric([], 0.0 if counts is None else 1.0)
        yield up
        if counts is not None:
            jobs = GaugeMetricFamily("stms_jobs", "Training jobs by state.", labels=["state"])
            for state, number in counts.items():
                jobs.add_metric([state], number)
            yield jobs

    def describe(self) -> Iterable[Metric]:
        # Named without asking the database: registering must not need it.
        return [GaugeMetricFamily("stms_database_up", ""), GaugeMetricFamily("stms_jobs", "")]


def _model_text(counts: Mapping[str, ModelCounts]) -> str:
    """The series of all models. Written here: with a thousand models the library would take half a second."""
    queries = _head("stms_queries_total", "Queries answered.", "counter")
    rows = _head("stms_query_rows_total", "Rows decided.", "counter")
    predictions = _head("stms_predictions_total", "Requests to the full teacher answered.", "counter")
    seconds = _head(
        "stms_query_seconds",
        "Time from a query's arrival to its answer, of queries that succeeded.",
        "histogram",
    )
    for name, of in counts.items():
        model = 'model="' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        for status, number in of.statuses.items():
            queries.append(f'stms_queries_total{{{model},status="{status}"}} {number!r}')
        if any(of.buckets):
            rows.append(f"stms_query_rows_total{{{model}}} {of.rows!r}")
            seconds += [
                f'stms_query_seconds_bucket{{le="{limit}",{model}}} {upto!r}'
                for limit, upto in zip(_LIMITS, accumulate(of.buckets), strict=True)
            ]
            seconds.append(f"stms_query_seconds_count{{{model}}} {sum(of.buckets)!r}")
            seconds.append(f"stms_query_seconds_sum{{{model}}} {of.seconds!r}")
        if of.predictions:
            predictions.append(f"stms_predictions_total{{{model}}} {of.predictions!r}")
    return "\n".join([*queries, *rows, *predictions, *seconds, ""])


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _counts(numbers: list[float]) -> ModelCounts:
    names = [*map(str, STATUSES), "other"]
    return ModelCounts(
        {name: number for name, number in zip(names, numbers, strict=False) if number},
        numbers[_ROWS],
        numbers[_PREDICTIONS],
        numbers[_SECONDS],
        numbers[_BUCKETS:],
    )


def _names(seat: Seat) -> list[str]:
    """Models with a record in a seat, in the order of their records."""
    found = []
    for place in range(int(seat.numbers[0])):
        start = 8 * (_FIRST_RECORD + place * _RECORD)
        [name] = struct.unpack_from(f"{8 * _NAME}p", seat.memory, start)
        found.append(name.decode())
    return found


def _key(name: str) -> float:
    """A name as a number; never 0, which marks a free place."""
    return float(1 + zlib.crc32(name.encode()))
