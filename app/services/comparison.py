"""Use cases that compare two versions of a model: different parameters, and their classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any, Final

import numpy as np

from app.domain.curves import MOST_PAIRED_CLASSES, RowAnswers
from app.domain.entities import Job, Json, ModelVersion, StudentRow
from app.domain.errors import Conflict, InputFault, InvalidRequest
from app.services.version_metrics import standard_error
from app.store.repositories.comparisons import Overview, Pair, PairCounts, Side
from app.store.unit_of_work import Store, UnitOfWork
from core.model_selection.metrics import mean_f1_shares, paired_error

METRICS: Final = ("f1", "auc", "accuracy", "brier")
SMALLER_IS_BETTER: Final = frozenset({"brier"})
MAX_PAIRS: Final = 1000
"""Most classes in one answer."""
_MAX_KEPT: Final = 16
_OVERVIEWS: Final[dict[tuple[object, ...], Overview]] = {}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The classes of two versions by one metric, of the students that answer queries.

    winners, losers: classes that are better or worse in the second version, the largest change first.
    sample: classes spread evenly over all that both versions have.
    """

    better: int
    worse: int
    counts: PairCounts
    winners: Sequence[Pair]
    losers: Sequence[Pair]
    sample: Sequence[Pair]


@dataclass(frozen=True, slots=True)
class Difference:
    """A parameter that differs between two versions; None in a version that does not have it."""

    name: str
    before: Any
    after: Any


def compare_classes(
    store: Store, before: ModelVersion, after: ModelVersion, metric: str, *, listed: int, sampled: int
) -> Comparison:
    """The classes of two versions by a metric. listed: winners and losers each. sampled: classes in all.

    Raises InvalidRequest for an unknown metric, and Conflict for an imported version.
    """
    sides = _sides(before, after, metric)
    is_up = metric not in SMALLER_IS_BETTER
    with store.read() as uow:
        found = _overview(uow, sides, metric, listed, sampled)
    counts = found.counts
    better, worse = (counts.larger, counts.smaller) if is_up else (counts.smaller, counts.larger)
    winners, losers = (found.larger, found.smaller) if is_up else (found.smaller, found.larger)
    return Comparison(better, worse, counts, winners, losers, found.sample)


def changed_classes(
    store: Store, before: ModelVersion, after: ModelVersion, metric: str, *, better: bool, offset: int = 0
) -> tuple[Sequence[Pair], bool]:
    """One page of the classes that are better, or worse, in the second version; and whether more follow.

    Raises as `compare_classes`.
    """
    sides = _sides(before, after, metric)
    largest = better != (metric in SMALLER_IS_BETTER)
    with store.read() as uow:
        page = uow.comparisons.pairs(sides, metric, limit=MAX_PAIRS + 1, largest=largest, offset=offset)
    return page[:MAX_PAIRS], len(page) > MAX_PAIRS


def is_noise(change: float, error: float | None) -> bool:
    """Whether a change is at most two of its standard errors, so that chance explains it."""
    return error is not None and abs(change) <= 2 * error


def mean_errors(store: Store, before: ModelVersion, after: ModelVersion) -> Mapping[str, float]:
    """The standard error of the change of each mean of two versions, by metric, as far as it is known.

    For F and accuracy it is computed row by row, if both were measured on the same rows.
    """
    old, new = (
        version.metrics.get("standard_errors", {}).get(version.method, {}) for version in (before, after)
    )
    errors = {name: hypot(old[name], new[name]) for name in METRICS if name in old and name in new}
    labels = before.classes
    if not (same_rows(before, after) and labels == after.classes and len(labels) <= MOST_PAIRED_CLASSES):
        return errors
    pairs = [_row_answers(store, before, after, label) for label in labels]
    measured = [pair for pair in pairs if pair is not None]
    return errors | (_paired_errors(measured) if 0 < len(measured) == len(pairs) else {})


def class_error(
    store: Store, before: ModelVersion, after: ModelVersion, label: str, metric: str
) -> float | None:
    """The standard error of the change of a metric of one class; None if unknown."""
    if same_rows(before, after) and metric in {"f1", "accuracy"}:
        pair = _row_answers(store, before, after, label)
        if pair is not None:
            return _paired_errors([pair]).get(metric)
    rows = [student_of(store, version, label) for version in (before, after)]
    errors = [None if row is None else standard_error(row.metrics, metric) for row in rows]
    known = [error for error in errors if error is not None]
    return hypot(*known) if len(known) == len(errors) else None


def same_rows(before: ModelVersion, after: ModelVersion) -> bool | None:
    """Whether two versions were measured on the same rows; None if that is unknown for a version."""
    digests = [version.metrics.get("test_part", {}).get("digest") for version in (before, after)]
    return None if None in digests else digests[0] == digests[1]


def _row_answers(
    store: Store, before: ModelVersion, after: ModelVersion, label: str
) -> tuple[RowAnswers, RowAnswers] | None:
    """Answers of two students of a class on the same rows; None if they are not stored for both."""
    found = []
    for version in (before, after):
        row = student_of(store, version, label)
        if row is None:
            return None
        with store.read() as uow:
            stored = uow.students.curve(row.job_id, row.class_index, row.method)
        answers = None if stored is None else RowAnswers.unpack(stored)
        # Stored are the answers at the threshold of training.
        if answers is None or answers.counts != (row.metrics.get("tp"), row.metrics.get("fp")):
            return None
        found.append(answers)
    old, new = found
    return (old, new) if np.array_equal(old.truth, new.truth) else None


def _paired_errors(pairs: Sequence[tuple[RowAnswers, RowAnswers]]) -> dict[str, float]:
    """Standard errors of the changes of mean F and mean accuracy, from answers on the same rows."""
    errors = {}
    present = [pair for pair in pairs if pair[0].truth.any()]
    if present:
        shares = [
            mean_f1_shares((one.truth, one.yes) for one in side)[1] for side in zip(*present, strict=True)
        ]
        errors["f1"] = paired_error(*shares)
    gained = np.mean([(new.yes == new.truth) * 1.0 - (old.yes == old.truth) for old, new in pairs], axis=0)
    errors["accuracy"] = float(gained.std() / np.sqrt(len(gained)))
    return errors


def parameter_differences(store: Store, before: ModelVersion, after: ModelVersion) -> list[Difference]:
    """Hyper-parameters, data, method and changed thresholds in which two versions differ, by name."""
    with store.read() as uow:
        jobs = [None if job_id is None else uow.jobs.get(job_id) for job_id in (before.job_id, after.job_id)]
    old, new = (dict(_facts(*pair)) for pair in zip((before, after), jobs, strict=True))
    names = [*old, *(name for name in new if name not in old)]
    return [
        Difference(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)
    ]


def student_of(store: Store, version: ModelVersion, label: str) -> StudentRow | None:
    """The student of a version that answers queries for a class; None if there is none."""
    with store.read() as uow:
        return uow.students.served(str(version.job_id), label, version.method)


def _overview(uow: UnitOfWork, sides: tuple[Side, Side], metric: str, listed: int, sampled: int) -> Overview:
    """A summary of all classes, read from the database or cached since an earlier page.

    It takes most of the time of a page, and people view one class after another. The classes of a job that
    has ended change only when it is retried.
    """
    jobs = [uow.jobs.get(job_id) for job_id, _ in sides]
    kept = sides, metric, listed, sampled, *(job.attempt for job in jobs)
    found = _OVERVIEWS.get(kept)
    if found is None:
        found = uow.comparisons.overview(sides, metric, listed=listed, sampled=sampled)
        if all(job.state.ended for job in jobs):
            if len(_OVERVIEWS) >= _MAX_KEPT:
                _OVERVIEWS.clear()
            _OVERVIEWS[kept] = found
    return found


def _sides(before: ModelVersion, after: ModelVersion, metric: str) -> tuple[Side, Side]:
    if metric not in METRICS:
        message = f"Versions can be compared by {', '.join(METRICS)}."
        raise InvalidRequest(message, faults=[InputFault("metric", "unknown_metric", message)])
    for version in (before, after):
        if version.job_id is None:
            text = f"Version {version.version} was imported: the metrics of its classes are not known."
            raise Conflict(text, code="imported_version")
    return (str(before.job_id), before.method), (str(after.job_id), after.method)


def _facts(version: ModelVersion, job: Job | None) -> Iterator[tuple[str, Any]]:
    yield "data set", version.dataset_digest
    yield "method", version.method
    yield "classes", version.class_count
    if job is not None:
        yield from _flat(job.spec, "")
        for label, threshold in job.provenance.get("thresholds", {}).items():
            yield f"threshold of {label}", threshold


def _flat(value: Json, prefix: str) -> Iterator[tuple[str, Any]]:
    """The leaves of nested objects, by their path with dots."""
    for name, part in value.items():
        if isinstance(part, dict):
            yield from _flat(part, f"{prefix}{name}.")
        else:
            yield prefix + name, part
