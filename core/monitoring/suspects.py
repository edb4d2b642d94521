"""Rows whose labels are probably wrong, from scores that a job has anyway: those of models that have not seen
them.

Confident learning (Northcutt, Jiang and Chuang, Confident learning: estimating uncertainty in dataset labels,
JAIR 70, 2021). A row is confidently of class k if its probability p_k is at least the mean of p_k over the
rows with that label; of several such classes the one with the largest probability counts. Where that is
another class than the label, and the label is not the most probable class, the label is suspect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from core.errors import Fault, InvalidProblem
from core.model_selection.calibration import fit_calibration
from core.students.difficulty import ScoreRanks
from core.types import FloatArray, IntArray

MOST: Final = 10_000
"""Suspects that are kept of a job."""
_ROUNDING: Final = 1e-6
"""Of a mean of equal probabilities."""


@dataclass(frozen=True, slots=True, eq=False)
class Suspects:
    """Rows with suspect labels, the most suspect first: by the probability of their own label. All (s,).

    rows: their numbers. labels: the class codes that they have. suggested: those that they confidently are
    of. of_label, of_suggested: the probabilities of both, in [0, 1].
    """

    rows: IntArray
    labels: IntArray
    suggested: IntArray
    of_label: FloatArray
    of_suggested: FloatArray

    def as_dicts(self, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """JSON-ready, one a row, with the names of the classes (K,)."""
        columns = (self.rows, self.labels, self.suggested, self.of_label, self.of_suggested)
        return [
            {
                "row": row,
                "label": classes[label],
                "suggested": classes[suggested],
                "probability_of_label": own,
                "probability_of_suggested": other,
            }
            for row, label, suggested, own, other in zip(*(one.tolist() for one in columns), strict=True)
        ]


def class_probabilities(labels: IntArray, scores: FloatArray) -> FloatArray:
    """Probabilities of all classes, (n, K), rows of which sum to 1, from held-out scores (n, K).

    labels: class codes, (n,). scores: NaN in rows that have none, as ``Preparation.held_out`` has them; so
    are their probabilities. Of each class a sigmoid is fitted to the margin over the best other class. A
    class without a row that has scores has the probability 0.

    Raises InvalidProblem for wrong shapes and where no row has scores.
    """
    _check(labels, scores, "scores")
    has_scores = ~np.isnan(scores).any(axis=1)
    known, codes = scores[has_scores], labels[has_scores]
    if not len(codes):
        raise InvalidProblem(Fault("scores", "empty", "no row has held-out scores"))
    ranks = ScoreRanks.of(known)
    probabilities = np.zeros(known.shape)
    for k in range(known.shape[1]):
        truth, margin = codes == k, known[:, k] - ranks.rival(k)
        if truth.all():
            probabilities[:, k] = 1.0
        elif truth.any():
            probabilities[:, k] = fit_calibration(truth, margin).probabilities(margin)
    found = np.full(scores.shape, np.nan)
    found[has_scores] = probabilities / np.maximum(probabilities.sum(axis=1, keepdims=True), 1e-300)
    return found


def suspect_labels(labels: IntArray, probabilities: FloatArray, most: int = MOST) -> Suspects:
    """The ``most`` most suspect rows, by labels (n,) and held-out probabilities of the classes (n, K).

    Rows with NaN are left out. Raises InvalidProblem for wrong shapes.
    """
    _check(labels, probabilities, "probabilities")
    rows = np.flatnonzero(~np.isnan(probabilities).any(axis=1))
    p, own = probabilities[rows], labels[rows]
    of_label = p[np.arange(len(rows)), own]
    counts = np.bincount(own, minlength=p.shape[1])
    sums = np.bincount(own, weights=of_label, minlength=p.shape[1])
    means = np.divide(sums, counts, out=np.full(len(counts), np.inf), where=counts > 0)
    confident = p >= means - _ROUNDING
    suggested = np.where(confident, p, -1.0).argmax(axis=1)
    is_suspect = confident.any(axis=1) & (suggested != own) & (p.argmax(axis=1) != own)
    chosen = np.flatnonzero(is_suspect)
    chosen = chosen[np.argsort(of_label[chosen], kind="stable")][:most]
    codes = suggested[chosen]
    return Suspects(rows[chosen], own[chosen], codes, of_label[chosen], p[chosen, codes])


def _check(labels: IntArray, values: FloatArray, name: str) -> None:
    if not (labels.ndim == 1 and values.ndim == 2 and len(labels) == len(values)):
        message = f"labels (n,) and {name} (n, K) are needed, got shapes {labels.shape} and {values.shape}"
        raise InvalidProblem(Fault(name, "wrong_shape", message))
    if len(labels) and not 0 <= labels.min() <= labels.max() < values.shape[1]:
        raise InvalidProblem(Fault("labels", "unknown_class", "labels must be class codes from 0 to K − 1"))
