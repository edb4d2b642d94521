"""To which rows a student says yes, and which classes are weak."""

from __future__ import annotations

import numpy as np
import pytest

from core.model_selection.class_answers import ClassAnswers


def answers(tp: int, fp: int, fn: int, tn: int = 1000) -> ClassAnswers:
    """Of two classes, the first of which is the student's."""
    return ClassAnswers(0, ("a", "b"), np.array([tp, fp]), np.array([tp + fn, fp + tn]))


@pytest.mark.parametrize(
    ("counts", "is_weak"),
    [
        ((122, 393, 74), True),  # F 0.34
        ((20, 10, 60), True),  # precise, and F 0.36
        ((80, 140, 5), True),  # F 0.52, but precision 0.36
        ((80, 70, 20), False),  # F 0.64, precision 0.53
        ((45, 55, 45), False),  # F 0.47 and precision 0.45 of so few rows may be chance
        ((0, 0, 3), False),  # three test rows say nothing
        ((1, 0, 3), False),
        ((0, 0, 20), True),
        ((0, 9, 1), True),
        ((0, 9, 0), False),  # without a row of the class nothing is measured
    ],
)
def test_a_class_is_weak_if_chance_does_not_explain_it(counts: tuple[int, int, int], is_weak: bool) -> None:
    assert answers(*counts).is_weak is is_weak
    assert ("warning" in answers(*counts).warning("test")) is is_weak


def test_equal_answers_at_the_floor_warn_in_at_most_one_of_ten_samples() -> None:
    random = np.random.default_rng(0)
    found = random.multinomial(60, [1 / 3, 1 / 3, 1 / 3], size=1000)  # F and precision are 1/2
    assert 10 < sum(answers(*counts).is_weak for counts in found.tolist()) < 100


def test_the_warning_names_the_two_classes_that_are_taken_for_it_most() -> None:
    yes, rows = np.array([5, 30, 122, 1, 200]), np.array([100, 200, 196, 100, 383])
    weak = ClassAnswers(2, ("1", "2", "3", "4", "5"), yes, rows).warning("test")
    assert weak["warning"] == "weak_class"
    assert weak["message"] == (
        "On 979 test rows, 196 of them of the class, the student says yes to 358, and 122 of these are of the"
        " class: F 44.0 %, precision 34.1 %. Of other classes it says yes most to rows of '5' (200 of 383)"
        " and '2' (30 of 200)."
    )
    never = answers(0, 0, 20).warning("held-out")
    assert never["message"] == (
        "On 1020 held-out rows, 20 of them of the class, the student says yes to 0, and 0 of these are of the"
        " class: F 0.0 %."
    )


def test_ten_classes_are_listed_and_the_rest_summed() -> None:
    codes = np.repeat(np.arange(15), 20)
    accepted = np.arange(300) % 20 < codes
    found = ClassAnswers.of(codes, 3, accepted, [f"c{k}" for k in range(15)]).as_dict()
    assert [one["label"] for one in found["classes"]] == [f"c{k}" for k in range(14, 4, -1)]
    assert found["classes"][0] == {"label": "c14", "yes": 14, "rows": 20}
    assert found["rest"] == {"classes": 3, "yes": 4 + 2 + 1, "rows": 60}
    few = ClassAnswers.of(codes, 3, accepted & (codes < 5), [f"c{k}" for k in range(15)]).as_dict()
    assert few == {
        "classes": [{"label": f"c{k}", "yes": k, "rows": 20} for k in (4, 2, 1)],
    }
