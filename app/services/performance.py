"""Use cases of monitors: rates in production from feedback on samples, and the alarm about a broken promise.

The alarm is a sequential test, so it may be evaluated after every feedback (`core.monitoring`). It uses the
answers in the order in which they were given, hour by hour, with the feedback so far; an answer without
feedback counts as right. Later feedback can only increase the evidence, so false alarms stay rare, however
late feedback comes and whoever gives none.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from app.domain.answers import EstimatedRates
from app.domain.entities import ModelVersion, StudentRow
from app.domain.errors import NotFound
from app.domain.figures import HOUR
from app.domain.installation import require_training
from app.domain.monitors import Monitor
from app.domain.names import ALL_OTHERS
from app.domain.performance import (
    PROMISES,
    Acknowledged,
    ClassPerformance,
    LiveRate,
    Performance,
    PromiseEvidence,
)
from app.services.answers import estimated_rates
from app.services.models import find_unknown_class
from app.services.monitors import promised_rate
from app.services.rollback import Rollback, roll_back
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.repositories.evidence import EvidenceRow, SampledAnswer
from app.store.unit_of_work import Store, UnitOfWork

if TYPE_CHECKING:
    from core.monitoring.estimates import SampledRate
    from core.monitoring.sequential import Evidence, SequentialTest, Trials

_DAY: Final = 86_400.0
_HOURS_OF_WEEK: Final = 168
TOLD_CLASSES: Final = 100
"""Number of classes that a monitor reports if no class is named: those with the largest evidence."""
_DELETED: Final = 10_000
"""Samples that are deleted in one transaction."""


def performance(
    store: Store, files: BlobCache, model: str, alias: str, days: int, label: str | None = None
) -> Performance:
    """The rates of the monitored classes of an alias in the last days, and the evidence against promises.

    label: the only class to report. Raises NotFound for unknown aliases and classes, without a monitor,
    and for a class that it does not monitor, and OnlyServes without the packages that compute intervals.
    """
    require_training()
    with store.read() as uow:
        version = uow.models.version(model, uow.models.alias(model, alias).version)
        monitor = uow.monitors.get(model, alias)
    if label is not None:
        unknown = find_unknown_class(store, files, version, label)
        if unknown is not None:
            raise unknown
        if monitor.promises(label) is None:
            text = f"The monitor of alias {alias!r} does not look at class {label!r:.100}."
            raise NotFound(text, code="class_not_monitored")
    since = max(time.time() - _DAY * days, monitor.started_at)
    with store.read() as uow:
        judge = _Judge(uow, monitor, version)
        labels = [label] if label is not None else judge.labels
        evidence = {name: judge.evidence(name) for name in labels}
        worst = sorted(labels, key=lambda name: (_order(evidence[name]), name))
        told = worst[:TOLD_CLASSES]
        estimates = _if_probabilities_hold(uow, monitor, version, since, told)
        asked = uow.monitors.trials(monitor, int(since // HOUR), label)
        classes = [
            _of_class(uow, judge, name, since, asked.get(name, (0, 0)), evidence[name], estimates.get(name))
            for name in told
        ]
    return Performance(model, alias, version.version, days, since, classes, len(worst) - len(told))


def acknowledge(
    store: Store, model: str, alias: str, labels: Sequence[str] | None, note: str
) -> Acknowledged:
    """Restart the evidence of classes with an alarm. labels: of these classes; None for all.

    Of all alarms after the first of a promise together, less than 0.4 alpha are false. Raises NotFound.
    """
    with store.begin() as uow:
        uow.models.alias(model, alias)
        monitor = uow.monitors.get(model, alias)
        hour = int(time.time() // HOUR) + 1
        alarms = [
            row
            for row in uow.evidence.of_monitor(monitor, lock=True).values()
            if row.alarm_at is not None and (labels is None or row.label in labels)
        ]
        for row in alarms:
            uow.evidence.save(
                dataclasses.replace(
                    row,
                    number=row.number + 1,
                    since_hour=hour,
                    hour=hour,
                    evidence=None,
                    alarm_at=None,
                    note=note or None,
                )
            )
        details = {"classes": sorted({row.label for row in alarms})[:20], "alarms": len(alarms)}
        uow.audit.append("monitor.acknowledge", f"{model}@{alias}", details=details)
    return Acknowledged(len(alarms))


def judge_all(store: Store, now: float) -> int:
    """Give the alarms that feedback since the last call has made due; returns how many.

    Called by the elected worker. An alarm and its event are one transaction, so that there is one of each
    whenever a worker dies. Raises Unavailable.
    """
    with store.read() as uow:
        due = uow.evidence.unjudged()
    return sum(_judge_one(store.of_tenant(tenant), model, alias, now) for tenant, model, alias in due)


def _judge_one(store: Store, model: str, alias: str, now: float) -> int:
    with store.begin() as uow:
        # Locked, so that two workers that are elected for a moment do not both give an alarm.
        monitor = uow.monitors.find(model, alias, lock=True)
        if monitor is None:
            return 0
        # This precedes reading the samples, so that the next call uses feedback that arrives in between.
        until = uow.evidence.feedback_at(monitor.id)
        version = uow.models.version(model, uow.models.alias(model, alias).version)
        judge = _Judge(uow, monitor, version)
        alarms = [
            (label, found)
            for label in uow.evidence.wrong_labels(monitor)
            for found in judge.evidence(label)
            if found.alarm_since is None and found.largest >= found.alarm_at
        ]
        for label, found in alarms:
            uow.evidence.save(dataclasses.replace(judge.row(label, found.promise), alarm_at=now))
        uow.evidence.judged(monitor.id, until)
        moved = None
        if alarms and monitor.settings.on_alarm == "rollback":
            moved = roll_back(uow, monitor, version, now)
        for label, found in alarms:
            _announce(uow, monitor, version, label, found, moved)
    return len(alarms)


def _announce(
    uow: UnitOfWork,
    monitor: Monitor,
    version: ModelVersion,
    label: str,
    found: PromiseEvidence,
    moved: Rollback | None,
) -> None:
    data = {
        "model": monitor.model,
        "alias": monitor.alias,
        "version": version.version,
        "class": label,
        "promise": found.promise,
        "limit": found.limit,
        "evidence": min(found.largest, 1e300),
        "alarm_at": found.alarm_at,
        "rolled_back_to": None if moved is None else moved.version,
        "not_rolled_back": None if moved is None else moved.reason,
        "links": {"performance": f"/v1/models/{monitor.model}/aliases/{monitor.alias}/performance"},
    }
    subject = f"{monitor.model}@{monitor.alias}"
    uow.outbox.announce("promise.broken", monitor.tenant, subject, data, model=monitor.model)


def forget_old_samples(store: Store, settings: Settings, *, dry_run: bool = False) -> int:
    """Delete samples older than their monitors keep them, with their feedback.

    The evidence of their hours is stored before, because it cannot change any more. dry_run: delete nothing.
    Returns the number of samples. Raises Unavailable.
    """
    store, now, most_days = store.of_all_tenants(), time.time(), settings.retain_samples_days
    if dry_run:
        with store.read() as uow:
            return uow.monitors.count_old(now, most_days)
    deleted = 0
    with store.read() as uow:
        known = uow.monitors.all_keys()
    for tenant, model, alias in known:
        of_tenant = store.of_tenant(tenant)
        with of_tenant.begin() as uow:
            monitor = uow.monitors.find(model, alias)
            if monitor is None:
                continue
            days = monitor.settings.retain_days
            hour = int((now - _DAY * (min(days, most_days) if most_days else days)) // HOUR)
            version = uow.models.version(model, uow.models.alias(model, alias).version)
            _Judge(uow, monitor, version).settle(hour)
            uow.evidence.forget_runs(monitor)
        while True:
            with of_tenant.begin() as uow:
                gone = uow.monitors.delete_before(monitor.id, hour, _DELETED)
            deleted += gone
            if gone < _DELETED:
                break
    return deleted


_Hours: TypeAlias = tuple[dict[int, list[SampledAnswer]], dict[int, int]]
"""The samples of a class, and the number of answers that they were chosen from, by the hour."""


class _Judge:
    """Computes the evidence against the promises of a monitor, in one transaction."""

    def __init__(self, uow: UnitOfWork, monitor: Monitor, version: ModelVersion) -> None:
        self._uow, self._monitor = uow, monitor
        self._rows = uow.evidence.of_monitor(monitor)
        self._first_hour = int(monitor.started_at // HOUR)
        self._hours: dict[tuple[str, int, int | None], _Hours] = {}
        counted = uow.evidence.counted_labels(monitor)
        named = [label for label in monitor.settings.classes if label != ALL_OTHERS]
        everyone = list(version.classes) if ALL_OTHERS in monitor.settings.classes else []
        self.labels = sorted({*counted, *named, *everyone})
        self._students: dict[str, StudentRow] = {}
        if version.job_id is not None:
            rows = uow.students.served_of(version.job_id, self.labels, version.method)
            self._students = {row.label: row for row in rows}
        self._number = sum(len(self._limits(label)) for label in self.labels)

    @property
    def monitor(self) -> Monitor:
        """The monitor."""
        return self._monitor

    def student(self, label: str) -> StudentRow | None:
        """The student of a class, unless it was imported."""
        return self._students.get(label)

    def promised(self, label: str) -> dict[str, float]:
        """The rates that the monitor names for a class, by promise."""
        wanted = self._monitor.promises(label)
        if wanted is None:
            return {}
        most: float | str | None = wanted.max_false_positive_rate
        if most == "promised":
            most = promised_rate(self.student(label))
        values = dict(zip(PROMISES, (most, wanted.min_precision, wanted.min_recall), strict=True))
        return {name: float(value) for name, value in values.items() if value is not None}

    def _limits(self, label: str) -> dict[str, SequentialTest]:
        from core.monitoring.sequential import SequentialTest

        ask, tests = self._monitor.settings.ask, dict[str, SequentialTest]()
        for promise, rate in self.promised(label).items():
            if promise == "false_positive_rate":
                most = min(rate * self._monitor.settings.tolerance, 0.999)
                tests[promise] = SequentialTest.of_false_positives(most, largest_weight=1.0 / ask.yes)
            elif promise == "precision":
                tests[promise] = SequentialTest.of_precision(rate)
            else:
                tests[promise] = SequentialTest.of_recall(rate, 1.0 / min(ask.yes, ask.floor))
        return tests

    def row(self, label: str, promise: str) -> EvidenceRow:
        """The stored evidence against a promise, or its initial state."""
        found = self._rows.get((label, promise))
        if found is None:
            monitor = self._monitor
            first = self._first_hour
            found = EvidenceRow(monitor.id, monitor.run, label, promise, 1, first, None, first, None, None)
        return found

    def evidence(self, label: str) -> list[PromiseEvidence]:
        """The evidence against each promise of a class, with all feedback until now."""
        from core.monitoring.sequential import alarm_level

        results = []
        for promise, test in self._limits(label).items():
            row = self.row(label, promise)
            found = self._replayed(test, row, None)
            level = alarm_level(self._number, self._monitor.settings.alpha, row.number)
            results.append(
                PromiseEvidence(
                    promise,
                    test.limit,
                    min(found.value, 1e300),
                    min(found.peak, 1e300),
                    level,
                    found.mistakes_to(level, test),
                    row.since_hour * HOUR,
                    row.alarm_at,
                    row.number,
                    row.note,
                )
            )
        return results

    def settle(self, hour: int) -> None:
        """Store the evidence of all hours before this one, whose samples are about to be deleted."""
        for label in self.labels:
            for promise, test in self._limits(label).items():
                row = self.row(label, promise)
                if row.hour < hour:
                    found = self._replayed(test, row, hour).as_dict()
                    self._uow.evidence.save(dataclasses.replace(row, evidence=found, hour=hour))

    def _replayed(self, test: SequentialTest, row: EvidenceRow, until: int | None) -> Evidence:
        """The evidence after the hours before ``until``; None for all."""
        from core.monitoring.sequential import Evidence

        found = Evidence.start(test) if row.evidence is None else Evidence.from_dict(row.evidence)
        for trials in self._trials(row, until):
            found = found.after(test, trials)
        return found

    def _trials(self, row: EvidenceRow, until: int | None) -> Iterator[Trials]:
        """The trials of each hour in order."""
        # The promises of a class are of the same answers.
        key = row.label, row.hour, until
        if key not in self._hours:
            found = self._uow.evidence
            sampled = found.sampled_by_hour(self._monitor, *key)
            self._hours[key] = sampled, dict(found.asked_by_hour(self._monitor, *key))
        sampled, asked = self._hours[key]
        for hour in sorted({*sampled, *asked}):
            period = (hour - row.since_hour) // _HOURS_OF_WEEK
            yield trials_of_hour(row.promise, period, asked.get(hour, 0), sampled.get(hour, []))


def trials_of_hour(promise: str, period: int, asked: int, sampled: Sequence[SampledAnswer]) -> Trials:
    """The trials of one hour for the alarm of a promise. asked: number of answers that could be sampled.

    False positives: all answers; sampled ones have the weight 1/q. Precision: sampled yes answers. Recall:
    sampled rows of the class; a yes answer without feedback counts as one, a no answer does
    not.
    """
    from core.monitoring.sequential import Trials

    if promise == "recall":
        right = [one.q for one in sampled if one.answer and one.correct is not False]
        wrong = [one.q for one in sampled if not one.answer and one.correct is False]
        return Trials(period, _weighted(wrong), _weighted(right))
    wrong = [one.q for one in sampled if one.answer and one.correct is False]
    if promise == "precision":
        yes = sum(one.answer for one in sampled)
        return Trials.of_counts(period, yes, len(wrong))
    return Trials(period, _weighted(wrong), ((1.0, max(asked - len(wrong), 0)),))


def _weighted(inclusion: Sequence[float]) -> tuple[tuple[float, int], ...]:
    weights, counts = np.unique(1.0 / np.array(inclusion), return_counts=True)
    return tuple(zip(weights.tolist(), counts.tolist(), strict=True))


def _order(evidence: Sequence[PromiseEvidence]) -> tuple[bool, float]:
    """Sort key: classes with alarms first, then those that are nearest to one."""
    has_alarm = any(one.alarm_since is not None for one in evidence)
    return not has_alarm, -max((one.evidence / one.alarm_at for one in evidence), default=0.0)


def _if_probabilities_hold(
    uow: UnitOfWork, monitor: Monitor, version: ModelVersion, since: float, labels: Sequence[str]
) -> dict[str, EstimatedRates]:
    if version.job_id is None:
        return {}
    metrics = {
        row.label: row.metrics for row in uow.students.served_of(version.job_id, labels, version.method)
    }
    hour = int(since // HOUR)
    counted = uow.answers.since(monitor.tenant, monitor.model, version.version, hour)
    found = {one.label: estimated_rates(one, metrics[one.label]) for one in counted if one.label in metrics}
    return {label: rates for label, rates in found.items() if rates is not None}


def _of_class(
    uow: UnitOfWork,
    judge: _Judge,
    label: str,
    since: float,
    asked: tuple[int, int],
    evidence: list[PromiseEvidence],
    estimated: EstimatedRates | None,
) -> ClassPerformance:
    from core.monitoring.estimates import Samples, false_positive_rate, most_precise, precision, recall

    rows = uow.monitors.labelled(judge.monitor, label, since)
    answer = np.array([row[0] for row in rows], dtype=bool)
    correct = np.array([row[1] is True for row in rows], dtype=bool)
    known = np.array([row[1] is not None for row in rows], dtype=bool)
    inclusion = np.array([row[2] for row in rows], dtype=np.float64)
    p = np.array([0.0 if row[3] is None else row[3] for row in rows], dtype=np.float64)
    samples = Samples(answer, answer == correct, known, inclusion, p)
    reports, wrong = uow.feedback.reports(judge.monitor.id, label, since)
    promised = judge.promised(label)
    return ClassPerformance(
        label,
        *asked,
        int(answer.sum()),
        int((~answer).sum()),
        int((answer & known).sum()),
        int((~answer & known).sum()),
        _rate(precision(samples), promised.get("precision")),
        _rate(recall(samples), promised.get("recall")),
        _rate(false_positive_rate(samples), promised.get("false_positive_rate")),
        reports,
        wrong,
        most_precise(asked[1], wrong) if wrong and wrong <= asked[1] else None,
        estimated,
        evidence,
        any(one.alarm_since is not None for one in evidence),
    )


def _rate(found: SampledRate, promised: float | None) -> LiveRate:
    worst, best = found.bounds or (None, None)
    return LiveRate(found.interval, found.rows, found.answered, worst, best, promised)
