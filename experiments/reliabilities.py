"""What the records of probabilities say: Brier scores by calibration, and reliability pooled over classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.probabilities import GRID, KINDS, chosen_point, record_name, stored_student
from experiments.results import Record, ResultStore, Run


@dataclass(frozen=True, slots=True)
class PooledBin:
    """Test rows of all classes whose probability lies in one tenth: how many, its mean, the share of yes."""

    low: float
    high: float
    count: int
    probability: float
    observed: float


@dataclass(frozen=True, slots=True)
class ClassProbability:
    """One class: see ``calibration.Reliability``. positives: training rows of the class."""

    label: str
    positives: int
    brier: float
    base_brier: float
    error: float


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One data set with one kind of calibration, for the classes that have it; means over these classes.

    brier, base_brier, error: as of ``calibration.Reliability``. pooled_error: of the pooled bins.
    """

    kind: str
    brier: float
    base_brier: float
    error: float
    pooled_error: float
    classes: tuple[ClassProbability, ...]
    bins: tuple[PooledBin, ...]

    @property
    def better_than_base(self) -> int:
        """Classes whose Brier score is below that of their share as everybody's probability."""
        return sum(one.brier < one.base_brier for one in self.classes)

    def of(self, labels: Sequence[str]) -> float:
        """Mean Brier score over some of the classes."""
        return float(np.mean([one.brier for one in self.classes if one.label in labels]))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DataSetProbabilities:
    """kinds: those that at least one class has. seconds: wall time.

    other_students: classes whose student, trained again, has another F on the test part than the protocol's.
    """

    data_set: str
    n_classes: int
    other_students: tuple[str, ...]
    kinds: dict[str, Calibrated]
    seconds: float


def read_probabilities(store: ResultStore, data_set: str) -> DataSetProbabilities | None:
    """None unless every class has a record that was made from the protocol's present student."""
    run = Run(data_set, GRID, 0)
    setting = store.read(run, "setting")
    if setting is None:
        return None
    records = []
    for code in range(len(setting["classes"])):
        record = store.read(run, record_name(code))
        if record is None or record["protocol"] != setting["recipe"]:
            return None
        if record["point"] != chosen_point(stored_student(store, run, code, setting["recipe"])):
            return None
        records.append(record)
    kinds: dict[str, Calibrated] = {
        kind: found for kind in KINDS if (found := _calibrated(kind, records)) is not None
    }
    others = tuple(record["label"] for record in records if not record["same_f1"])
    seconds = sum(float(record["seconds"]) for record in records)
    return DataSetProbabilities(data_set, len(records), others, kinds, seconds)


def _calibrated(kind: str, records: Sequence[Record]) -> Calibrated | None:
    own = [record for record in records if record["calibrations"][kind] is not None]
    if not own:
        return None
    classes = tuple(
        ClassProbability(
            record["label"],
            record["positives"],
            *(record["calibrations"][kind][name] for name in ("brier", "base_brier", "error")),
        )
        for record in own
    )
    bins = _pooled([record["calibrations"][kind]["bins"] for record in own])
    total = sum(one.count for one in bins)
    return Calibrated(
        kind,
        float(np.mean([one.brier for one in classes])),
        float(np.mean([one.base_brier for one in classes])),
        float(np.mean([one.error for one in classes])),
        sum(one.count * abs(one.probability - one.observed) for one in bins) / total,
        classes,
        bins,
    )


def _pooled(of_classes: Sequence[Sequence[Record]]) -> tuple[PooledBin, ...]:
    found: dict[tuple[float, float], list[Record]] = defaultdict(list)
    for bins in of_classes:
        for one in bins:
            found[one["low"], one["high"]].append(one)
    return tuple(_merged(low, high, found[low, high]) for low, high in sorted(found))


def _merged(low: float, high: float, bins: Sequence[Record]) -> PooledBin:
    count = sum(one["count"] for one in bins)
    probability, observed = (
        sum(one["count"] * one[name] for one in bins) / count for name in ("probability", "observed")
    )
    return PooledBin(low, high, count, probability, observed)
