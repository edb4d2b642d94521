"""Use cases of monitors: promises of an alias in production, and the answers that people are asked about."""

from __future__ import annotations

import time
from collections.abc import Collection
from itertools import pairwise
from typing import Final

import numpy as np

from app.domain.answer_counts import PROBABILITY_BINS, ClassCounts, bin_edges
from app.domain.entities import ModelVersion, StudentRow, new_id
from app.domain.errors import Conflict, NotFound, PreconditionFailed, PreconditionRequired
from app.domain.figures import HOUR
from app.domain.monitors import (
    MAX_MONITORED_CLASSES,
    MAX_MONITORS,
    Monitor,
    MonitorSettings,
    SampleView,
)
from app.domain.names import ALL_OTHERS
from app.services.models import unknown_class, unknown_classes
from app.services.quotas import require_bytes
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store, UnitOfWork
from core.monitoring.sampling import SamplingPlan

_SLOPE_SECONDS: Final = 3600.0
"""How often it is looked at how many no answers are asked about."""
_DAY: Final = 86_400.0
_SAME: Final = 0.1
"""A slope that would change by a smaller share stays, because each change is a change of the registry."""


def get_monitor(store: Store, model: str, alias: str) -> Monitor:
    """The monitor of an alias. Raises NotFound, also for an unknown alias."""
    with store.read() as uow:
        uow.models.alias(model, alias)
        return uow.monitors.get(model, alias)


def put_monitor(
    store: Store,
    files: BlobCache,
    settings: Settings,
    model: str,
    alias: str,
    wanted: MonitorSettings,
    expected_revision: int | None,
    created_by: str,
) -> Monitor:
    """Create or change the monitor of an alias. A change begins a new run: earlier results do not count.

    expected_revision: that the caller read; 0 to create one; None for either, which an existing monitor does
    not allow. Raises NotFound for unknown aliases and classes, PreconditionFailed, PreconditionRequired,
    TooLarge beyond the quota of bytes, and Conflict: where the server keeps no samples or rows, beyond
    `MAX_MONITORS`, for a class whose false positives were not limited in training and are ``promised``, and
    for one without probabilities that is asked about by them.
    """
    if settings.query_samples == "off":
        text = (
            "This server keeps no samples of answers. Its operator can change that: STMS_QUERY_SAMPLES=ids."
        )
        raise Conflict(text, code="samples_off")
    if wanted.store == "rows" and settings.query_samples != "rows":
        text = (
            "This server keeps no rows of queries. Its operator can change that: STMS_QUERY_SAMPLES=rows."
            ' Or keep the ids alone: "store": "ids".'
        )
        raise Conflict(text, code="samples_off")
    with store.read() as uow:
        version = uow.models.version(model, uow.models.alias(model, alias).version)
    _check_classes(store, files, version, wanted)
    with store.begin() as uow:
        require_bytes(uow, settings, store.tenant)
        uow.registry.lock()
        present = uow.monitors.find(model, alias)
        _check_revision(present, alias, expected_revision)
        now = time.time()
        if present is None:
            uow.models.alias(model, alias)
            if uow.monitors.count() >= MAX_MONITORS:
                text = f"The tenant has {MAX_MONITORS} monitors, which is the most. Delete one first."
                raise Conflict(text, code="too_many_monitors")
            new = Monitor(
                id=new_id("mon"), model=model, alias=alias, settings=wanted, revision=1, run=1,
                started_at=now, updated_at=now, created_by=created_by, slope=0.0, samples=0, dropped=0,
                tenant=store.tenant,
            )  # fmt: skip
            uow.monitors.add(new)
        elif wanted != present.settings:
            uow.monitors.change(present, wanted, now)
        details = {"classes": len(wanted.classes), "ask": wanted.ask.model_dump(mode="json")}
        uow.audit.append("monitor.put", f"{model}@{alias}", details=details)
        return uow.monitors.get(model, alias)


def delete_monitor(store: Store, model: str, alias: str, expected_revision: int | None) -> None:
    """Delete a monitor with its samples and their feedback.

    Raises NotFound, PreconditionFailed, and PreconditionRequired if no revision is expected.
    """
    with store.begin() as uow:
        uow.registry.lock()
        uow.models.alias(model, alias)
        monitor = uow.monitors.get(model, alias)
        _check_revision(monitor, alias, expected_revision)
        uow.monitors.delete(monitor)
        uow.audit.append("monitor.delete", f"{model}@{alias}", details={"samples": monitor.samples})


def waiting_samples(
    store: Store, model: str, alias: str, label: str | None, *, limit: int, after: str | None
) -> tuple[list[SampleView], bool]:
    """Answers that people are asked about and that have no feedback, and whether more follow.

    Raises NotFound.
    """
    with store.read() as uow:
        uow.models.alias(model, alias)
        monitor = uow.monitors.get(model, alias)
        return uow.monitors.waiting(monitor, label, limit=limit, after=after)


def _check_revision(present: Monitor | None, alias: str, expected: int | None) -> None:
    if present is not None and expected is None:
        text = f"Alias {alias!r} has a monitor: the revision you read is required."
        raise PreconditionRequired(text, code="if_match_required")
    if expected is not None and expected != (0 if present is None else present.revision):
        raise PreconditionFailed(f"The monitor of alias {alias!r} has changed since it was read.")


def _check_classes(store: Store, files: BlobCache, version: ModelVersion, wanted: MonitorSettings) -> None:
    """Raise NotFound and Conflict, see `put_monitor`."""
    named = [label for label in wanted.classes if label != ALL_OTHERS]
    if version.class_table is None:
        unknown = [label for label in named if label not in version.classes]
    else:
        unknown = unknown_classes(store, files, version, named)
    if unknown:
        raise unknown_class(version, unknown[0])
    if ALL_OTHERS in wanted.classes and version.class_count > MAX_MONITORED_CLASSES:
        text = (
            f"Version {version.version} has {version.class_count} classes, and a monitor looks at"
            f" {MAX_MONITORED_CLASSES} at most: name them instead of {ALL_OTHERS!r}."
        )
        raise Conflict(text, code="too_many_classes")
    labels = list(version.classes) if ALL_OTHERS in wanted.classes else named
    rows = _students(store, version, labels)
    if wanted.ask.no == "by_probability":
        without = next((label for label in labels if not _is_calibrated(rows.get(label))), None)
        if without is not None:
            text = (
                f"The student of class {without!r:.100} has no probabilities: ask about its no answers with"
                ' "no": "uniform".'
            )
            raise Conflict(text, code="not_calibrated")
    for label in labels:
        promises = wanted.classes.get(label) or wanted.classes[ALL_OTHERS]
        if promises.max_false_positive_rate == "promised" and promised_rate(rows.get(label)) is None:
            text = (
                f"Class {label!r:.100} was trained without a budget of false positives: nothing was promised."
                " Say the rate itself."
            )
            raise Conflict(text, code="no_promise")


def _students(store: Store, version: ModelVersion, labels: Collection[str]) -> dict[str, StudentRow]:
    if version.job_id is None:
        return {}
    with store.read() as uow:
        found = uow.students.served_of(version.job_id, labels, version.method)
    return {row.label: row for row in found}


def _is_calibrated(row: StudentRow | None) -> bool:
    return row is not None and "calibration" in row.metrics


def promised_rate(row: StudentRow | None) -> float | None:
    """The rate of false positives that a student was trained to keep; None without one."""
    promise = {} if row is None else row.metrics.get("false_positives", {})
    budget = promise.get("budget")
    return None if not budget else float(budget)


def adapt_slopes(store: Store, now: float) -> None:
    """Adapt how many no answers each monitor asks about, to its limit for a day, by the last day's answers.

    Called by the elected worker. Raises Unavailable.
    """
    with store.read() as uow:
        due = uow.monitors.due_for_slope(now - _SLOPE_SECONDS)
    for monitor in due:
        with store.begin() as uow:
            slope = _slope(uow, monitor, now)
            if slope is None or abs(slope - monitor.slope) <= _SAME * monitor.slope:
                uow.monitors.looked_at_slope(monitor.id, now)
            else:
                uow.registry.lock()
                uow.monitors.set_slope(monitor.id, slope, now)


def _slope(uow: UnitOfWork, monitor: Monitor, now: float) -> float | None:
    """The slope for the answers of the last day, or since the monitor began; None without any."""
    if monitor.settings.ask.no == "uniform":
        return 0.0 if monitor.slope else None
    try:
        version = uow.models.of_tenant(monitor.tenant).alias(monitor.model, monitor.alias).version
    except NotFound:
        return None
    since = max(now - _DAY, monitor.started_at)
    hour = int(since // HOUR)
    counted = uow.answers.since(monitor.tenant, monitor.model, version, hour)
    counted = [one for one in counted if monitor.promises(one.label) is not None]
    if not counted:
        return None
    share_of_day = min((now - hour * HOUR) / _DAY, 1.0)
    return sampling_plan(monitor.plan, counted, monitor.settings.ask.per_day * share_of_day).slope


def sampling_plan(plan: SamplingPlan, counted: Collection[ClassCounts], most: float) -> SamplingPlan:
    """The plan that asks about ``most`` of these answers.

    Probabilities never fall as the score rises, so the yes answers are those with the largest ones.
    """
    edges = bin_edges()
    middles = [((low**0.5 + high**0.5) / 2.0) ** 2 for low, high in pairwise(edges)]
    noes = [0] * PROBABILITY_BINS
    for one in counted:
        left = one.yes
        for place in reversed(range(PROBABILITY_BINS)):
            taken = min(left, one.bins[place])
            left -= taken
            noes[place] += one.bins[place] - taken
    yes = sum(one.yes for one in counted)
    return plan.within(most, yes, np.array(middles), np.array(noes, dtype=np.float64))
