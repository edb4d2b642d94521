"""A budget of seconds: what is compared, what is left out and said, and how long a job takes."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.errors import InvalidProblem
from core.model_selection.quick_choice import QuickChoice
from core.model_selection.time_budget import CAUTION, TimeBudget
from core.run import Run
from core.students.gated import GSVM
from core.teachers.forest import Forest
from core.training import tuned_choice
from core.training.budgeted_choice import FEWEST_TREES, Line, choose_within
from core.training.config import AUTOMATIC_STUDENT, TrainingConfig
from core.training.pipeline import train
from core.training.preparation import Preparation
from core.training.stages import Stages

AUTOMATIC = TrainingConfig(
    students=(AUTOMATIC_STUDENT,),
    automatic=True,
    automatic_seconds=1000.0,
    threshold="expected_f1",
    calibration="sigmoid",
    folds=3,
    guard="repair",
)


def ruled(n: int = 300, seed: int = 0, columns: int = 6) -> LabelledData:
    """Classes that are rules of single columns among others that say nothing."""
    X = np.random.default_rng(seed).integers(0, 10, size=(n, columns)).astype(float)
    first = (X[:, 0] > 5) & (X[:, 1] < 4)
    return LabelledData.from_arrays(X, np.where(first, "a", np.where(X[:, 2] > 7, "b", "c")))


def ticking(step: float):
    """A clock on which every look takes ``step`` seconds."""
    return itertools.count(0.0, step).__next__


def choice_within(seconds: float, step: float, data: LabelledData | None = None) -> QuickChoice:
    budget = TimeBudget(seconds, ticking(step))
    choice, _ = choose_within(data or ruled(), AUTOMATIC, Stages(Run(n_threads=1)), budget)
    json.dumps(choice.as_dict())
    return choice


def families_of(choice: QuickChoice) -> set[str]:
    return {one["family"] for one in choice.families}


def test_work_is_admitted_with_time_to_spare_and_otherwise_noted():
    now = [5.0]
    budget = TimeBudget(10.0, lambda: now[0])
    assert budget.admits("all of it", 10.0 / CAUTION)
    now[0] = 9.0
    assert (budget.used, budget.left) == (4.0, 6.0)
    assert budget.admits("half", 2.0, 3.0)
    assert not budget.admits("too much", 2.1, 3.0)
    now[0] = 99.0
    assert budget.left == 0.0
    found = budget.as_dict()
    assert found["left_out"] == [{"what": "too much", "expected_seconds": 2.1, "left_seconds": 3.0}]
    assert (found["seconds"], found["used_by_choice"], found["repeatable"]) == (10.0, 94.0, False)


def test_a_line_goes_through_both_sizes_unless_it_would_hardly_rise():
    line = Line.through((2, 8), (3.0, 9.0))
    assert (line.fixed, line.each, line.at(200)) == (1.0, 1.0, 201.0)
    flat = Line.through((2, 8), (9.0, 8.0))
    assert flat.each == 0.25
    assert flat.at(8) == 8.0


@pytest.mark.long
def test_a_large_budget_compares_all_and_leaves_nothing_out():
    choice = choice_within(1e6, 0.001)
    assert families_of(choice) >= {"forest, best splits", "forest, random splits", "boosting"}
    assert len(choice.families) == 4
    assert choice.maps == 17
    assert choice.budget is not None
    assert choice.budget["left_out"] == []
    assert "left out nothing" in choice.reason


def test_a_budget_that_nothing_fits_into_still_ends_with_the_smallest_forest():
    choice = choice_within(1.0, 1.0)
    assert families_of(choice) == {"forest, best splits"}
    assert isinstance(choice.tree_teacher, Forest)
    assert choice.tree_teacher.trees == FEWEST_TREES
    assert choice.maps == 1
    assert choice.budget is not None
    missed = [one["what"] for one in choice.budget["left_out"]]
    assert missed[:2] == ["further maps of features", "190 of 200 trees of a forest"]
    assert {"timing of linear students", "forest, random splits", "timing of boosting"} <= set(missed)
    assert "another run may choose otherwise" in choice.reason


@pytest.mark.long
def test_a_budget_between_leaves_some_out_and_says_what_they_would_have_taken():
    choice = choice_within(100.0, 1.0)
    assert "forest, best splits" in families_of(choice)
    assert 0 < len(choice.families) < 4
    assert choice.budget is not None
    for one in choice.budget["left_out"]:
        assert CAUTION * one["expected_seconds"] > one["left_seconds"]
        assert one["what"] in choice.reason


def test_rows_without_trees_have_linear_students_at_least():
    X = sp.random_array((200, 40), density=0.2, rng=np.random.default_rng(0), format="csr")
    data = LabelledData.from_arrays(X, np.where(X.sum(axis=1) > X.sum(axis=1).mean(), "a", "b"))
    choice = choice_within(1.0, 1.0, data)
    assert (choice.features.kind, choice.families, choice.teacher) == ("linear", (), None)


@pytest.mark.parametrize(
    "change",
    [
        {"automatic": False},
        {"students": (GSVM(),)},
        {"students": (AUTOMATIC_STUDENT, GSVM())},
        {"teacher": Forest()},
        {"automatic_seconds": 0.5},
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(change: dict):
    with pytest.raises(InvalidProblem) as caught:
        replace(AUTOMATIC, **change)
    assert [fault.field for fault in caught.value.faults] == ["automatic_seconds"]


def test_a_model_of_a_budget_is_restored_as_it_was_chosen():
    data, config = ruled(), replace(AUTOMATIC, automatic_seconds=60.0)
    model = train(data, config, run=Run(n_threads=1))
    stored = model.preparation.to_bytes()
    again = Preparation.from_bytes(stored, data, config)
    assert again.choice == model.preparation.choice
    np.testing.assert_array_equal(again.scores, model.preparation.scores)
    assert again.choice is not None
    assert again.choice.as_dict()["budget"]["seconds"] == 60.0


@pytest.mark.long
@pytest.mark.no_cover
def test_a_budget_is_kept_within_a_fifth_in_ten_of_ten_runs(monkeypatch: pytest.MonkeyPatch):
    # Seconds of this process in a single thread, which other processes of the machine do not lengthen.
    clock = time.process_time
    monkeypatch.setattr(tuned_choice, "TimeBudget", partial(TimeBudget, clock=clock))
    data, run, seconds = ruled(3000, columns=12), Run(n_threads=1), 5.0
    train(data, replace(AUTOMATIC, automatic_seconds=seconds), run=run)  # loads every library
    took = []
    for seed in range(10):
        began = clock()
        train(data, replace(AUTOMATIC, automatic_seconds=seconds, seed=seed), run=run)
        took.append(clock() - began)
    assert max(took) <= 1.2 * seconds, took
