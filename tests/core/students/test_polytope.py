"""Students with several rejections against CVXPY, gSVM and the teacher, and the case that needs them."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.features.spec import FeatureSpec
from core.model_selection.metrics import binary_metrics
from core.run import Run
from core.students.gated import GSVM
from core.students.grid import OPEN_GRID
from core.students.polytope import PIECES, Polytope, initial_pieces
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import prepare

LINEAR = TrainingConfig(features=FeatureSpec("linear"), teacher=SSVM(C=1e4))


def blobs(n: int, K: int, seed: int) -> LabelledData:
    """K Gaussian blobs in a row, n rows each, and one column of noise; inner classes lie between others."""
    rng = np.random.default_rng(seed)
    means = np.repeat([[2.0 * k, -2.0 * k, 0.0] for k in range(K)], n, axis=0)
    return LabelledData.from_arrays(rng.normal(size=(n * K, 3)) + means, np.repeat(list("abcdef"[:K]), n))


@pytest.fixture(scope="module")
def three():
    return prepare(blobs(60, 3, seed=0), LINEAR)


@pytest.fixture(scope="module")
def five():
    return prepare(blobs(30, 5, seed=1), LINEAR)


def objective(student, problem, spec, centres, piece_of) -> float:
    """P of ``core.students.polytope`` as it is written, for a given assignment."""
    bounds = spec.C / (len(problem.positive) * problem.difficulty(spec.difficulty_floor))
    total = 0.0
    for piece, (v, centre) in enumerate(zip(student.decisions, centres, strict=True)):
        values = problem.examples.features @ v
        losses = np.maximum(spec.margin - problem.signs * values, 0.0)
        rows = problem.positive | (piece_of == piece)
        total += 0.5 * np.sum((v - centre) ** 2) + bounds[rows] @ losses[rows]
    return float(total)


def test_one_assignment_is_solved_to_the_optimum_of_its_equation(five):
    problem, spec = five.problem(2), Polytope(pieces=2, C=50.0, rounds=1, tolerance=1e-8, max_epochs=100_000)
    student = spec.fit(problem, Run(3))
    centres, piece_of = initial_pieces(problem, problem.gate_weights, problem.class_weights, 2, Run(3))
    bounds = spec.C / (len(problem.positive) * problem.difficulty(spec.difficulty_floor))
    v = cp.Variable(centres.shape)
    values = problem.examples.features @ v.T
    total = 0.5 * cp.sum_squares(v - centres)
    for piece in range(2):
        rows = np.flatnonzero(problem.positive | (piece_of == piece))
        losses = cp.pos(spec.margin - cp.multiply(problem.signs[rows], values[rows, piece]))
        total += cp.sum(cp.multiply(bounds[rows], losses))
    expected = cp.Problem(cp.Minimize(total)).solve(solver=cp.CLARABEL)
    assert student.summary.objective == pytest.approx(expected, rel=1e-6)
    assert objective(student, problem, spec, centres, piece_of) == pytest.approx(expected, rel=1e-6)
    assert student.summary.status == "converged"


def test_more_rounds_of_assignment_do_not_raise_the_objective(five):
    problem = five.problem(2)
    fits = [Polytope(pieces=2, C=100.0, rounds=n, tolerance=1e-7).fit(problem, Run()) for n in (1, 2, 4, 8)]
    values = [student.summary.objective for student in fits]
    assert values == sorted(values, reverse=True)
    assert fits[-1].rounds < 8, "the assignment settles"


def test_one_piece_is_gsvm_bit_by_bit(five):
    for target in range(5):
        problem = five.problem(target)
        ours, gsvm = Polytope(pieces=1, C=1e3).fit(problem, Run(1)), GSVM(C=1e3).fit(problem, Run(1))
        np.testing.assert_array_equal(ours.decisions[0], gsvm.decision)
        assert ours.summary.objective == gsvm.summary.objective


def test_a_piece_for_each_rival_without_loss_is_the_teacher(five):
    evaluator = Evaluator.of(five, blobs(40, 5, seed=2))
    for target in range(5):
        student = Polytope(pieces=64, C=1e-6).fit(five.problem(target), Run())
        assert len(student.decisions) == 4
        accepted = student.scores(evaluator.examples) > 0.0
        decided = np.abs(student.scores(evaluator.examples)) > 1e-4
        np.testing.assert_array_equal(accepted[decided], (evaluator.ranks.predicted == target)[decided])


def test_a_class_between_two_others_is_found_with_two_pieces(three):
    """A linear gSVM answers never for the class in the middle; two pieces are as good as the teacher."""
    evaluator = Evaluator.of(three, blobs(200, 3, seed=5))
    target = three.classes.index("b")
    truth = evaluator.labels == target

    def f1(spec) -> float:
        scores = spec.fit(three.problem(target), Run()).scores(evaluator.examples)
        return binary_metrics(truth, scores >= 0.0, scores).f1

    teacher = binary_metrics(truth, evaluator.ranks.predicted == target, evaluator.scores[:, target]).f1
    assert f1(GSVM(C=1e4)) < 0.1
    assert f1(Polytope(pieces=2)) > teacher - 0.02


@pytest.mark.long
def test_sparse_and_dense_rows_give_the_same_student():
    data = blobs(20, 3, seed=3)
    sparse = LabelledData(sp.csr_array(data.X), data.y, data.classes)
    config = replace(LINEAR, features=FeatureSpec("linear", scaling="none"))
    students = [Polytope(pieces=2).fit(prepare(one, config).problem(1), Run()) for one in (data, sparse)]
    np.testing.assert_allclose(students[0].decisions, students[1].decisions, rtol=1e-3, atol=1e-3)


def test_a_search_chooses_pieces_and_c():
    points = Polytope(margin=0.5).grid("open")
    assert len(points) == len(PIECES) * len(OPEN_GRID.C)
    assert {point.pieces for point in points} == set(PIECES)
    assert {point.margin for point in points} == {0.5}
