from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.errors import InvalidProblem
from core.solvers.gated_hinge import GatedHingeProblem

PHI = np.array([[1.0, 2.0, 1.0], [0.0, -1.0, 1.0], [3.0, 0.5, 1.0]])
SIGNS = np.array([1.0, -1.0, 1.0])
ONES = np.ones(3)


def fault_of(error: pytest.ExceptionInfo[InvalidProblem]) -> tuple[str, str]:
    fault = error.value.faults[0]
    return fault.field, fault.code


def test_the_gated_problem_is_equation_12_written_out():
    gate, difficulty = np.array([0.5, -2.0, 1.5]), np.array([0.3, 1.0, 0.6])
    problem = GatedHingeProblem.gated(PHI, SIGNS, gate, C=6.0, margin=0.8, difficulty=difficulty)
    theta = np.array([0.2, -0.4, 0.1])
    by_hand = 0.5 * theta @ theta
    for i in range(3):
        hinge = max(0.0, 0.8 + SIGNS[i] * theta @ PHI[i] - SIGNS[i] * gate[i])
        by_hand += 6.0 / 3 / difficulty[i] * hinge
    assert problem.primal_objective(theta) == pytest.approx(by_hand, rel=1e-14)


def test_without_difficulty_all_degrees_are_one():
    gate = np.array([0.5, -2.0, 1.5])
    plain = GatedHingeProblem.gated(PHI, SIGNS, gate, C=6.0, margin=1.0)
    ones = GatedHingeProblem.gated(PHI, SIGNS, gate, C=6.0, margin=1.0, difficulty=ONES)
    np.testing.assert_array_equal(plain.bounds, ones.bounds)


def test_the_plain_svm_has_no_gate_and_margin_one():
    problem = GatedHingeProblem.svm(PHI, SIGNS, C=3.0)
    np.testing.assert_array_equal(problem.targets, ONES)
    np.testing.assert_array_equal(problem.bounds, ONES)


def test_weak_duality_holds_for_any_feasible_point():
    rng = np.random.default_rng(0)
    problem = GatedHingeProblem.svm(PHI, SIGNS, C=3.0)
    for _ in range(100):
        bound, theta = problem.dual_objective(rng.uniform(0, problem.bounds))
        assert bound <= problem.primal_objective(rng.normal(size=3)) + 1e-12
        assert bound <= problem.primal_objective(theta) + 1e-12


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"features": PHI[:, 0]}, ("features", "wrong_shape")),
        ({"features": PHI[:0]}, ("features", "wrong_shape")),
        ({"features": PHI.astype(np.int64)}, ("features", "wrong_dtype")),
        ({"features": sp.csc_array(PHI)}, ("features", "wrong_format")),
        ({"features": PHI.tolist()}, ("features", "wrong_type")),
        ({"signs": ONES[:2]}, ("signs", "wrong_shape")),
        ({"signs": 2 * ONES}, ("signs", "out_of_range")),
        ({"targets": np.array([0.0, np.inf, 0.0])}, ("targets", "not_finite")),
        ({"bounds": np.array([1.0, 0.0, 1.0])}, ("bounds", "out_of_range")),
    ],
)
def test_an_ill_formed_problem_is_refused_with_the_field_at_fault(change, expected):
    arrays = {"features": PHI, "signs": SIGNS, "targets": ONES, "bounds": ONES} | change
    with pytest.raises(InvalidProblem) as error:
        GatedHingeProblem(**arrays)
    assert fault_of(error) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"C": 0.0}, ("C", "out_of_range")),
        ({"C": np.nan}, ("C", "out_of_range")),
        ({"margin": -1.0}, ("margin", "out_of_range")),
        ({"difficulty": np.array([1.0, 0.0, 1.0])}, ("difficulty", "out_of_range")),
        ({"difficulty": np.array([1.0, np.nan, 1.0])}, ("difficulty", "not_finite")),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(change, expected):
    arguments = {"C": 1.0, "margin": 1.0, "difficulty": None} | change
    with pytest.raises(InvalidProblem) as error:
        GatedHingeProblem.gated(PHI, SIGNS, np.zeros(3), **arguments)
    assert fault_of(error) == expected


@pytest.mark.parametrize("sparse", [False, True])
def test_a_nan_is_refused_with_its_row(sparse):
    features = PHI.copy()
    features[2, 1] = np.nan
    with pytest.raises(InvalidProblem) as error:
        GatedHingeProblem.svm(sp.csr_array(features) if sparse else features, SIGNS, C=1.0)
    assert error.value.faults[0].row == 2
