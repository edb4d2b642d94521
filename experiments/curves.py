"""What the records of a compact curve say: one point for each number of landmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from core.types import FloatArray
from experiments.compact_curve import CURVES, TEACHER, point_name, run_of
from experiments.resampling import completed, interval
from experiments.results import Record, ResultStore


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One number of landmarks; F and AUC are means over the classes, in per cent, F with its interval.

    relative_time, relative_to_remark_2: median over the classes of a query's time over the teacher's, by all
    scores and by Remark 2. seconds_per_query: median over the classes. relative_cost: multiplications over
    the teacher's. gate_r2: mean over the classes. training_seconds: of all classes together.
    """

    landmarks: int
    f1: float
    f1_low: float
    f1_high: float
    auc: float
    relative_time: float
    relative_to_remark_2: float
    seconds_per_query: float
    relative_cost: float
    gate_r2: float
    training_seconds: float


@dataclass(frozen=True, slots=True)
class Curve:
    """One data set. f1, auc: the teacher's, means over the classes in per cent. rows: it was trained on."""

    data_set: str
    classes: int
    rows: int
    test_rows: int
    plan: dict[str, Any]
    teacher_f1: float
    teacher_auc: float
    teacher_seconds_per_query: float
    points: tuple[CurvePoint, ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def read_curve(store: ResultStore, data_set: str) -> Curve | None:
    """The curve as far as it is complete; None without a number of landmarks that has all its classes."""
    run = run_of(data_set)
    teacher = store.read(run, TEACHER)
    if teacher is None:
        return None
    found: list[CurvePoint] = []
    everything = [teacher]
    for size in teacher["plan"]["sizes"]:
        names = [point_name(size, code) for code in range(len(teacher["classes"]))]
        records = [record for name in names if (record := store.read(run, name, teacher["recipe"]))]
        if len(records) == len(names):
            found.append(_point(size, records))
            everything += records
    if not found:
        return None
    return Curve(
        data_set,
        len(teacher["classes"]),
        teacher["rows"],
        teacher["test_rows"],
        teacher["plan"],
        _mean([one["f1"] for one in teacher["metrics"]]),
        _mean([one["auc"] for one in teacher["metrics"]]),
        _median(everything[1:], "teacher"),
        tuple(found),
        sum(float(record["seconds"]) for record in everything),
    )


def read_curves(store: ResultStore) -> dict[str, Curve]:
    """Data set → curve, of what is there."""
    curves = {data_set: read_curve(store, data_set) for data_set in CURVES}
    return {data_set: curve for data_set, curve in curves.items() if curve is not None}


def _point(size: int, records: Sequence[Record]) -> CurvePoint:
    replicates = np.array([record["replicates"]["f1"] for record in records], dtype=np.float64)
    over_classes: FloatArray = np.ma.masked_invalid(completed(replicates)).mean(axis=0).filled(np.nan)
    low, high = interval(over_classes) or (np.nan, np.nan)
    times = [record["seconds_per_query"] for record in records]
    return CurvePoint(
        landmarks=size,
        f1=_mean([record["metrics"]["f1"] for record in records]),
        f1_low=100.0 * low,
        f1_high=100.0 * high,
        auc=_mean([record["metrics"]["auc"] for record in records]),
        relative_time=float(np.median([one["student"] / one["teacher"] for one in times])),
        relative_to_remark_2=float(np.median([one["student"] / one["remark_2"] for one in times])),
        seconds_per_query=_median(records, "student"),
        relative_cost=float(np.mean([record["relative_cost"] for record in records])),
        gate_r2=float(np.mean([record["gate_r2"] for record in records])),
        training_seconds=sum(float(record["training_seconds"]) for record in records),
    )


def _mean(values: Sequence[float | None]) -> float:
    """Over the classes where the measure is defined, in per cent."""
    return float(100.0 * np.mean([value for value in values if value is not None]))


def _median(records: Sequence[Record], who: str) -> float:
    return float(np.median([record["seconds_per_query"][who] for record in records]))
