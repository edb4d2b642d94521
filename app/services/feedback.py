"""Use cases of feedback: people's judgements of answers, of samples and of others."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from app.domain.entities import new_id
from app.domain.errors import ServiceError
from app.domain.monitors import (
    MAX_REPORTS,
    FeedbackItem,
    FeedbackResult,
    FeedbackResults,
    Given,
    Monitor,
    Sample,
)
from app.services.quotas import require_bytes
from app.services.subject_keys import pseudonyms_of
from app.settings import Settings
from app.store.unit_of_work import Store, UnitOfWork


class _Refused(ServiceError):
    """An item that cannot be accepted; the others can."""


def give_feedback(
    store: Store,
    settings: Settings,
    items: Sequence[FeedbackItem],
    created_by: str,
    *,
    models: Collection[str] = (),
) -> FeedbackResults:
    """Store people's feedback about answers, all in one transaction, and return the result of each item.

    Repeating the same feedback changes nothing; other feedback on the same answer replaces the first,
    which stays stored. models: the models about whose answers the caller may give feedback; empty for all.
    Raises TooLarge beyond the tenant's quota of bytes.
    """
    subjects = sorted({item.subject for item in items if item.subject is not None})
    names = dict(zip(subjects, pseudonyms_of(store, subjects), strict=True))
    with store.begin() as uow:
        require_bytes(uow, settings, store.tenant)
        taking = _Taking(uow, created_by, frozenset(models), names)
        known = uow.feedback.samples({item.sample for item in items if item.sample is not None})
        results = [taking.take(item, known) for item in items]
        accepted = [one for one in results if one.id is not None]
        replaced = sum(one.replaced for one in accepted)
        if accepted:
            details = {"accepted": len(accepted), "replaced": replaced}
            uow.audit.append("feedback.give", "feedback", details=details)
    return FeedbackResults(len(accepted), replaced, results)


class _Taking:
    """The items of one request, in one transaction."""

    def __init__(
        self, uow: UnitOfWork, created_by: str, models: frozenset[str], subjects: Mapping[str, str]
    ) -> None:
        """subjects: the pseudonyms of those that the items name."""
        self._uow, self._created_by, self._models = uow, created_by, models
        self._subjects = subjects
        self._monitors: dict[str, Sequence[Monitor]] = {}
        self._reports: dict[str, int] = {}

    def take(self, item: FeedbackItem, known: dict[str, Sample]) -> FeedbackResult:
        """Store one item; its faults are in its result."""
        try:
            samples = self._samples(item, known)
            if not samples:
                return self._report(item)
            if item.skip:
                self._uow.reviews.skip(samples[0].id)
                return FeedbackResult(samples[0].id, True, False, None, None)
            results = [self._of_sample(item, sample) for sample in samples]
            if item.truth is not None:
                others = self._uow.feedback.samples_of_request(samples[0].request_id, samples[0].row)
                same = {sample.id for sample in samples}
                for other in others:
                    if other.id not in same and other.monitor_id == samples[0].monitor_id:
                        self._of_sample(item.model_copy(update={"correct": None}), other)
            return results[0]
        except _Refused as error:
            return FeedbackResult(None, None, False, error.reason, error.message)

    def _samples(self, item: FeedbackItem, known: dict[str, Sample]) -> list[Sample]:
        """The samples that an item is about: one of each monitor. Raises _Refused."""
        if item.sample is not None:
            sample = known.get(item.sample)
            if sample is None or not self._may_speak_of(sample.model):
                raise _unknown()
            if item.label not in (None, sample.label):
                text = f"Sample {sample.id} is an answer about class {sample.label!r:.100}."
                raise _Refused(text, code="contradiction")
            return [sample]
        assert item.request_id is not None  # noqa: S101 - `FeedbackItem` looks
        found = [
            sample
            for sample in self._uow.feedback.samples_of_request(item.request_id, item.row)
            if sample.label == item.label
            and self._may_speak_of(sample.model)
            and item.model in (None, sample.model)
        ]
        if len({sample.monitor_id for sample in found}) < len(found):
            text = "Several answers have this request id: name the sample."
            raise _Refused(text, code="ambiguous_request")
        return found

    def _of_sample(self, item: FeedbackItem, sample: Sample) -> FeedbackResult:
        correct = _correct(item, sample.label, sample.answer)
        present = self._uow.feedback.of_sample(sample.id)
        if present is not None and (present.correct, present.truth) == (correct, item.truth):
            return FeedbackResult(present.id, True, False, None, None)
        given = Given(
            new_id("fb"), sample.monitor_id, sample.id, sample.label, sample.request_id, sample.row,
            sample.answer, correct, item.truth, time.time(), self._created_by,
            self._subjects.get(item.subject or ""),
        )  # fmt: skip
        self._uow.feedback.add(given, None if present is None else present.id)
        return FeedbackResult(given.id, True, present is not None, None, None)

    def _report(self, item: FeedbackItem) -> FeedbackResult:
        """Store a report about an answer that was not sampled, which no rate gets. Raises _Refused."""
        if item.model is None or item.label is None or item.request_id is None:
            raise _unknown()
        monitor = self._monitor_of(item.model, item.label)
        if item.answer is None:
            text = "This answer was not sampled: say whether it was yes (answer), to report it all the same."
            raise _Refused(text, code="answer_required")
        correct = _correct(item, item.label, item.answer)
        present = self._uow.feedback.report(monitor.id, item.request_id, item.row, item.label)
        count = self._reports.setdefault(monitor.id, self._uow.feedback.count_reports(monitor.id))
        if count >= MAX_REPORTS:
            text = f"The monitor has {MAX_REPORTS} reports about answers that were not sampled."
            raise _Refused(text, code="too_many_reports")
        self._reports[monitor.id] += 1
        given = Given(
            new_id("fb"), monitor.id, None, item.label, item.request_id, item.row,
            item.answer, correct, item.truth, time.time(), self._created_by,
            self._subjects.get(item.subject or ""),
        )  # fmt: skip
        self._uow.feedback.add(given, present)
        return FeedbackResult(given.id, False, present is not None, None, None)

    def _monitor_of(self, model: str, label: str) -> Monitor:
        """The first monitor of a model that looks at a class. Raises _Refused."""
        if not self._may_speak_of(model):
            raise _unknown()
        if model not in self._monitors:
            self._monitors[model] = self._uow.monitors.of_model(model)
        found = [one for one in self._monitors[model] if one.promises(label) is not None]
        if not found:
            raise _unknown()
        return found[0]

    def _may_speak_of(self, model: str) -> bool:
        return not self._models or model in self._models


def _correct(item: FeedbackItem, label: str, answer: bool) -> bool:
    """Whether an answer about a class was right. Raises _Refused if an item contradicts itself."""
    if item.truth is None:
        return bool(item.correct)
    correct = answer == (item.truth == label)
    if item.correct not in (None, correct):
        said = "yes" if answer else "no"
        text = f"The answer about class {label!r:.100} was {said}, so that truth and correct contradict."
        raise _Refused(text, code="contradiction")
    return correct


def _unknown() -> _Refused:
    text = (
        "There is no such sample: it may be older than samples are kept, or never have been one. To report"
        " an answer that was not sampled, name its model, request_id, label and answer; its model needs a"
        " monitor."
    )
    return _Refused(text, code="unknown_sample")
