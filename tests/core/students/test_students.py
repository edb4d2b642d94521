"""Students against CVXPY, scikit-learn and each other."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.svm import LinearSVC

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from core.students.gated import GSVM
from tests.core.cases import Case, fit_student, gated
from tests.refusals import at_fault


def case_on(n: int = 80, m: int = 6, seed: int = 0):
    rng = np.random.default_rng(seed)
    features = np.column_stack([rng.normal(size=(n, m - 1)), np.ones(n)])
    gate_weights = rng.normal(size=m)
    gate = features @ gate_weights
    positive = gate + rng.normal(size=n) > 0.5
    return features, Case(positive, gate, gate_weights, rng.uniform(0.3, 1.0, size=n))


def optimum(features, case: Case, *, C: float, margin: float, difficulty) -> float:
    """Eq. (12) as written, in v = w_y − θ, by CVXPY and Clarabel."""
    v = cp.Variable(features.shape[1])
    z = np.where(case.positive, 1.0, -1.0)
    losses = cp.pos(margin - cp.multiply(z, features @ v))
    objective = 0.5 * cp.sum_squares(v - case.gate_weights) + C / len(z) * cp.sum(
        cp.multiply(1.0 / difficulty, losses)
    )
    problem = cp.Problem(cp.Minimize(objective))
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value)


@pytest.mark.parametrize("solver", ["dual_cd", "mm_irls"])
@pytest.mark.parametrize("method", ["gsvm", "gsvm0"])
@pytest.mark.parametrize("C", [0.1, 10.0, 1000.0])
def test_a_student_is_the_minimiser_of_its_equation(method, C: float, solver):
    features, case = case_on()
    spec = gated(method, C=C, margin=0.7, solver=solver, tolerance=1e-8, max_epochs=100_000)
    student = fit_student(features, case, spec)
    difficulty = case.difficulty if method == "gsvm" else np.ones(len(case.gate))
    expected = optimum(features, case, C=C, margin=0.7, difficulty=difficulty)
    z = case.signs
    v = student.decision
    value = 0.5 * np.sum((v - case.gate_weights) ** 2) + C / len(z) * np.sum(
        np.maximum(0.7 - z * (features @ v), 0.0) / difficulty
    )
    assert value == pytest.approx(expected, rel=1e-6)
    assert student.solution.objective == pytest.approx(expected, rel=1e-6)


def test_a_student_of_features_without_a_map_is_not_packed():
    features, case = case_on()
    student = fit_student(features, case, GSVM(C=10.0))
    with at_fault(InvalidProblem, "no_map"):
        student.pack()


def test_the_decision_is_the_gate_against_the_rejection():
    features, case = case_on()
    student = fit_student(features, case, GSVM(C=10.0))
    theta = student.gate_weights - student.decision
    np.testing.assert_allclose(theta, student.solution.value, atol=1e-14)
    accepted = case.gate >= features @ theta  # Eq. (4)
    np.testing.assert_array_equal(student.feature_scores(features) >= 0.0, accepted)


def test_the_baseline_is_the_hinge_svm_of_scikit_learn():
    features, case = case_on(n=200)
    n, C = 200, 50.0
    student = fit_student(features, case, gated("svm", C=C, tolerance=1e-9, max_epochs=100_000))
    reference = LinearSVC(loss="hinge", C=C / n, fit_intercept=False, tol=1e-10, max_iter=1_000_000)
    reference.fit(features, case.positive)
    np.testing.assert_allclose(student.decision, reference.coef_[0], atol=1e-4)
    assert not student.gate_weights.any()


def test_the_balance_of_the_classes_is_a_class_weight_of_scikit_learn():
    features, case = case_on(n=200)
    members = int(case.positive.sum())
    weight = ((200 - members) / members) ** 0.5
    spec = gated("svm", C=50.0, balance=0.5, tolerance=1e-9, max_epochs=100_000)
    student = fit_student(features, case, spec)
    reference = LinearSVC(
        loss="hinge",
        C=50.0 / 200,
        class_weight={True: weight, False: 1.0},
        fit_intercept=False,
        tol=1e-10,
        max_iter=1_000_000,
    )
    reference.fit(features, case.positive)
    assert weight > 1.1
    np.testing.assert_allclose(student.decision, reference.coef_[0], atol=1e-4)


def test_balance_and_difficulty_weigh_together():
    features, case = case_on()
    members = int(case.positive.sum())
    weight = (len(case.gate) - members) / members
    together = Case(
        case.positive, case.gate, case.gate_weights, case.difficulty / np.where(case.positive, weight, 1.0)
    )
    tight = {"C": 10.0, "tolerance": 1e-9, "max_epochs": 100_000}
    np.testing.assert_allclose(
        fit_student(features, case, gated("gsvm", balance=1.0, **tight)).decision,
        fit_student(features, together, gated("gsvm", **tight)).decision,
        atol=1e-6,
    )


def test_the_baseline_does_not_listen_to_the_teacher():
    features, case = case_on()
    deaf = Case(case.positive, -case.gate, -case.gate_weights, np.ones(len(case.gate)))
    spec = gated("svm", C=10.0)
    first, second = fit_student(features, case, spec), fit_student(features, deaf, spec)
    np.testing.assert_array_equal(first.decision, second.decision)


def test_without_difficulty_the_method_is_gsvm_0():
    features, case = case_on()
    even = Case(case.positive, case.gate, case.gate_weights, np.ones(len(case.gate)))
    with_degrees = fit_student(features, even, gated("gsvm", C=10.0))
    without = fit_student(features, case, gated("gsvm0", C=10.0))
    np.testing.assert_array_equal(with_degrees.decision, without.decision)


def test_a_small_c_leaves_the_decision_to_the_teacher():
    features, case = case_on()
    student = fit_student(features, case, GSVM(C=1e-6))
    np.testing.assert_allclose(student.decision, case.gate_weights, atol=1e-4)


def test_an_easier_example_weighs_like_several_of_the_same():
    features, case = case_on(n=40)
    degrees = np.random.default_rng(3).choice([1.0, 0.5, 1 / 3], size=40)
    weighted = Case(case.positive, case.gate, case.gate_weights, degrees)
    rows = np.repeat(np.arange(40), np.round(1 / degrees).astype(int))
    spec = GSVM(C=5.0, tolerance=1e-10, max_epochs=100_000)
    repeated = gated("gsvm0", C=5.0 * len(rows) / 40, tolerance=1e-10, max_epochs=100_000)
    np.testing.assert_allclose(
        fit_student(features, weighted, spec).decision,
        fit_student(features[rows], case.take(rows), repeated).decision,
        atol=1e-4,
    )


@pytest.mark.parametrize("method", ["gsvm", "svm"])
def test_sparse_and_single_precision_features_give_the_same_student(method):
    features, case = case_on()
    spec = gated(method, C=10.0, tolerance=1e-9, max_epochs=100_000)
    student = fit_student(features, case, spec)
    sparse = fit_student(sp.csr_array(features), case, spec)
    single = fit_student(features.astype(np.float32), case, spec)
    np.testing.assert_allclose(sparse.decision, student.decision, atol=1e-4)
    np.testing.assert_allclose(single.decision, student.decision, atol=1e-3)
    assert single.feature_scores(features.astype(np.float32)).dtype == np.float64


@pytest.mark.parametrize("solver", ["dual_cd", "mm_irls"])
def test_a_student_reports_progress_and_can_be_cancelled(solver):
    features, case = case_on()
    spec = GSVM(C=100.0, solver=solver, tolerance=1e-8)
    seen = []
    fit_student(features, case, spec, run=Run(progress=seen.append))
    assert seen[-1].gap is not None
    with pytest.raises(Cancelled):
        fit_student(features, case, spec, run=Run(should_cancel=lambda: True))


def test_all_hyper_parameters_out_of_bounds_are_named_at_once():
    with pytest.raises(InvalidProblem) as caught:
        GSVM(C=-1.0, difficulty_floor=0.0)
    assert [fault.field for fault in caught.value.faults] == ["student.C", "student.difficulty_floor"]
