"""Solvers of teachers and students against something that we did not write, 40 random problems each.

ODM                L-BFGS of SciPy on the primal
SVM+               Clarabel on the primal quadratic programme
measures           Clarabel on the programme with the constraints of all label vectors
mcODM              Clarabel on the primal of the last inner problem
interpolation      scipy.linalg.solve, by Cholesky factors and by conjugate gradients
relaxed labels     Clarabel on the relaxation of ODMC and ssODM with three given label vectors
best labels        brute force over all label vectors that links, labels and balance allow
violated vectors   brute force over all label vectors (of all pairs for ROC area), up to 12 labels
GPC, GPC+          quadrature over f and g at 1 to 3 rows
GPC with known g   Algorithm 3.5 of Rasmussen and Williams

``oracle_worst`` is the largest relative difference of objectives (of α for interpolation), also by solver
in ``oracles``; ``violated_matches`` the number of 1000 most violated vectors, of each measure in turn, that
brute force agrees with to 1e-12. ``label_matches``: of 400 linear programmes over label vectors, the number
that brute force agrees with; ``label_optima``: of 40 small clusterings, the number whose objective is the
least of all.

Of the posteriors, ``ep_algorithm_worst`` is the largest relative difference of mean, variances and log
evidence to Algorithm 3.5, and ``ep_moments`` the largest difference of means and variances to quadrature, by
prior variances: for GPC up to 0.6, for GPC+ up to 0.4 of f and 0.1 of g; wide ones up to 1 and 0.3. It is
the error of expectation propagation itself. ``ep_moments_worst`` is that without the wide ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import solve
from scipy.optimize import minimize

from core.solvers.kernel.system import solve_kernel_system
from core.solvers.margins.margin_distribution import MarginDistributionProblem, solve_margin_distribution
from core.solvers.margins.multiclass_odm import MulticlassMarginProblem, solve_multiclass_odm
from core.solvers.margins.privileged_hinge import PrivilegedHingeProblem, solve_privileged_hinge
from tests.reference.labels import is_optimum, labels_agree, relaxation_difference
from tests.reference.measures import agrees, by_clarabel, measure_difference, random_rows
from tests.reference.posteriors import algorithm_difference, moments_difference

CASES = 1000
PRIORS = {"gpc": (0.6, 0.0), "gpc+": (0.4, 0.1), "gpc, wide": (1.0, 0.0), "gpc+, wide": (1.0, 0.3)}
"""Largest prior variances of f and of g."""


def measure(quick: bool = False) -> dict[str, Any]:
    """The figures above. quick: 6 problems a solver instead of 40, and 100 of the 1000 cases."""
    count, cases = (6, CASES // 10) if quick else (40, CASES)
    worst = {
        "odm": max(odm_difference(seed) for seed in range(count)),
        "svm+": max(svm_plus_difference(seed) for seed in range(count)),
        "measures": max(measure_difference(seed) for seed in range(count)),
        "mcodm": max(mcodm_difference(seed) for seed in range(count)),
        "interpolation": max(interpolation_difference(seed, 1e9) for seed in range(count)),
        "interpolation, iterated": max(interpolation_difference(seed, 8e3) for seed in range(count)),
        "relaxed_labels": max(relaxation_difference(seed) for seed in range(count)),
    }
    moments = {
        name: max(moments_difference(seed, *variances) for seed in range(count))
        for name, variances in PRIORS.items()
    }
    return {
        "oracle_worst": max(worst.values()),
        "oracles": worst,
        "violated_matches": sum(agrees(seed) for seed in range(cases)),
        "label_matches": sum(labels_agree(seed) for seed in range(10 * count)),
        "label_optima": sum(is_optimum(seed) for seed in range(count)),
        "ep_algorithm_worst": max(algorithm_difference(seed) for seed in range(count)),
        "ep_moments": moments,
        "ep_moments_worst": max(moments["gpc"], moments["gpc+"]),
    }


def odm_difference(seed: int) -> float:
    """Relative difference to L-BFGS: C from 1e-3 to 1e5, every third problem with m > n."""
    rng = np.random.default_rng(seed)
    features, signs = random_rows(rng, *((30, 50) if seed % 3 == 2 else (90, 8)))
    gate = signs * rng.normal(0.7, 1.5, len(signs)) * (seed % 4 > 0)
    C, band, excess = 10.0 ** rng.uniform(-3, 5), rng.uniform(0, 0.9), rng.uniform(0.05, 1.0)
    weight = C / (len(signs) * (1.0 - band) ** 2)

    def primal(w: np.ndarray) -> tuple[float, np.ndarray]:
        margins = signs * (features @ w + gate)
        below, above = np.maximum(1.0 - band - margins, 0.0), np.maximum(margins - 1.0 - band, 0.0)
        value = 0.5 * w @ w + 0.5 * weight * (below @ below + excess * (above @ above))
        return float(value), w + weight * features.T @ (signs * (excess * above - below))

    problem = MarginDistributionProblem(features, signs, gate, C=C, band=band, excess=excess)
    ours = primal(solve_margin_distribution(problem, tolerance=1e-9).value)[0]
    options = {"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10}
    start = np.zeros(features.shape[1])
    theirs = float(minimize(primal, start, method="L-BFGS-B", jac=True, options=options).fun)
    return abs(ours - theirs) / abs(theirs)


def svm_plus_difference(seed: int) -> float:
    """Relative difference to Clarabel: C from 1e-3 to 1e5, κ from 1e-3 to 100."""
    rng = np.random.default_rng(seed)
    n, m, p = ((90, 8, 40), (90, 8, 4), (30, 50, 5))[seed % 3]
    features, signs = random_rows(rng, n, m)
    privileged = np.hstack([rng.normal(size=(n, p - 1)), np.ones((n, 1))])
    privileged[:, 0] += features[:, 0]
    C, correction = 10.0 ** rng.uniform(-3, 5), 10.0 ** rng.uniform(-3, 2)
    problem = PrivilegedHingeProblem(features, signs, privileged, C, correction)
    ours = solve_privileged_hinge(problem, tolerance=1e-8).objective
    squares = np.r_[np.ones(m), np.full(p - 1, C * correction), 0.0]
    costs = np.r_[np.zeros(m), C * privileged.mean(axis=0)]
    margins = np.hstack([signs[:, None] * features, privileged])
    slacks = np.hstack([np.zeros((n, m)), privileged])
    theirs = by_clarabel(np.diag(squares), costs, np.vstack([margins, slacks]), np.repeat([1.0, 0.0], n))
    return abs(ours - theirs) / abs(theirs)


def mcodm_difference(seed: int) -> float:
    """Relative difference to Clarabel on P_M with slack variables, M that of the solver's last round."""
    rng = np.random.default_rng(seed)
    n, m, K = int(rng.integers(10, 60)), int(rng.integers(2, 8)), int(rng.integers(2, 6))
    labels = rng.integers(0, K, n)
    features = rng.normal(size=(n, m)) + rng.normal(size=(K, m))[labels]
    C, band, excess = 10.0 ** rng.uniform(0, 3), rng.uniform(0.0, 0.8), 10.0 ** rng.uniform(-1, 0)
    problem = MulticlassMarginProblem(features, labels, K, C, band, excess)
    found = solve_multiclass_odm(problem, tolerance=1e-8, max_epochs=50_000)
    scores = np.einsum("kl,im->iklm", np.eye(K), features).reshape(n, K, K * m)
    own = scores[np.arange(n), labels]
    rows, rivals = np.nonzero(np.arange(K) != labels[:, None])
    none, each = np.zeros((n, n)), np.eye(n)
    constraints = np.vstack(
        [
            np.hstack([own[rows] - scores[rows, rivals], each[rows], none[rows]]),
            np.hstack([-own, none, each]),
        ]
    )
    least = np.append(np.full(len(rows), 1.0 - band), -(1.0 + band + found.rivals))
    squares = np.repeat([1.0 / problem.weight, 1.0, excess], [K * m, n, n])
    theirs = by_clarabel(np.diag(squares), np.zeros(len(squares)), constraints, least, accuracy=1e-9)
    return abs(found.objective / problem.weight - theirs) / abs(theirs)


def interpolation_difference(seed: int, memory: float) -> float:
    """Relative difference of α to that of SciPy; with little memory by conjugate gradients."""
    rng = np.random.default_rng(seed)
    n, d, q = int(rng.integers(5, 200)), int(rng.integers(1, 10)), int(rng.integers(2, 6))
    rows = rng.normal(size=(n, d)) * rng.uniform(0.1, 1.0)
    right, jitter = np.eye(q)[rng.integers(q, size=n)], 10.0 ** rng.uniform(-4, -1)
    kernel = np.exp(-((rows[:, None] - rows) ** 2).sum(axis=2)) + jitter * np.eye(n)
    expected = solve(kernel, right, assume_a="pos")
    found = solve_kernel_system(
        rows, right, jitter=jitter, tolerance=1e-10, max_iterations=5000, memory_bytes=memory, tile=32
    )
    return float(np.abs(found.value - expected).max() / np.abs(expected).max())
