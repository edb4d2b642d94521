"""Students of a measure by other ways: Clarabel with all constraints, and brute force over label vectors."""

from __future__ import annotations

from itertools import product
from typing import get_args

import clarabel
import numpy as np
import scipy.sparse as sp

from core.solvers.measures.cutting_planes import MeasureProblem, solve_measure
from core.solvers.measures.violation import Measure, most_violated

MEASURES = get_args(Measure)


def measure_difference(seed: int) -> float:
    """Relative difference to Clarabel with all 2⁶ constraints, or those of all labels of pairs."""
    rng = np.random.default_rng(seed)
    name = MEASURES[seed % len(MEASURES)]
    features, signs = random_rows(rng, 6, 5)
    truth, C, consistency = signs > 0.0, 10.0 ** rng.uniform(-1, 4), (seed % 2) * 10.0 ** rng.uniform(-2, 1)
    problem = MeasureProblem(features, (3, 2), truth, name, C=C, consistency=consistency, k=3)
    ours = solve_measure(problem, tolerance=1e-11, max_iterations=5000).objective
    losses, coefficients = label_vectors(name, truth, 3)
    planes = np.hstack([coefficients @ features, np.ones((len(losses), 1))])
    planes = np.vstack([planes, np.eye(6)[-1:]])
    quadratic = np.zeros((6, 6))
    quadratic[:5, :5] = problem.quadratic()
    theirs = by_clarabel(quadratic, np.r_[np.zeros(5), C], planes, np.append(losses, 0.0))
    return abs(ours - theirs) / abs(theirs)


def agrees(seed: int) -> bool:
    """Whether brute force finds a most violated vector with the same violation."""
    rng = np.random.default_rng(seed)
    name = MEASURES[seed % len(MEASURES)]
    n = int(rng.integers(2, 8 if name == "roc_area" else 13))  # at most 12 pairs
    truth = np.arange(n) < rng.integers(1, n)
    rng.shuffle(truth)
    scores = rng.normal(size=n) * 10.0 ** rng.uniform(-1, 1)
    scores = np.round(scores) if seed % 5 == 0 else scores
    k = int(rng.integers(1, n + 1))
    losses, coefficients = label_vectors(name, truth, k)
    found = most_violated(name, truth, scores, k).value(scores)
    return bool(abs(found - np.max(losses - coefficients @ scores)) <= 1e-12 * max(1.0, abs(found)))


def label_vectors(name: str, truth: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Δ (v,) and c (v, n) of all admissible label vectors, or of all labels of pairs."""
    n, positives = len(truth), int(truth.sum())
    if name == "roc_area":
        pairs = np.array(list(product(np.flatnonzero(truth), np.flatnonzero(~truth))))
        swapped = np.array(list(product((0.0, 1.0), repeat=len(pairs))))
        directions = np.eye(n)[pairs[:, 0]] - np.eye(n)[pairs[:, 1]]
        return swapped.mean(axis=1), swapped @ directions / len(pairs)
    labels = np.array(list(product((False, True), repeat=n)))
    if name not in ("error", "f1"):
        rows = {"prbep": positives, "precision_at_k": max(k, positives)}.get(name, k)
        labels = labels[labels.sum(axis=1) == rows]
    hits, accepted = (labels & truth).sum(axis=1), labels.sum(axis=1)
    values = {
        "error": (labels == truth).mean(axis=1),
        "f1": 2.0 * hits / (accepted + positives),
        "recall_at_k": hits / positives,
        "precision_at_k": 1.0 - (accepted - hits) / k,
    }
    flips = (labels != truth) * np.where(truth, 1.0, -1.0) / n
    if name in ("precision_at_k", "recall_at_k"):
        flips = swaps(labels, truth)
    return 1.0 - values.get(name, hits / np.maximum(accepted, 1)), flips


def swaps(labels: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """c (v, n) where as many false positives as possible are swapped, on average over all such swaps."""
    coefficients = np.zeros(labels.shape)
    for row, accepted in zip(coefficients, labels, strict=True):
        rejected, false = np.flatnonzero(truth & ~accepted), np.flatnonzero(accepted & ~truth)
        if swapped := min(len(rejected), len(false)):
            row[rejected] = swapped / len(rejected) / len(truth)
            row[false] = -swapped / len(false) / len(truth)
    return coefficients


def random_rows(rng: np.random.Generator, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a constant, and signs of both kinds that depend on the first column."""
    features = np.hstack([rng.normal(size=(n, m - 1)), np.ones((n, 1))])
    signs = np.where(features[:, 0] + 0.5 * rng.normal(size=n) > rng.choice([0.3, 1.2]), 1.0, -1.0)
    signs[:2] = 1.0, -1.0
    return features, signs


def by_clarabel(
    quadratic: np.ndarray,
    costs: np.ndarray,
    rows: np.ndarray,
    least: np.ndarray,
    accuracy: float = 1e-11,
) -> float:
    """The minimum of ½xᵀPx + q·x with A x ≥ b."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = accuracy
    cones = [clarabel.NonnegativeConeT(len(least))]
    matrices = sp.csc_matrix(np.triu(quadratic)), costs, sp.csc_matrix(-rows), -least
    solution = clarabel.DefaultSolver(*matrices, cones, settings).solve()
    assert "Solved" in str(solution.status), solution.status
    return float(solution.obj_val)
