"""Inference statistics in Triton's form: counts and nanoseconds by model and version, of all processes.

Each process counts in its slot of the scoreboard, as `app.processes.metrics` does, and a request reads the
slots of all: counts of other processes are half a second old at most.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.processes.scoreboard import STATISTICS_BYTES, Scoreboard, Slot
from app.serving.open_inference.responses import InferenceDuration, InferenceVersionStatistics

_MAX_NOTED: Final = 1000

_NUMBERS: Final = 14
_RECORD: Final = np.dtype([("name", "S208"), ("numbers", "<f8", _NUMBERS)])
"""The name, ``tenant/model@version``; rows; milliseconds of the last inference since the epoch; and count and
nanoseconds of requests that succeeded, of requests that failed, and of the stages in `Durations`.
"""
_COUNT_BYTES: Final = 8
MAX_VERSIONS: Final = (STATISTICS_BYTES - _COUNT_BYTES) // _RECORD.itemsize
"""Largest number of versions of one process; beyond it the least recently used ones are dropped."""
_ROWS, _LAST, _SUCCESS, _FAIL = 0, 1, 2, 4

Version: TypeAlias = tuple[str, str, int]
"""(tenant, model, version)."""
Numbers: TypeAlias = NDArray[np.float64]


@dataclass(slots=True)
class Durations:
    """Nanoseconds of one inference: queueing, parsing, evaluation, encoding."""

    queue: int = 0
    compute_input: int = 0
    compute_infer: int = 0
    compute_output: int = 0


class Statistics:
    """Counts in the slot of this process, and the sums over all slots."""

    def __init__(self, scoreboard: Scoreboard, slot: Slot) -> None:
        self._scoreboard, self._slot = scoreboard, slot
        self._count, table = _table(slot)
        self._names, self._numbers = table["name"], table["numbers"]
        # The least recently used version comes first; a process that takes over the slot continues it.
        self._places = {name: place for place, name in enumerate(self._names[: int(self._count[0])].tolist())}
        self._noted: list[tuple[Version, int, tuple[int, int, int, int]]] = []

    def note(self, version: Version, rows: int, times: tuple[int, int, int, int]) -> None:
        """Like `succeeded`, for an inference without a queue, which is counted later.

        times: in nanoseconds, when it began, was parsed, was decided and ended.
        """
        self._noted.append((version, rows, times))
        if len(self._noted) >= _MAX_NOTED:
            self.count_noted()

    def count_noted(self) -> None:
        """Count the inferences that `note` has recorded."""
        noted, self._noted = self._noted, []
        for version, rows, (began, parsed, decided, ended) in noted:
            took = Durations(0, parsed - began, decided - parsed, ended - decided)
            self.succeeded(version, rows, ended - began, took)

    def succeeded(self, version: Version, rows: int, total_ns: int, durations: Durations) -> None:
        """Count a successful inference of ``rows`` rows."""
        took = durations
        stages = (1, took.queue, 1, took.compute_input, 1, took.compute_infer, 1, took.compute_output)
        numbers = self._numbers_of(version)
        numbers += (rows, 0, 1, total_ns, 0, 0, *stages)
        numbers[_LAST] = int(time.time() * 1000)

    def failed(self, version: Version, total_ns: int) -> None:
        """Count a request that failed after its model was found."""
        self._numbers_of(version)[_FAIL : _FAIL + 2] += (1, total_ns)

    def of_tenant(self, tenant: str, among: Collection[str]) -> list[InferenceVersionStatistics]:
        """The statistics of a tenant's versions, or of those of its models ``among`` if there are any."""
        found = ((_version(name), numbers) for name, numbers in self._sums().items())
        chosen = {
            version: numbers
            for version, numbers in found
            if version[0] == tenant and (not among or version[1] in among)
        }
        return [_document(version, chosen[version]) for version in sorted(chosen)]

    def of_version(self, version: Version) -> InferenceVersionStatistics:
        """The statistics of one version; zeros if there are none."""
        numbers = self._sums().get(_name(version))
        return _document(version, np.zeros(_NUMBERS) if numbers is None else numbers)

    def _sums(self) -> dict[bytes, Numbers]:
        """The numbers of all processes by name."""
        self.count_noted()
        sums: dict[bytes, Numbers] = {}
        for slot in self._scoreboard.slots:
            count, table = _table(slot)
            used = table[: int(count[0])]
            names, rows = used["name"].tolist(), used["numbers"].copy()
            for name, same, numbers in zip(names, used["name"].tolist(), rows, strict=True):
                # Another process may have given the record to another version in the meantime.
                if name and name == same:
                    known = sums.get(name)
                    sums[name] = numbers if known is None else _added(known, numbers)
        return sums

    def _numbers_of(self, version: Version) -> Numbers:
        """The record of a version, which becomes the most recently used one."""
        name = _name(version)
        place = self._places.pop(name, None)
        if place is None:
            place = self._new_place(name)
        self._places[name] = place
        numbers: Numbers = self._numbers[place]
        return numbers

    def _new_place(self, name: bytes) -> int:
        count = int(self._count[0])
        place = count
        if count >= MAX_VERSIONS:
            place = self._places.pop(next(iter(self._places)))
            # Numbers without a name are not counted.
            self._names[place] = b""
            self._numbers[place] = 0.0
        self._names[place] = name
        if place == count:
            # This comes last, because it makes the record visible to other processes.
            self._count[0] = count + 1
        return place


def _table(slot: Slot) -> tuple[Numbers, Any]:
    """The number of records of a slot, and all that there is place for."""
    count = np.frombuffer(slot.statistics, np.float64, 1)
    return count, np.frombuffer(slot.statistics, _RECORD, MAX_VERSIONS, _COUNT_BYTES)


def _name(version: Version) -> bytes:
    tenant, model, number = version
    return f"{tenant}/{model}@{number}".encode()


def _version(name: bytes) -> Version:
    tenant, _, rest = name.decode().partition("/")
    model, _, number = rest.rpartition("@")
    return tenant, model, int(number)


def _added(one: Numbers, other: Numbers) -> Numbers:
    both = one + other
    both[_LAST] = max(one[_LAST], other[_LAST])
    return both


def _document(version: Version, numbers: Numbers) -> InferenceVersionStatistics:
    values = [int(value) for value in numbers]
    pairs = zip(values[_SUCCESS::2], values[_SUCCESS + 1 :: 2], strict=True)
    stages = (InferenceDuration(count=count, ns=ns) for count, ns in pairs)
    success, fail, queue, compute_input, compute_infer, compute_output = stages
    return {
        "name": version[1],
        "version": str(version[2]),
        "last_inference": values[_LAST],
        "inference_count": values[_ROWS],
        "execution_count": success["count"],
        "inference_stats": {
            "success": success,
            "fail": fail,
            "queue": queue,
            "compute_input": compute_input,
            "compute_infer": compute_infer,
            "compute_output": compute_output,
        },
        "batch_stats": [],
    }
