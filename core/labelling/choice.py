"""In which space few labels are learnt best, by cross-validation on the rows that have one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from core.labelling.base import Space
from core.run import Run
from core.solvers.labels.margin_labels import LabelProblem
from core.types import FloatArray, IntArray

_FOLDS = 5


def held_out_errors(
    spaces: Mapping[Space, FloatArray],
    codes: IntArray,
    problem: Callable[[FloatArray], LabelProblem],
    run: Run,
) -> dict[Space, int]:
    """How many of l rows with a label each space gets wrong in the folds that do not learn them.

    All are 0 where no class has two rows with a label.
    spaces: features (l, m) of these rows. codes: (l,), every class in every fold as far as it has rows.
    problem: of some rows of a space, whose hyperplanes are fitted. Raises Cancelled.
    """
    order = np.random.default_rng(run.seed).permutation(len(codes))
    fold_of = np.empty(len(codes), dtype=np.intp)
    for code in np.unique(codes):
        own = order[codes[order] == code]
        fold_of[own] = np.arange(len(own)) % _FOLDS
    errors = dict.fromkeys(spaces, 0)
    folds = range(fold_of.max() + 1) if fold_of.any() else range(0)
    for space, features in spaces.items():
        for fold in folds:
            held = fold_of == fold
            learnt = problem(features[~held])
            planes, _, _ = learnt.fit(learnt.features, learnt.signs[codes[~held]], run)
            found = problem(features[held]).losses(features[held] @ planes.T).argmin(axis=1)
            errors[space] += int((found != codes[held]).sum())
    return errors
