"""The search of a job for features, teacher and students."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.errors import Cancelled, InvalidPackage, InvalidProblem
from core.features.spec import FeatureSpec
from core.model_selection import setting_search, setting_time
from core.model_selection.quick_choice import measure_maps
from core.model_selection.setting_search import Setting, comparison_part, search_setting
from core.model_selection.setting_time import expected_seconds
from core.model_selection.tuning_spec import TuningSpec
from core.packed.codec import decode, encode
from core.run import Run
from core.students.compact import Compact
from core.students.gated import GSVM, SVM
from core.students.polytope import Polytope
from core.teachers.linear_head import ImportedHead
from core.training.pipeline import Preparation, TrainingConfig, prepare, train
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


@pytest.fixture(scope="module")
def setting() -> Setting:
    return search_setting(rings(150), FeatureSpec(), CONFIG.students, Run(3, 1))


@pytest.fixture(scope="module")
def preparation() -> Preparation:
    return prepare(rings(150), CONFIG, Run(n_threads=2))


def test_the_best_of_what_was_tried_is_chosen(setting):
    assert setting.features.kind == "kernel"
    best = max(setting.tried["teachers"], key=lambda one: one["score"])
    shown = (best["gamma"], best["scaling"], best["C"], best["score"])
    assert shown == (setting.features.gamma, setting.features.scaling, setting.teacher_C, setting.score)
    measured = {(one["scaling"], one.get("gamma")): one["f1"] for one in setting.tried["maps"]}
    finalists = {measured[one["scaling"], one["gamma"]] for one in setting.tried["teachers"]}
    assert min(finalists) >= sorted(measured.values())[-setting_search.FINALISTS]
    for name in ("gsvm", "svm"):
        chosen = setting.points[name]
        (measured_as,) = [
            one
            for one in setting.tried[name]
            if {key: one[key] for key in chosen["point"]} == chosen["point"]
        ]
        assert (measured_as["score"], measured_as["standard_error"]) == (
            chosen["score"],
            chosen["standard_error"],
        )
        assert {key: setting.students[name][key] for key in ("C", "margin")} == {
            key: chosen["point"][key] for key in ("C", "margin")
        }
        tried = sorted({one["C"] for one in setting.tried[name]})
        assert tried[0] < chosen["point"]["C"] < tried[-1] or len(tried) == 8
    assert {one["floor"] for one in setting.tried["gsvm"]} == {0.3, 1.0}


def test_a_search_is_repeated_by_its_seed_whatever_the_threads(setting):
    again = search_setting(rings(150), FeatureSpec(), CONFIG.students, Run(3, 2))
    assert again == setting
    stored = json.loads(json.dumps(asdict(setting)))
    assert Setting(FeatureSpec(**stored.pop("features")), **stored) == setting


def test_widths_go_on_while_an_end_of_them_wins():
    rng = np.random.default_rng(0)
    X = rng.uniform(-4.0, 4.0, (800, 2))
    board = np.floor(X).sum(axis=1).astype(int) % 2
    first, further = (measure_maps(FeatureSpec(), X, board, 2, extend=extend)[0] for extend in (False, True))
    assert further[: len(first)] == first
    best = max(first, key=lambda one: one.f1)
    added = [one.features.gamma / best.features.gamma for one in further[len(first) :]]
    assert added == [2.0 ** (step + 1) for step in range(len(added))]
    assert len(added) > 1
    assert further[-1].f1 <= further[-2].f1 or len(added) == 7
    assert max(one.f1 for one in further) > best.f1 + 0.05


def test_a_training_run_takes_the_setting_and_does_better_than_planes():
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


def test_a_stored_preparation_keeps_the_setting(preparation):
    stored = preparation.to_bytes()
    again = Preparation.from_bytes(stored, rings(150), CONFIG)
    assert again.choice == preparation.choice
    assert again.config == preparation.config
    assert again.to_bytes() == stored
    header, arrays = decode(stored, "stms.preparation.2")
    for broken in ({}, {"setting": {}}, {"setting": {**header["setting"], "features": {"kind": "no"}}}):
        rest = {name: value for name, value in header.items() if name != "setting"}
        with pytest.raises(InvalidPackage, match="choice of features"):
            Preparation.from_bytes(encode(rest | broken, arrays), rings(150), CONFIG)


def test_the_estimate_is_told_before_the_search_and_progress_in_it():
    reports: list[Progress] = []
    prepare(rings(90), replace(CONFIG, students=(SVM(),)), Run(n_threads=1, progress=reports.append))
    first = reports[0]
    assert (first.stage, first.done) == ("setting", 0)
    assert first.expected_seconds is not None
    assert first.expected_seconds > 0.0
    stages = list(dict.fromkeys(one.stage for one in reports))
    assert stages[:2] == ["setting", "points"]
    done = [one.done for one in reports if one.stage == "setting"]
    assert done == [0, 1, 2, 3, 4, 5]


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
