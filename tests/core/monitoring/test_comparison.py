"""Paired comparisons: exact probabilities, errors that are as rare as they are said to be, mirrored
versions.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from core.errors import InvalidProblem
from core.monitoring.comparison import PairedCounts, compare_answers, compare_classes, holm, overall
from core.monitoring.intervals import exact_interval
from tests.refusals import at_fault


def compared(*sides: tuple[int, int, int], **options):
    """The only comparison of a class whose two sides are the same counts, or of (recall, others)."""
    recall, others = (PairedCounts(*side) for side in (sides * 2)[:2])
    [found] = compare_classes([(recall, others)], **options)
    return found


def test_p_values_are_those_of_the_binomial_test():
    rng = np.random.default_rng(0)
    for lost, won in rng.integers(0, 60, (300, 2)).tolist():
        found = compared((200, lost, won)).recall.p_worse
        test = stats.binomtest(lost, lost + won, 0.5, "greater").pvalue if lost + won else 1.0
        assert found == pytest.approx(test, rel=1e-12)


def test_holm_is_the_closed_test_of_bonferroni():
    """The p-value of a hypothesis is the largest of all intersections with it (Marcus, Peritz, Gabriel
    1976).
    """
    rng = np.random.default_rng(1)
    for m in (1, 2, 5, 7):
        p = np.round(rng.random(m) ** 3, 2)
        sets = [some for size in range(1, m + 1) for some in combinations(range(m), size)]
        closed = [max(min(1.0, len(s) * p[list(s)].min()) for s in sets if i in s) for i in range(m)]
        np.testing.assert_allclose(holm(p), closed, rtol=1e-15)


def test_the_ends_of_the_difference_are_those_of_two_exact_intervals():
    found = compared((500, 12, 30), alpha=0.08).recall
    ends = [exact_interval(count, 500, 1.0 - 2 * 0.08 / 4) for count in (12, 30)]
    assert found.low == pytest.approx(ends[1].low - ends[0].high, abs=1e-12)
    assert found.high == pytest.approx(ends[1].high - ends[0].low, abs=1e-12)
    assert found.difference == pytest.approx(18 / 500)


@pytest.mark.parametrize(
    ("side", "verdict"),
    [
        ((10_000, 0, 0), "not_worse"),
        ((100, 0, 0), "undecided"),
        ((100, 20, 2), "worse"),
        ((100, 2, 20), "not_worse"),
        ((1000, 20, 21), "undecided"),
        ((0, 0, 0), "undecided"),
        # Proven, but within the tolerance.
        ((10**6, 600, 100), "not_worse"),
        ((10**6, 16_000, 100), "worse"),
    ],
)
def test_a_loss_is_proven_excluded_or_neither(side, verdict: str):
    found = compared(side)
    assert found.recall.verdict == found.false_positives.verdict == found.verdict == verdict
    assert (found.recall.rows_to_decide is None) == (verdict != "undecided" or not side[0])


@pytest.mark.parametrize("side", [(100, 0, 0), (300, 3, 2), (1000, 20, 21), (250, 9, 4), (90, 2, 0)])
def test_as_many_rows_as_foretold_decide(side):
    rows = compared(side).recall.rows_to_decide
    assert rows > side[0]
    scaled, fewer = (
        (n, *(round(count * n / side[0]) for count in side[1:])) for n in (int(1.2 * rows), int(0.8 * rows))
    )
    assert compared(scaled).recall.verdict != "undecided"
    assert fewer[0] <= side[0] or compared(fewer).recall.verdict == "undecided"


def test_exchanged_versions_have_exchanged_counts_and_a_mirrored_difference():
    rng = np.random.default_rng(2)
    truth, one, other = (rng.random(2000) < share for share in (0.2, 0.25, 0.22))
    there, back = (compare_answers(truth, *pair) for pair in ((one, other), (other, one)))
    for side, mirrored in zip(there, back, strict=True):
        assert side.rows == mirrored.rows
        assert side.only_baseline_right == mirrored.only_candidate_right > 0
        assert side.only_candidate_right == mirrored.only_baseline_right > 0
    [found], [mirror] = compare_classes([there]), compare_classes([back])
    assert found.recall.low == pytest.approx(-mirror.recall.high)
    assert found.as_dict()["recall"]["only_baseline_right"] == there[0].only_baseline_right
    assert there[0].rows + there[1].rows == 2000


def test_two_versions_that_are_the_same_are_not_worse_on_rows_enough():
    truth = np.arange(4000) % 4 == 0
    says = np.arange(4000) % 5 == 0
    [found] = compare_classes([compare_answers(truth, says, says)])
    assert found.verdict == "not_worse"
    assert (found.recall.difference, found.recall.p_adjusted) == (0.0, 1.0)


def test_wrong_verdicts_are_as_rare_as_asked():
    """Five classes; the loss of every side is just the tolerance, or there is none."""
    rng = np.random.default_rng(3)
    wrong = {0.0: 0, 0.03: 0}
    for loss in wrong:
        for _ in range(400):
            drawn = rng.multinomial(1000, [0.02 + loss, 0.02, 0.96 - loss], 10).tolist()
            sides = [PairedCounts(1000, lost, won) for lost, won, _ in drawn]
            found = compare_classes(list(zip(sides[::2], sides[1::2], strict=True)), 0.03, 0.1)
            forbidden = "worse" if loss == 0.0 else "not_worse"
            wrong[loss] += any(
                forbidden in (one.recall.verdict, one.false_positives.verdict) for one in found
            )
    # One in ten at most; three standard errors more of 400.
    assert all(count / 400 <= 0.1 + 3 * np.sqrt(0.09 / 400) for count in wrong.values())


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [
        ((), "undecided"),
        (("not_worse", "not_worse"), "not_worse"),
        (("not_worse", "undecided"), "undecided"),
        (("not_worse", "undecided", "worse"), "worse"),
    ],
)
def test_one_class_that_is_worse_makes_the_version_worse(verdicts, together: str):
    assert overall(verdicts) == together


def test_what_cannot_be_compared_is_refused():
    yes = np.ones(3, dtype=bool)
    with at_fault(InvalidProblem, "wrong_shape", field="truth"):
        compare_answers(yes, yes[:2], yes)
    with at_fault(InvalidProblem, "empty", field="counts"):
        compare_classes([])
    with at_fault(InvalidProblem, "out_of_bounds", field="tolerance"):
        compared((10, 1, 1), tolerance=1.0)
    for counts in ((3, 4, 0), (3, 2, 2), (-1, 0, 0), (3, 0, 1.5)):
        with at_fault(InvalidProblem, "out_of_bounds"):
            PairedCounts(*counts)
