"""The benchmark of the defaults: its parts without a server."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.features.spec import FeatureSpec
from lab.benchmarks.inputs import sets
from lab.studies import defaults
from lab.studies.defaults import compact_students, mean_of, read, repeated, sparse_vs_dense, summary
from lab.studies.defaults_peers import Split, encoded, mixed_splits, peers, scikit_learn


@pytest.mark.parametrize("sparse", [False, True])
def test_no_test_part_is_read_unless_asked_for(tmp_path, sparse):
    X = np.arange(60.0).reshape(30, 2)
    y = np.arange(30) % 3
    train, test = Split(X, y, X[:1], y[:1]), Split(X, y, X[:6] + 100.0, y[:6])
    whole = Split(train.X, train.y, test.X_test, test.y_test)
    if sparse:
        whole = Split(sp.csr_array(X), y, sp.csr_array(test.X_test), test.y_test)
    whole.write(tmp_path / "some.npz")
    third = read("some", tmp_path, None, final=False)
    assert (third.X.shape[0], third.X_test.shape[0]) == (20, 10)
    assert third.X_test.max() < 100.0
    assert read("some", tmp_path, None, final=True).X_test.min() >= 0.0
    assert read("some", tmp_path, None, final=True).X_test.shape == (6, 2)
    assert read("none", tmp_path, None, final=False) is None
    assert read("iris", tmp_path, None, final=True) is None


def test_thirds_of_small_sets_are_drawn_several_times_and_test_parts_once(tmp_path):
    draws = repeated("digits", tmp_path, None, final=False)
    assert [len(draw.y_test) for draw in draws] == [599, 599]
    assert not np.array_equal(draws[0].y_test, draws[1].y_test)
    assert np.array_equal(draws[0].y_test, read("digits", tmp_path, None, final=False).y_test)
    Split(np.ones((30, 4)), np.arange(30) % 3, np.ones((2, 4)), np.zeros(2)).write(tmp_path / "some.npz")
    assert len(repeated("some", tmp_path, None, final=True)) == 1
    assert repeated("none", tmp_path, None, final=False) == []


def test_figures_of_draws_are_averaged_and_failed_draws_are_not_hidden():
    one = {"f1": 90.0, "auc": 95.0, "brier": None, "seconds": 1.0, "state": "succeeded", "warnings": 1}
    failed = one | {"f1": 91.0, "auc": None, "state": "failed", "warnings": 2}
    mean = mean_of([one, failed])
    assert mean == one | {"f1": 90.5, "auc": None, "state": "failed", "warnings": 3, "draws": 2}


def test_both_classifiers_are_measured_one_class_against_the_rest(tmp_path):
    split = read("iris", tmp_path, None, final=False)
    svc, logistic = (scikit_learn(kind, split) for kind in ("svc", "logistic"))
    assert 90.0 < svc["f1"] <= 100.0
    assert svc["brier"] is None
    assert 0.0 < logistic["brier"] < 20.0


def test_compact_students_and_sparse_queries_are_measured_without_a_server(monkeypatch):
    rng = np.random.default_rng(0)
    codes = np.arange(120) % 3
    X = rng.normal(size=(120, 2)) + 6.0 * codes[:, None]
    data = LabelledData.from_arrays(X[:60], codes[:60])
    test = LabelledData.with_codes(X[60:], codes[60:], data.classes)
    seconds, f1 = compact_students(data, test, FeatureSpec("linear"))
    assert seconds > 0.0
    assert f1 > 95.0
    monkeypatch.setattr(defaults, "_QUERIES", 50)
    assert 0.0 < sparse_vs_dense() < 20.0


@pytest.mark.long
def test_forests_and_boosting_are_measured_on_all_classes(tmp_path, capsys, monkeypatch):
    split = read("iris", tmp_path, None, final=False)
    found = peers("iris", split)
    assert [*found] == ["svc", "logistic", "linear_svc", "forest", "extra_trees", "boosting"]
    assert all(60.0 < one["f1"] <= 100.0 and 80.0 < one["auc"] <= 100.0 for one in found.values())
    assert [name for name, one in found.items() if one["brier"] is None] == ["svc", "linear_svc"]
    monkeypatch.setattr("lab.studies.defaults_peers._MOST_BOOSTED", 100)
    assert "boosting" not in peers("iris", split)
    assert "iris: boosting is left out" in capsys.readouterr().err


def test_mixed_files_are_thirds_of_the_training_part_and_become_arrays(tmp_path):
    lines = ["red,1,x", "blue,2,x", "?,3,y", "red,,y"] * 30
    (tmp_path / "car.data").write_text("colour,size,deal\n" + "\n".join(lines))
    assert mixed_splits("crx", tmp_path, None, final=False) == []
    assert mixed_splits("car", tmp_path, None, final=True) == []
    draws = mixed_splits("car", tmp_path, None, final=False)
    assert [(len(draw.train), len(draw.test)) for draw in draws] == [(80, 40)] * 3
    cells = [line.split(",") for line in lines]
    split = sets.Split(("colour", "size", "class"), 2, cells[:80], cells[80:])
    arrays = encoded(split, {"colour": "category", "size": "number"})
    assert arrays.X.shape == (80, 4)
    assert arrays.X_test.shape == (40, 4)
    assert arrays.classes == ["x", "y"]


def test_a_set_without_figures_is_left_out_of_the_means_and_named(capsys):
    whole = {"svc": {"f1": 90.0}, "logistic": {"f1": 80.0}, "default": {"f1": 91.0}}
    failed = whole | {"default": {"f1": None}}
    assert summary({"a": whole, "b": failed})["mean_f1_vs_best"] == 1.0
    assert "b is left out of the means" in capsys.readouterr().err
    assert summary({"b": failed})["worst_f1_vs_best"] is None
