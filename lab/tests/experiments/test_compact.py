"""The curve of compact students: its work on small data, and what is read from its records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.data.scaling_kind import Scaling
from core.features.spec import FeatureSpec
from core.students.compact import Compact
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import train
from lab.experiments.compact import TEACHER, CompactCurve, point_name, run_of, summarise_compact
from lab.experiments.data import Split, load
from lab.experiments.plans import CURVES, CurvePlan
from lab.experiments.store import Store

from .conftest import EFFORT, fill_curve, rewrite

PLAN = CurvePlan(FeatureSpec("nystroem", n_components=10), sizes=(2, 4), steps=20)


def work(
    folder: Path, store: Store, plan: CurvePlan = PLAN, *, n_threads: int = 2, seed: int = 0
) -> CompactCurve:
    effort = replace(EFFORT, n_threads=n_threads, seed=seed)
    return CompactCurve(plan, run_of("vowel"), load("vowel", folder), store, effort)


def test_the_students_of_every_class_are_measured_with_every_number_of_landmarks(
    folder: Path, tmp_path: Path
):
    store = Store(tmp_path / "work.jsonl")
    steps = list(work(folder, store).steps())
    assert steps == [(name, True) for name in ("teacher", "landmarks-0002", "landmarks-0004")]
    point = store.read(run_of("vowel").key(point_name(4)))
    assert point is not None
    assert point["landmarks"] == 4
    assert point["f1_low"] <= point["f1"] <= point["f1_high"]
    assert point["auc"] > 70.0
    times = ("relative_time", "relative_to_remark_2", "seconds_per_query", "teacher_seconds_per_query")
    assert all(point[name] > 0 for name in times)


def test_f_is_the_mean_over_the_classes_as_the_pipeline_measures_it(folder: Path, tmp_path: Path):
    store = Store(tmp_path / "work.jsonl")
    list(work(folder, store).steps())
    data = load("vowel", folder)
    students = (Compact(n_landmarks=2, steps=PLAN.steps),)
    config = TrainingConfig(features=PLAN.features, teacher=SSVM(PLAN.teacher_C), students=students, seed=0)
    evaluation = train(data.train, config, test=data.test).evaluation
    assert evaluation is not None
    record = store.read(run_of("vowel").key(point_name(2)))
    teacher = store.read(run_of("vowel").key(TEACHER))
    assert record is not None
    assert teacher is not None
    assert record["f1"] == pytest.approx(100 * evaluation.mean("compact").f1)
    assert teacher["teacher_f1"] == pytest.approx(100 * evaluation.mean("teacher").f1)


@pytest.mark.long
def test_a_stopped_curve_goes_on_and_ends_with_the_same_figures(folder: Path, tmp_path: Path):
    whole, stopped = Store(tmp_path / "whole.jsonl"), Store(tmp_path / "stopped.jsonl")
    names = [name for name, _ in work(folder, whole).steps()]
    first = work(folder, stopped, n_threads=1).steps()
    for _ in range(2):
        next(first)
    first.close()
    assert [new for _, new in work(folder, stopped).steps()] == [False, False, True]
    for name in names[1:]:
        one, other = (store.read(run_of("vowel").key(name)) for store in (whole, stopped))
        assert one is not None
        assert other is not None
        assert [one[part] for part in ("f1", "f1_low", "auc")] == [
            other[part] for part in ("f1", "f1_low", "auc")
        ]


@pytest.mark.long
@pytest.mark.parametrize("changed", [{"seed": 1}, {"plan": replace(PLAN, steps=21)}])
def test_another_recipe_invalidates_the_curve(folder: Path, tmp_path: Path, changed):
    store = Store(tmp_path / "work.jsonl")
    list(work(folder, store).steps())
    assert all(new for _, new in work(folder, store, **changed).steps())


def test_a_part_of_the_rows_keeps_the_shares_of_the_classes(tmp_path: Path):
    labels = np.repeat([0, 1], [900, 300])
    data = LabelledData.from_arrays(np.arange(1200.0)[:, None], labels)
    for limit, counts in ((400, [300, 100]), (None, [900, 300]), (1200, [900, 300])):
        plan = replace(PLAN, rows=limit)
        curve = CompactCurve(plan, run_of("a"), Split(data, data), Store(tmp_path / "none.jsonl"), EFFORT)
        assert list(curve._train.class_counts) == counts
        assert np.array_equal(curve._train.X[:, 0] >= 900, curve._train.y == 1)


def test_the_pixels_of_mnist_need_no_copy_from_0_to_1():
    features = CURVES["mnist"].features
    assert features.scaling is Scaling.NONE
    assert features.gamma is not None
    x, z = np.array([0.0, 255.0]), np.array([128.0, 3.0])
    assert features.gamma * ((x - z) ** 2).sum() == pytest.approx(0.03 * ((x - z) ** 2).sum() / 255**2)


def test_a_curve_is_summarised_with_the_points_of_its_recipe(store: Store):
    assert summarise_compact(store, "letter") is None
    fill_curve(store, "letter", {25: 0.8, 100: 0.95})
    curve = summarise_compact(store, "letter")
    assert curve is not None
    assert (curve["data_set"], curve["teacher_f1"]) == ("letter", 95.0)
    assert curve["teacher_seconds_per_query"] == pytest.approx(2e-5)
    assert [(point["landmarks"], point["f1"]) for point in curve["points"]] == [(25, 80.0), (100, 95.0)]
    assert curve["plan"]["features"]["gamma"] == CURVES["letter"].features.gamma
    assert curve["seconds"] == pytest.approx(12.0 + 2 * 8.0)
    rewrite(store, run_of("letter"), point_name(25), recipe="other")
    curve = summarise_compact(store, "letter")
    assert curve is not None
    assert [point["landmarks"] for point in curve["points"]] == [100]
    rewrite(store, run_of("letter"), point_name(100), recipe="other")
    assert summarise_compact(store, "letter") is None
