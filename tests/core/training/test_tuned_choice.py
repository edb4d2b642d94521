"""A job that is tuned keeps what ``automatic`` takes unless a search is better on rows that chose neither."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.column_layout import ColumnLayout
from core.data.dataset import LabelledData
from core.data.scaling_kind import Scaling
from core.features.spec import FeatureSpec
from core.model_selection.quick_choice import QuickChoice
from core.model_selection.setting_search import Setting
from core.model_selection.tuning_spec import TuningSpec
from core.run import Run
from core.students.gated import SVM
from core.students.polytope import Polytope
from core.training import tuned_choice
from core.training.config import AUTOMATIC_STUDENT, TrainingConfig
from core.training.pipeline import Preparation, TrainedModel, prepare, train
from core.training.stages import Stages
from core.training.tuned_choice import (
    HEAVIER,
    FinalContest,
    choose_tuned,
    contest_rows,
    with_heavier_loss,
)

AUTOMATIC = TrainingConfig(
    students=(AUTOMATIC_STUDENT,),
    automatic=True,
    threshold="expected_f1",
    calibration="sigmoid",
    folds=3,
    guard="repair",
    seed=3,
)
TUNED = replace(AUTOMATIC, automatic=False, tuning=TuningSpec(scope="job"))


def rings(n: int) -> LabelledData:
    """Three rings: no plane tells them apart, and trees do so badly."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 3
    angles, radius = rng.uniform(0.0, 2.0 * np.pi, n), labels + 0.2 * rng.standard_normal(n)
    return LabelledData.from_arrays(np.c_[radius * np.cos(angles), radius * np.sin(angles)], labels)


def boxes(n: int) -> LabelledData:
    """A class that two columns of ten decide by thresholds, as trees do."""
    X = np.random.default_rng(0).uniform(size=(n, 10))
    return LabelledData.from_arrays(X, (X[:, 3] > 0.6) & (X[:, 7] < 0.5))


def digests(model: TrainedModel) -> list[str]:
    return [one.packed.digest for one in model.trained]


@pytest.mark.long
@pytest.mark.parametrize("data", [rings(120), boxes(200)], ids=["kernel", "trees"])
def test_what_automatic_takes_is_kept_with_its_reason_and_gives_the_same_students(data):
    plain, tuned = (train(data, config, run=Run(n_threads=2)) for config in (AUTOMATIC, TUNED))
    choice = tuned.preparation.choice
    assert isinstance(choice, QuickChoice)
    assert replace(choice, tuning=None) == plain.preparation.choice
    assert digests(tuned) == digests(plain)
    if choice.teacher is None:
        contest = choice.search()["contest"]
        assert (contest["taken"], contest["rows"] + contest["learnt_from"]) == ("automatic", 120)
        assert {"maps", "teachers", "polytope"} <= set(choice.search()["tried"])
        assert "This is kept after a search: on 40 rows that chose neither" in choice.as_dict()["reason"]
    else:
        assert choice.search() == {}
        assert choice.as_dict()["reason"].endswith("Trees have nothing that is searched, so they are kept.")
    stored = tuned.preparation.to_bytes()
    again = Preparation.from_bytes(stored, data, TUNED)
    assert (again.choice, again.config) == (choice, tuned.preparation.config)
    assert again.to_bytes() == stored


@pytest.mark.long
def test_what_wins_the_contest_is_taken_for_all_rows(monkeypatch):
    monkeypatch.setattr(FinalContest, "is_won", True)
    data = rings(120)
    made = prepare(data, TUNED, Run(n_threads=2))
    choice = made.choice
    assert isinstance(choice, Setting)
    assert "It is taken: on 40 rows that chose neither" in choice.reason
    assert json.loads(json.dumps(choice.search()))["contest"] == choice.contest
    polytope = made.config.students[0].suited(made.config.teacher)
    assert isinstance(polytope, Polytope)
    assert (
        polytope.params()["C"] == choice.students["polytope"]["C"] == choice.points["polytope"]["point"]["C"]
    )
    again = Preparation.from_bytes(made.to_bytes(), data, TUNED)
    assert again.config == made.config
    tried = {round(one["C_per_row"] * data.n, 6) for one in choice.tried["teachers"]}
    assert round(choice.teacher_C, 6) in tried


@pytest.mark.long
def test_rows_that_decide_have_chosen_nothing(monkeypatch):
    data, seen = rings(120), []
    real = tuned_choice.search_setting

    def search(some, *arguments, **named):
        seen.append(some)
        return real(some, *arguments, **named)

    def contest(learnt, measured, *_):
        seen.extend([learnt, measured])
        return FinalContest(measured.n, learnt.n, 0.5, 0.6, 0.2)

    monkeypatch.setattr(tuned_choice, "search_setting", search)
    monkeypatch.setattr(tuned_choice, "hold_final", contest)
    config = replace(TUNED, students=(SVM(),))
    choice, fitted = choose_tuned(data, config, Stages(Run(3, 1)))
    searched, learnt, measured = ({row.tobytes() for row in one.X} for one in seen)
    assert searched == learnt
    assert not searched & measured
    assert len(searched | measured) == 120
    assert isinstance(choice, QuickChoice)
    assert fitted is None


@pytest.mark.parametrize(("gain", "won"), [(0.021, True), (0.02, False), (0.0, False), (-0.1, False)])
def test_a_gain_of_one_standard_error_is_not_enough(gain: float, won: bool):
    assert FinalContest(100, 200, 0.5, 0.5 + gain, 0.02 + 1e-12).is_won == won


def test_held_out_rows_are_thirds_of_the_classes_and_rare_classes_are_learnt_from():
    labels = np.repeat([0, 1, 2], [9000, 60, 5])
    learnt, held_out = contest_rows(labels, 1)
    assert not set(learnt) & set(held_out)
    assert np.bincount(labels[held_out], minlength=3).tolist() == [3000, 20, 0]
    assert np.bincount(labels[learnt])[2] == 5
    assert 1900 < len(learnt) < 2200
    few, none = contest_rows(np.array([0, 1]), 1)
    assert (few.tolist(), none.tolist()) == ([0, 1], [])


def test_too_few_rows_are_not_searched():
    data = LabelledData.from_arrays(np.arange(8.0)[:, None], np.arange(8) % 2)
    choice, _ = choose_tuned(data, replace(TUNED, students=(SVM(),)), Stages(Run(0, 1)))
    assert isinstance(choice, QuickChoice)
    assert "too few rows" in choice.reason


def test_words_are_searched_too():
    rng = np.random.default_rng(1)
    labels = np.arange(240) % 3
    words = rng.random((240, 30)) < np.where(np.arange(30) % 3 == labels[:, np.newaxis], 0.5, 0.2)
    data = LabelledData(sp.csr_array(words.astype(float)), labels, ("a", "b", "c"))
    choice, _ = choose_tuned(data, TUNED, Stages(Run(seed=3)))
    contest = choice.search()["contest"]
    assert contest["rows"] == 80
    assert min(contest["automatic_f1"], contest["searched_f1"]) > 0.6


def intents(K: int) -> LabelledData:
    """Texts of classes of 6 to 6K rows, each with a few terms of its own among those that all have."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(K), 6 * np.arange(1, K + 1))
    n = len(codes)
    terms = rng.random((n, 4 * K)) < 0.03
    terms |= (np.arange(4 * K) // 4 == codes[:, None]) & (rng.random((n, 4 * K)) < 0.3)
    rows = sp.csr_array(terms / np.sqrt(np.maximum(1, terms.sum(axis=1)))[:, None])
    return replace(LabelledData.from_arrays(rows, codes), layout=ColumnLayout(4 * K, 0, ()))


def test_texts_take_a_larger_loss_weight_only_where_held_out_rows_say_so():
    data = intents(20)
    features = FeatureSpec(kind="linear", scaling=Scaling.NONE, layout=data.layout)
    small, enough = (QuickChoice(features, C, 0.5, 600, 1, 0.1) for C in (0.3, 2.0))
    assert with_heavier_loss(data, small, Run()) == replace(small, C_per_row=0.3 * HEAVIER)
    assert with_heavier_loss(data, enough, Run()) == enough


def test_loss_weights_of_numbers_trees_and_two_classes_are_not_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(tuned_choice, "Contest")
    data = intents(20)
    features = FeatureSpec(kind="linear", scaling=Scaling.NONE, layout=data.layout)
    choice = QuickChoice(features, 0.05, 0.5, 600, 1, 0.1)
    two = replace(data, y=data.y % 2, classes=data.classes[:2])
    assert with_heavier_loss(two, choice, Run()) is choice
    for other in (
        replace(choice, features=replace(features, layout=None)),
        replace(choice, features=replace(features, kind="kernel")),
        replace(choice, teacher={"method": "forest"}),
    ):
        assert with_heavier_loss(data, other, Run()) is other
