"""The search of a job for features, teacher and students."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.errors import Cancelled, InvalidPackage, InvalidProblem
from core.features.spec import FeatureSpec
from core.model_selection import class_thresholds, setting_search, setting_time
from core.model_selection.contest import Contest, Entry, is_better, mean_f1
from core.model_selection.quick_choice import choose_quickly, measure_maps
from core.model_selection.setting_search import (
    Setting,
    comparison_part,
    confirmed,
    hold_contest,
    search_setting,
)
from core.model_selection.setting_time import expected_seconds
from core.model_selection.tuning_spec import TuningSpec
from core.packed.codec import decode, encode
from core.run import Run
from core.students.compact import Compact
from core.students.gated import GSVM, SVM
from core.students.polytope import Polytope
from core.teachers.linear_head import ImportedHead
from core.training.pipeline import Preparation, TrainingConfig, prepare, train
from core.training.tuned_choice import FinalContest
from core.types import Progress

CONFIG = TrainingConfig(students=(GSVM(), SVM()), tuning=TuningSpec(scope="job"), seed=3)


def rings(n: int, seed: int = 0) -> LabelledData:
    """Two rings around a disk, and a third column of noise: no plane tells the classes apart."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    radius = labels + 0.25 * rng.standard_normal(n)
    angles = rng.uniform(0.0, 2.0 * np.pi, n)
    X = np.c_[radius * np.cos(angles), radius * np.sin(angles), 0.1 * rng.standard_normal(n)]
    return LabelledData.from_arrays(X, labels)


def noisy_rings(n: int, seed: int = 0) -> LabelledData:
    """The rings with six further columns of noise."""
    data = rings(n, seed)
    noise = np.random.default_rng(seed + 100).standard_normal((n, 6))
    return LabelledData.from_arrays(np.c_[data.X, noise], data.y)


@pytest.fixture(scope="module")
def setting() -> Setting:
    return search_setting(rings(150), FeatureSpec(), CONFIG.students, Run(3, 1))


@pytest.fixture
def won(monkeypatch):
    """What a search finds is taken, however the last contest ends."""
    monkeypatch.setattr(FinalContest, "is_won", True)


@pytest.fixture
def preparation(won) -> Preparation:
    return prepare(rings(150), CONFIG, Run(n_threads=2))


def test_the_choice_is_one_of_what_was_tried(setting):
    assert setting.features.kind == "kernel"
    entries = setting.tried["teachers"]
    (chosen,) = [
        one
        for one in entries
        if (one["scaling"], one["gamma"]) == (setting.features.scaling, setting.features.gamma)
        and one["C_per_row"] * 150 == pytest.approx(setting.teacher_C)
        and one["learnt_factors"] == (setting.features.column_factors is not None)
    ]
    assert (chosen["f1"], chosen["f1"] - entries[0]["f1"]) == (setting.score, setting.gain)
    assert any(one["learnt_factors"] for one in entries)
    for name in ("gsvm", "svm"):
        point = setting.points[name]
        measured = [
            (one["score"], one["standard_error"])
            for one in setting.tried[name]
            if {key: one[key] for key in point["point"]} == point["point"]
        ]
        assert (point["score"], point["standard_error"]) in measured
        assert setting.students[name]["C"] == point["point"]["C"]
    assert {one["floor"] for one in setting.tried["gsvm"]} == {0.3, 1.0}


@pytest.mark.parametrize("better", [False, True])
@pytest.mark.long
def test_what_automatic_takes_is_left_for_what_is_clearly_better_on_other_folds(monkeypatch, better: bool):
    data, compared = noisy_rings(150), []

    def confirmed(part, new, old, run):
        compared.append((new, old))
        return better

    monkeypatch.setattr(setting_search, "confirmed", confirmed)
    setting = search_setting(data, FeatureSpec(), (GSVM(),), Run(3, 1))
    quick = choose_quickly(FeatureSpec(), data.X, data.y, data.K, Run(3))
    ((new, old),) = compared
    assert replace(old.features, kind="kernel") == quick.features
    assert new != old
    if better:
        assert setting.score == max(one["f1"] for one in setting.tried["teachers"])
        assert setting.gain > 0.0
    else:
        assert (setting.features, setting.gain) == (quick.features, 0.0)
        assert setting.teacher_C == pytest.approx(quick.C_per_row * data.n)
        assert "None of" in setting.reason


@pytest.mark.long
def test_columns_of_noise_are_found_out_and_students_are_better_for_it():
    data, test = noisy_rings(240), noisy_rings(600, seed=1)
    automatic = TrainingConfig(students=(Polytope(pieces=2),), automatic=True)
    plain, ours = (
        train(data, config, test=test)
        for config in (automatic, replace(automatic, automatic=False, tuning=TuningSpec(scope="job")))
    )
    factors = ours.preparation.config.features.column_factors
    assert factors is not None
    assert min(factors[:2]) > 1.5 * max(factors[2:])
    assert ours.preparation.choice.as_dict()["column_factors"] == pytest.approx(factors, rel=0.01)
    gain = ours.evaluation.mean("polytope").f1 - plain.evaluation.mean("polytope").f1
    assert gain > 0.05
    again = Preparation.from_bytes(
        ours.preparation.to_bytes(),
        data,
        replace(automatic, automatic=False, tuning=TuningSpec(scope="job")),
    )
    assert again.config == ours.preparation.config


@pytest.mark.long
def test_factors_of_noisy_columns_are_confirmed_on_other_folds_and_no_factors_are_not_against_them():
    data = noisy_rings(240)
    quick = choose_quickly(FeatureSpec(), data.X, data.y, data.K)
    old = Entry(quick.features, quick.C_per_row, 0.1)
    new = replace(old, learnt_from=old.features)
    assert confirmed(data, new, old, Run(0, 1))
    assert not confirmed(data, old, new, Run(0, 1))
    assert not confirmed(data, old, old, Run(0, 1))


def test_equal_answers_are_no_gain_and_the_error_of_a_difference_is_paired():
    labels = np.arange(200) % 2
    right = labels == np.array([[0], [1]])
    wrong = right.copy()
    wrong[:, :30] ^= True
    (best, shares), (worse, of_worse) = (mean_f1(labels, one, [0, 1]) for one in (right, wrong))
    assert (best, worse) == (1.0, pytest.approx(0.85))
    assert is_better(best, shares, worse, of_worse)
    assert not is_better(best, shares, best, shares)
    other = right.copy()
    other[:, 30:60] ^= True
    third, of_third = mean_f1(labels, other, [0, 1])
    assert not is_better(third, of_third, worse, of_worse)


@pytest.mark.long
def test_a_search_is_repeated_by_its_seed_whatever_the_threads(setting):
    again = search_setting(rings(150), FeatureSpec(), CONFIG.students, Run(3, 2))
    assert again == setting
    stored = json.loads(json.dumps(asdict(setting)))
    assert Setting(FeatureSpec(**stored.pop("features")), **stored) == setting


@pytest.mark.long
def test_widths_go_on_while_they_help():
    rng = np.random.default_rng(0)
    X = rng.uniform(-4.0, 4.0, (240, 1))
    stripes = LabelledData.from_arrays(X, np.floor(2.0 * X[:, 0]).astype(int) % 2)
    contest, maps = Contest(stripes, Run(0, 1)), measure_maps(FeatureSpec(), X, stripes.y, 2).measured
    first = hold_contest(contest, maps, Run())
    assert first is contest.rated[0]
    assert contest.best.f1 > first.f1
    widths = [
        one.features.gamma for one in maps if one.features.scaling is contest.best.entry.features.scaling
    ]
    assert contest.best.entry.features.gamma > max(width for width in widths if width is not None)


@pytest.mark.long
def test_a_training_run_takes_the_setting_and_does_better_than_planes(won):
    data, test = rings(150), rings(300, seed=1)
    model = train(data, replace(CONFIG, students=(GSVM(),)), test=test)
    config = model.preparation.config
    assert (config.tuning, config.features.kind) == (None, "kernel")
    assert isinstance(model.preparation.choice, Setting)
    assert config.students[0].params()["C"] == model.preparation.choice.students["gsvm"]["C"]
    report = model.preparation.choice.report_of("gsvm")
    assert report is not None
    assert all(one.chosen == report.summary() and one.trace is None for one in model.trained)
    plain = train(data, TrainingConfig(), test=test)
    ours, planes = (one.evaluation.mean("gsvm").f1 for one in (model, plain))
    assert ours > planes + 0.1


@pytest.mark.long
def test_a_stored_preparation_keeps_the_setting(preparation):
    stored = preparation.to_bytes()
    again = Preparation.from_bytes(stored, rings(150), CONFIG)
    assert again.choice == preparation.choice
    assert again.config == preparation.config
    assert again.to_bytes() == stored
    header, arrays = decode(stored, "stms.preparation.3")
    for broken in ({}, {"setting": {}}, {"setting": {**header["setting"], "features": {"kind": "no"}}}):
        rest = {name: value for name, value in header.items() if name != "setting"}
        with pytest.raises(InvalidPackage, match="choice of features"):
            Preparation.from_bytes(encode(rest | broken, arrays), rings(150), CONFIG)


@pytest.mark.long
def test_the_estimate_is_told_before_the_search_and_progress_in_it():
    reports: list[Progress] = []
    prepare(rings(90), replace(CONFIG, students=(SVM(),)), Run(n_threads=1, progress=reports.append))
    first = next(one for one in reports if one.stage == "setting")
    assert first.done == 0
    assert first.expected_seconds is not None
    assert first.expected_seconds > 0.0
    stages = list(dict.fromkeys(one.stage for one in reports))
    assert stages[:4] == ["choice", "setting", "points", "contest"]
    done = [one.done for one in reports if one.stage == "setting"]
    assert done == [0, 1, 2, 3, 4, 5, 6, 7]


def test_more_rows_classes_and_students_take_longer(monkeypatch):
    monkeypatch.setattr(setting_time, "_seconds_of", lambda _: 0.01)
    few, many = rings(150), rings(1500)
    assert expected_seconds(few, (GSVM(),)) < expected_seconds(many, (GSVM(),))
    assert expected_seconds(many, (SVM(),)) < expected_seconds(many, (SVM(), GSVM()))
    two = LabelledData.from_arrays(many.X, many.y % 2)
    assert expected_seconds(two, (GSVM(),)) < expected_seconds(many, (GSVM(),))


@pytest.mark.parametrize("patience", [1, 40])
def test_a_cancel_stops_the_search(patience):
    asked = 0

    def should_cancel() -> bool:
        nonlocal asked
        asked += 1
        return asked > patience

    with pytest.raises(Cancelled):
        search_setting(rings(150), FeatureSpec(), (GSVM(),), Run(should_cancel=should_cancel))
    assert asked < patience + 20


def test_of_many_classes_some_stand_for_all():
    rng = np.random.default_rng(0)
    data = LabelledData.from_arrays(rng.standard_normal((500, 2)), np.arange(500) % 100)
    part = comparison_part(data, 0)
    assert (part.K, part.n) == (40, 200)
    assert np.array_equal(np.bincount(part.y), np.full(40, 5))
    rows = [int(np.flatnonzero((row == data.X).all(axis=1))[0]) for row in part.X]
    assert [data.classes[data.y[row]] for row in rows] == [part.classes[code] for code in part.y]


@pytest.mark.long
def test_a_student_keeps_its_pieces_and_one_without_a_grid_its_parameters():
    students = (Polytope(pieces=5, rounds=1), Compact(n_landmarks=5))
    setting = search_setting(rings(60), FeatureSpec(), students, Run(0, 1))
    assert set(setting.students) == {"polytope"}
    assert {one["pieces"] for one in setting.tried["polytope"]} == {5}
    assert setting.students["polytope"]["rounds"] == 1


def test_another_teacher_is_refused_by_name():
    with pytest.raises(InvalidProblem) as caught:
        prepare(rings(30), replace(CONFIG, teacher=ImportedHead("faces", None)))
    assert [fault.field for fault in caught.value.faults] == ["tuning.scope"]


def test_a_threshold_that_is_clearly_better_is_shared_by_all_students(monkeypatch, won):
    config, data = replace(CONFIG, students=(GSVM(),), threshold="f1", folds=3), rings(90)
    own = train(data, config)
    (compared,) = own.preparation.choice.tried["thresholds"]
    assert (compared["student"], compared["threshold"]) == ("gsvm", None)
    monkeypatch.setattr(class_thresholds, "is_better", lambda *_: True)
    shared = train(data, config)
    assert len({one.packed.threshold for one in own.trained}) == 3
    (threshold,) = {one.packed.threshold for one in shared.trained}
    assert threshold == shared.preparation.choice.points["gsvm"]["threshold"]
    rules = [{one.packed.metadata["threshold_rule"] for one in model.trained} for model in (own, shared)]
    assert rules == [{"f1"}, {"shared"}]
    restored = Preparation.from_bytes(shared.preparation.to_bytes(), data, config)
    assert restored.choice == shared.preparation.choice


@pytest.mark.long
def test_no_threshold_is_shared_where_classes_are_drawn_more_often_than_they_are(monkeypatch):
    monkeypatch.setattr(class_thresholds, "is_better", lambda *_: True)
    monkeypatch.setattr(setting_search, "ROWS", 200)
    data = rings(1200)
    rare = data.take(np.flatnonzero((data.y != 2) | (np.arange(data.n) % 10 == 2)))
    setting = search_setting(rare, FeatureSpec(), (GSVM(),), Run(3, 2), rule="f1")
    assert "thresholds" not in setting.tried
    assert setting.points["gsvm"]["threshold"] is None
