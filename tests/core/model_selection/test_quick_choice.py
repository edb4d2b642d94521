"""Feature map and C from the training rows: closed forms against refits, and the choice on known data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.column_layout import ColumnLayout
from core.data.dataset import LabelledData
from core.data.fold_assignment import fold_assignment
from core.errors import Cancelled, InvalidPackage
from core.features import choice as feature_choice
from core.features.spec import FeatureSpec
from core.model_selection import quick_choice, row_samples
from core.model_selection.quick_choice import (
    CHOICE_FOLDS,
    RIDGES,
    FoldChoices,
    MeasuredMap,
    QuickChoice,
    _mean_f1,
    _measured,
    best_of_maps,
    choose_quickly,
    measure_maps,
    sized,
)
from core.model_selection.row_samples import COMPARED_ROWS, comparison_rows
from core.packed.codec import decode, encode
from core.run import Run
from core.students.polytope import Polytope
from core.training.config import TrainingConfig
from core.training.pipeline import Preparation, prepare, train

AUTOMATIC = TrainingConfig(automatic=True, students=(Polytope(pieces=8),), guard="repair")


def rings(n: int = 240) -> LabelledData:
    """Three rings around each other, in columns of very different size: no plane separates them."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 3
    angle, radius = rng.uniform(0, 2 * np.pi, n), 1.0 + 2.0 * labels + 0.2 * rng.normal(size=n)
    X = np.column_stack([radius * np.cos(angle), 1000.0 * radius * np.sin(angle)])
    return LabelledData.from_arrays(X, labels)


def blobs(n: int, seed: int) -> LabelledData:
    """Three classes in a row, and a column of noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    X = rng.normal(size=(n, 3)) + np.array([[0, 0, 0], [2, -2, 0], [4, -4, 0]])[labels]
    return LabelledData.from_arrays(X, labels)


def test_leave_one_out_predictions_are_those_of_refits():
    rng = np.random.default_rng(1)
    rows, labels = rng.normal(size=(30, 4)), np.arange(30) % 3
    kernel = rows @ rows.T + 1.0
    best, predictions = _measured((FeatureSpec(), kernel), labels, 3)
    found, ridge = best.f1, best.ridge
    assert len(predictions) == len(RIDGES)
    targets = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    predicted = np.empty(30, dtype=int)
    for left_out in range(30):
        kept = np.arange(30) != left_out
        weights = np.linalg.solve(kernel[np.ix_(kept, kept)] + ridge * np.eye(29), targets[kept])
        predicted[left_out] = (kernel[left_out, kept] @ weights).argmax()
    assert found == pytest.approx(_mean_f1(labels, predicted, 3), abs=1e-12)


def test_rows_that_planes_cannot_separate_get_a_scaled_kernel():
    data = rings()
    choice = choose_quickly(FeatureSpec(), data.X, data.y, data.K)
    assert choice.features.kind == "kernel"
    assert choice.features.scaling != "none"
    assert choice.f1 > 0.95
    assert choice.reason.startswith("Chosen: an RBF kernel, with a mean F of ")
    assert choice.reason.endswith(" on 240 rows, each left out once, the best of 17 that were compared.")
    assert choice.as_dict()["gamma"] == choice.features.gamma


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_wide_rows_get_linear_features(kind):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 2100)) * (rng.random((60, 1)) < 0.9)
    data = LabelledData.from_arrays(sp.csr_array(X) if kind == "sparse" else X, np.arange(60) % 2)
    assert choose_quickly(FeatureSpec(), data.X, data.y, data.K).features.kind == "linear"


def test_sparse_rows_of_few_columns_get_a_kernel_where_planes_do_not_do():
    """Protein windows, 357 columns: F of an SVC with a kernel is 7 points above that of a plane."""
    data = rings()
    sparse = LabelledData.from_arrays(sp.csr_array(data.X), data.y)
    choice = choose_quickly(FeatureSpec(), sparse.X, sparse.y, sparse.K)
    assert choice.features.kind == "kernel"
    assert choice.f1 > 0.95
    model = train(sparse, AUTOMATIC)
    assert model.preparation.feature_map.kind == "nystroem"
    X = sparse.X.tocsr()
    student = next(iter(model.students.values()))
    np.testing.assert_allclose(
        student.scores_sparse(X.indices, X.data, X.indptr), student.scores(data.X), atol=1e-6
    )


def test_many_rows_get_landmarks_and_the_same_seed_the_same_choice(monkeypatch):
    monkeypatch.setattr(row_samples, "COMPARED_ROWS", 90)
    data = rings(1100)
    first, second = (choose_quickly(FeatureSpec(), data.X, data.y, data.K, Run(5)) for _ in range(2))
    assert first == second
    assert (first.features.kind, first.features.n_components, first.rows) == ("nystroem", 1000, 89)
    kinds = [sized(first.features, np.zeros((n, 2)), richer=True) for n in (900, 2000, 2001)]
    assert [one.kind for one in kinds] == ["kernel", "kernel", "nystroem"]
    assert kinds[-1].n_components == 2000


def test_rare_classes_are_compared_on_too():
    labels = np.repeat([0, 1, 2], [20_000, 2_000, 7])
    rows = comparison_rows(labels, 3, 0)
    counts = np.bincount(labels[rows])
    assert counts[2] == 7
    assert counts[1] > 70
    assert len(rows) <= COMPARED_ROWS + 10
    assert (np.diff(rows) > 0).all()


def test_many_classes_do_not_make_many_rows():
    labels = np.arange(30_000) % 3_000
    rows = comparison_rows(labels, 3_000, 0)
    counts = np.bincount(labels[rows], minlength=3_000)
    assert (len(rows), sorted(set(counts))) == (COMPARED_ROWS, [0, 10])
    hundreds = np.bincount(comparison_rows(labels % 300, 300, 0) % 300, minlength=300)
    assert set(hundreds) == {2}
    X = np.random.default_rng(3).normal(size=(30_000, 2)) + labels[:, None]
    assert choose_quickly(FeatureSpec(), X, labels, 3_000).rows == COMPARED_ROWS


def test_very_many_rows_get_no_kernel_that_does_not_fit(monkeypatch):
    data = rings(1100)
    monkeypatch.setattr(feature_choice, "FEATURE_VALUES", 110_000)
    assert choose_quickly(FeatureSpec(), data.X, data.y, data.K).features.n_components == 100
    monkeypatch.setattr(quick_choice, "MOST_KERNEL_ROWS", 1000)
    choice = choose_quickly(FeatureSpec(), data.X, data.y, data.K)
    assert (choice.features.kind, choice.maps) == ("linear", 2)


def test_the_loss_weight_of_very_many_rows_stays_within_its_bounds():
    choice = QuickChoice(FeatureSpec(), 100.0, 1.0, 800, 2)
    assert AUTOMATIC.with_choice(choice, 10**7).teacher.C == 1e8


@pytest.mark.parametrize(
    ("terms", "ridge", "C"), [(0, 1.0, 1.0), (9, 1.0, 0.25), (9, 0.5, 0.5), (9, 0.2, 1.0), (9, 0.05, 2.0)]
)
def test_the_loss_weight_of_texts_is_small_where_much_smoothing_is_best(terms: int, ridge: float, C: float):
    features = FeatureSpec(kind="linear", layout=ColumnLayout(2 + terms, 2, (0,)))
    assert MeasuredMap(features, 1.0, ridge, 2.0).C_per_row == pytest.approx(C)


def test_a_job_that_chooses_says_what_and_is_taken_up_elsewhere():
    data = rings()
    made = prepare(data, AUTOMATIC)
    again = Preparation.from_bytes(made.to_bytes(), data, AUTOMATIC)
    assert again.choice == made.choice == made.feature_choice
    assert again.config == made.config
    assert made.config.features == made.choice.features
    assert made.config.students[0].C == made.config.teacher.C == made.choice.C_per_row * data.n
    np.testing.assert_array_equal(again.scores, made.scores)


def test_a_preparation_without_its_choice_is_refused():
    data = rings()
    header, arrays = decode(prepare(data, AUTOMATIC).to_bytes(), "stms.preparation.3")
    del header["choice"]
    with pytest.raises(InvalidPackage, match="unusable choice"):
        Preparation.from_bytes(encode(header, arrays), data, AUTOMATIC)


def test_students_of_a_job_that_chooses_solve_the_rings_with_probabilities():
    model = train(rings(), replace(AUTOMATIC, calibration="sigmoid", folds=3), test=rings(900))
    assert model.evaluation.mean("polytope").f1 > 0.95
    assert all(student.calibration is not None for student in model.students.values())


def test_the_class_between_two_others_is_told_as_well_as_by_the_teacher():
    """A linear gSVM never says yes to the blob in the middle."""
    model = train(blobs(300, 0), replace(AUTOMATIC, calibration="sigmoid", folds=3), test=blobs(3000, 1))
    for label in model.students:
        f1 = {one.method: one.metrics.f1 for one in model.evaluation.results if one.label == label}
        assert f1["polytope"] > f1["teacher"] - 0.02


def test_a_cancel_stops_the_choice():
    data = rings()
    with pytest.raises(Cancelled):
        choose_quickly(FeatureSpec(), data.X, data.y, data.K, Run(should_cancel=lambda: True))


def test_rows_are_scored_by_the_map_that_other_rows_choose():
    labels = np.repeat([0, 1], 20)
    right, wrong = np.eye(2)[labels], np.eye(2)[1 - labels]
    choices = FoldChoices(labels, 2, 0)
    for scores in (wrong, 3.0 * right, 5.0 * right):
        choices.offer(scores)
    # Every other fold prefers the right scores, and the first of two that are equally good.
    np.testing.assert_array_equal(choices.scores, 3.0 * right)
    fold_of = fold_assignment(labels, CHOICE_FOLDS, 0)
    lucky = np.where((fold_of == 0)[:, None], 7.0 * right, wrong)
    tempted = FoldChoices(labels, 2, 0)
    for scores in (wrong, lucky):
        tempted.offer(scores)
    # What is better on the rows of a fold alone does not score them.
    np.testing.assert_array_equal(tempted.scores[fold_of == 0], wrong[fold_of == 0])


def test_a_choice_among_many_maps_is_not_flattered_by_noise():
    flattered, honest = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X, labels = rng.normal(size=(80, 6)), rng.integers(0, 2, 80)
        compared = measure_maps(FeatureSpec(), X, labels, 2, Run(seed))
        flattered.append(best_of_maps(compared.measured, X, compared.rows).f1)
        honest.append(_mean_f1(labels, compared.scores.argmax(axis=1), 2))
    assert np.mean(flattered) > 0.55
    assert np.mean(honest) < np.mean(flattered) - 0.05


def test_scores_of_chosen_maps_are_repeatable_and_of_all_rows_only():
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(COMPARED_ROWS + 1, 3)), rng.integers(0, 2, COMPARED_ROWS + 1)
    assert measure_maps(FeatureSpec(), X, labels, 2).scores is None
    assert measure_maps(FeatureSpec(), X[:50], labels[:50], 3).scores is None
    first, second = (measure_maps(FeatureSpec(), X[:50], labels[:50], 2, Run(3)).scores for _ in range(2))
    assert first.shape == (50, 2)
    np.testing.assert_array_equal(first, second)


def test_beside_terms_the_last_maps_are_compared_on_more_rows():
    rng = np.random.default_rng(5)
    n, terms = 2600, 30
    angles, codes = rng.uniform(0.0, 2.0 * np.pi, n), np.arange(n) % 2
    circle = (1.0 + codes)[:, None] * np.column_stack([np.cos(angles), np.sin(angles)])
    words = (rng.random((n, terms)) < 0.1).astype(float)
    X = sp.csr_array(np.hstack([circle + 0.1 * rng.normal(size=(n, 2)), words]))
    spec = FeatureSpec(layout=ColumnLayout(2 + terms, 2, (0, 1)))
    compared = measure_maps(spec, X, codes, 2)
    kinds = [one.features.kind for one in compared.measured]
    assert kinds == ["linear", "linear", "kernel", "kernel", "kernel"]
    assert compared.rows == pytest.approx(2000, abs=10)
    assert compared.scores is None
    choice = best_of_maps(compared.measured, X, compared.rows)
    assert choice.features.kind != "linear"
    # All of them are compared where these are all rows.
    few = np.arange(800)
    whole = measure_maps(spec, X[few], codes[few], 2)
    assert len(whole.measured) == 17
    assert whole.scores is not None
