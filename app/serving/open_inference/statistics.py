"""Inference statistics in Triton's form: counts and nanoseconds by model and version, of this process."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from app.serving.lru import LruCache
from app.serving.open_inference.responses import InferenceDuration, InferenceVersionStatistics

_MAX_ENTRIES: Final = 10_000
_MAX_NOTED: Final = 1000

Version: TypeAlias = tuple[str, str, int]
"""(tenant, model, version)."""


@dataclass(slots=True)
class Durations:
    """Nanoseconds of one inference: queueing, parsing, evaluation, encoding."""

    queue: int = 0
    compute_input: int = 0
    compute_infer: int = 0
    compute_output: int = 0


@dataclass(slots=True)
class _Sum:
    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def document(self) -> InferenceDuration:
        return {"count": self.count, "ns": self.ns}


@dataclass(slots=True)
class _Entry:
    rows: int = 0
    last_ms: int = 0
    success: _Sum = field(default_factory=_Sum)
    fail: _Sum = field(default_factory=_Sum)
    queue: _Sum = field(default_factory=_Sum)
    compute_input: _Sum = field(default_factory=_Sum)
    compute_infer: _Sum = field(default_factory=_Sum)
    compute_output: _Sum = field(default_factory=_Sum)


class Statistics:
    """Counts of the 10 000 most recently used versions."""

    def __init__(self) -> None:
        self._entries: LruCache[Version, _Entry] = LruCache(_MAX_ENTRIES)
        self._noted: list[tuple[Version, int, tuple[int, int, int, int]]] = []

    def note(self, version: Version, rows: int, times: tuple[int, int, int, int]) -> None:
        """As `succeeded`, of an inference without a queue, which is counted later.

        times: in nanoseconds when it began, was parsed, was decided and ended.
        """
        self._noted.append((version, rows, times))
        if len(self._noted) >= _MAX_NOTED:
            self._count_noted()

    def _count_noted(self) -> None:
        noted, self._noted = self._noted, []
        for version, rows, (began, parsed, decided, ended) in noted:
            took = Durations(0, parsed - began, decided - parsed, ended - decided)
            self.succeeded(version, rows, ended - began, took)

    def succeeded(self, version: Version, rows: int, total_ns: int, durations: Durations) -> None:
        """Count a successful inference of ``rows`` rows."""
        entry = self._entry(version)
        entry.rows += rows
        entry.last_ms = int(time.time() * 1000)
        entry.success.add(total_ns)
        entry.queue.add(durations.queue)
        entry.compute_input.add(durations.compute_input)
        entry.compute_infer.add(durations.compute_infer)
        entry.compute_output.add(durations.compute_output)

    def failed(self, version: Version, total_ns: int) -> None:
        """Count a request that failed after its model was found."""
        self._entry(version).fail.add(total_ns)

    def known(self, tenant: str, among: Collection[str]) -> list[Version]:
        """All entries of a tenant, or those of its models ``among`` if there are any."""
        self._count_noted()
        keys = [key for key in self._entries.newest_first() if key[0] == tenant]
        return sorted(key for key in keys if not among or key[1] in among)

    def document(self, version: Version) -> InferenceVersionStatistics:
        """What is known of one version; zeros if nothing is."""
        self._count_noted()
        entry = self._entries.get(version) or _Entry()
        return {
            "name": version[1],
            "version": str(version[2]),
            "last_inference": entry.last_ms,
            "inference_count": entry.rows,
            "execution_count": entry.success.count,
            "inference_stats": {
                "success": entry.success.document(),
                "fail": entry.fail.document(),
                "queue": entry.queue.document(),
                "compute_input": entry.compute_input.document(),
                "compute_infer": entry.compute_infer.document(),
                "compute_output": entry.compute_output.document(),
            },
            "batch_stats": [],
        }

    def _entry(self, version: Version) -> _Entry:
        entry = self._entries.get(version)
        if entry is None:
            entry = _Entry()
            self._entries.put(version, entry, 1)
        return entry
