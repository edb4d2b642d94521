"""Functions that ODMC and ssODM share: they make a labelling from rows and conditions on labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.labelling.base import Labelling
from core.run import Run
from core.solvers.labels.margin_labels import LabelProblem, solve_labels
from core.types import FloatArray, IntArray


def least_counts(shares: FloatArray, rows: int, balance: float) -> IntArray:
    """Fewest of ``rows`` that each class gets: ``balance`` times its share, rounded down, (K,)."""
    least: IntArray = np.floor(balance * shares * rows + 1e-9).astype(np.intp)
    return least


def labelling_of(
    problem: LabelProblem,
    starts: Sequence[IntArray],
    classes: tuple[str, ...],
    rounds: int,
    run: Run,
) -> Labelling:
    """Solve the problem. Raises Cancelled."""
    solution = solve_labels(problem, starts, rounds=rounds, run=run)
    details = {
        "relaxed": solution.relaxed[-1],
        "violation": solution.violation,
        "label_vectors": len(solution.mixture),
        "turns": len(solution.lowered),
    }
    certainty = _certainty(problem, solution.codes, solution.outputs)
    return Labelling(solution.codes.astype(np.int32), certainty, classes, solution.summary, details)


def _certainty(problem: LabelProblem, codes: IntArray, outputs: FloatArray) -> FloatArray:
    """Loss of the next best class minus that of the own class, relative to a typical row's, in [0, 1]."""
    losses = problem.losses(outputs) / problem.weights[:, None]
    rows = np.arange(len(codes))
    own = losses[rows, codes]
    losses[rows, codes] = np.inf
    # If margins of the own class are 1, another class has margins of −1 for the two hyperplanes that differ.
    typical = 0.5 * (2.0 - problem.band) ** 2 * min(2, problem.signs.shape[1])
    certainty: FloatArray = np.clip((losses.min(axis=1) - own) / typical, 0.0, 1.0).astype(np.float32)
    certainty[problem.labels.known >= 0] = np.nan
    return certainty
