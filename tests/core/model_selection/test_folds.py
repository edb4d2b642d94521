import numpy as np
import pytest
import scipy.sparse as sp

from core.data.fold_assignment import fold_assignment
from core.errors import Cancelled, InvalidProblem
from core.features.examples import Examples
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.model_selection.folds import make_folds, task_of_features, tune_teacher
from core.run import Run
from core.students.base import Budget
from core.students.gated import GSVM
from core.teachers.base import Task
from core.teachers.ssvm import SSVM
from tests.core.model_selection.conftest import NAMES, folds_of, overlapping


def test_folds_are_stratified_and_equal_to_within_one_row():
    labels = np.repeat(np.arange(4), [50, 23, 7, 3])
    fold_of = fold_assignment(labels, 10, seed=3)
    sizes = np.bincount(fold_of, minlength=10)
    assert sizes.max() - sizes.min() <= 1
    for code in range(4):
        counts = np.bincount(fold_of[labels == code], minlength=10)
        assert counts.max() - counts.min() <= 1


def test_a_rare_class_lies_in_as_many_folds_as_it_has_rows(folds):
    assert folds.rare_classes == ("rare",)
    assert len(set(folds.fold_of[folds.labels == 3])) == 3


def test_the_seed_makes_the_folds():
    labels = np.arange(100) % 3
    assert (fold_assignment(labels, 5, 1) == fold_assignment(labels, 5, 1)).all()
    assert (fold_assignment(labels, 5, 1) != fold_assignment(labels, 5, 2)).any()


@pytest.mark.parametrize(("labels", "n_folds"), [([0, 0, 1, 1], 5), ([0, 0, 1, 1], 1)])
def test_folds_that_cannot_be_made_are_refused(labels, n_folds):
    with pytest.raises(InvalidProblem):
        fold_assignment(np.array(labels), n_folds)


def test_no_row_is_scored_by_a_teacher_that_has_seen_it(folds):
    features, codes = overlapping()
    for fold in range(folds.n_folds):
        train = folds.fold_of != fold
        alone = folds.teacher.spec.fit(task_of_features(features[train], codes[train], 4), Run())
        scores = alone.feature_scores(features[~train])
        assert folds.scores[fold][~train] == pytest.approx(scores, abs=0.02)


def test_the_teachers_c_is_the_one_with_the_best_held_out_accuracy():
    features, codes = overlapping()
    fold_of = fold_assignment(codes, 5)
    specs = [SSVM(C) for C in (1e-3, 10.0, 1e3)]
    tuned = tune_teacher(task_of_features(features, codes, 4), specs, fold_of)
    assert [point.params["C"] for point in tuned.trace] == [1e-3, 10.0, 1e3]
    best = max(tuned.trace, key=lambda point: point.accuracy)
    assert tuned.spec.params() == best.params
    index = tuned.trace.index(best)
    right = [
        np.mean(teacher.feature_scores(features[fold_of == fold]).argmax(axis=1) == codes[fold_of == fold])
        for fold, teacher in enumerate(tuned.teachers)
    ]
    assert tuned.trace[index].accuracy == pytest.approx(np.mean(right))
    assert tuned.trace[index].standard_error == pytest.approx(np.std(right, ddof=1) / np.sqrt(5))


def test_a_fold_knows_nothing_of_the_labels_of_its_held_out_rows():
    """With the labels of its held-out rows permuted a fold gives its students the same bits."""
    features, codes = overlapping()
    fold_of = fold_assignment(codes, 5)
    before = folds_of(features, codes, (100.0,), fold_of=fold_of)
    held_out = np.flatnonzero(fold_of == 2)
    permuted = codes.copy()
    permuted[held_out] = np.random.default_rng(0).permutation(codes[held_out])
    assert (permuted != codes).any()
    after = folds_of(features, permuted, (100.0,), fold_of=fold_of)
    one, other = before.teacher.teachers[2], after.teacher.teachers[2]
    np.testing.assert_array_equal(one.weights, other.weights)
    for target in range(3):
        first, second = before.fold(2, target), after.fold(2, target)
        np.testing.assert_array_equal(first.problem.gate, second.problem.gate)
        np.testing.assert_array_equal(first.problem.rival, second.problem.rival)
        training = np.flatnonzero(first.is_training)
        degrees = [fold.problem.take(training).difficulty(0.3) for fold in (first, second)]
        np.testing.assert_array_equal(*degrees)
        scores = [fold.held_out_scores(fold.fit(GSVM(C=10.0), Run())) for fold in (first, second)]
        np.testing.assert_array_equal(*scores)
        walked = [GSVM.walk([GSVM(C=10.0)], fold, Budget(), Run()).scores for fold in (first, second)]
        np.testing.assert_array_equal(*walked)


def test_folds_of_the_caller_are_taken_as_they_are():
    features, codes = overlapping()
    groups = np.arange(len(codes)) % 4
    folds = folds_of(features, codes, (1.0,), fold_of=groups)
    assert folds.n_folds == 4
    assert (folds.fold_of == groups).all()


@pytest.mark.parametrize(
    "fold_of",
    [
        np.zeros(160, dtype=int),
        np.zeros(10, dtype=int),
        np.zeros(160),
        np.arange(160) % 3 - 1,
        2 * (np.arange(160) % 3),
        np.where(np.arange(160) < 157, np.arange(160) % 3, 0),
    ],
)
def test_unusable_folds_of_the_caller_are_refused(fold_of):
    features, codes = overlapping()
    with pytest.raises(InvalidProblem):
        folds_of(features, codes, (1.0,), fold_of=fold_of)


@pytest.mark.parametrize("Cs", [(), (0.0,), (np.nan,)])
def test_an_unusable_c_of_the_teacher_is_refused(Cs):
    features, codes = overlapping()
    with pytest.raises(InvalidProblem, match=r"teacher|C"):
        folds_of(features, codes, Cs, n_folds=5)


def test_sparse_features_give_the_scores_of_dense_ones():
    features, codes = overlapping()
    dense = folds_of(features, codes, (1.0,), n_folds=3, tolerance=1e-8)
    sparse = folds_of(sp.csr_array(features), codes, (1.0,), n_folds=3, tolerance=1e-8)
    assert sparse.scores == pytest.approx(dense.scores, abs=1e-4)
    assert sparse.rows[0].norms == pytest.approx(dense.rows[0].norms)


def rare_words(*, n: int = 120, d: int = 300):
    """Counts of rare words, (n, d) sparse, with codes of four classes that have words of their own."""
    rng = np.random.default_rng(5)
    codes = np.concatenate([np.arange(n - 3) % 3, np.full(3, 3)])
    own = codes[:, None] == np.arange(d) % 4
    return sp.csr_array(rng.poisson(np.where(own, 0.08, 0.02)).astype(float)), codes


def folds_of_rows(X, codes, spec: FeatureSpec, fold_of):
    fitted = fit_feature_map(X, spec, 0)
    task = Task(Examples(X, fitted.transform(X), fitted, spec), codes, 4)
    return make_folds(task, NAMES, [SSVM()], fold_of=fold_of)


def test_deviations_of_sparse_columns_do_not_include_held_out_rows():
    """Rows held out in a fold change neither features, teacher nor students of the others."""
    X, codes = rare_words()
    fold_of = fold_assignment(codes, 3)
    held_out = fold_of == 1
    changed = sp.csr_array(sp.diags_array(np.where(held_out, 9.0, 1.0)) @ X)
    one, other = (folds_of_rows(rows, codes, FeatureSpec(), fold_of) for rows in (X, changed))
    training = np.flatnonzero(~held_out)
    alone = fit_feature_map(X[training], FeatureSpec(), 0)
    expected = alone.transform(X).toarray()
    for folds, rows in ((one, X), (other, changed)):
        examples = folds.rows[1].examples
        np.testing.assert_array_equal(examples.features.toarray()[training], expected[training])
        np.testing.assert_array_equal(examples.X.toarray(), rows.toarray())
    np.testing.assert_array_equal(*(folds.teacher.teachers[1].weights for folds in (one, other)))
    first, second = one.fold(1, 0), other.fold(1, 0)
    np.testing.assert_array_equal(first.problem.gate[training], second.problem.gate[training])
    np.testing.assert_array_equal(
        first.fit(GSVM(C=10.0), Run()).scores(first.problem.examples),
        second.fit(GSVM(C=10.0), Run()).scores(first.problem.examples),
    )
    np.testing.assert_array_equal(
        one.scores[1], one.teacher.teachers[1].feature_scores(one.rows[1].examples.features)
    )


@pytest.mark.parametrize("spec", [FeatureSpec(scaling="idf"), FeatureSpec("auto"), FeatureSpec("kernel")])
def test_other_maps_are_shared_by_the_folds(spec):
    X, codes = rare_words()
    folds = folds_of_rows(X, codes, spec, fold_assignment(codes, 3))
    assert all(rows is folds.rows[0] for rows in folds.rows)
    dense = folds_of_rows(X.toarray(), codes, FeatureSpec(), fold_assignment(codes, 3))
    assert all(rows is dense.rows[0] for rows in dense.rows)


def test_fitting_the_teachers_tells_how_far_it_is_and_can_be_cancelled():
    features, codes = overlapping()
    told = []
    folds_of(features, codes, (1.0,), n_folds=3, run=Run(progress=told.append))
    assert [(step.stage, step.done, step.total) for step in told] == [
        ("tuning_teacher", done, 3) for done in (1, 2, 3)
    ]
    with pytest.raises(Cancelled):
        folds_of(
            features,
            codes,
            (1.0,),
            n_folds=3,
            run=Run(should_cancel=lambda: True),
        )
