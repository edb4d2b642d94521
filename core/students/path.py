"""Regularisation path of gated SVMs: one class in one fold, each grid point warm-started from a neighbour.

The products Φθ of each solution are kept, which makes each point cheap. A step in ε changes only the targets,
so the slacks of the neighbour's solution need no product. A step in C scales the box, and with it α, θ and
Φθ. The products include the held-out rows, so the scores of these are available, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from core.run import Run
from core.solvers.box_descent import active_set, projected_gradient, sweep
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.jit import Rows, as_rows, compiled, row_dot
from core.solvers.products import entries_per_row
from core.students.base import Budget, Fold, FoldResult
from core.students.difficulty import class_weights
from core.students.grid import Point
from core.types import FloatArray, IntArray

_MAX_EPOCHS_PER_ROUND = 8

_ENTRIES_AT_ONCE = 20_000_000
"""Entries of Φ that are read between two cancel checks, which takes about ten milliseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A dual point α (n,), 0 for rows that are left out, with θ(α) (m,) and the products Φθ (n,)."""

    C: float
    alpha: FloatArray
    theta: FloatArray
    products: FloatArray

    def at(self, C: float) -> _State:
        """A copy, scaled to the box of loss weight C: variables at their bound stay at their bound."""
        share = C / self.C
        return _State(C, share * self.alpha, share * self.theta, share * self.products)


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """Targets t and bounds U of one point, (n,); U is 0 for rows that are left out."""

    targets: FloatArray
    bounds: FloatArray

    def gap(self, state: _State, slacks: FloatArray) -> float:
        """Relative duality gap of α and θ(α): (P − D) / P."""
        half = 0.5 * float(state.theta @ state.theta)
        primal = half + float(self.bounds @ np.maximum(slacks, 0.0))
        dual = float(state.alpha @ self.targets) - half
        return (primal - dual) / max(primal, 1e-12)


class FoldPath:
    """Fits the students of class code ``target`` by one method in one fold.

    Rows whose features are all zero have the same loss for every θ and are left out.
    """

    def __init__(self, fold: Fold, run: Run, *, uses_gate: bool) -> None:
        self._fold, self._run = fold, run.silent()
        self._rows: Rows = as_rows(fold.single)
        self._n_training = int(fold.is_training.sum())
        self._taking_part = np.flatnonzero(fold.is_training & (fold.norms > 0.0))
        self.held_out: IntArray = fold.held_out
        self._signs = fold.problem.signs
        self._gate: FloatArray = fold.problem.linear_gate if uses_gate else np.zeros(len(self._signs))
        self._piece = max(1, int(_ENTRIES_AT_ONCE / entries_per_row(fold.single)))
        self._rng = np.random.default_rng([run.seed, fold.target, fold.number])

    def walk(self, points: Sequence[Point], budget: Budget) -> FoldResult:
        """Fit the points. Checks for a cancel about every ten milliseconds. Raises Cancelled."""
        scores = np.empty((len(points), len(self.held_out)), dtype=np.float32)
        gaps, seconds = np.empty(len(points)), np.empty(len(points))
        started = time.perf_counter()
        for index, state, task in self._neighbours(points):
            products, gaps[index] = self._fit(state, task, budget)
            scores[index] = (self._gate - products)[self.held_out]
            now = time.perf_counter()
            seconds[index], started = now - started, now
        return FoldResult(scores, gaps, seconds)

    def _neighbours(self, points: Sequence[Point]) -> Iterator[tuple[int, _State, _Task]]:
        """Yield each point with an initial state, which the caller updates to the solution.

        For each (ϵ, β), C rises, because problems with a small C are solved quickly. For each C, ε falls,
        because a large ε is easier. The first point of a C starts from the solution of the first of the
        previous C.
        """
        order = sorted(range(len(points)), key=lambda i: (*points[i][2:], points[i].C, -points[i].margin))
        for (floor, balance), alike in groupby(order, key=lambda i: points[i][2:]):
            unit_bounds = self._unit_bounds(floor, balance)
            head: _State | None = None
            for C, of_C in groupby(alike, key=lambda i: points[i].C):
                state = self._zero(C) if head is None else head.at(C)
                head = None
                for index in of_C:
                    targets = points[index].margin - self._signs * self._gate
                    yield index, state, _Task(targets, C * unit_bounds)
                    head = state.at(C) if head is None else head

    def _unit_bounds(self, floor: float, balance: float) -> FloatArray:
        """U at C = 1: b / (n d) for the n training rows, otherwise 0. A floor of 1 makes every d 1."""
        bounds = np.zeros(len(self._signs))
        degrees = self._fold.problem.difficulty(floor)
        bounds[self._taking_part] = 1.0 / (self._n_training * degrees[self._taking_part])
        if balance:
            training = self._fold.is_training
            bounds[training] *= class_weights(self._fold.problem.positive[training], balance)
        return bounds

    def _zero(self, C: float) -> _State:
        n, m = self._fold.single.shape
        return _State(C, np.zeros(n), np.zeros(m), np.zeros(n))

    def _fit(self, state: _State, task: _Task, budget: Budget) -> tuple[FloatArray, float]:
        """Update ``state`` to the solution. Returns Φθ of the best primal point and its relative gap."""
        np.clip(state.alpha, 0.0, task.bounds, out=state.alpha)
        epochs = 0
        while True:
            self._run.check_cancel()
            slacks = task.targets + self._signs * state.products
            gap = task.gap(state, slacks)
            if gap <= budget.tolerance:
                return state.products, gap
            if epochs >= budget.max_epochs:
                break
            active = self._active(state, task, slacks)
            share = len(self._taking_part) // len(active)
            rounds = min(max(share, 1), _MAX_EPOCHS_PER_ROUND)
            self._rng.shuffle(active)
            for _ in range(rounds):
                self._epoch(state, task, active)
            self._update_products(state.theta, state.products)
            epochs += rounds
        return self._finish(state, task, budget) if budget.finish else (state.products, gap)

    def _epoch(self, state: _State, task: _Task, order: NDArray[np.intp]) -> None:
        """One epoch of coordinate descent, in blocks with a cancel check before each block."""
        for start in range(0, len(order), self._piece):
            self._run.check_cancel()
            sweep(
                self._rows,
                self._signs,
                task.targets,
                task.bounds,
                self._fold.norms,
                order[start : start + self._piece],
                1,
                state.alpha,
                state.theta,
            )

    def _update_products(self, theta: FloatArray, products: FloatArray) -> None:
        """Write Φθ into ``products`` (n,), in blocks with a cancel check before each block."""
        for start in range(0, len(products), self._piece):
            self._run.check_cancel()
            stop = min(start + self._piece, len(products))
            _matvec(_some_rows(self._rows, start, stop), theta, products[start:stop])

    def _active(self, state: _State, task: _Task, slacks: FloatArray) -> NDArray[np.intp]:
        """Row numbers of the active set, see ``core.solvers.box_descent.active_set``."""
        gradient = projected_gradient(slacks, state.alpha, task.bounds)[self._taking_part]
        return self._taking_part[active_set(gradient)]

    def _finish(self, state: _State, task: _Task, budget: Budget) -> tuple[FloatArray, float]:
        """Like ``_fit``, by the full solver: its Newton steps converge where coordinate descent is slow."""
        rows = self._taking_part
        problem = GatedHingeProblem(
            self._fold.single[rows], self._signs[rows], task.targets[rows], task.bounds[rows]
        )
        solution = solve_dual_cd(
            problem,
            tolerance=budget.tolerance,
            max_epochs=budget.finish,
            initial_dual=state.alpha[rows],
            run=self._run,
        )
        state.alpha[rows] = solution.dual
        state.theta[:] = problem.theta_of(solution.dual)
        self._update_products(state.theta, state.products)
        products = np.empty_like(state.products)
        self._update_products(np.ascontiguousarray(solution.value, dtype=np.float64), products)
        return products, solution.relative_gap


def _some_rows(rows: Rows, start: int, stop: int) -> Rows:
    """Rows start to stop − 1, without a copy."""
    if len(rows) == 1:
        return (rows[0][start:stop],)
    data, indices, indptr = rows
    return (data, indices, indptr[start : stop + 1])


@compiled
def _matvec(rows: Rows, theta: FloatArray, products: FloatArray) -> None:
    """Write Φθ into ``products`` (n,), summed in float64 from float32 or float64 rows without a copy."""
    for i in range(products.shape[0]):
        products[i] = row_dot(rows, i, theta)
