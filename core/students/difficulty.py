"""How hard each example is for the teacher: Algorithm 1 of You et al. (AAAI 2018), Eq. (9) to (11).

For a target class y, with S₁ ≥ S₂ the two largest of an example's K scores, z = ±1 the truth ("is it y?") and
ẑ = ±1 the teacher's answer (+1 iff argmax S = y, the first of equal scores winning):

    r = S₂ if ẑ = +1, S₁ if ẑ = −1                                      Table 1
    δ = (S^y − r) / (z |S^y|)                                           Eq. (9)
    d = clip((ϵ − 1)/2 · δ + (ϵ + 1)/2, ϵ, 1)                           Eq. (11)

Only δ clipped to [−1, 1] is used. It is computed as clip(z (S^y − r), ±|S^y|) / |S^y|, which stays exact
however small |S^y| is; for S^y = 0 it is the limit, the sign of z (S^y − r).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.data.validation import not_whole, out_of_bounds, refuse
from core.errors import Fault, InvalidProblem
from core.types import BoolArray, FloatArray, IntArray

_BLOCK_ENTRIES = 1 << 20  # np.partition copies its input: one block of rows at a time


@dataclass(frozen=True, slots=True)
class ScoreRanks:
    """The two largest scores of every example, computed once for all classes.

    first, second: S₁ and S₂, shape (n,); equal where the two top classes tie.
    predicted: code of the first class that reaches S₁, shape (n,).
    """

    first: FloatArray
    second: FloatArray
    predicted: IntArray

    @classmethod
    def of(cls, scores: FloatArray) -> ScoreRanks:
        """Ranks of a score matrix (n, K). Raises InvalidProblem unless K >= 2 and every score is finite."""
        if scores.ndim != 2 or scores.shape[1] < 2:
            raise InvalidProblem(
                Fault("scores", "wrong_shape", f"scores must be (n, K) with K >= 2, got shape {scores.shape}")
            )
        if not np.isfinite(scores).all():
            row, column = np.argwhere(~np.isfinite(scores))[0]
            message = f"scores must be finite; row {row}, column {column} is not"
            raise InvalidProblem(Fault("scores", "not_finite", message, int(row), int(column)))
        n, K = scores.shape
        top = np.empty((n, 2), dtype=scores.dtype)
        step = max(1, _BLOCK_ENTRIES // K)
        for start in range(0, n, step):
            rows = slice(start, start + step)
            top[rows] = np.partition(scores[rows], K - 2, axis=1)[:, K - 2 :]
        return cls(first=top[:, 1].copy(), second=top[:, 0].copy(), predicted=scores.argmax(axis=1))

    def rival(self, target: int) -> FloatArray:
        """r, shape (n,): the largest score among the classes other than ``target``."""
        return np.where(self.predicted == target, self.second, self.first)


def difficulty_degrees(
    scores: FloatArray, labels: IntArray, target: int, *, floor: float = 0.3, ranks: ScoreRanks | None = None
) -> FloatArray:
    """Difficulty degree d of every example for one target class, shape (n,), in [floor, 1].

    scores: the teacher's scores S, (n, K). labels: true class codes, (n,). target: class code y.
    floor: ϵ in (0, 1]; the paper also allows 0, which is refused here because it makes loss weights 1/d
    infinite.
    ranks: ``ScoreRanks.of(scores)``, if the caller has computed it.

    Raises InvalidProblem.
    """
    ranks = ScoreRanks.of(scores) if ranks is None else ranks
    n, K = scores.shape
    refuse(
        out_of_bounds("floor", floor, 0.0, 1.0, open_low=True),
        not_whole("target", target, 0, K - 1),
        None
        if labels.shape == (n,)
        else Fault("labels", "wrong_shape", f"labels must have shape ({n},), got {labels.shape}"),
    )
    return degrees_of_class(scores[:, target], labels == target, ranks.rival(target), floor)


def class_weights(positive: BoolArray, exponent: float) -> FloatArray:
    """b, (n,): weight of each example's loss: (n₋/n₊)^β for examples of the class, 1 for the others.

    positive: truth, (n,). exponent: β in [0, 1]. All weights are 1 if all or no examples are of the class.
    """
    members = int(positive.sum())
    others = len(positive) - members
    weight = (others / members) ** exponent if members and others else 1.0
    return np.where(positive, weight, 1.0)


def degrees_of_class(gate: FloatArray, positive: BoolArray, rival: FloatArray, floor: float) -> FloatArray:
    """``difficulty_degrees`` from the scores of one class S^y (n,), its truth (n,) and r (n,)."""
    truth = np.where(positive, 1.0, -1.0)
    own = gate.astype(np.float64)
    size = np.abs(own)
    difference = truth * (own - rival)
    delta = np.sign(difference)
    np.divide(np.clip(difference, -size, size), size, out=delta, where=size > 0.0)
    return np.clip((floor - 1.0) / 2.0 * delta + (floor + 1.0) / 2.0, floor, 1.0)
