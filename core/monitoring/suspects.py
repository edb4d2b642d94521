"""Finds rows whose labels are probably wrong, by scores of models that have not seen the rows.

A training job computes such scores anyway. The method is confident learning (Northcutt, Jiang and Chuang,
Confident learning: estimating uncertainty in dataset labels, JAIR 70, 2021). A row is confidently of class k
if its probability p_k is at least the mean of p_k over the rows with that label; among several such classes,
the one with the largest probability is taken. If that class is not the label, and the label is not the most
probable class, the label is suspect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from core.errors import Fault, InvalidPackage, InvalidProblem
from core.packed.codec import Buffer, decode, encode, take_array
from core.students.difficulty import ScoreRanks
from core.students.sigmoid import fit_sigmoid_to_bins
from core.types import BoolArray, FloatArray, IntArray

MOST: Final = 10_000
"""Largest number of suspects that are kept for a job."""
_FORMAT: Final = "stms.suspects.1"
_ROUNDING: Final = 1e-6
"""Rounding error of a mean of equal probabilities."""


@dataclass(frozen=True, slots=True, eq=False)
class Suspects:
    """Rows with suspect labels, by rising probability of their own label. All arrays are (s,).

    rows: their numbers. labels: codes of their labels. suggested: codes of the classes that they confidently
    are of. of_label, of_suggested: probabilities of both, in [0, 1]. in_test: whether the row is used to
    measure students.
    """

    rows: IntArray
    labels: IntArray
    suggested: IntArray
    of_label: FloatArray
    of_suggested: FloatArray
    in_test: BoolArray

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, wanted: BoolArray) -> Self:
        """The suspects for which ``wanted``, (s,), is true, in the same order."""
        return type(self)(**{name: getattr(self, name)[wanted] for name in _DTYPES})

    def renumbered(self, numbers: IntArray, in_test: BoolArray) -> Self:
        """The same rows with number ``numbers[i]`` for row i, which is a test row if ``in_test[i]``."""
        return replace(self, rows=numbers[self.rows], in_test=in_test[self.rows])

    def to_bytes(self) -> bytes:
        """The suspects as safetensors, 25 bytes a row."""
        arrays = {name: getattr(self, name).astype(dtype) for name, dtype in _DTYPES.items()}
        return encode({"format": _FORMAT}, arrays)

    @classmethod
    def from_bytes(cls, stored: Buffer) -> Self:
        """The suspects that ``to_bytes`` stored. Raises InvalidPackage."""
        _, arrays = decode(stored, _FORMAT)
        found = {name: take_array(arrays, name) for name in _DTYPES}
        if len({one.shape for one in found.values()}) != 1 or found["rows"].ndim != 1:
            raise InvalidPackage("The package has columns of suspects that differ in length.")
        return cls(**found | {"in_test": found["in_test"].astype(bool)})

    def as_dicts(self, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """JSON-ready, one for each row, with the names of the K classes. Raises IndexError for another K."""
        columns = (getattr(self, name).tolist() for name in _DTYPES)
        return [
            {
                "row": row,
                "label": classes[label],
                "suggested": classes[suggested],
                "probability_of_label": own,
                "probability_of_suggested": other,
                "part": "test" if in_test else "training",
            }
            for row, label, suggested, own, other, in_test in zip(*columns, strict=True)
        ]


_DTYPES: Final = {
    "rows": np.int64,
    "labels": np.int32,
    "suggested": np.int32,
    "of_label": np.float32,
    "of_suggested": np.float32,
    "in_test": np.uint8,
}
"""The columns of `Suspects` in the order of its fields, as they are stored."""


def class_probabilities(labels: IntArray, scores: FloatArray) -> FloatArray:
    """Probabilities of all classes, (n, K), from held-out scores (n, K); each row sums to 1.

    labels: class codes, (n,). scores: NaN in rows without scores, as in ``Preparation.held_out``; their
    probabilities are NaN, too. For each class a sigmoid is fitted to the margin over the best other class. A
    class without rows that have scores has the probability 0.

    Raises InvalidProblem for wrong shapes, and if no row has scores.
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
            probabilities[:, k] = fit_sigmoid_to_bins(truth, margin).probabilities(margin)
    found = np.full(scores.shape, np.nan)
    found[has_scores] = probabilities / np.maximum(probabilities.sum(axis=1, keepdims=True), 1e-300)
    return found


def suspect_labels(labels: IntArray, probabilities: FloatArray, most: int = MOST) -> Suspects:
    """The ``most`` most suspect rows, from labels (n,) and held-out probabilities of the classes (n, K).

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
    in_test = np.zeros(len(chosen), dtype=bool)
    return Suspects(rows[chosen], own[chosen], codes, of_label[chosen], p[chosen, codes], in_test)


def _check(labels: IntArray, values: FloatArray, name: str) -> None:
    if not (labels.ndim == 1 and values.ndim == 2 and len(labels) == len(values)):
        message = f"labels (n,) and {name} (n, K) are needed, got shapes {labels.shape} and {values.shape}"
        raise InvalidProblem(Fault(name, "wrong_shape", message))
    if len(labels) and not 0 <= labels.min() <= labels.max() < values.shape[1]:
        raise InvalidProblem(Fault("labels", "unknown_class", "labels must be class codes from 0 to K − 1"))
