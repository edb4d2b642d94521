"""Chooses the space and loss weight that learn few labels best, by cross-validation on the labelled rows."""

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
    """A space, and the loss weight of the labelled rows."""

    space: Space
    C_known: float


def held_out_errors(
    candidates: Mapping[Candidate, FloatArray],
    codes: IntArray,
    problem: Callable[[FloatArray, float], LabelProblem],
    run: Run,
) -> dict[Candidate, int]:
    """Number of errors of each candidate on l labelled rows, each predicted by folds that do not contain it.

    All numbers are 0 if no class has two labelled rows.
    candidates: with the features (l, m) of these rows. codes: (l,); every fold has every class as far as its
    rows suffice. problem: makes the problem of fitting hyperplanes to rows of a space, with a loss weight.
    Raises Cancelled.
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
