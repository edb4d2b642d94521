"""Live figures of the most queried models, computed from their counters at successive times."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.domain.entities import Json
from app.processes.exposition import BUCKETS, ModelCounts

HISTORY: Final = 60
"""Largest number of past values of a figure."""
_MODELS: Final = 10
_RATE_STEPS: Final = 5
_PART_SECONDS: Final = 10.0
_PARTS: Final = 6
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

Counters = NDArray[np.float64]
"""Answered queries, refused queries, and the entries of `ModelCounts.buckets`."""


class ModelFigures:
    """Computes figures from changes between steps, which it keeps, and from their sums over ten seconds."""

    def __init__(self) -> None:
        self._before: tuple[float, dict[str, Counters]] | None = None
        self._steps: deque[tuple[float, dict[str, Counters]]] = deque(maxlen=HISTORY)
        self._parts: deque[tuple[float, dict[str, Counters]]] = deque(maxlen=_PARTS + 1)

    def step(self, now: float, models: Mapping[str, ModelCounts]) -> list[Json]:
        """The ten models with the most queries in the last minute, as JSON, most queries first.

        queries_per_second, refused_per_second: of the last five steps. latency, buckets: of the last minute,
        as in `latency_of` and `ModelCounts`. history: queries per second at each step, oldest first.
        """
        counters = {name: _counters(counts) for name, counts in models.items()}
        then, before = self._before or (now, counters)
        none = np.zeros(len(BUCKETS) + 3)
        changes = {name: np.maximum(one - before.get(name, none), 0.0) for name, one in counters.items()}
        changes = {name: change for name, change in changes.items() if change.any()}
        self._before = now, counters
        # Of the past steps only numbers of queries are shown.
        self._steps.append((now - then, {name: change[:2].copy() for name, change in changes.items()}))
        self._add(now, changes)
        sums: dict[str, Counters] = {}
        for _, part in self._parts:
            for name, change in part.items():
                sums[name] = sums.get(name, none) + change
        most = sorted(sums, key=lambda name: (-float(sums[name][:2].sum()), name))[:_MODELS]
        return [self._figures(name, sums[name]) for name in most]

    def _add(self, now: float, changes: Mapping[str, Counters]) -> None:
        if not self._parts or now - self._parts[-1][0] >= _PART_SECONDS:
            self._parts.append((now, {}))
        while now - self._parts[0][0] > _PARTS * _PART_SECONDS:
            self._parts.popleft()
        part = self._parts[-1][1]
        for name, change in changes.items():
            part[name] = part[name] + change if name in part else change

    def _figures(self, name: str, sums: Counters) -> Json:
        none = (0.0, 0.0)
        steps = [(seconds, *map(float, changes.get(name, none))) for seconds, changes in self._steps]
        seconds, queries, refused = (sum(column) for column in zip(*steps[-_RATE_STEPS:], strict=True))
        buckets = sums[2:].tolist()
        return {
            "model": name,
            "queries_per_second": _rate(queries, seconds),
            "refused_per_second": _rate(refused, seconds),
            "latency": latency_of(buckets),
            "buckets": buckets,
            "history": [round(_rate(asked, length), 2) for length, asked, _ in steps],
        }


def _rate(number: float, seconds: float) -> float:
    return number / seconds if seconds > 0.0 else 0.0


def latency_of(buckets: Sequence[float]) -> dict[str, float | None]:
    """The quantiles p50, p95 and p99 in seconds of a histogram over `BUCKETS`; None if it is empty."""
    return {name: quantile(buckets, share) for name, share in _QUANTILES.items()}


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


def is_refusal(status: str) -> bool:
    """Whether a query with this status was refused: 400 to 499. From 500 it is an error."""
    return status.startswith("4")


def _counters(counts: ModelCounts) -> Counters:
    refused = sum(number for status, number in counts.statuses.items() if is_refusal(status))
    return np.array([counts.statuses.get("200", 0.0), refused, *counts.buckets])
