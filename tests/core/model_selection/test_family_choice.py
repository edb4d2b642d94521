"""Which family is taken: least squares left out by hand, cuts by trying all, rules and planes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import Ridge
from sklearn.metrics import brier_score_loss, f1_score

from core.data.dataset import LabelledData
from core.errors import Cancelled
from core.features.spec import FeatureSpec
from core.model_selection.family_choice import (
    KERNEL,
    LINEAR,
    Family,
    best_cut,
    candidates,
    choose_family,
    chosen,
    f1_of_margins,
    left_out_scores,
    left_out_scores_of_terms,
    mean_brier,
    of_trees,
)
from core.model_selection.quick_choice import _FAMILIES, QuickChoice, choose_quickly
from core.run import Run
from core.students.gated import GSVM
from core.students.polytope import Polytope
from core.students.sigmoid import fit_sigmoid
from core.students.trees import Trees
from core.teachers.forest import Forest
from core.training.config import AUTOMATIC_STUDENT, TrainingConfig
from core.training.pipeline import prepare, train
from core.training.preparation import Preparation

AUTOMATIC = TrainingConfig(
    students=(AUTOMATIC_STUDENT,),
    automatic=True,
    threshold="expected_f1",
    calibration="sigmoid",
    folds=3,
    guard="repair",
)


def ruled(n: int = 400, seed: int = 0) -> LabelledData:
    """Classes that are rules of single columns among others that say nothing."""
    X = np.random.default_rng(seed).integers(0, 10, size=(n, 6)).astype(float)
    first = (X[:, 0] > 5) & (X[:, 1] < 4)
    return LabelledData.from_arrays(X, np.where(first, "a", np.where(X[:, 2] > 7, "b", "c")))


def planes(n: int = 400, seed: int = 0) -> LabelledData:
    """Classes that a plane across all columns parts."""
    X = np.random.default_rng(seed).normal(size=(n, 12))
    return LabelledData.from_arrays(X, np.where(X.sum(axis=1) > 0, "above", "below"))


def test_scores_that_are_left_out_are_those_of_fits_without_the_row():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(30, 4)), rng.integers(0, 3, 30)
    found = left_out_scores(features, labels, 3, 0.7)
    rows = np.column_stack([features, np.ones(30)])
    targets = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    for i in range(30):
        kept = np.arange(30) != i
        model = Ridge(alpha=0.7, fit_intercept=False).fit(rows[kept], targets[kept])
        np.testing.assert_allclose(found[i], model.predict(rows[[i]])[0], atol=1e-9)


def test_scores_that_are_left_out_are_the_same_by_rows_and_by_columns():
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(30, 45)), rng.integers(0, 3, 30)
    found = left_out_scores_of_terms(sp.csr_array(features), labels, 3, 0.7)
    np.testing.assert_allclose(found, left_out_scores(features, labels, 3, 0.7), atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_cut_is_the_best_of_all(seed: int):
    rng = np.random.default_rng(seed)
    margin, truth = rng.integers(-3, 4, 40).astype(float), rng.random(40) < 0.3
    best = max(np.unique(margin), key=lambda cut: (f1_score(truth, margin >= cut), cut))
    assert best_cut(truth, margin) == best


def test_scores_that_are_right_have_an_f_of_one_and_no_deviation():
    labels = np.array([0, 1, 2, 0])
    f1, shares = f1_of_margins(labels, np.eye(3)[labels])
    assert f1 == 1.0
    np.testing.assert_array_equal(shares, np.zeros(4))


def test_the_cheapest_is_taken_within_one_standard_error():
    shares = np.full(100, 0.001)
    dear = Family("dear", None, 0.90, shares, 100.0)
    assert chosen([dear, Family("cheap", None, 0.895, -shares, 1.0)]).name == "cheap"
    assert chosen([dear, Family("cheap", None, 0.85, -shares, 1.0)]).name == "dear"
    assert chosen([dear, Family("same", None, 0.90, shares, 100.0)]).name == "dear"


def test_of_few_rows_the_best_probabilities_are_taken_within_one_standard_error():
    shares = np.full(100, 0.001)
    cheap = Family("cheap", None, 0.90, shares, 1.0, brier=0.06)
    sure = Family("sure", None, 0.895, -shares, 100.0, brier=0.05)
    surest = Family("surest", None, 0.80, -shares, 1.0, brier=0.01)
    assert chosen([cheap, sure, surest]).name == "sure"
    assert chosen([cheap, Family("same", None, 0.90, shares, 0.5, brier=0.06)]).name == "same"
    assert chosen([Family("right", None, 1.0, shares, 2.0, brier=0.0), cheap]).name == "right"


def test_brier_scores_are_those_of_the_probabilities_of_margins():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    scores = 2.0 * np.eye(3)[labels] + rng.normal(size=(200, 3))
    expected = []
    for target in range(3):
        truth = labels == target
        margin = scores[:, target] - np.delete(scores, target, axis=1).max(axis=1)
        expected.append(brier_score_loss(truth, fit_sigmoid(truth, margin).probabilities(margin)))
    assert mean_brier(labels, scores) == pytest.approx(np.mean(expected), abs=1e-12)
    blind = mean_brier(labels, np.zeros((200, 3)))
    assert mean_brier(labels, scores) < 0.75 * blind
    shares = np.bincount(labels) / 200
    assert blind == pytest.approx(np.mean(shares * (1.0 - shares)), abs=1e-3)


def test_the_brier_score_is_measured_of_few_rows_only():
    few, many = ruled(1499), ruled(1500)
    spec = Forest(trees=5)
    assert of_trees(few, spec, Run()).as_dict()["brier"] < 0.2
    assert "brier" not in of_trees(many, spec, Run()).as_dict()


def test_a_choice_says_why_it_is_not_the_largest_f():
    def reason(of_first: dict, **others) -> str:
        families = (
            {"family": "linear", "f1": 0.9, "cost": 2.0, "taken": False} | of_first,
            {"family": "boosting", "f1": 0.8, "cost": 1.0, "taken": True} | of_first,
        )
        return QuickChoice(FeatureSpec(), 1.0, 0.9, 100, 3, families=families, **others).reason

    within = "of those within one standard error of the largest F."
    told = "Chosen: boosted trees, with a mean F of 0.800 on held-out rows (a linear model 0.900)"
    assert reason({}) == f"{told}; it has the cheapest queries {within}"
    assert reason({"brier": 0.1}) == f"{told}; it has the most accurate probabilities {within}"
    assert reason({"f1": 0.8}) == f"{told.replace('0.900', '0.800')}."
    assert reason({}, budget={"seconds": 5.0, "left_out": []}).startswith(f"{told}. ")


@pytest.mark.long
def test_rules_are_learnt_by_trees_and_planes_by_planes():
    for data, kind, has_trees in ((ruled(), Trees, True), (planes(), Polytope, False)):
        test = ruled(300, 1) if has_trees else planes(300, 1)
        model = train(data, AUTOMATIC, test=test)
        choice = model.preparation.choice
        assert (choice.teacher is not None) is has_trees
        assert {type(one.spec) for one in model.trained} == {kind}
        assert {one.method for one in model.trained} == {"automatic"}
        assert model.evaluation.mean("automatic").f1 > 0.93
        taken = [one["family"] for one in choice.families if one["taken"]]
        assert len(taken) == 1
        assert choice.reason.startswith(f"Chosen: {_FAMILIES[taken[0]]}, ")
        assert (taken[0] in {LINEAR, KERNEL}) is not has_trees
        json.dumps(choice.as_dict())


def test_a_family_that_is_behind_in_one_fold_is_not_fitted_in_the_others():
    data = planes(900)
    choice, fitted = choose_family(data, choose_quickly(FeatureSpec(), data.X, data.y, data.K))
    assert fitted is None
    figures = {one["family"]: one for one in choice.families}
    behind = [one for one in figures.values() if "rows" in one]
    assert {one["family"] for one in behind} <= {"forest, random splits", "boosting"}
    assert behind
    # The rows of one of five folds.
    assert {one["rows"] for one in behind} == {180}
    assert not any(one["taken"] for one in behind)
    assert f"boosted trees {figures['boosting']['f1']:.3f} on 180 of them" in choice.reason


def test_the_families_that_last_are_scored_as_a_fit_of_their_own_scores_them():
    data = ruled(600)
    choice, fitted = choose_family(data, choose_quickly(FeatureSpec(), data.X, data.y, data.K))
    assert fitted is not None
    alone = of_trees(data, choice.tree_teacher, Run())
    taken = next(one for one in choice.families if one["taken"])
    assert taken["f1"] == alone.f1
    assert taken["brier"] == alone.brier
    assert taken["cost"] == pytest.approx(alone.cost, rel=0.1)
    np.testing.assert_array_equal(fitted.held_out, alone.fitted.held_out)
    again = [choose_family(data, choice, Run(0, threads))[0].families for threads in (1, 2)]
    assert again[0] == again[1]


@pytest.mark.long
def test_a_table_of_one_column_has_a_model():
    X = np.random.default_rng(0).random(90)[:, None]
    data = LabelledData.from_arrays(X, np.where(np.floor(10.0 * X[:, 0]) % 2 == 0, "even", "odd"))
    model = train(data, AUTOMATIC, test=data)
    assert {one["family"] for one in model.preparation.choice.families} >= {"forest, best splits", "boosting"}
    assert model.evaluation.mean("automatic").f1 > 0.8


@pytest.mark.long
def test_a_preparation_with_trees_is_restored_bit_for_bit():
    data = ruled()
    made = prepare(data, AUTOMATIC)
    stored = made.to_bytes()
    again = Preparation.from_bytes(stored, data, AUTOMATIC)
    assert again.to_bytes() == stored
    assert again.choice == made.choice
    np.testing.assert_array_equal(again.scores, made.scores)
    assert prepare(data, AUTOMATIC).to_bytes() == stored


def test_families_are_compared_only_where_the_student_is_left_open():
    for students in ((GSVM(),), (Polytope(), AUTOMATIC_STUDENT)):
        config = TrainingConfig(students=students, automatic=True)
        assert not config.compares_families
    assert not TrainingConfig(students=(AUTOMATIC_STUDENT,)).compares_families
    assert prepare(ruled(100), TrainingConfig(students=(GSVM(),), automatic=True)).choice.families == ()


def test_boosted_trees_that_are_too_much_work_are_left_out():
    many = LabelledData.from_arrays(np.zeros((5000, 20)), np.arange(5000) % 20)
    assert [one.name for one in candidates(many)] == ["forest", "forest"]
    crowded = LabelledData.from_arrays(np.zeros((6000, 2)), np.arange(6000) % 2000)
    assert candidates(crowded) == ()
    choice = choose_quickly(FeatureSpec(), crowded.X[:100], crowded.y[:100] % 2, 2)
    assert choose_family(crowded, choice) == (choice, None)
    few = LabelledData.from_arrays(np.zeros((200, 4)), np.arange(200) % 12)
    assert [one.name for one in candidates(few)] == ["forest", "forest", "boosting"]
    assert candidates(few)[2].folds == 5
    assert [candidates(one)[2].folds for one in (ruled(400), ruled(600), ruled(2000))] == [10, 5, 3]


def test_a_comparison_is_cancelled():
    run = Run(should_cancel=lambda: True)
    with pytest.raises(Cancelled):
        choose_quickly(FeatureSpec(), ruled().X, ruled().y, 3, run)
    asked: list[str] = []

    def report(step):
        asked.append(step.stage)

    with pytest.raises(Cancelled):
        prepare(ruled(), AUTOMATIC, Run(progress=report, should_cancel=lambda: "families" in asked))
