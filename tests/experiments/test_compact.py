"""The curve of compact students: its work on small data, and what is read from its records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.data.scaling_kind import Scaling
from core.features.spec import FeatureSpec
from experiments.compact import CompactCurve, _part, point_name, run_of, summarise_compact
from experiments.data import load
from experiments.plans import CURVES, CurvePlan
from experiments.store import Store

from .conftest import EFFORT, fill_curve, rewrite

PLAN = CurvePlan(FeatureSpec("nystroem", n_components=10), sizes=(2, 4), steps=20)


def work(
    folder: Path, store: Store, plan: CurvePlan = PLAN, *, n_threads: int = 2, seed: int = 0
) -> CompactCurve:
    effort = replace(EFFORT, n_threads=n_threads, seed=seed)
    return CompactCurve(plan, run_of("vowel"), load("vowel", folder), store, effort)


def test_every_class_is_measured_with_every_number_of_landmarks(folder: Path, tmp_path: Path):
    store = Store(tmp_path / "work.jsonl")
    steps = list(work(folder, store).steps())
    assert [name for name, _ in steps] == work(folder, store).names()
    assert all(new for _, new in steps)
    record = store.read(run_of("vowel").key(point_name(4, 2)))
    assert record is not None
    assert record["landmarks"] == 4
    assert record["metrics"]["auc"] > 0.7
    assert set(record["seconds_per_query"]) == {"teacher", "remark_2", "student"}
    assert all(seconds > 0 for seconds in record["seconds_per_query"].values())


def test_a_stopped_curve_goes_on_and_ends_with_the_same_figures(folder: Path, tmp_path: Path):
    whole, stopped = Store(tmp_path / "whole.jsonl"), Store(tmp_path / "stopped.jsonl")
    names = [name for name, _ in work(folder, whole).steps()]
    first = work(folder, stopped, n_threads=1).steps()
    for _ in range(3):
        next(first)
    first.close()
    second = list(work(folder, stopped).steps())
    assert [name for name, new in second if not new] == names[:3]
    for name in names[1:]:
        one, other = whole.read(run_of("vowel").key(name)), stopped.read(run_of("vowel").key(name))
        assert one is not None
        assert other is not None
        assert one["metrics"] == other["metrics"], name


@pytest.mark.parametrize("changed", [{"seed": 1}, {"plan": replace(PLAN, steps=21)}])
def test_another_recipe_invalidates_the_curve(folder: Path, tmp_path: Path, changed):
    store = Store(tmp_path / "work.jsonl")
    list(work(folder, store).steps())
    assert all(new for _, new in work(folder, store, **changed).steps())


def test_a_part_of_the_rows_keeps_the_shares_of_the_classes():
    labels = np.repeat([0, 1], [900, 300])
    data = LabelledData.from_arrays(np.arange(1200.0)[:, None], labels)
    part = _part(data, 400, 0)
    assert list(part.class_counts) == [300, 100]
    assert np.array_equal(part.X[:, 0] >= 900, part.y == 1)
    assert _part(data, None, 0) is data
    assert _part(data, 1200, 0) is data


def test_the_pixels_of_mnist_need_no_copy_from_0_to_1():
    features = CURVES["mnist"].features
    assert features.scaling is Scaling.NONE
    assert features.gamma is not None
    x, z = np.array([0.0, 255.0]), np.array([128.0, 3.0])
    assert features.gamma * ((x - z) ** 2).sum() == pytest.approx(0.03 * ((x - z) ** 2).sum() / 255**2)


def test_a_curve_is_summarised_point_by_point(store: Store):
    assert summarise_compact(store, "letter") is None
    fill_curve(store, "letter", {25: 0.8, 100: 0.95})
    curve = summarise_compact(store, "letter")
    assert curve is not None
    assert curve["teacher_f1"] == pytest.approx(95.0)
    assert curve["teacher_seconds_per_query"] == pytest.approx(2e-5)
    assert [point["landmarks"] for point in curve["points"]] == [25, 100]
    first = curve["points"][0]
    assert first["f1"] == pytest.approx(80.0)
    # The undefined replicate is replaced by the next defined one: 79, 81, 81.
    assert (first["f1_low"], first["f1_high"]) == pytest.approx((79.1, 81.0))
    assert first["relative_time"] == pytest.approx(0.125)
    assert first["relative_to_remark_2"] == pytest.approx(0.25)
    assert first["training_seconds"] == pytest.approx(16.0)
    assert curve["seconds"] == pytest.approx(12.0 + 4 * 4.0)


def test_a_number_of_landmarks_without_all_classes_is_left_out(store: Store):
    fill_curve(store, "letter", {25: 0.8, 100: 0.95})
    rewrite(store, run_of("letter"), point_name(25, 1), recipe="other")
    curve = summarise_compact(store, "letter")
    assert curve is not None
    assert [point["landmarks"] for point in curve["points"]] == [100]
    rewrite(store, run_of("letter"), point_name(100, 0), recipe="other")
    assert summarise_compact(store, "letter") is None
