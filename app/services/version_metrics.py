"""Totals of a job's students, and the metrics of its version, in memory independent of their number."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from math import fsum, sqrt
from typing import Final

from app.domain.entities import Json, StudentRow, StudentState

_SCORES: Final = ("accuracy", "f1", "auc")
_BRIER: Final = "brier"
MAX_WARNINGS: Final = 20
"""Warnings that a job and its version list; the students have all."""


class StudentTotals:
    """Counts and mean scores of the students of a job, added page by page in the order of their classes.

    failed: number of failed students. first_failure: the first one. is_served: whether a student of the
    method that answers queries succeeded. warned: number of students with warnings. warnings: the first 20,
    JSON-ready.
    """

    def __init__(self, served_method: str) -> None:
        self._served_method = served_method
        self.failed = 0
        self.first_failure: StudentRow | None = None
        self.is_served = False
        self.warned = 0
        self.warnings: list[Json] = []
        self._calibrations: Counter[str] = Counter()
        self._classes: Counter[str] = Counter()
        self._means: defaultdict[tuple[str, str], _Mean] = defaultdict(_Mean)
        self._errors: defaultdict[tuple[str, str], _Mean] = defaultdict(_Mean)

    def add(self, rows: Sequence[StudentRow]) -> None:
        """Add one page of rows."""
        failed = [row for row in rows if row.state is StudentState.FAILED]
        self.failed += len(failed)
        if failed and self.first_failure is None:
            self.first_failure = failed[0]
        succeeded: defaultdict[str, list[StudentRow]] = defaultdict(list)
        for row in rows:
            if row.state is StudentState.SUCCEEDED:
                succeeded[row.method].append(row)
        served = succeeded.get(self._served_method, [])
        self.is_served |= bool(served)
        self._calibrations.update(
            row.metrics["calibration"] for row in served if "calibration" in row.metrics
        )
        warnings = [found for row in served if (found := warnings_of(row))]
        self.warned += len(warnings)
        self.warnings = [*self.warnings, *chain.from_iterable(warnings)][:MAX_WARNINGS]
        for method, group in succeeded.items():
            measured = [row.metrics for row in group if any(name in row.metrics for name in _SCORES)]
            self._classes[method] += len(measured)
            for name in (*_SCORES, _BRIER):
                self._means[method, name].add(metrics.get(name) for metrics in measured)
                errors = (standard_error(metrics, name) for metrics in measured)
                self._errors[method, name].add(None if one is None else one**2 for one in errors)

    def metrics(self) -> Json:
        """Metrics of the version: mean scores by method, number of calibrated students by kind, warnings.

        A mean is over the classes where the score is defined; ``classes`` is the number of measured classes.
        ``standard_errors`` are those of the means, by method and score.
        """
        means, errors = {}, {}
        for method, classes in self._classes.items():
            if classes:
                scores = {name: self._means[method, name].value for name in _SCORES}
                brier = self._means[method, _BRIER].value
                means[method] = scores | ({} if brier is None else {_BRIER: brier}) | {"classes": classes}
                names = (name for name in (*_SCORES, _BRIER) if self._errors[method, name].count)
                errors[method] = {name: _mean_error(self._errors[method, name]) for name in names}
        metrics: Json = {"means": means}
        metrics |= {"standard_errors": errors} if any(errors.values()) else {}
        metrics |= {"calibration": dict(self._calibrations)} if self._calibrations else {}
        return metrics | self.warning_fields()

    def warning_fields(self) -> Json:
        """``warnings`` and the number ``students_warned``; empty if there are none."""
        return {"warnings": self.warnings, "students_warned": self.warned} if self.warned else {}


def standard_error(metrics: Json, score: str) -> float | None:
    """The standard error of a score of one student on its test part; None if unknown.

    For F it uses the delta method (`core.model_selection.metrics.f1_shares`), for the ROC area Hanley and
    McNeil (The meaning and use of the area under a ROC curve, 1982), for the Brier score the bins.
    """
    value, counts = metrics.get(score), [metrics.get(name) for name in ("tp", "fp", "tn", "fn")]
    if value is None or None in counts:
        return None
    tp, fp, tn, fn = (int(count or 0) for count in counts)
    rows, positives, negatives = tp + fp + tn + fn, tp + fn, fp + tn
    if score == "f1":
        return sqrt(tp * (2 - 2 * value) ** 2 + (fp + fn) * value**2) / (tp + fp + positives)
    if score == "accuracy":
        return sqrt(value * (1 - value) / rows)
    if score == "auc":
        one, two = value / (2 - value) - value**2, 2 * value**2 / (1 + value) - value**2
        spread = value * (1 - value) + (positives - 1) * one + (negatives - 1) * two
        return sqrt(max(spread, 0.0) / (positives * negatives))
    bins = metrics.get("reliability") or ()
    fourth = fsum(
        part["count"]
        * (
            part["observed"] * (1 - part["probability"]) ** 4
            + (1 - part["observed"]) * part["probability"] ** 4
        )
        for part in bins
    )
    return sqrt(max(fourth / rows - value**2, 0.0) / rows) if bins else None


def _mean_error(squares: _Mean) -> float:
    """The standard error of a mean over classes from the squares of the classes' errors, where defined.

    A wrong answer counts in the class of its row and in the class that accepts it, so the errors of two
    classes are at most fully correlated.
    """
    return sqrt(min(2, squares.count) * float(squares.value or 0.0) / squares.count)


def warnings_of(row: StudentRow) -> list[Json]:
    """The problems of a student, each with code, class and a sentence.

    The guard may have found it worse than its teacher; its false-positive budget may need more rows;
    it may give the same answer to all its training rows, or accept none of its class; its F or precision on
    rows that it has not seen may be clearly below one half.
    """
    student = {"label": row.label, "class_index": row.class_index}
    parts = [row.metrics.get(name, {}) for name in ("guard", "false_positives", "own_rows", "weak")]
    return [
        {"code": part["warning"], **student, "message": part["message"]}
        for part in parts
        if "warning" in part
    ]


class _Mean:
    """Mean of the defined values: the sum of each page is exact, and so is the sum of these."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self.count = 0

    def add(self, values: Iterable[float | None]) -> None:
        defined = [value for value in values if value is not None]
        self.count += len(defined)
        self._sums.append(fsum(defined))

    @property
    def value(self) -> float | None:
        return fsum(self._sums) / self.count if self.count else None
