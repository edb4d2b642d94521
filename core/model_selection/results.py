"""Search results: all evaluated points and the selected one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from core.model_selection.options import Metric, Strategy
from core.students.base import MetadataValue, StudentSpec
from core.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class TracePoint:
    """The latest measurement of one point.

    params: its hyper-parameters, JSON-ready. folds: number of folds it was measured on.
    score: the metric, in [0, 1]. standard_error: of the score, over the folds.
    gap: largest relative duality gap of its fits. seconds: sum of the wall times of its fits.
    """

    params: dict[str, Any]
    folds: int
    score: float
    standard_error: float
    gap: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: hyper-parameters and measures side by side."""
        measures = asdict(self)
        return {**measures.pop("params"), **measures}


@dataclass(slots=True, eq=False)
class SearchResults:
    """Results of each point of a search so far; arrays are (points,), see ``TracePoint``."""

    points: tuple[StudentSpec, ...]
    score: FloatArray = field(init=False)
    error: FloatArray = field(init=False)
    gap: FloatArray = field(init=False)
    seconds: FloatArray = field(init=False)
    folds: IntArray = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.points)
        self.score, self.error = np.zeros(count), np.zeros(count)
        self.gap, self.seconds = np.zeros(count), np.zeros(count)
        self.folds = np.zeros(count, dtype=np.int64)

    def add_fits(self, which: IntArray, gaps: FloatArray, seconds: FloatArray) -> None:
        """Add one fit of each point of ``which``: keep the largest gap and add the time."""
        self.gap[which] = np.maximum(self.gap[which], gaps)
        self.seconds[which] += seconds

    def trace(self) -> tuple[TracePoint, ...]:
        """All points, in the order of the grid."""
        numbers = (self.folds, self.score, self.error, self.gap, self.seconds)
        columns = zip(*(column.tolist() for column in numbers), strict=True)
        return tuple(
            TracePoint(point.params(), *row) for point, row in zip(self.points, columns, strict=True)
        )


@dataclass(frozen=True, slots=True)
class PointContest:
    """F, in [0, 1], of a search's start and of the best other point, on rows that chose neither.

    rows: number of rows. standard_error: of the paired difference.
    """

    rows: int
    start_f1: float
    found_f1: float
    standard_error: float

    @property
    def is_won(self) -> bool:
        """Whether the other point is better by more than one standard error."""
        return self.found_f1 - self.start_f1 > self.standard_error

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"taken": "search" if self.is_won else "start"}


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """The outcome of a search for one class and method.

    spec: the chosen hyper-parameters. held_out_scores: of every training row by a student, and a teacher,
    that were not fitted to it, (n,).
    score, standard_error: cross-validated, of the choice. trace: every point tried, in the order of the grid.
    contest: why the search kept or left its starting point; None without a start, or with too few rows.
    """

    spec: StudentSpec
    held_out_scores: FloatArray
    score: float
    standard_error: float
    trace: tuple[TracePoint, ...]
    contest: PointContest | None = None

    @property
    def seconds(self) -> float:
        """Sum of the wall times of all fits, including those that ran in parallel."""
        return sum(point.seconds for point in self.trace)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the held-out scores."""
        return {
            "method": self.spec.name,
            **self.spec.params(),
            "score": self.score,
            "standard_error": self.standard_error,
            "trace": [point.as_dict() for point in self.trace],
        }


@dataclass(frozen=True, slots=True)
class SearchReport:
    """Search results that are stored with a trained student.

    chosen: the hyper-parameters. score, standard_error: cross-validated, of the choice.
    metric, strategy, folds: settings of the search. points: every point tried, in the order of the grid.
    seconds: wall time of the search. contest: see ``SearchResult``.
    """

    chosen: dict[str, Any]
    score: float
    standard_error: float
    metric: Metric
    strategy: Strategy
    folds: int
    points: tuple[TracePoint, ...]
    seconds: float
    contest: PointContest | None = None

    def summary(self) -> dict[str, Any]:
        """JSON-ready, with the number of points instead of the points."""
        return {
            **self.chosen,
            "score": self.score,
            "standard_error": self.standard_error,
            "metric": self.metric,
            "strategy": self.strategy,
            "folds": self.folds,
            "points": len(self.points),
            "seconds": self.seconds,
            **({} if self.contest is None else {"contest": self.contest.as_dict()}),
        }

    def trace(self) -> list[dict[str, Any]]:
        """All points, JSON-ready."""
        return [point.as_dict() for point in self.points]

    def metadata(self) -> dict[str, MetadataValue]:
        """Entries for the metadata of the packed student."""
        return {
            "tuning_strategy": self.strategy,
            "tuning_metric": self.metric,
            "tuning_points": len(self.points),
            "tuning_score": self.score,
            "tuning_standard_error": self.standard_error,
        }
