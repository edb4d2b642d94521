"""The teacher of the paper: a structural SVM with 0/1 loss, which is Crammer and Singer's multiclass SVM."""

from __future__ import annotations

from core.data.bounds import not_whole, out_of_bounds, refuse
from core.run import Run
from core.solvers.crammer_singer import CrammerSingerProblem, solve_crammer_singer
from core.teachers.linear import LinearTeacher
from core.types import IntArray, Matrix

__all__ = ["LinearTeacher", "fit_ssvm"]


def fit_ssvm(
    features: Matrix,
    labels: IntArray,
    n_classes: int,
    *,
    C: float = 1000.0,
    tolerance: float = 1e-3,
    max_epochs: int = 5000,
    warm_start: LinearTeacher | None = None,
    run: Run = Run(),
) -> LinearTeacher:
    """Fit Eq. (1): min_W ½‖W‖² + (C/n) Σ_i max_k (Δ(k, y_i) + w_k·φ_i − w_{y_i}·φ_i).

    features: Φ, (n, m), dense or CSR. labels: class codes 0..n_classes-1, (n,).
    tolerance: relative duality gap to stop at; max_epochs: passes over the examples at most.
    warm_start: a teacher fitted to the same rows, usually at another C; ignored when it carries no dual
        variables.

    Raises InvalidProblem, Cancelled.
    """
    refuse(
        out_of_bounds("C", C, 0.0, 1e12, open_low=True),
        out_of_bounds("tolerance", tolerance, 0.0, 1.0, open_low=True, open_high=True),
        not_whole("max_epochs", max_epochs, 1, 2**31 - 1),
    )
    initial_dual = None
    if warm_start is not None and warm_start.dual is not None and warm_start.C is not None:
        # The dual box is [.., C/n]: scaled by the ratio, a solution stays feasible and its bound variables
        # bound.
        initial_dual = warm_start.dual * (C / warm_start.C)
    solution = solve_crammer_singer(
        CrammerSingerProblem(features, labels, n_classes, C / features.shape[0]),
        tolerance=tolerance,
        max_epochs=max_epochs,
        initial_dual=initial_dual,
        run=run,
    )
    return LinearTeacher(solution.value, solution.summary(), solution.dual, C)
