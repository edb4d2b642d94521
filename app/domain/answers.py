"""Counts of the answers of a version by class, and the rates that follow if its probabilities still hold."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.document import Document


@dataclass(frozen=True, slots=True)
class EstimatedRates(Document):
    """Rates that nobody has measured: they follow if the probabilities hold as well as on the test part.

    Each is the estimate from the probabilities of the answers, moved as far on the logit scale as the same
    estimate was off on the test part, where the rate was measured. They are null where that is not known.
    """

    precision: float | None
    recall: float | None
    false_positive_rate: float | None


@dataclass(frozen=True, slots=True)
class ClassAnswers(Document):
    """The answers of queries to a class. asked: all of them. yes: those that were yes.

    expected: how many rows of the class there were among them, by the probabilities. bins: answers by their
    probability p, of which bin i has those with i <= 20 √p < i + 1. if_probabilities_hold: null for a student
    that was not measured on a test part.
    """

    label: str
    asked: int
    yes: int
    expected: float
    bins: list[int]
    if_probabilities_hold: EstimatedRates | None


@dataclass(frozen=True, slots=True)
class Answers(Document):
    """The answers of the last whole days and the present hour, of the calibrated classes that were asked."""

    model: str
    version: int
    days: int
    classes: list[ClassAnswers]
