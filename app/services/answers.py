"""Counts of answers by class, and the rates that follow from them if the probabilities still hold.

A calibrated student gives the probability that each of its answers is right, so its rates in production could
be computed from the probabilities alone: precision = Σ p·yes / yes, recall = Σ p·yes / Σ p, and
false-positive rate = Σ (1 − p)·yes / Σ (1 − p). NannyML calls this confidence-based performance estimation.
Sigmoids of single classes are not exact enough: by themselves these estimates are worse than assuming that
nothing has changed. So each estimate is corrected by the test part:

    logit(rate) = logit(measured there) + logit(estimate of the answers) − logit(the same estimate there)

Its error is unknown. It is only a warning, and never used by a gate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import exp, log
from typing import Final, NamedTuple

from app.domain.answer_counts import ClassCounts
from app.domain.answers import Answers, ClassAnswers, EstimatedRates
from app.domain.entities import Json, ModelVersion
from app.domain.figures import HOUR
from app.services.models import find_unknown_class
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store

_HOURS_OF_DAY: Final = 24
_LEAST: Final = 1e-4
"""Rates are kept at least this far from 0 and 1, where their logits are infinite."""


class _Sums(NamedTuple):
    """Sums of the probabilities of all rows, and of accepted rows."""

    rows: float
    yes: float
    p: float
    p_yes: float

    def rates(self) -> tuple[float | None, float | None, float | None]:
        """Precision, recall and false-positive rate, each None if its denominator is 0."""
        return (
            _share(self.p_yes, self.yes),
            _share(self.p_yes, self.p),
            _share(self.yes - self.p_yes, self.rows - self.p),
        )


def version_answers(
    store: Store, files: BlobCache, version: ModelVersion, days: int, label: str | None = None
) -> Answers:
    """The answers of a version in the last whole ``days`` and the present hour.

    label: the only class to report. Raises NotFound if the version does not have it.
    """
    if label is not None:
        unknown = find_unknown_class(store, files, version, label)
        if unknown is not None:
            raise unknown
    hour = int(time.time() // HOUR) - _HOURS_OF_DAY * days
    with store.read() as uow:
        counted = uow.answers.since(version.tenant, version.model, version.version, hour, label)
        measured: dict[str, Json] = {}
        if version.job_id is not None:
            rows = uow.students.served_of(version.job_id, [one.label for one in counted], version.method)
            measured = {row.label: row.metrics for row in rows}
    classes = [_of_class(counts, measured.get(counts.label)) for counts in counted]
    return Answers(version.model, version.version, days, classes)


def _of_class(counts: ClassCounts, metrics: Json | None) -> ClassAnswers:
    estimated = None if metrics is None else estimated_rates(counts, metrics)
    return ClassAnswers(counts.label, counts.asked, counts.yes, counts.p, [*counts.bins], estimated)


def estimated_rates(counts: ClassCounts, metrics: Json) -> EstimatedRates | None:
    """The rates if the probabilities hold. metrics: of the student; None if they lack a test part."""
    sums = _of_test_part(metrics)
    if sums is None:
        return None
    tp, fp, tn, fn = (int(metrics[name]) for name in ("tp", "fp", "tn", "fn"))
    measured = _share(tp, tp + fp), _share(tp, tp + fn), _share(fp, fp + tn)
    live = _Sums(counts.asked, counts.yes, counts.p, counts.p_yes).rates()
    return EstimatedRates(*(_anchored(*three) for three in zip(measured, live, sums.rates(), strict=True)))


def _of_test_part(metrics: Json) -> _Sums | None:
    """The sums of the test rows, from the bins of the reliability plot.

    Probabilities never fall as the score rises, so the accepted rows are those with the largest ones. In the
    bin that contains the threshold, each row counts with the bin's mean.
    """
    bins: Sequence[Json] = metrics.get("reliability") or ()
    if not bins or metrics.get("tp") is None:
        return None
    yes = left = metrics["tp"] + metrics["fp"]
    p_yes = 0.0
    for one in reversed(bins):
        taken = min(left, one["count"])
        p_yes += taken * one["probability"]
        left -= taken
    p = sum(one["count"] * one["probability"] for one in bins)
    return _Sums(sum(one["count"] for one in bins), yes, p, p_yes)


def _anchored(measured: float | None, live: float | None, there: float | None) -> float | None:
    if measured is None or live is None or there is None:
        return None
    return 1.0 / (1.0 + exp(-(_logit(measured) + _logit(live) - _logit(there))))


def _logit(rate: float) -> float:
    inside = min(max(rate, _LEAST), 1.0 - _LEAST)
    return log(inside / (1.0 - inside))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
