"""Prometheus metrics over all server processes: each counts in its own slot, a scrape sums the slots.

The multi-process mode of prometheus_client is several times slower per query (`lab/benchmarks/counters.py`)
and leaves files of dead processes; here a query costs four additions in shared memory.
"""

from __future__ import annotations

import struct
import threading
import time
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from typing import Final

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from app.domain.figures import UNUSUAL
from app.processes.exposition import BUCKETS, ModelCounts, model_text, route_text
from app.processes.open_files import open_files
from app.processes.os_process import memory_bytes
from app.processes.scoreboard import Scoreboard, Slot, State

# fmt: off
STATUSES: Final = (200, 201, 202, 204, 206, 302, 303, 304, 400, 401, 403, 404, 405, 406, 408, 409, 411, 412,
                   413, 415, 422, 428, 429, 431, 499, 500, 501, 503, 504)
# fmt: on

MAX_MODELS: Final = 1000
"""Models with their own series in one process; all further models share `OVERFLOW_LABEL`."""
OVERFLOW_LABEL: Final = "_others"
"""The model label beyond `MAX_MODELS`, and of all models while names are hidden; no model has this name."""

MAX_ROUTES: Final = 140
"""Pairs of method and route with their own series; all others share `OVERFLOW_LABEL`."""
ERROR_CODES: Final = (
    "blob_damaged",
    "blob_incomplete",
    "cache_full",
    "cache_unusable",
    "database_busy",
    "database_damaged",
    "database_read_only",
    "database_slow",
    "file_needs_too_much_memory",
    "internal_error",
    "not_enough_memory",
    "quota_datasets",
    "quota_keys",
    "quota_stored_bytes",
    "quota_unfinished_jobs",
    "quota_versions",
    "reader_killed",
    "registry_unavailable",
    "schema_outdated",
    "storage_full",
)
"""Codes of errors that an operator should learn of; each is counted."""

# Layout of a record: the name of a model, or method and route with a space between; then the values.
_NAME: Final = 26
_ROWS: Final = len(STATUSES) + 1
_PREDICTIONS, _SECONDS, _BUCKETS = _ROWS + 1, _ROWS + 2, _ROWS + 3
_UNUSUAL_AT: Final = {kind: _BUCKETS + len(BUCKETS) + 1 + place for place, kind in enumerate(UNUSUAL)}
_LOCAL: Final = _BUCKETS + len(BUCKETS) + 1 + len(UNUSUAL)
_RECORD: Final = _NAME + _LOCAL + 1
_STATUS_AT: Final = {status: index for index, status in enumerate(STATUSES)}
_OTHER_STATUS: Final = len(STATUSES)

# Layout of a slot: number of records; (checksum of name, value) of each registered metric; the records.
_MAX_REGISTERED: Final = 128
_FIRST_RECORD: Final = 1 + 2 * _MAX_REGISTERED
_SUM: Final = "Sum over all server processes."
_LAYOUT: Final = float(
    zlib.crc32(repr((STATUSES, BUCKETS, UNUSUAL, _NAME, _RECORD, _MAX_REGISTERED)).encode())
)


@dataclass(frozen=True, slots=True)
class ProcessCounts:
    """How many query processes serve, and how many should.

    draining: whether this process, or all of them, are about to end.
    """

    serving: int
    target: int
    draining: bool


@dataclass(frozen=True, slots=True)
class _Registered:
    """A gauge or counter whose value is read by a call of ``value``.

    index: where the value is published in the slot. base: counts of previous owners of the slot; None for
    a gauge. reason: value of the label ``reason``; no label if empty. combine: computes one value from the
    values of all processes.
    """

    name: str
    text: str
    value: Callable[[], float]
    index: int
    base: float | None
    reason: str = ""
    combine: Callable[[Iterable[float]], float] = sum

    @property
    def key(self) -> str:
        """Identifies the metric in the slots of all processes."""
        return f"{self.name} {self.reason}" if self.reason else self.name


class Metrics:
    """The counters of this process, and the sums over all processes of its scoreboard. Thread-safe.

    A model's name becomes a label only after the model was loaded, so callers cannot invent labels.

    scoreboard: of all processes. slot: of this process. shows_models: whether `render` shows names of models;
    if not, all of them share `OVERFLOW_LABEL`. count_noted: adds counts that are kept elsewhere, before all
    counts are published.
    """

    def __init__(self, scoreboard: Scoreboard | None = None, slot: Slot | None = None) -> None:
        self.scoreboard = scoreboard or Scoreboard.private()
        self.slot = slot or self.scoreboard.slots[0]
        self.slot.reset_layout(_LAYOUT)
        self._values = self.slot.values
        self._lock = threading.Lock()
        self.shows_models: Callable[[], bool] = lambda: True
        self.count_noted: Callable[[], None] = lambda: None
        self._times: dict[str, list[float]] = {}
        self._errors = dict.fromkeys(ERROR_CODES, 0)
        self._registered: list[_Registered] = []
        self._records = {
            name: _FIRST_RECORD + index * _RECORD + _NAME for index, name in enumerate(_names(self.slot))
        }
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(self))
        self.add_gauge("process_virtual_memory_bytes", _SUM, lambda: memory_bytes()[0])
        self.add_gauge("process_resident_memory_bytes", _SUM, lambda: memory_bytes()[1])
        self.add_gauge("process_open_fds", _SUM, open_files)
        self.add_counter("process_cpu_seconds", "User and system CPU time.", time.process_time)
        self.add_labelled_counter("stms_errors", "Responses with certain errors, by code.", self._errors)
        self.record("")
        self.record(OVERFLOW_LABEL)
        self.record(_route_name(OVERFLOW_LABEL, OVERFLOW_LABEL))

    def answered(self, model: str, rows: int, seconds: float) -> None:
        """Count a query that succeeded."""
        record = self._records.get(model) or self.record(model)
        values = self._values
        with self._lock:
            values[record] += 1.0
            values[record + _ROWS] += rows
            values[record + _SECONDS] += seconds
            values[record + _BUCKETS + bisect_left(BUCKETS, seconds)] += 1.0

    def answered_row(self, model: str, seconds: float) -> None:
        """Like `answered`, for one row, which is counted when the counts are next read or published."""
        try:
            self._times[model].append(seconds)
        except KeyError:
            self.record(model)
            name = model if model in self._records else OVERFLOW_LABEL
            self._times.setdefault(name, []).append(seconds)

    def refused(self, model: str, status: int) -> None:
        """Count a query that failed; ``model`` is empty if the model was not loaded."""
        record = self._records.get(model) or self.record(model)
        with self._lock:
            self._values[record + _STATUS_AT.get(status, _OTHER_STATUS)] += 1.0

    def predicted(self, model: str) -> None:
        """Count an answer of the full teacher."""
        record = self._records.get(model) or self.record(model)
        with self._lock:
            self._values[record + _PREDICTIONS] += 1.0

    def asked_locally(self, model: str, number: int) -> None:
        """Count queries that a client reports to have answered itself."""
        record = self._records.get(model) or self.record(model)
        with self._lock:
            self._values[record + _LOCAL] += number

    def unusual(self, model: str, numbers: Mapping[str, int]) -> None:
        """Count unusual values of records by kind, see `UNUSUAL`."""
        record = self._records.get(model) or self.record(model)
        with self._lock:
            for kind, number in numbers.items():
                self._values[record + _UNUSUAL_AT[kind]] += number

    def responded(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that is no query. route: the path's template; callers cannot invent one."""
        name = _route_name(method, route)
        record = self._records.get(name) or self.record(name)
        values = self._values
        with self._lock:
            values[record + _STATUS_AT.get(status, _OTHER_STATUS)] += 1.0
            values[record + _SECONDS] += seconds
            values[record + _BUCKETS + bisect_left(BUCKETS, seconds)] += 1.0

    def failed(self, code: str) -> None:
        """Count a response with an error, if its code is one of `ERROR_CODES`."""
        if code in self._errors:
            with self._lock:
                self._errors[code] += 1

    def record(self, name: str) -> int:
        """Index of the values of a model or route, created if needed; of all others if there are too many."""
        encoded = name.encode()
        is_route = _is_route(name)
        with self._lock:
            if name in self._records:
                return self._records[name]
            routes, count = sum(map(_is_route, self._records)), len(self._records)
            is_full = routes >= MAX_ROUTES if is_route else count - routes >= MAX_MODELS
            if is_full or len(encoded) > 8 * _NAME - 1:
                return self._records[
                    _route_name(OVERFLOW_LABEL, OVERFLOW_LABEL) if is_route else OVERFLOW_LABEL
                ]
            start = _FIRST_RECORD + count * _RECORD
            self.slot.memory[8 * start : 8 * start + 1 + len(encoded)] = bytes([len(encoded)]) + encoded
            self._records[name] = start + _NAME
            # This comes last, because it makes the record visible to other processes.
            self._values[0] = count + 1
            return start + _NAME

    def add_gauge(
        self,
        name: str,
        text: str,
        value: Callable[[], float],
        combine: Callable[[Iterable[float]], float] = sum,
    ) -> None:
        """Register a gauge: ``combine`` of ``value()`` of all processes, as they last published it."""
        index = self._index(name)
        self._values[index] = 0.0
        self._registered.append(_Registered(name, text, value, index, None, combine=combine))

    def add_counter(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Register a counter: ``value()`` is 0 when the process starts and never decreases."""
        index = self._index(name)
        self._registered.append(_Registered(name, text, value, index, self._values[index]))

    def add_labelled_counter(self, name: str, text: str, counts: Mapping[str, int]) -> None:
        """Register a counter with the label ``reason``, one series for each key of ``counts``."""
        for reason in counts:
            value = partial(counts.__getitem__, reason)
            metric = _Registered(name, text, value, 0, None, reason)
            index = self._index(metric.key)
            self._registered.append(replace(metric, index=index, base=self._values[index]))

    def add_collector(self, collector: Collector) -> None:
        """Register metrics that are the same in every process, such as those of the database."""
        self._registry.register(collector)

    def publish(self) -> None:
        """Write the registered values to the slot for other processes; called a few times a second.

        Raises the first error of a value that cannot be read, once all others are written.
        """
        self._count_rows()
        self.count_noted()
        error = self._write_values()
        if error is not None:
            raise error

    def _write_values(self) -> Exception | None:
        """Write all values that can be read; values with errors stay, and the first error is returned."""
        first: Exception | None = None
        for metric in self._registered:
            try:
                self._values[metric.index] = metric.value() + (metric.base or 0.0)
            except Exception as error:  # noqa: BLE001 - no value may keep the others from being published
                first = first or error
        return first

    def processes(self) -> ProcessCounts:
        """Numbers of server processes, and whether this one is draining."""
        serving = len(self.scoreboard.serving())
        target = max(self.scoreboard.target_size, 1)
        draining = self.slot.state is State.DRAINING or self.scoreboard.is_stopping
        return ProcessCounts(serving, target, draining)

    def is_first(self) -> bool:
        """Whether no process of a lower slot serves, so that this process does the work of only one process.

        If there is a control process, it does that work.
        """
        if self.slot.is_control:
            return True
        serving = self.scoreboard.serving()
        return not serving or serving[0].index >= self.slot.index

    def counts(self) -> dict[str, ModelCounts]:
        """Counters by model over all processes; "" is for queries of models that were not loaded."""
        shows_models = self.shows_models()
        sums: dict[str, NDArray[np.float64]] = {}
        for name, row in self._rows():
            if not _is_route(name):
                label = name if shows_models or not name else OVERFLOW_LABEL
                sums[label] = sums[label] + row if label in sums else row
        return {name: _counts(row.tolist()) for name, row in sums.items()}

    def route_counts(self) -> dict[tuple[str, str], ModelCounts]:
        """Counters by method and route over all processes."""
        sums: dict[str, NDArray[np.float64]] = {}
        for name, row in self._rows():
            if _is_route(name):
                sums[name] = sums[name] + row if name in sums else row
        splits = {name: name.partition(" ") for name in sums}
        return {(splits[name][0], splits[name][2]): _counts(row.tolist()) for name, row in sums.items()}

    def _count_rows(self) -> None:
        """Count the queries that `answered_row` has noted."""
        with self._lock:
            for model, times in list(self._times.items()):
                # Another thread may append more times meanwhile.
                number = len(times)
                seconds = times[:number]
                del times[:number]
                if seconds:
                    self._add_rows(self._records[model], seconds)

    def _add_rows(self, record: int, seconds: list[float]) -> None:
        values = self._values
        values[record] += len(seconds)
        values[record + _ROWS] += len(seconds)
        values[record + _SECONDS] += sum(seconds)
        for bucket, number in Counter(bisect_left(BUCKETS, one) for one in seconds).items():
            values[record + _BUCKETS + bucket] += number

    def _rows(self) -> Iterator[tuple[str, NDArray[np.float64]]]:
        """Name and values of every record of all processes."""
        self._count_rows()
        for slot in self._slots():
            names = _names(slot)
            table = np.frombuffer(slot.memory, np.float64, len(names) * _RECORD, 8 * _FIRST_RECORD)
            yield from zip(names, table.reshape(-1, _RECORD)[:, _NAME:].copy(), strict=True)

    def families(self) -> Iterable[Metric]:
        """All metrics without a model label, except jobs."""
        self._write_values()
        reasons: dict[str, CounterMetricFamily] = {}
        for metric in self._registered:
            total = metric.combine(self._published(metric.key, counter=metric.base is not None))
            if metric.reason:
                family = CounterMetricFamily(metric.name, metric.text, labels=["reason"])
                reasons.setdefault(metric.name, family).add_metric([metric.reason], total)
            elif metric.base is None:
                yield GaugeMetricFamily(metric.name, metric.text, total)
            else:
                yield CounterMetricFamily(metric.name, metric.text, total)
        yield from reasons.values()
        build = GaugeMetricFamily(
            "stms_build_info", "1, with the version of the program.", labels=["version"]
        )
        build.add_metric([metadata.version("stms")], 1.0)
        yield build
        slots = self.scoreboard.slots
        alive = [slot for slot in slots if slot.state is not State.FREE and not slot.is_control]
        yield GaugeMetricFamily("stms_processes", "Running query processes.", len(alive))
        yield CounterMetricFamily(
            "stms_process_deaths", "Server processes that ended unexpectedly.", self.scoreboard.crash_count
        )

    def render(self, open_metrics: bool = False) -> bytes:
        """All metrics in the text format 0.0.4 of Prometheus, or as OpenMetrics 1.0.0."""
        counts, routes = self.counts(), self.route_counts()
        text = model_text(counts, open_metrics=open_metrics) + route_text(routes, open_metrics=open_metrics)
        rest = openmetrics.generate_latest if open_metrics else generate_latest
        return text.encode() + rest(self._registry)

    def _published(self, name: str, *, counter: bool) -> list[float]:
        """The values of all slots, or 0; for a gauge only those of running processes."""
        key, values = _key(name), [0.0]
        for slot in self._slots():
            if counter or slot.state is not State.FREE:
                registered = slot.values[1:_FIRST_RECORD].tolist()
                values += [
                    registered[i + 1] for i in range(0, 2 * _MAX_REGISTERED, 2) if registered[i] == key
                ]
        return values

    def _slots(self) -> list[Slot]:
        """Slots with this layout; during a rolling restart another release may use a different one."""
        return [slot for slot in self.scoreboard.slots if slot.layout == _LAYOUT]

    def _index(self, name: str) -> int:
        """Index of a registered value: the one of the previous owner of the slot, or the next free one."""
        key = _key(name)
        for index in range(1, _FIRST_RECORD, 2):
            if self._values[index] in (key, 0.0):
                self._values[index] = key
                return index + 1
        raise ValueError(f"At most {_MAX_REGISTERED} values can be registered.")


class _Collector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()

    def describe(self) -> Iterable[Metric]:
        # The registry calls this on registration, when no metric exists yet.
        return []


def _route_name(method: str, route: str) -> str:
    """Name of the record of a route; no name of a model has a space."""
    return f"{method} {route}"


def _is_route(name: str) -> bool:
    return " " in name


def _counts(values: list[float]) -> ModelCounts:
    names = [*map(str, STATUSES), "other"]
    return ModelCounts(
        {name: number for name, number in zip(names, values, strict=False) if number},
        values[_ROWS],
        values[_PREDICTIONS],
        values[_SECONDS],
        values[_BUCKETS : _LOCAL - len(UNUSUAL)],
        {kind: number for kind, at in _UNUSUAL_AT.items() if (number := values[at])},
        values[_LOCAL],
    )


def _names(slot: Slot) -> list[str]:
    """Models that have a record in a slot, in the order of their records."""
    names = []
    for index in range(int(slot.values[0])):
        start = 8 * (_FIRST_RECORD + index * _RECORD)
        [name] = struct.unpack_from(f"{8 * _NAME}p", slot.memory, start)
        names.append(name.decode())
    return names


def _key(name: str) -> float:
    """Checksum of a name; never 0, which marks a free entry."""
    return float(1 + zlib.crc32(name.encode()))
