"""Oracles of labels that are unknown: brute force over label sets, and Clarabel for the relaxation."""

from __future__ import annotations

from itertools import product

import clarabel
import numpy as np
import scipy.sparse as sp

from core.errors import InvalidProblem
from core.run import Run
from core.solvers.labels.label_set import LabelSet
from core.solvers.labels.margin_labels import LabelProblem, Mixture, solve_labels


def label_problem(seed: int, n: int, tolerance: float) -> LabelProblem:
    """Random rows of K = 2 or 3 classes; balance, links and known labels in some of the problems."""
    rng = np.random.default_rng(seed)
    K = 2 + seed % 2
    truth = np.sort(np.arange(n) % K)
    features = rng.normal(size=(n, 4)) + 2.0 * np.eye(4)[truth]
    known = np.where(rng.random(n) < 0.3 * (seed % 3 == 0), truth, -1)
    least = np.full(K, (seed % 4) * np.count_nonzero(known < 0) // (4 * K))
    weights = 10.0 ** rng.uniform(-1, 2) * rng.uniform(0.5, 2.0, n)
    pairs = [np.argwhere(np.triu(alike, 1)) for alike in (truth[:, None] == truth, truth[:, None] != truth)]
    links = [rng.permutation(one)[: seed % 5 % 3] for one in pairs]
    labels = LabelSet(known, K, least, *links)
    return LabelProblem(features, weights, labels, rng.uniform(0, 0.8), rng.uniform(0.1, 1.0), tolerance)


def allowed(labels: LabelSet) -> np.ndarray:
    """All label vectors of a set, one a row."""
    n, K = len(labels.known), labels.n_classes
    every = np.array(list(product(range(K), repeat=n)))
    fits = ((labels.known < 0) | (every == labels.known)).all(axis=1)
    for pairs, same in ((labels.must_link, True), (labels.cannot_link, False)):
        fits &= ((every[:, pairs[:, 0]] == every[:, pairs[:, 1]]) == same).all(axis=1)
    counts = np.array([(every[:, labels.free] == k).sum(axis=1) for k in range(K)]).T
    return every[fits & (counts >= labels.least).all(axis=1)]


def labels_agree(seed: int) -> bool:
    """Whether the best labels for random scores are as good as the best of all, or none exist."""
    problem = label_problem(seed, 8, 1e-4)
    scores = np.random.default_rng(seed).normal(size=(8, problem.labels.n_classes))
    every = allowed(problem.labels)
    totals = scores[np.arange(8), every].sum(axis=1)
    try:
        found = problem.labels.best(scores)
    except InvalidProblem:
        return not len(every)
    belongs = bool((every == found).all(axis=1).any())
    return belongs and bool(abs(scores[np.arange(8), found].sum() - totals.max()) <= 1e-12)


def is_optimum(seed: int) -> bool:
    """Whether no label vector has a smaller objective than the solver's, to 1e-6."""
    problem = label_problem(2 * seed, 7, 1e-9)
    every = allowed(problem.labels)
    least = min(problem.fit(problem.features, problem.signs[y], Run())[2] for y in every)
    start = problem.labels.best(np.random.default_rng(seed).normal(size=(7, 2)))
    return solve_labels(problem, [start]).summary.objective <= least * (1.0 + 1e-6)


def relaxation_difference(seed: int) -> float:
    """Relative difference to Clarabel: ½(Σ_t ‖W_t‖)² and the losses, as a cone programme."""
    problem = label_problem(seed, 20, 1e-10)
    rng = np.random.default_rng(seed)
    vectors = [rng.integers(0, problem.labels.n_classes, 20) for _ in range(3)]
    ours = Mixture(problem, vectors, Run()).objective
    return abs(ours - relaxed_optimum(problem, vectors)) / ours


def relaxed_optimum(problem: LabelProblem, vectors: list[np.ndarray]) -> float:
    """Clarabel's optimum. Unknown: W_t (T, P, m), norms (T,), ξ and ε (n, P) each; sum of the norms."""
    (n, m), P, T = problem.features.shape, problem.signs.shape[1], len(vectors)
    size, width = T * P * m, P * m
    total = size + T + 2 * n * P + 1
    weights = np.repeat(problem.weights, P)
    quadratic = np.concatenate([np.zeros(size + T), weights, problem.excess * weights, np.ones(1)])
    margins = np.zeros((n * P, total))
    for t, codes in enumerate(vectors):
        for i, p in product(range(n), range(P)):
            at = t * width + p * m
            margins[i * P + p, at : at + m] = problem.signs[codes[i], p] * problem.features[i]
    below, above = -margins, margins.copy()
    below[:, size + T : size + T + n * P] = -np.eye(n * P)
    above[:, size + T + n * P : -1] = -np.eye(n * P)
    bounds = [np.full(n * P, problem.band - 1.0), np.full(n * P, 1.0 + problem.band)]
    sums = np.zeros((1, total))
    sums[0, size : size + T], sums[0, -1] = 1.0, -1.0
    norms = np.zeros((T * (width + 1), total))
    for t in range(T):
        at = t * (width + 1)
        norms[at, size + t] = -1.0
        norms[at + 1 : at + 1 + width, t * width : (t + 1) * width] = -np.eye(width)
    cones = [
        clarabel.NonnegativeConeT(2 * n * P + 1),
        *[clarabel.SecondOrderConeT(width + 1) for _ in range(T)],
    ]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-9
    solver = clarabel.DefaultSolver(
        sp.csc_matrix(np.diag(quadratic)),
        np.zeros(total),
        sp.csc_matrix(np.vstack([below, above, sums, norms])),
        np.concatenate([*bounds, np.zeros(1 + len(norms))]),
        cones,
        settings,
    )
    return float(solver.solve().obj_val)
