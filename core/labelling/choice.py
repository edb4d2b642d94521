"""In which space and with which loss weight few labels are learnt best, by cross-validation on their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from core.labelling.base import Space
from core.run import Run
from core.solvers.labels.margin_labels import LabelProblem
from core.types import FloatArray, IntArray

_FOLDS = 5


class Candidate(NamedTuple):
    """A space, and the loss weight of the rows with a label."""

    space: Space
    C_known: float


def held_out_errors(
    candidates: Mapping[Candidate, FloatArray],
    codes: IntArray,
    problem: Callable[[FloatArray, float], LabelProblem],
    run: Run,
) -> dict[Candidate, int]:
    """How many of l rows with a label each candidate gets wrong in the folds that do not learn them.

    All are 0 where no class has two rows with a label.
    candidates: with the features (l, m) of these rows. codes: (l,), every class in every fold as far as it
    has rows. problem: of some rows of a space, with a loss weight, whose hyperplanes are fitted. Raises
    Cancelled.
    """
    order = np.random.default_rng(run.seed).permutation(len(codes))
    fold_of = np.empty(len(codes), dtype=np.intp)
    for code in np.unique(codes):
        own = order[codes[order] == code]
        fold_of[own] = np.arange(len(own)) % _FOLDS
    errors = dict.fromkeys(candidates, 0)
    folds = range(fold_of.max() + 1) if fold_of.any() else range(0)
    for one, features in candidates.items():
        for fold in folds:
            held = fold_of == fold
            learnt = problem(features[~held], one.C_known)
            planes, _, _ = learnt.fit(learnt.features, learnt.signs[codes[~held]], run)
            found = problem(features[held], one.C_known).losses(features[held] @ planes.T).argmin(axis=1)
            errors[one] += int((found != codes[held]).sum())
    return errors
