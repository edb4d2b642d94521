"""Copies of a teacher that is linear in the features: they compare its score of a class with its rivals'.

The student of class y answers yes where S^y ≥ S^j for its p nearest rivals j and S^y ≥ t, that is where

    min( min_j (w_y − w_j)·φ, w_y·φ − t ) ≥ 0.

With all K − 1 rivals, and t below all scores, this is the teacher's own answer. With fewer rivals, t rejects
rows in place of the missing rivals. Nothing is trained: rivals and t follow from the teacher's held-out
scores.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import numpy as np

from core.encoding.rules import BYTES_OF_STUDENTS
from core.errors import Fault, InvalidProblem
from core.packed import LinearForm, PolytopeForm
from core.parameters import Doc, Ge, Le, check_parameters
from core.students.base import TIE, Decision, MetadataValue, Need, Student, StudentSpec, folded

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.features.maps import FeatureMap
    from core.run import Run
    from core.solvers.solution import Summary
    from core.students.base import Problem
    from core.types import BoolArray, FloatArray

_FEWEST: Final = 4
_NEAR_ROWS: Final = 50
"""Rivals are chosen on at least this many rows of other classes, and on three times the rows of the class."""


@dataclass(frozen=True, slots=True)
class Rivals(StudentSpec):
    """What a linear teacher says of one class and its nearest rivals, with exactly the same scores.

    It answers yes where S^y is at least the score of each rival and a threshold t, which rejects in place of
    the other classes. Both follow from the teacher's held-out scores: the rivals are those that reject most
    rows of other classes, and t has the largest F that is expected of the rows that the rivals leave. Of two
    classes there is t alone. Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "rivals"
    needs: ClassVar[frozenset[Need]] = frozenset({"held_out"})
    copies_teacher: ClassVar[bool] = True

    rivals: Annotated[
        int | None,
        Ge(0),
        Le(64),
        Doc(
            "p, the number of rivals, at most one for each other class. null: as many, at least 4,"
            " as the students of all classes have in 192 MiB."
        ),
    ] = None

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    def fit(self, problem: Problem, run: Run) -> RivalStudent:
        """Choose rivals and threshold. Raises InvalidProblem for a teacher without linear scores."""
        del run
        return copy_scores(self, problem)

    def metadata(self) -> dict[str, MetadataValue]:
        """Empty: the fitted student reports its number of rivals."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class RivalStudent(Student):
    """Scores min_i (S_i − t_i), where each S_i is a difference of teacher scores or the score of the class.

    target: code of the class. rivals: their codes, (p,), for the first p functions. own: t; None if no
    function is the score of the class. decisions: weights of the functions, (q, m); shifts: their constants,
    (q,). gate_weights: w_y, (m,).
    """

    target: int
    rivals: tuple[int, ...]
    own: float | None
    decisions: FloatArray
    shifts: FloatArray
    gate_weights: FloatArray
    feature_map: FeatureMap | None
    summary: Summary

    def scores(self, examples: Examples) -> FloatArray:
        """min_i (v_i·φ + shift_i), (n,)."""
        from core.run import Run
        from core.solvers.products import matvec

        values: FloatArray = (matvec(examples.features, self.decisions, Run()) + self.shifts).min(axis=1)
        return values

    def of_teacher(self, scores: FloatArray) -> FloatArray:
        """The same scores computed from the teacher's scores, (n, K); NaN where these are NaN."""
        return _least(scores, self.target, self.rivals, self.own)

    @property
    def expects_f1(self) -> bool:
        """True: this rule chooses t, unless the rivals leave no row of another class."""
        return True

    def pack(self) -> Decision:
        """All functions and the gate folded into the basis of the feature map."""
        basis, coef, intercept, gate = folded(self.feature_map, self.decisions, self.gate_weights)
        shifted = intercept + self.shifts
        if len(shifted) == 1:
            return Decision(basis, LinearForm(coef[0], float(shifted[0]), *gate))
        return Decision(basis, PolytopeForm(coef, shifted, *gate))

    def rival_codes(self) -> tuple[int, ...]:
        """The codes of the rivals."""
        return self.rivals

    def metadata(self) -> dict[str, MetadataValue]:
        """Number of rivals."""
        return {"rivals": len(self.rivals)}

    def facts(self) -> dict[str, Any]:
        """Number of rivals, and t."""
        return {"rivals": len(self.rivals), "least_score": self.own}


def copy_scores(spec: Rivals, problem: Problem) -> RivalStudent:
    """The student of ``problem``. Raises InvalidProblem for a teacher without linear or held-out scores."""
    from core.solvers.solution import Summary
    from core.students.sigmoid import largest_expected_f1

    started = time.perf_counter()
    weights, held_out = problem.class_weights, problem.held_out
    if weights is None or held_out is None or problem.is_distilled:
        message = f"students of kind {spec.name} need a teacher whose scores are linear in the features"
        raise InvalidProblem(Fault("teacher", "not_linear", message))
    target = int(problem.codes[problem.positive.argmax()])
    known = ~np.isnan(held_out[:, target])
    scores, truth = held_out[known], problem.positive[known]
    rivals = rejecting_rivals(scores, truth, target, _number(spec, *weights.shape))
    passes = _least(scores, target, rivals, None) >= 0.0
    own: float | None = None
    if truth[passes].any() and not truth[passes].all():
        own = largest_expected_f1(truth[passes], scores[passes, target])
    if own is None and not rivals:
        own = 0.0
    faces = [weights[target] - weights[rival] for rival in rivals]
    shifts = [TIE if rival < target else 0.0 for rival in rivals]
    if own is not None:
        faces.append(weights[target])
        shifts.append(-own)
    return RivalStudent(
        target=target,
        rivals=rivals,
        own=own,
        decisions=np.stack(faces),
        shifts=np.array(shifts),
        gate_weights=weights[target],
        feature_map=problem.examples.feature_map,
        summary=Summary(0.0, None, None, 0, time.perf_counter() - started, None),
    )


def _number(spec: Rivals, n_classes: int, n_features: int) -> int:
    """The number of rivals of each student."""
    if n_classes == 2:
        return 0
    fitting = max(_FEWEST, BYTES_OF_STUDENTS // (4 * n_classes * n_features) - 1)
    return min(fitting if spec.rivals is None else spec.rivals, n_classes - 1)


def _least(scores: FloatArray, target: int, rivals: tuple[int, ...], own: float | None) -> FloatArray:
    """The smallest margin of a class over its rivals and over ``own``, (n,), from scores (n, K)."""
    score = scores[:, target]
    margins: list[FloatArray] = [
        score - scores[:, rival] + (TIE if rival < target else 0.0) for rival in rivals
    ]
    if own is not None:
        margins.append(score - own)
    least: FloatArray = np.min(margins, axis=0) if margins else np.zeros(len(score))
    return least


def rejecting_rivals(scores: FloatArray, truth: BoolArray, target: int, p: int) -> tuple[int, ...]:
    """Codes of p rivals; each rejects the most rows of those that the rivals before it accept.

    Only the rows of other classes with the largest scores of the class are used. If several rivals reject the
    same number of rows, the one whose scores exceed those of the class by more is taken; once all rows are
    rejected, this alone decides.

    scores: held-out scores, (n, K). truth: whether a row is of the class, (n,).
    """
    others = np.flatnonzero(~truth)
    size = min(len(others), max(_NEAR_ROWS, 3 * int(np.count_nonzero(truth))))
    if not size or not p:
        return ()
    order = np.argsort(-scores[others, target], kind="stable")[:size]
    excess = scores[others[order]] - scores[others[order], target][:, None]
    weight = np.maximum(excess, 0.0).sum(axis=0)
    weight /= 1.0 + weight.max()
    left, chosen = excess > 0.0, [target]
    for _ in range(p):
        gain = np.count_nonzero(left, axis=0) + weight
        gain[chosen] = -1.0
        rival = int(gain.argmax())
        chosen.append(rival)
        left = left[~left[:, rival]]
    return tuple(chosen[1:])
