"""Forests: scores against scikit-learn's own, out-of-bag scores, and what a fit depends on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.tree import ExtraTreeClassifier

from core.data.fold_assignment import fold_assignment
from core.errors import Cancelled, InvalidPackage
from core.features.examples import Examples
from core.run import Run
from core.teachers.base import Task
from core.teachers.binning import Bins
from core.teachers.forest import Forest, grown_tree
from core.teachers.grown_trees import assembled
from core.types import Progress

SPEC = Forest(trees=12)


def clouds(n: int = 150, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, 5) and codes: clouds that overlap, a column of whole numbers, one that says nothing."""
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % classes
    X = rng.normal(size=(n, 5)) + np.outer(codes, [1.5, -1.0, 0.0, 0.0, 0.0])
    X[:, 2] = np.round(X[:, 2] + codes)
    return X, codes


def task_of(X, codes, classes: int = 4) -> Task:
    return Task(Examples.of_features(X), codes, classes)


X, CODES = clouds()
FRESH = clouds(400, seed=1)[0]


@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
@pytest.mark.parametrize("leaf", [1, 4])
def test_scores_are_those_of_scikit_learn_bit_for_bit(kind: type, leaf: int):
    bins = Bins.of(X, 20)
    forest = kind(33, min_samples_leaf=leaf, random_state=0).fit(bins.codes(X), CODES)
    trees = [grown_tree(one.tree_, bins) for one in forest.estimators_]
    sums = assembled(trees, bins, sums=4, divisor=33.0)
    expected = forest.predict_proba(bins.codes(FRESH))
    np.testing.assert_array_equal(sums.block(FRESH), expected)
    np.testing.assert_array_equal([sums.row(x) for x in FRESH], expected)


def test_out_of_bag_scores_are_of_trees_whose_sample_has_not_the_row():
    teacher = Forest(trees=1).fit(task_of(X, CODES), Run())
    left_out = ~np.isnan(teacher.left_out).any(axis=1)
    assert 0.25 < left_out.mean() < 0.5
    np.testing.assert_array_equal(teacher.left_out[left_out], teacher.grown.block(X)[left_out])
    shuffled = CODES.copy()
    shuffled[left_out] = np.random.default_rng(0).permutation(CODES[left_out])
    assert (shuffled != CODES).sum() > 20
    other = Forest(trees=1).fit(task_of(X, shuffled), Run())
    np.testing.assert_array_equal(other.left_out, teacher.left_out)
    assert other.summary.objective > teacher.summary.objective + 0.1


def test_rows_that_every_tree_has_seen_have_no_score_and_count_for_nothing():
    teacher = Forest(trees=1).fit(task_of(X, CODES), Run())
    seen = np.isnan(teacher.held_out).any(axis=1)
    np.testing.assert_array_equal(teacher.own_scores[seen], 0.25)
    np.testing.assert_array_equal(teacher.own_scores[~seen], teacher.held_out[~seen])
    wrong = teacher.held_out[~seen].argmax(axis=1) != CODES[~seen]
    assert teacher.summary.objective == wrong.mean()
    assert not np.isnan(Forest(trees=60).fit(task_of(X, CODES), Run()).held_out).any()


def test_out_of_bag_scores_are_means_over_the_trees_outside_of_whose_sample_a_row_is():
    teacher, n = SPEC.fit(task_of(X, CODES), Run(seed=7)), len(X)
    samples = [np.random.default_rng((7, tree)).integers(n, size=n) for tree in range(SPEC.trees)]
    outside = np.array([np.bincount(sample, minlength=n) == 0 for sample in samples]).T
    grown = teacher.grown
    shares = grown.values[~grown.leaves(X.take(grown.feature, axis=1) > grown.threshold)]
    voters = outside.sum(axis=1)
    assert 0.3 < outside.mean() < 0.45
    expected = (shares * outside[:, :, None]).sum(axis=1)[voters > 0] / voters[voters > 0, None]
    np.testing.assert_allclose(teacher.left_out[voters > 0], expected, rtol=1e-15, atol=1e-15)


def test_trees_on_all_rows_have_held_out_scores_of_forests_without_the_fold():
    spec = replace(SPEC, splits="random", sample="all", folds=4)
    steps: list[Progress] = []
    teacher = spec.fit(task_of(X, CODES), Run(seed=5, progress=steps.append))
    assert (steps[-1].done, steps[-1].total) == (5 * 12, 5 * 12)
    # No two rows are equal, so that trees which have seen a row have its class.
    assert (teacher.scores(Examples.of_features(X)).argmax(axis=1) == CODES).all()
    assert not np.isnan(teacher.left_out).any()
    assert 0.05 < teacher.summary.objective < 0.6
    fold_of = fold_assignment(CODES, 4, 5)
    changed = np.where(fold_of == 2, (CODES + 1) % 4, CODES)
    codes = Bins.of(X, spec.bins).codes(X)
    learnt = fold_of != 2
    expected = np.zeros((int((~learnt).sum()), 4))
    for number in range(spec.trees):
        state = int(np.random.default_rng((5, number, 2)).integers(2**31))
        tree = ExtraTreeClassifier(max_features="sqrt", random_state=state)
        expected += tree.fit(codes, changed, sample_weight=learnt.astype(float)).predict_proba(codes[~learnt])
    np.testing.assert_allclose(teacher.left_out[~learnt], expected / spec.trees, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sample", ["bootstrap", "all"])
@pytest.mark.parametrize("splits", ["best", "random"])
def test_the_fit_depends_on_the_seed_and_not_on_threads(splits: str, sample: str):
    spec = replace(SPEC, splits=splits, sample=sample)
    first = spec.fit(task_of(X, CODES), Run(seed=3, n_threads=1))
    again = spec.fit(task_of(X, CODES), Run(seed=3, n_threads=4))
    assert again.grown.digest == first.grown.digest
    np.testing.assert_array_equal(again.left_out, first.left_out)
    assert spec.fit(task_of(X, CODES), Run(seed=4)).grown.digest != first.grown.digest


def test_hyper_parameters_shape_the_trees():
    def nodes(**changes) -> int:
        return len(replace(SPEC, **changes).fit(task_of(X, CODES), Run()).grown.test)

    everything = nodes()
    assert nodes(min_leaf=10) < everything
    assert nodes(splits="random") > everything
    shallow = replace(SPEC, max_depth=2).fit(task_of(X, CODES), Run()).grown
    assert sum(1 for _ in shallow.levels()) == 2
    coarse = replace(SPEC, bins=3).fit(task_of(X, CODES), Run()).grown
    assert len(coarse.feature) <= 2 * 5
    greedy = replace(SPEC, max_features=1.0, trees=1, max_depth=1).fit(task_of(X, CODES), Run()).grown
    assert greedy.feature.tolist() in ([0], [1], [2])


def test_classes_without_rows_have_score_0():
    codes = np.where(CODES == 1, 5, CODES)
    teacher = SPEC.fit(task_of(X, codes, classes=6), Run())
    assert (teacher.scores(Examples.of_features(FRESH))[:, [1, 4]] == 0.0).all()
    np.testing.assert_allclose(np.nansum(teacher.left_out, axis=1).max(), 1.0)


def test_progress_is_reported_in_trees_and_a_cancel_stops_between_two():
    steps: list[Progress] = []
    SPEC.fit(task_of(X, CODES), Run(progress=steps.append, n_threads=2))
    assert [(step.stage, step.done, step.total) for step in steps] == [("trees", k, 12) for k in range(1, 13)]
    asked: list[None] = []

    def cancel() -> bool:
        asked.append(None)
        return len(asked) > 3

    with pytest.raises(Cancelled):
        SPEC.fit(task_of(X, CODES), Run(should_cancel=cancel, n_threads=1))
    assert len(asked) == 4


def test_a_stored_teacher_is_the_same():
    teacher = SPEC.fit(task_of(X, CODES), Run())
    again = SPEC.restore(teacher.arrays(), 4, 6, None)
    assert again.grown.digest == teacher.grown.digest
    np.testing.assert_array_equal(again.left_out, teacher.left_out)
    arrays = teacher.arrays()
    for damaged in ({"left_out": arrays["left_out"][:, :2]}, {"columns": np.zeros(2, dtype=np.int64)}):
        with pytest.raises(InvalidPackage):
            SPEC.restore(arrays | damaged, 4, 6, None)
