"""Suspect labels: flipped ones come first; cleanlab's rows are in test_oracles.py."""

from __future__ import annotations

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.errors import InvalidPackage, InvalidProblem
from core.monitoring.suspects import Suspects, class_probabilities, suspect_labels
from core.packed.codec import encode
from core.run import Run
from core.students.sigmoid import fit_sigmoid, fit_sigmoid_to_bins
from core.students.trees import Trees
from core.teachers.forest import Forest
from core.training.config import TrainingConfig
from core.training.pipeline import prepare
from tests.refusals import at_fault


def by_definition(labels: np.ndarray, p: np.ndarray) -> list[int]:
    """Row by row, as the paper says it, the most suspect first."""
    n, K = p.shape
    means = [np.mean([p[i, k] for i in range(n) if labels[i] == k] or [np.inf]) for k in range(K)]
    found = []
    for i in range(n):
        confident = [k for k in range(K) if p[i, k] >= means[k] - 1e-6]
        if confident and max(confident, key=lambda k: p[i, k]) != labels[i] != p[i].argmax():
            found.append(i)
    return sorted(found, key=lambda i: p[i, labels[i]])


@pytest.mark.parametrize("seed", range(5))
def test_the_confident_joint_is_that_of_the_paper(seed: int):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, 300)
    labels[labels == 3] = 4  # a class without a row
    p = rng.dirichlet(np.full(5, 0.4), 300) + 0.5 * np.eye(5)[labels]
    p /= p.sum(axis=1, keepdims=True)
    found = suspect_labels(labels, p)
    assert len(found.rows) > 10
    assert found.rows.tolist() == by_definition(labels, p)
    assert (found.of_label == p[found.rows, labels[found.rows]]).all()
    assert (found.of_suggested == p[found.rows, found.suggested]).all()
    assert (found.labels == labels[found.rows]).all()
    assert suspect_labels(labels, p, 7).rows.tolist() == found.rows[:7].tolist()


def test_suspects_are_stored_with_the_numbers_and_parts_of_their_rows():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    found = suspect_labels(labels, rng.dirichlet(np.full(4, 0.4), 200))
    numbers, in_test = 1000 + np.arange(200), np.arange(200) >= 150
    stored = found.renumbered(numbers, in_test)
    assert stored.rows.tolist() == (1000 + found.rows).tolist()
    assert stored.in_test.tolist() == (found.rows >= 150).tolist()
    assert 0 < stored.in_test.sum() < len(stored)
    again = Suspects.from_bytes(stored.to_bytes())
    assert again.rows.tolist() == stored.rows.tolist()
    assert again.in_test.tolist() == stored.in_test.tolist()
    np.testing.assert_allclose(again.of_label, stored.of_label, rtol=1e-6)
    assert again.to_bytes() == stored.to_bytes()
    parts = [one["part"] for one in again.as_dicts(("a", "b", "c", "d"))]
    assert parts == ["test" if one else "training" for one in stored.in_test]
    tested = again.where(again.in_test)
    assert tested.rows.tolist() == stored.rows[stored.in_test].tolist()
    assert len(tested.to_bytes()) < len(stored.to_bytes()) < 25 * len(stored) + 1000


@pytest.mark.parametrize("change", [{"rows": np.zeros(3, np.int64)}, {"labels": np.zeros((2, 1), np.int32)}])
def test_a_package_whose_columns_do_not_fit_together_is_refused(change):
    two = {name: np.zeros(2, np.int32) for name in ("labels", "suggested")}
    two |= {name: np.zeros(2, np.float32) for name in ("of_label", "of_suggested")}
    columns = {"rows": np.zeros(2, np.int64), "in_test": np.zeros(2, np.uint8), **two}
    assert len(Suspects.from_bytes(encode({"format": "stms.suspects.1"}, columns))) == 2
    with pytest.raises(InvalidPackage, match="differ in length"):
        Suspects.from_bytes(encode({"format": "stms.suspects.1"}, columns | change))


def test_flipped_labels_come_first():
    rng = np.random.default_rng(0)
    codes = np.arange(1200) % 4
    X = 4.0 * np.eye(4)[codes] + rng.normal(size=(1200, 4))
    flipped = rng.random(1200) < 0.05
    given = np.where(flipped, (codes + rng.integers(1, 4, 1200)) % 4, codes)
    data = LabelledData.from_arrays(X, [f"class {code}" for code in given])
    config = TrainingConfig(teacher=Forest(trees=30), students=(Trees(),), threshold="f1")
    held_out = prepare(data, config, Run()).held_out
    probabilities = class_probabilities(data.y, held_out)
    np.testing.assert_allclose(np.nansum(probabilities, axis=1)[~np.isnan(held_out).any(axis=1)], 1.0)
    found = suspect_labels(data.y, probabilities)
    assert flipped[found.rows[:40]].mean() > 0.9
    assert (found.suggested == codes[found.rows])[flipped[found.rows]].mean() > 0.9
    first = found.as_dicts(data.classes)[0]
    assert first["label"] == f"class {given[first['row']]}" != first["suggested"]
    assert 0.0 <= first["probability_of_label"] < first["probability_of_suggested"] <= 1.0


def test_rows_without_scores_and_classes_without_rows_are_left_out():
    rng = np.random.default_rng(1)
    labels = np.arange(90) % 2
    scores = np.column_stack([2.0 * np.eye(2)[labels] + rng.normal(size=(90, 2)), rng.normal(size=90)])
    scores[[3, 50]] = np.nan
    labels[[3, 10, 21]] = 1 - labels[[3, 10, 21]]
    scores[[10, 21], :2] *= 3.0
    probabilities = class_probabilities(labels, scores)
    assert np.isnan(probabilities[[3, 50]]).all()
    assert np.nanmax(probabilities[:, 2]) == 0.0
    found = suspect_labels(labels, probabilities)
    assert {10, 21} <= set(found.rows.tolist())
    assert not {3, 50} & set(found.rows.tolist())
    only = class_probabilities(np.zeros(4, dtype=int), rng.normal(size=(4, 2)))
    assert (only == [1.0, 0.0]).all()


@pytest.mark.parametrize("distance", [0.0, 1.0, 4.0])
def test_a_sigmoid_of_bins_is_that_of_all_rows(distance: float):
    rng = np.random.default_rng(2)
    truth = rng.random(5000) < 0.1
    scores = rng.normal(size=5000) + distance * truth
    exact, fast = fit_sigmoid(truth, scores), fit_sigmoid_to_bins(truth, scores)
    assert np.abs(exact.probabilities(scores) - fast.probabilities(scores)).max() < 1e-3
    assert fit_sigmoid_to_bins(truth, np.ones(5000)) == fit_sigmoid(truth, np.ones(5000))
    assert fit_sigmoid_to_bins(truth, -10.0 * truth).slope == 0.0


@pytest.mark.parametrize(
    ("labels", "scores", "code"),
    [
        ([0, 1], [[0.0, 1.0]], "wrong_shape"),
        ([0, 2], [[0.0, 1.0], [1.0, 0.0]], "unknown_class"),
        ([0, 1], [[np.nan, 1.0], [1.0, np.nan]], "empty"),
    ],
)
def test_unusable_scores_are_refused(labels, scores, code: str):
    with at_fault(InvalidProblem, code):
        class_probabilities(np.array(labels), np.array(scores))
