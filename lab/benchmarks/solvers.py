"""Our solvers against CVXPY with Clarabel, scikit-learn's LinearSVC and LIBLINEAR's Crammer-Singer solver.

Prints one row per problem and, as the last line, a JSON object. The exit code depends on the agreement of the
solutions, not on the times.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import cvxpy as cp
import numpy as np
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.preprocessing import scale
from sklearn.svm import LinearSVC

from core.run import Run
from core.solvers.crammer_singer import CrammerSingerProblem, solve_crammer_singer
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.mm_irls import solve_mm_irls
from core.solvers.solution import Solution

T = TypeVar("T")

# An MM step may increase the objective by rounding errors only.
_ROUNDING = 1e-10


@dataclass(frozen=True)
class RandomProblem:
    """A random instance of Eq. (12) with the settings it was drawn from."""

    problem: GatedHingeProblem
    C: float
    positives: int


def random_problem(index: int, count: int, seed: int) -> RandomProblem:
    """C runs from 1e-3 to 1e5 over the problems; imbalance up to 1:200; every fifth has m > n."""
    rng = np.random.default_rng([seed, index])
    wide = index % 5 == 4
    n = int(rng.integers(30, 80)) if wide else int(rng.integers(40, 400))
    m = int(rng.integers(90, 200)) if wide else int(rng.integers(3, 60))
    positives = max(1, int(n / (1 + 10 ** rng.uniform(0, np.log10(200)))))
    if index % 7 == 3:
        n, positives = 201, 1
    C = 10.0 ** (-3 + 8 * index / max(1, count - 1))
    signs = np.where(np.arange(n) < positives, 1.0, -1.0)
    features = rng.normal(size=(n, m)) * 10 ** rng.uniform(-0.5, 0.5, m)
    features[:positives] += rng.normal(size=m) * rng.uniform()
    features[:, -1] = 1.0
    gate, difficulty = signs * rng.normal(1.0, 1.5, n), rng.uniform(0.3, 1.0, n)
    problem = GatedHingeProblem.gated(features, signs, gate, C=C, margin=1.0, difficulty=difficulty)
    return RandomProblem(problem, C, positives)


def clarabel_objective(problem: GatedHingeProblem) -> float:
    """P(θ) at Clarabel's θ, evaluated with our objective, without the slack of Clarabel's constraints."""
    theta = cp.Variable(problem.shape[1])
    slacks = problem.targets + cp.multiply(problem.signs, problem.features @ theta)
    model = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(theta) + problem.bounds @ cp.pos(slacks)))
    model.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11, max_iter=500)
    if theta.value is None:
        raise RuntimeError(f"Clarabel ended with status {model.status}")
    return problem.primal_objective(theta.value)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def difference(ours: Solution, reference: float) -> float:
    """Signed relative difference of the objectives; negative if ours is lower."""
    return (ours.objective - reference) / max(abs(reference), 1e-12)


def largest_rise(solution: Solution) -> float:
    trace = np.array(solution.trace)
    return float(np.max(np.diff(trace) / np.abs(trace[:-1]), initial=-np.inf))


def compare_gated(count: int, seed: int) -> dict[str, Any]:
    print(f"Eq. (12) against CVXPY with Clarabel, {count} random problems (difference: relative, signed)\n")
    print(
        "    n    m  pos        C | CD: epochs     gap     diff    ms |"
        " MM: steps     gap    rise    ms | Clarabel ms"
    )
    differences, gaps, rises = [], [], []
    for index in range(count):
        drawn = random_problem(index, count, seed)
        (n, m), problem = drawn.problem.shape, drawn.problem
        reference, clarabel_seconds = timed(partial(clarabel_objective, problem))
        descent = solve_dual_cd(problem, tolerance=1e-7, run=Run(seed))
        majorised = solve_mm_irls(problem, tolerance=1e-6)
        differences.append(difference(descent, reference))
        gaps.append(descent.relative_gap)
        rises.append(largest_rise(majorised))
        print(
            f"{n:5d}{m:5d}{drawn.positives:5d}{drawn.C:9.1e} |"
            f"{descent.iterations:11d}{descent.relative_gap:8.0e}{differences[-1]:+9.0e}"
            f"{1e3 * descent.seconds:6.0f} |"
            f"{majorised.iterations:10d}{majorised.relative_gap:8.0e}{rises[-1]:+8.0e}"
            f"{1e3 * majorised.seconds:6.0f} |{1e3 * clarabel_seconds:12.0f}"
        )
    return {
        "worst_rel_vs_cvxpy": float(np.max(np.abs(differences))),
        "worst_gap_dual_cd": float(np.max(gaps)),
        "mm_monotone": bool(np.max(rises) <= _ROUNDING),
        "mm_largest_rise": float(np.max(rises)),
        "problems": count,
    }


def binary_svms() -> list[tuple[str, GatedHingeProblem]]:
    problems = []
    for name, load in (("iris", load_iris), ("wine", load_wine), ("digits", load_digits)):
        X, y = load(return_X_y=True)
        features = np.hstack([scale(X), np.ones((len(X), 1))])
        signs = np.where(y == 1, 1.0, -1.0)
        problems += [
            (f"{name} C/n={weight:g}", GatedHingeProblem.svm(features, signs, C=weight * len(X)))
            for weight in (1e-3, 0.1, 1.0)
        ]
    return problems


def compare_svm() -> dict[str, Any]:
    print("\nPlain SVM against scikit-learn's LinearSVC(loss='hinge')\n")
    differences = []
    for name, problem in binary_svms():
        weight = float(problem.bounds[0])
        model = LinearSVC(loss="hinge", C=weight, fit_intercept=False, tol=1e-8, max_iter=2_000_000)
        _, seconds = timed(partial(model.fit, problem.features, problem.signs))
        ours = solve_dual_cd(problem, tolerance=1e-8)
        differences.append(difference(ours, problem.primal_objective(-model.coef_.ravel())))
        print(
            f"{name:18s} gap {ours.relative_gap:7.0e}  difference {differences[-1]:+8.0e}"
            f"  ours {1e3 * ours.seconds:6.0f} ms  LinearSVC {1e3 * seconds:6.0f} ms"
        )
    return {"worst_vs_sklearn_svm": float(np.max(np.abs(differences)))}


def compare_crammer_singer() -> dict[str, Any]:
    print("\nCrammer and Singer against LIBLINEAR (LinearSVC(multi_class='crammer_singer'))\n")
    differences = []
    for name, load in (("iris", load_iris), ("wine", load_wine), ("digits", load_digits)):
        X, y = load(return_X_y=True)
        features = np.hstack([scale(X), np.ones((len(X), 1))])
        for bound in (1e-3, 0.05, 1.0):
            problem = CrammerSingerProblem(features, y, int(y.max()) + 1, bound)
            model = LinearSVC(
                multi_class="crammer_singer", C=bound, fit_intercept=False, tol=1e-6, max_iter=200_000
            )
            _, seconds = timed(partial(model.fit, features, y))
            ours = solve_crammer_singer(problem, tolerance=1e-5, max_epochs=20_000)
            differences.append(difference(ours, problem.primal_objective(model.coef_)))
            print(
                f"{name:7s} C/n={bound:<6g} gap {ours.relative_gap:7.0e}  difference {differences[-1]:+8.0e}"
                f"  ours {1e3 * ours.seconds:6.0f} ms  LIBLINEAR {1e3 * seconds:6.0f} ms"
            )
    return {"worst_vs_liblinear_cs": float(np.max(np.abs(differences)))}


def compile_kernels() -> None:
    """Compile the solvers, so that the measured times do not include compilation."""
    features = np.ones((2, 1))
    solve_dual_cd(GatedHingeProblem.svm(features, np.array([1.0, -1.0]), C=1.0))
    solve_crammer_singer(CrammerSingerProblem(features, np.array([0, 1]), 2, 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=50, help="random problems of Eq. (12) (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random problems (default: 0)")
    arguments = parser.parse_args()
    compile_kernels()
    result = compare_gated(arguments.problems, arguments.seed)
    result |= compare_svm()
    result |= compare_crammer_singer()
    print()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
