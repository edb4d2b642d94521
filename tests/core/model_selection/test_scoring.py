import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from core.model_selection.scoring import HeldOutRows, Measure
from core.model_selection.threshold import choose_threshold


@pytest.fixture
def measured():
    """Scores of three points on 60 rows in four folds, coarse enough for ties."""
    rng = np.random.default_rng(0)
    truth = rng.random(60) < 0.4
    values = np.round(truth + rng.normal(size=(3, 60)), 1) - 0.5
    return truth, values, np.arange(60) % 4


@pytest.mark.parametrize(
    ("metric", "reference"),
    [
        ("f1", lambda truth, score: f1_score(truth, score >= 0)),
        ("accuracy", lambda truth, score: accuracy_score(truth, score >= 0)),
        ("auc", roc_auc_score),
    ],
)
def test_a_score_is_the_mean_of_scikit_learns_over_the_folds(measured, metric, reference):
    truth, values, fold_of = measured
    score, error = HeldOutRows(truth, fold_of, pooled=False).scores_of(values, Measure(metric))
    for point in range(3):
        each = [reference(truth[fold_of == fold], values[point, fold_of == fold]) for fold in range(4)]
        assert score[point] == pytest.approx(np.mean(each))
        assert error[point] == pytest.approx(np.std(each, ddof=1) / 2.0)


@pytest.mark.parametrize(
    ("metric", "reference"),
    [
        ("f1", lambda truth, score: f1_score(truth, score >= 0, zero_division=0.0)),
        ("accuracy", lambda truth, score: accuracy_score(truth, score >= 0)),
    ],
)
def test_a_rare_class_is_measured_on_the_pooled_folds_with_the_jackknifes_error(measured, metric, reference):
    _, values, fold_of = measured
    truth = np.zeros(60, dtype=bool)
    truth[[0, 5]] = True
    score, error = HeldOutRows(truth, fold_of, pooled=True).scores_of(values, Measure(metric))
    for point in range(3):
        assert score[point] == pytest.approx(reference(truth, values[point]))
        without = [reference(truth[fold_of != fold], values[point, fold_of != fold]) for fold in range(4)]
        expected = np.sqrt(3 / 4 * np.sum((without - np.mean(without)) ** 2))
        assert error[point] == pytest.approx(expected)


def test_the_auc_of_a_rare_class_counts_pairs_within_folds():
    truth = np.array([True, False, False, True, False, False])
    fold_of = np.array([0, 0, 0, 1, 1, 2])
    # fold 0 wins one of its two pairs, fold 1 its only one; scores of different folds do not compare
    values = np.array([[1.0, 2.0, 0.0, -5.0, -6.0, 100.0]])
    score, error = HeldOutRows(truth, fold_of, pooled=True).scores_of(values, Measure("auc"))
    assert score[0] == pytest.approx(2 / 3)
    without = np.array([1 / 1, 1 / 2, 2 / 3])
    assert error[0] == pytest.approx(np.sqrt(2 / 3 * np.sum((without - without.mean()) ** 2)))


@pytest.mark.parametrize("metric", ["f1", "accuracy", "auc"])
@pytest.mark.parametrize("says", [-1.0, 1.0])
def test_nothing_is_ever_nan(metric, says):
    """One positive in three folds, and a student that says the same to all."""
    truth = np.array([True, False, False, False, False, False])
    rows = HeldOutRows(truth, np.arange(6) % 3, pooled=True)
    score, error = rows.scores_of(np.full((1, 6), says), Measure(metric))
    assert np.isfinite(score).all()
    assert np.isfinite(error).all()


@pytest.mark.parametrize("rule", ["f1", "accuracy", "fpr"])
def test_each_fold_is_measured_at_the_threshold_of_the_others(measured, rule):
    truth, values, fold_of = measured
    score, _ = HeldOutRows(truth, fold_of, pooled=False).scores_of(values, Measure("f1", rule, 0.2))
    for point in range(3):
        each = []
        for fold in range(4):
            own = fold_of == fold
            cut = choose_threshold(truth[~own], values[point, ~own], rule, 0.2)
            each.append(f1_score(truth[own], values[point, own] >= cut))
        assert score[point] == pytest.approx(np.mean(each))


def test_a_chosen_threshold_does_not_flatter_scores_of_pure_noise():
    """Chosen on the rows it is measured on, the best cut of 400 beats the better half by luck."""
    rng = np.random.default_rng(1)
    truth, fold_of = np.arange(400) // 10 % 2 == 0, np.arange(400) % 10
    values = rng.normal(size=(20, 400))
    score, _ = HeldOutRows(truth, fold_of, pooled=False).scores_of(values, Measure("accuracy", "accuracy"))
    flattered = [np.mean((row >= choose_threshold(truth, row, "accuracy")) == truth) for row in values]
    assert np.mean(score) < 0.51 < 0.52 < np.mean(flattered)


def test_without_both_sides_in_the_other_folds_the_threshold_is_zero():
    truth = np.array([True, True, False, False])
    rows = HeldOutRows(truth, np.array([0, 0, 0, 1]), pooled=True)
    score, _ = rows.scores_of(np.array([[1.0, -1.0, -1.0, 1.0]]), Measure("accuracy", "accuracy"))
    # fold 0 is cut at 0 (the other fold has no positive): two of three right; fold 1 at the cut of fold 0
    assert score[0] == pytest.approx(2 / 4)
