"""Difficulty degrees against Algorithm 1 and Table 1 of the paper, transcribed row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from core.errors import InvalidProblem
from core.students import difficulty
from core.students.difficulty import ScoreRanks, difficulty_degrees


def algorithm_1(row, label: int, target: int, floor: float) -> float:
    """One example, line by line. Table 1 gives the difference of each case before normalisation."""
    ordered = sorted(row, reverse=True)
    S1, S2 = ordered[0], ordered[1]  # line 1
    Sy = row[target]  # line 2
    accepted = list(row).index(max(row)) == target
    positive = label == target
    if positive and accepted:  # case (i)
        fixed = +(Sy - S2)
        assert fixed >= 0
    elif positive and not accepted:  # case (ii)
        fixed = +(Sy - S1)
        assert fixed <= 0
    elif not positive and accepted:  # case (iii)
        fixed = -(Sy - S2)
        assert fixed <= 0
    else:  # case (iv)
        fixed = -(Sy - S1)
        assert fixed >= 0
    size = abs(Sy)  # line 3, with the limit where Eq. (9) divides by zero
    delta = fixed / size if size > 0 else float(np.sign(fixed)) * np.inf if fixed else 0.0
    if delta < -1:  # line 4, Eq. (11)
        return 1.0
    if delta > 1:
        return floor
    return (floor - 1) / 2 * delta + (floor + 1) / 2


def transcribed(scores, labels, target, floor):
    return np.array(
        [
            algorithm_1([float(s) for s in row], y, target, floor)
            for row, y in zip(scores, labels, strict=True)
        ]
    )


@pytest.mark.parametrize("K", [2, 3, 7, 26])
@pytest.mark.parametrize("floor", [0.05, 0.3, 1.0])
def test_degrees_are_those_of_the_transcribed_algorithm(K: int, floor: float):
    rng = np.random.default_rng(K)
    scores = rng.normal(size=(400, K)) * rng.choice([1e-3, 1.0, 50.0], size=(400, 1))
    labels = rng.integers(K, size=400)
    for target in range(min(K, 5)):
        degrees = difficulty_degrees(scores, labels, target, floor=floor)
        np.testing.assert_allclose(degrees, transcribed(scores, labels, target, floor), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("row", "label", "expected"),
    [
        pytest.param([2.0, 1.5, -1.0], 0, 0.65 - 0.35 * 0.25, id="i: right about a positive"),
        pytest.param([2.0, 2.5, -1.0], 0, 0.65 + 0.35 * 0.25, id="ii: wrong about a positive"),
        pytest.param([2.0, 1.5, -1.0], 1, 0.65 + 0.35 * 0.25, id="iii: wrong about a negative"),
        pytest.param([2.0, 2.5, -1.0], 1, 0.65 - 0.35 * 0.25, id="iv: right about a negative"),
        pytest.param([2.0, -9.0, -9.0], 0, 0.3, id="far on the right side"),
        pytest.param([-2.0, 9.0, -9.0], 0, 1.0, id="far on the wrong side"),
    ],
)
def test_each_case_of_table_1_has_its_degree(row, label: int, expected: float):
    degrees = difficulty_degrees(np.array([row]), np.array([label]), 0, floor=0.3)
    assert degrees[0] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("row", [[3.0, 3.0, 1.0], [3.0, 3.0, 3.0], [-1.0, -1.0, -2.0]])
def test_tied_top_scores_give_the_middle_degree_to_both_classes(row, label: int):
    scores, labels = np.array([row]), np.array([label])
    for target in (0, 1):
        assert difficulty_degrees(scores, labels, target, floor=0.3)[0] == pytest.approx(0.65)


@pytest.mark.parametrize(("label", "expected"), [(0, 1.0), (1, 0.3)])
@pytest.mark.parametrize("own", [0.0, -0.0, 1e-300, -1e-308, 5e-324])
def test_a_score_near_zero_gives_an_end_of_the_range_and_no_warning(own: float, label: int, expected: float):
    scores = np.array([[own, 1e200, -5.0]])
    assert difficulty_degrees(scores, np.array([label]), 0)[0] == pytest.approx(expected, rel=1e-15)


def test_a_score_of_zero_that_ties_gives_the_middle_degree():
    assert difficulty_degrees(np.zeros((1, 3)), np.array([2]), 1)[0] == pytest.approx(0.65)


@settings(max_examples=200, deadline=None)
@given(
    scores=arrays(
        np.float64,
        (5, 3),
        elements=st.floats(-1e6, 1e6, allow_subnormal=True) | st.sampled_from([0.0, 1.0, -1.0]),
    ),
    labels=arrays(np.int64, 5, elements=st.integers(0, 2)),
    target=st.integers(0, 2),
    floor=st.floats(1e-6, 1.0),
)
def test_degrees_stay_between_the_floor_and_one(scores, labels, target, floor):
    degrees = difficulty_degrees(scores, labels, target, floor=floor)
    assert (degrees >= floor).all()
    assert (degrees <= 1.0).all()
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(degrees, transcribed(scores, labels, target, floor), rtol=1e-9)


def test_ranks_are_those_of_sorting_in_any_block_size(monkeypatch: pytest.MonkeyPatch):
    scores = np.random.default_rng(0).integers(-3, 4, size=(100, 6)).astype(float)
    monkeypatch.setattr(difficulty, "_BLOCK_ENTRIES", 50)
    ranks = ScoreRanks.of(scores)
    ordered = np.sort(scores, axis=1)
    np.testing.assert_array_equal(ranks.first, ordered[:, -1])
    np.testing.assert_array_equal(ranks.second, ordered[:, -2])
    for target in range(6):
        others = np.delete(scores, target, axis=1).max(axis=1)
        np.testing.assert_array_equal(ranks.rival(target), others)


def test_ranks_at_hand_give_the_same_degrees():
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=(50, 4)), rng.integers(4, size=50)
    ranks = ScoreRanks.of(scores)
    np.testing.assert_array_equal(
        difficulty_degrees(scores, labels, 2, ranks=ranks), difficulty_degrees(scores, labels, 2)
    )


@pytest.mark.parametrize("floor", [0.0, -0.1, 1.0001, float("nan"), "0.3", True])
def test_a_floor_outside_its_range_is_refused(floor):
    with pytest.raises(InvalidProblem) as caught:
        difficulty_degrees(np.eye(3), np.arange(3), 0, floor=floor)
    assert [(fault.field, fault.code) for fault in caught.value.faults] == [("floor", "out_of_bounds")]


def test_every_fault_of_the_arguments_is_named():
    with pytest.raises(InvalidProblem) as caught:
        difficulty_degrees(np.eye(3), np.arange(2), 3, floor=0)
    assert [fault.field for fault in caught.value.faults] == ["floor", "target", "labels"]


@pytest.mark.parametrize("scores", [np.zeros((4, 1)), np.zeros(4)])
def test_scores_of_fewer_than_two_classes_are_refused(scores):
    with pytest.raises(InvalidProblem, match="K >= 2"):
        ScoreRanks.of(scores)


def test_scores_that_are_not_finite_are_refused_with_their_place():
    scores = np.zeros((3, 3))
    scores[1, 2] = np.inf
    with pytest.raises(InvalidProblem) as caught:
        ScoreRanks.of(scores)
    fault = caught.value.faults[0]
    assert (fault.code, fault.row, fault.column) == ("not_finite", 1, 2)
