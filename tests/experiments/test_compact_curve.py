"""The curve of compact students: its work on small data, and what is read from its records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.data.scaling_kind import Scaling
from core.features.spec import FeatureSpec
from experiments.compact_curve import CURVES, CompactCurve, CurvePlan, _part, point_name, run_of
from experiments.curves import read_curve, read_curves
from experiments.data import load
from experiments.results import ResultStore

from .conftest import EFFORT, fill_curve

PLAN = CurvePlan(FeatureSpec("nystroem", n_components=10), sizes=(2, 4), steps=20)


def work(
    folder: Path, store: ResultStore, plan: CurvePlan = PLAN, *, n_threads: int = 2, seed: int = 0
) -> CompactCurve:
    effort = replace(EFFORT, n_threads=n_threads, seed=seed)
    return CompactCurve(plan, run_of("vowel"), load("vowel", folder), store, effort)


def test_every_class_is_measured_with_every_number_of_landmarks(folder: Path, tmp_path: Path):
    store = ResultStore(tmp_path)
    steps = list(work(folder, store).steps())
    assert [step.name for step in steps] == list(work(folder, store).costs())
    assert all(step.new and step.cost > 0 for step in steps)
    record = store.read(run_of("vowel"), point_name(4, 2))
    assert record is not None
    assert record["landmarks"] == 4
    assert record["metrics"]["auc"] > 0.7
    assert set(record["seconds_per_query"]) == {"teacher", "remark_2", "student"}
    assert all(seconds > 0 for seconds in record["seconds_per_query"].values())


def test_a_stopped_curve_goes_on_and_ends_with_the_same_figures(folder: Path, tmp_path: Path):
    whole, stopped = ResultStore(tmp_path / "whole"), ResultStore(tmp_path / "stopped")
    names = [step.name for step in work(folder, whole).steps()]
    first = work(folder, stopped, n_threads=1).steps()
    for _ in range(3):
        next(first)
    first.close()
    second = list(work(folder, stopped).steps())
    assert [step.name for step in second if not step.new] == names[:3]
    for name in names[1:]:
        one, other = whole.read(run_of("vowel"), name), stopped.read(run_of("vowel"), name)
        assert one is not None
        assert other is not None
        assert one["metrics"] == other["metrics"], name


@pytest.mark.parametrize("changed", [{"seed": 1}, {"plan": replace(PLAN, steps=21)}])
def test_another_recipe_makes_the_curve_anew(folder: Path, tmp_path: Path, changed):
    store = ResultStore(tmp_path)
    list(work(folder, store).steps())
    assert all(step.new for step in work(folder, store, **changed).steps())


def test_a_part_of_the_rows_keeps_the_shares_of_the_classes():
    labels = np.repeat([0, 1], [900, 300])
    data = LabelledData.from_arrays(np.arange(1200.0)[:, None], labels)
    part = _part(data, 400, 0)
    assert list(part.class_counts) == [300, 100]
    assert np.array_equal(part.X[:, 0] >= 900, part.y == 1)
    assert _part(data, None, 0) is data
    assert _part(data, 1200, 0) is data


def test_a_name_that_is_no_point_is_a_fault_of_the_program(folder: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="not the name of a point"):
        work(folder, ResultStore(tmp_path))._make("landmarks-x")


def test_the_pixels_of_mnist_need_no_copy_from_0_to_1():
    features = CURVES["mnist"].features
    assert features.scaling is Scaling.NONE
    assert features.gamma is not None
    x, z = np.array([0.0, 255.0]), np.array([128.0, 3.0])
    assert features.gamma * ((x - z) ** 2).sum() == pytest.approx(0.03 * ((x - z) ** 2).sum() / 255**2)


def test_a_curve_is_read_point_by_point(tmp_path: Path):
    store = ResultStore(tmp_path)
    assert read_curves(store) == {}
    fill_curve(store, "letter", {25: 0.8, 100: 0.95})
    curve = read_curves(store)["letter"]
    assert curve.teacher_f1 == pytest.approx(95.0)
    assert curve.teacher_seconds_per_query == pytest.approx(2e-5)
    assert [point.landmarks for point in curve.points] == [25, 100]
    first = curve.points[0]
    assert first.f1 == pytest.approx(80.0)
    # The undefined replicate is replaced by the next defined one: 79, 81, 81.
    assert (first.f1_low, first.f1_high) == pytest.approx((79.1, 81.0))
    assert first.relative_time == pytest.approx(0.125)
    assert first.relative_to_remark_2 == pytest.approx(0.25)
    assert first.training_seconds == pytest.approx(16.0)
    assert curve.seconds == pytest.approx(12.0 + 4 * 4.0)
    assert curve.as_dict()["points"][1]["f1"] == pytest.approx(95.0)


def test_a_number_of_landmarks_without_all_classes_is_left_out(tmp_path: Path):
    store = ResultStore(tmp_path)
    fill_curve(store, "letter", {25: 0.8, 100: 0.95})
    (tmp_path / run_of("letter").folder / f"{point_name(25, 1)}.json").unlink()
    curve = read_curve(store, "letter")
    assert curve is not None
    assert [point.landmarks for point in curve.points] == [100]
    (tmp_path / run_of("letter").folder / f"{point_name(100, 0)}.json").unlink()
    assert read_curve(store, "letter") is None
