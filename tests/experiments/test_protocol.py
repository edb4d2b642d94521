"""The protocol on small data: everything made once, resumable, and nothing chosen on the test part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.data.scaling_kind import Scaling
from core.features.spec import FeatureSpec
from core.training.evaluation import Examination
from experiments.data import Split, load
from experiments.protocol import Protocol
from experiments.results import ResultStore, Run
from experiments.setting import Search, Setting, candidate_specs, choose_setting, some_rows
from experiments.summary import summarise

from .conftest import EFFORT, small


def protocol(folder: Path, store: ResultStore, name: str = "vowel", grid: str = "open") -> Protocol:
    data = load(name, folder)
    return Protocol(small(name, grid), Run(name, grid, 0), data, store, EFFORT, lambda _: None)


@pytest.mark.parametrize(
    ("name", "grid"), [("protein_val_part", "open"), ("yeast", "paper"), ("reuters_r8", "open")]
)
def test_a_run_measures_every_class_with_every_method(folder: Path, tmp_path: Path, name: str, grid: str):
    store = ResultStore(tmp_path / "work")
    steps = list(protocol(folder, store, name, grid).steps())
    assert all(step.new and step.cost > 0 for step in steps)
    outcome = summarise(store, [name])[name][grid]
    assert [len(records) for records in outcome.per_class.values()] == [3, 3, 3, 3]
    assert outcome.value("gsvm", "mean", "auc") > 80.0
    assert outcome.inference["seconds_per_query"]["student"] > 0.0
    grouped = name == "protein_val_part"
    assert outcome.setting["grouped"] is grouped


def test_a_stopped_run_goes_on_and_ends_with_the_same_figures(folder: Path, tmp_path: Path):
    whole, stopped = ResultStore(tmp_path / "whole"), ResultStore(tmp_path / "stopped")
    names = [step.name for step in protocol(folder, whole).steps()]
    first = protocol(folder, stopped).steps()
    for _ in range(7):
        next(first)
    first.close()
    second = list(protocol(folder, stopped).steps())
    assert [step.new for step in second] == [False] * 7 + [True] * (len(names) - 7)
    run = Run("vowel", "open", 0)
    for name in names[1:-1]:
        one, other = whole.read(run, name), stopped.read(run, name)
        assert one is not None
        assert other is not None
        assert one.get("metrics") == other.get("metrics"), name
        assert one.get("chosen", {}).get("C") == other.get("chosen", {}).get("C")
        assert "metrics" in one or "chosen" in one


def test_another_seed_makes_everything_anew(folder: Path, tmp_path: Path):
    store = ResultStore(tmp_path)
    list(protocol(folder, store).steps())
    data = load("vowel", folder)
    plan, run = small("vowel", "open"), Run("vowel", "open", 0)
    other = Protocol(plan, run, data, store, replace(EFFORT, seed=1), lambda _: None)
    assert next(other.steps()).new


def test_a_student_without_a_setting_is_a_fault_of_the_program(folder: Path, tmp_path: Path):
    with pytest.raises(RuntimeError, match="setting comes first"):
        protocol(folder, ResultStore(tmp_path))._make("class-000-gsvm")


def chosen(store: ResultStore, run: Run) -> list[Any]:
    setting = store.read(run, "setting")
    student = store.read(run, "class-001-gsvm")
    assert setting is not None
    assert student is not None
    own = {name: value for name, value in student["chosen"].items() if name != "tuning_seconds"}
    return [setting["features"], setting["teacher_C"], own]


def test_the_test_part_has_no_say_in_what_is_chosen(folder: Path, tmp_path: Path):
    data = load("vowel", folder)
    shuffled = np.random.default_rng(0).permutation(data.test.y)
    other = Split(data.train, replace(data.test, y=shuffled, X=data.test.X[::-1] * 3.0), data.groups)
    found = []
    for number, split in enumerate((data, other)):
        store, run = ResultStore(tmp_path / str(number)), Run("vowel", "open", 0)
        list(Protocol(small("vowel", "open"), run, split, store, EFFORT, lambda _: None).steps())
        found.append(chosen(store, run))
    assert found[0] == found[1]


def test_a_class_without_test_rows_is_reported_as_undefined(folder: Path, tmp_path: Path):
    data = load("yeast", folder)
    kept = data.test.y != 2
    test = replace(data.test, X=data.test.X[kept], y=data.test.y[kept])
    store, run = ResultStore(tmp_path), Run("yeast", "open", 0)
    list(
        Protocol(small("yeast", "open"), run, Split(data.train, test), store, EFFORT, lambda _: None).steps()
    )
    record = store.read(run, "class-002-gsvm")
    assert record is not None
    assert record["metrics"]["f1"] is None
    assert record["roc"] is None
    assert record["replicates"]["auc"] == [None] * 5


def test_the_setting_prefers_the_scale_of_the_signal():
    rng = np.random.default_rng(0)
    labels = np.tile([0, 1], 60)
    X = np.c_[labels + 0.1 * rng.standard_normal(120), 100.0 * rng.standard_normal(120)]
    data = LabelledData.from_arrays(X, labels)
    scalings = (Scaling.NONE, Scaling.MINMAX)
    search = Search(FeatureSpec("nystroem", n_components=20), (10.0, 100.0), scalings, (1.0,), folds=3)
    told: list[str] = []
    setting = choose_setting(data, search, seed=0, n_threads=1, tell=told.append)
    assert setting.features.scaling is Scaling.MINMAX
    assert len(told) == 3
    assert Setting.from_dict(setting.as_dict()) == setting


def test_a_search_without_choices_takes_what_it_has(folder: Path):
    data = load("yeast", folder).train
    search = Search(FeatureSpec("nystroem", n_components=5), (10.0,))
    setting = choose_setting(data, search, seed=0, n_threads=1, tell=lambda _: None)
    assert (setting.features, setting.teacher_C, setting.trace) == (search.features, 10.0, ())
    assert candidate_specs(data, search) == [search.features]


def test_a_search_stops_raising_C_when_it_does_not_help(folder: Path):
    data = load("yeast", folder).train
    Cs = tuple(10.0**power for power in range(9))
    search = Search(FeatureSpec("linear"), Cs, folds=3)
    setting = choose_setting(data, search, seed=0, n_threads=1, tell=lambda _: None)
    assert len(setting.trace) < len(Cs)
    best = max(one.score for one in setting.trace)
    assert all(one.score < best or one.teacher_C >= setting.teacher_C for one in setting.trace)


def test_rare_classes_keep_their_rows_in_a_part_of_the_data():
    labels = np.repeat([0, 1, 2], [1000, 100, 7])
    rows = some_rows(labels, 200, 0)
    assert list(np.bincount(labels[rows])) == [180, 60, 7]
    assert np.array_equal(some_rows(labels, 5000, 0), np.arange(1107))


def test_the_teachers_cost_is_that_of_remark_2(folder: Path, tmp_path: Path):
    store = ResultStore(tmp_path)
    one = protocol(folder, store)
    list(one.steps())
    assert isinstance(one._room.examination, Examination)
    record = store.read(Run("vowel", "open", 0), "class-000-teacher")
    assert record is not None
    assert 2.0 <= record["classes_evaluated"] <= 3.0
    assert one._room.preparation.teacher.C in {10.0, 100.0}
