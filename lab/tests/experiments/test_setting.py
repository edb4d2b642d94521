"""The search for a feature map and the teacher's C, and folds by groups."""

from __future__ import annotations

import json

import numpy as np

from core.data.dataset import LabelledData
from core.data.scaling_kind import Scaling
from core.features.spec import FeatureSpec
from core.model_selection.row_samples import some_rows
from core.run import Run
from lab.experiments.setting import Search, candidate_specs, choose_setting, folds_of, grouped_folds


def three_clusters() -> LabelledData:
    """Overlapping groups of points in the plane."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [30, 20, 14])
    angles = 2.0 * np.pi * labels / 3.0
    X = np.c_[np.cos(angles), np.sin(angles)] + 0.45 * rng.standard_normal((len(labels), 2))
    return LabelledData.from_arrays(X, labels)


def test_the_setting_prefers_the_scale_of_the_signal():
    rng = np.random.default_rng(0)
    labels = np.tile([0, 1], 60)
    X = np.c_[labels + 0.1 * rng.standard_normal(120), 100.0 * rng.standard_normal(120)]
    data = LabelledData.from_arrays(X, labels)
    scalings = (Scaling.NONE, Scaling.MINMAX)
    search = Search(FeatureSpec("nystroem", n_components=20), (10.0, 100.0), scalings, (1.0,), folds=3)
    told: list[str] = []
    setting = choose_setting(data, search, Run(0, 1), told.append)
    assert setting["features"]["scaling"] is Scaling.MINMAX
    assert len(told) == 3
    assert json.loads(json.dumps(setting)) == setting


def test_a_search_without_choices_takes_what_it_has():
    data = three_clusters()
    search = Search(FeatureSpec("nystroem", n_components=5), (10.0,))
    setting = choose_setting(data, search, Run(0, 1), lambda _: None)
    assert setting == {"features": search.features.as_dict(), "teacher_C": 10.0, "trace": []}
    assert candidate_specs(data, search) == [search.features]


def test_a_search_stops_raising_C_when_it_does_not_help():
    data = three_clusters()
    Cs = tuple(10.0**power for power in range(9))
    search = Search(FeatureSpec("linear"), Cs, folds=3)
    setting = choose_setting(data, search, Run(0, 1), lambda _: None)
    trace = setting["trace"]
    assert len(trace) < len(Cs)
    best = max(one["score"] for one in trace)
    assert all(one["score"] < best or one["teacher_C"] >= setting["teacher_C"] for one in trace)


def test_rare_classes_keep_their_rows_in_a_part_of_the_data():
    labels = np.repeat([0, 1, 2], [1000, 100, 7])
    rows = some_rows(labels, 200, 0)
    assert list(np.bincount(labels[rows])) == [180, 60, 7]
    assert np.array_equal(some_rows(labels, 5000, 0), np.arange(1107))


def test_groups_stay_together_and_folds_are_even():
    groups = np.repeat([5, 7, 8, 9], [6, 3, 2, 1])
    fold_of = grouped_folds(groups, 2)
    assert [len(set(fold_of[groups == group])) for group in np.unique(groups)] == [1, 1, 1, 1]
    assert list(np.bincount(fold_of)) == [6, 6]
    assert grouped_folds(groups, 10).max() == 3


def test_without_groups_folds_are_stratified():
    labels = np.repeat([0, 1], [20, 10])
    fold_of = folds_of(labels, None, 5, 0)
    assert all(list(np.bincount(labels[fold_of == fold])) == [4, 2] for fold in range(5))
