from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from core.errors import Cancelled
from core.run import Run
from core.solvers.gated_hinge import GatedHingeProblem
from core.students import path
from core.students.base import Budget
from core.students.gated import GATED, GSVM
from core.students.grid import PAPER_GRID, Grid
from core.students.path import FoldPath
from tests.core.model_selection.conftest import with_features

TIGHT = Budget(tolerance=1e-8, max_epochs=2000, finish=500)


def walk(specs, fold, budget, run=Run()):
    return type(specs[0]).walk(specs, fold, budget, run)


def alone(folds, fold, target, spec):
    """The student that the library fits to the fold's training rows, from zero."""
    one = folds.fold(fold, target)
    return one.held_out_scores(one.fit(replace(spec, tolerance=1e-8, max_epochs=5000), Run()))


@pytest.mark.parametrize("method", ["gsvm", "gsvm0", "svm"])
def test_every_point_of_a_walk_is_the_student_fitted_alone(folds, small_grid, method):
    points = GATED[method]().grid(small_grid)
    walked = walk(points, folds.fold(1, 0), TIGHT)
    assert walked.scores.shape == (len(points), int((folds.fold_of == 1).sum()))
    for index, point in enumerate(points):
        if point.margin == 0.0 and point.C == 1000.0:
            continue  # the optimum is close to 0, and a relative gap of 1e-8 out of reach
        assert walked.gaps[index] <= 1e-6
        assert walked.scores[index] == pytest.approx(alone(folds, 1, 0, point), abs=2e-3), point


def test_the_class_balance_is_an_axis_of_the_walk(folds):
    points = GSVM().grid(Grid(C=(1.0, 10.0), balances=(0.0, 1.0)))
    walked = walk(points, folds.fold(1, 0), TIGHT)
    for index, point in enumerate(points):
        assert walked.scores[index] == pytest.approx(alone(folds, 1, 0, point), abs=2e-3), point


def test_the_gap_reported_is_the_solvers(folds):
    """α, θ(α) and the bounds against the problem as the solvers state it."""
    one = FoldPath(folds.fold(0, 2), Run(), uses_gate=True)
    point = GSVM(10.0, 0.5, 0.3)
    (_, state, task), *_ = one._neighbours([point.point])
    _, gap = one._fit(state, task, Budget(tolerance=1e-3))
    rows = folds.fold_of != 0
    problem = GatedHingeProblem(
        folds.rows[0].single[rows],
        np.where(folds.labels == 2, 1.0, -1.0)[rows],
        task.targets[rows],
        task.bounds[rows],
    )
    dual, theta = problem.dual_objective(state.alpha[rows])
    primal = problem.primal_objective(theta)
    assert theta == pytest.approx(state.theta, abs=1e-9)
    assert gap == pytest.approx((primal - dual) / primal, rel=1e-3)
    assert gap <= 1e-3


def test_held_out_rows_take_no_part(folds):
    """Another truth of the held-out rows changes nothing."""
    points = GSVM().grid(Grid(C=(10.0,), margins=(0.5,)))
    labels = np.where(folds.fold_of == 0, (folds.labels + 1) % 3, folds.labels)
    before = walk(points, folds.fold(0, 1), TIGHT)
    other = replace(folds, task=replace(folds.task, labels=labels))
    after = walk(points, other.fold(0, 1), TIGHT)
    np.testing.assert_array_equal(after.scores, before.scores)


def test_where_coordinate_descent_is_not_enough_the_full_solver_goes_on(folds):
    points = (GSVM(1e4, 0.1, 0.2), GSVM(1e4, 0.0, 0.2))
    short = Budget(tolerance=1e-6, max_epochs=2, finish=0)
    left = walk(points, folds.fold(0, 0), short)
    finished = walk(points, folds.fold(0, 0), replace(short, finish=500))
    assert left.gaps[0] > 1e-3
    assert finished.gaps[0] <= 1e-6
    assert finished.scores[0] == pytest.approx(alone(folds, 0, 0, points[0]), abs=1e-2)


def test_sparse_rows_and_rows_without_features_are_walked_too(folds, small_grid):
    dense = folds.rows[0].single.copy()
    dense[5] = 0.0
    dense_folds, sparse_folds = (with_features(folds, one) for one in (dense, sp.csr_array(dense)))
    points = GATED["svm"]().grid(small_grid)
    one = walk(points, dense_folds.fold(0, 0), TIGHT)
    other = walk(points, sparse_folds.fold(0, 0), TIGHT)
    assert np.isfinite(one.scores).all()
    assert other.scores == pytest.approx(one.scores, abs=1e-3)


def test_a_walk_costs_far_fewer_epochs_than_fits_from_zero(folds, monkeypatch):
    work = []
    sweep = path.sweep

    def counted(*arguments):
        work.append(len(arguments[5]) * arguments[6])
        sweep(*arguments)

    monkeypatch.setattr(path, "sweep", counted)
    points = GATED["gsvm0"]().grid(PAPER_GRID)
    walk(points, folds.fold(0, 0), Budget())
    together = sum(work)
    work.clear()
    for point in points:
        walk([point], folds.fold(0, 0), Budget())
    assert together < 0.5 * sum(work)


def test_the_kernels_run_as_plain_python_too(folds, monkeypatch):
    points = (GSVM(1.0, 0.5, 0.3),)
    compiled = walk(points, folds.fold(0, 0), TIGHT)
    for name in ("sweep", "_matvec"):
        kernel = getattr(path, name)
        monkeypatch.setattr(path, name, getattr(kernel, "py_func", kernel))
    effort = replace(TIGHT, tolerance=1e-4)
    plain = walk(points, folds.fold(0, 0), effort)
    assert plain.scores == pytest.approx(compiled.scores, abs=2e-2)


def test_a_walk_can_be_cancelled(folds, small_grid):
    asked = []

    def soon():
        asked.append(None)
        return len(asked) > 5

    with pytest.raises(Cancelled):
        walk(GATED["gsvm"]().grid(small_grid), folds.fold(0, 0), TIGHT, Run(should_cancel=soon))
    assert len(asked) == 6


@pytest.mark.parametrize("sparse", [False, True])
def test_a_walk_in_small_pieces_looks_for_a_cancel_often_and_gives_the_same(
    folds, small_grid, monkeypatch, sparse
):
    single = folds.rows[0].single
    given = with_features(folds, sp.csr_array(single) if sparse else single)
    points = GATED["gsvm"]().grid(small_grid)
    looks = []

    def look() -> bool:
        looks.append(None)
        return False

    whole = walk(points, given.fold(1, 0), Budget(), Run(should_cancel=look))
    seldom = len(looks)
    monkeypatch.setattr(path, "_ENTRIES_AT_ONCE", 60)
    pieces = walk(points, given.fold(1, 0), Budget(), Run(should_cancel=look))
    assert (pieces.scores == whole.scores).all()
    assert len(looks) - seldom > 3 * seldom
    with pytest.raises(Cancelled):
        walk(points, given.fold(1, 0), Budget(), Run(should_cancel=lambda: True))
