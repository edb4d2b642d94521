"""Use cases of two versions of a model beside each other: parameters that differ, and their classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.domain.entities import Job, Json, ModelVersion, StudentRow
from app.domain.errors import Conflict, InputFault, InvalidRequest
from app.store.repositories.comparisons import Overview, Pair, PairCounts, Side
from app.store.unit_of_work import Store, UnitOfWork

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
    """A parameter that two versions do not share; None where one of them does not have it."""

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
    """All classes in short, read from the database or kept since an earlier page.

    It takes most of the time of a page, and people look at one class after another. The classes of a job that
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
