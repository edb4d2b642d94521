"""The measurement of counted costs."""

from __future__ import annotations

from lab.verification.costs import measure
from verification.fuzz.costs import QUESTIONS


def test_figures_say_how_far_answers_are_from_the_median():
    figures = measure(3, 0)
    assert set(figures["questions"]) == set(QUESTIONS)
    for figure in figures["questions"].values():
        assert figure["slowest"] >= 1.0 <= figure["quickest"]
