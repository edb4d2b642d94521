"""Compact students, which have a few landmarks of their own instead of the teacher's features.

This module has the hyper-parameters, and the decision on raw columns. ``core.students.landmark_fit`` has the
gradient descent, which works on scaled rows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from core.data.validation import row_blocks
from core.errors import Fault, InvalidProblem
from core.packed import LinearForm, PackedStudent, RbfBasis
from core.parameters import Doc, Ge, Gt, Le, check_parameters
from core.students.base import Decision, HeldOutScorer, MetadataValue, Need, Selection, Student, StudentSpec
from core.students.cost import query_cost
from core.students.gated import GSVM

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.run import Run
    from core.solvers.solution import Summary
    from core.students.base import Problem
    from core.students.landmark_fit import FittedNetwork, Floats, Singles
    from core.types import FloatArray

MAX_LANDMARKS = 1000
DEFAULT_LANDMARKS = 100
SIZES = (12, 25, 50, 100, 200, 400)
"""Numbers of landmarks to try, rising, if the budget is a loss of F."""


@dataclass(frozen=True, slots=True)
class Compact(StudentSpec):
    """Students with few landmarks of their own, cheaper to ask than the teacher's features; dense rows only.

    It distils the teacher's score, so it needs no teacher that is linear in the features. Difficulty and
    gate influence its landmarks, but its decision is not regularised towards the gate: see
    ``core.students.landmark_fit``.

    At most one budget may be set; without any, it is 100 landmarks. reference: the full student that
    ``max_f1_loss`` compares with. Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "compact"
    needs: ClassVar[frozenset[Need]] = frozenset({"dense"})

    n_landmarks: Annotated[
        int | None, Ge(1), Le(MAX_LANDMARKS), Doc("Budget: this many landmarks a student.")
    ] = None
    relative_cost: Annotated[
        float | None, Gt(0), Le(1), Doc("Budget: the cost of a query as a share of the teacher's.")
    ] = None
    max_f1_loss: Annotated[
        float | None,
        Ge(0),
        Le(100),
        Doc("Budget: the fewest landmarks at most so many points of held-out F below the full student's."),
    ] = None
    difficulty_floor: Annotated[
        float, Gt(0), Le(1), Doc("ϵ of Eq. 11: the difficulty of the easiest examples; 1 makes all equal.")
    ] = 0.3
    gate_weight: Annotated[
        float, Ge(0), Le(1e3), Doc("μ: weight of the distillation of the gate beside the loss.")
    ] = 0.02
    jitter: Annotated[
        float | None,
        Ge(0),
        Le(1e3),
        Doc(
            "σ: noise on each column, as a multiple of the distance between neighbours. null: 0.8; small sets"
            " choose 0.8 or 1.6 on held-out rows."
        ),
    ] = None
    steps: Annotated[
        int, Ge(1), Le(1_000_000), Doc("Steps of the descent at most; it ends early without losses.")
    ] = 3000
    reference: StudentSpec = field(default_factory=GSVM)

    def __post_init__(self) -> None:
        budgets = list(self._budgets())
        message = f"only one budget may be set, not {' and '.join(budgets)}"
        too_many = Fault("compact", "two_budgets", message) if len(budgets) > 1 else None
        check_parameters(self, "compact", too_many)

    def prepare(self, examples: Examples, run: Run) -> None:
        """Scale the rows for the kernel. run: reports stage ``"compact_rows"`` in rows."""
        KernelRows.shared(examples, run)

    def fit(self, problem: Problem, run: Run) -> CompactStudent:
        """Fit with as many landmarks as the budget allows. run: reports stage ``"student"`` in steps.

        Raises InvalidProblem, Cancelled.
        """
        from core.solvers.solution import Summary
        from core.students.landmark_fit import fit_network

        started = time.perf_counter()
        examples = problem.examples
        rows = KernelRows.shared(examples, run)
        fitted = fit_network(
            rows.rows if examples.index is None else rows.rows[examples.index],
            problem.positive,
            problem.gate,
            problem.difficulty(self.difficulty_floor),
            self.affordable(problem),
            gate_weight=self.gate_weight,
            jitter=self.jitter,
            steps=self.steps,
            neighbour=rows.neighbour,
            run=run,
        )
        basis = RbfBasis(rows.shift, rows.scale * fitted.scale, fitted.landmarks)
        summary = Summary(fitted.loss, None, None, fitted.steps, time.perf_counter() - started, None)
        cost = query_cost(basis, 1) / problem.teacher_cost if problem.teacher_cost else float("nan")
        return CompactStudent(fitted, rows, cost, summary)

    def affordable(self, problem: Problem) -> int:
        """Number of landmarks that the budget allows. Raises InvalidProblem if it allows none."""
        if self.relative_cost is None:
            return DEFAULT_LANDMARKS if self.n_landmarks is None else self.n_landmarks
        per_landmark = int(problem.examples.all_X.shape[1]) + 1
        size = int(self.relative_cost * problem.teacher_cost) // per_landmark
        if size < 1:
            message = (
                f"a relative cost of {self.relative_cost:g} does not allow one landmark:"
                f" the least is {per_landmark / problem.teacher_cost:.3g}"
            )
            raise InvalidProblem(Fault("compact.relative_cost", "too_small", message))
        return min(size, MAX_LANDMARKS)

    @property
    def selects(self) -> bool:
        """Whether held-out F chooses the number of landmarks."""
        return self.max_f1_loss is not None

    def select(self, scorer: HeldOutScorer, run: Run) -> Selection | None:
        """The first size whose F is close enough to the full student's; otherwise the size with the best F.

        run: reports stage ``"sizes"`` in sizes tried. Raises InvalidProblem, Cancelled.
        """
        if self.max_f1_loss is None:
            return None
        sizes = [size for size in SIZES if size <= scorer.n_rows] or [scorer.n_rows]
        run.report("sizes", 0, len(sizes))
        full = scorer.f1(scorer.scores(self.reference))
        tried, met = [], False
        for done, size in enumerate(sizes, 1):
            spec = replace(self, n_landmarks=size, max_f1_loss=None)
            scores = scorer.scores(spec)
            tried.append((spec, SizePoint(size, scorer.f1(scores)), scores))
            run.report("sizes", done, len(sizes))
            met = tried[-1][1].f1 >= full - self.max_f1_loss / 100.0
            if met:
                break
        spec, best, scores = tried[-1] if met else max(tried, key=lambda one: one[1].f1)
        choice = SizeChoice(
            full, tuple(point for _, point, _ in tried), met, best.n_landmarks, self.max_f1_loss
        )
        return Selection(spec, scores, choice)

    def metadata(self) -> dict[str, MetadataValue]:
        """Budget and hyper-parameters."""
        return {
            **{f"budget_{name}": value for name, value in self._budgets().items()},
            "floor": float(self.difficulty_floor),
            "gate_weight": float(self.gate_weight),
            "steps": int(self.steps),
        }

    def _budgets(self) -> dict[str, float]:
        names = ("n_landmarks", "relative_cost", "max_f1_loss")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True, slots=True)
class SizePoint:
    """F in [0, 1] on the held-out folds with this number of landmarks."""

    n_landmarks: int
    f1: float


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """How the number of landmarks was chosen by F.

    full_f1: F of the full student on the same folds. points: sizes that were tried, rising.
    met: whether the last of them is within the budget; if not, the size with the best F was taken.
    n_landmarks: the chosen size. max_f1_loss: the budget.
    """

    full_f1: float
    points: tuple[SizePoint, ...]
    met: bool
    n_landmarks: int
    max_f1_loss: float

    def summary(self) -> dict[str, Any]:
        """F of the choice and of the full student, whether the budget is met, and the number of points."""
        score = next(point.f1 for point in self.points if point.n_landmarks == self.n_landmarks)
        return {"score": score, "full_score": self.full_f1, "met": self.met, "points": len(self.points)}

    def trace(self) -> list[dict[str, Any]]:
        """All points, JSON-ready."""
        return [{"n_landmarks": point.n_landmarks, "f1": point.f1} for point in self.points]

    def metadata(self) -> dict[str, MetadataValue]:
        """The budget."""
        return {"budget_max_f1_loss": self.max_f1_loss}


@dataclass(frozen=True, slots=True, eq=False)
class KernelRows:
    """All rows, scaled for the kernel.

    shift, scale: (d,), x' = (x − shift)·scale; scale includes the kernel's √γ. γ and scaling are those of the
    teacher's features; for linear features γ is that of ``scale_rule``.
    rows: x' of the rows, (N, d) float32. neighbour: their ``neighbour_distance``.
    """

    shift: Floats
    scale: Floats
    rows: Singles
    neighbour: float

    @classmethod
    def shared(cls, examples: Examples, run: Run) -> KernelRows:
        """The scaled rows, computed once for all classes. run: reports stage ``"compact_rows"`` in rows.

        Raises InvalidProblem for sparse rows, Cancelled.
        """
        return examples.shared.get("compact_rows", lambda: cls._of(examples, run))

    @classmethod
    def _of(cls, examples: Examples, run: Run) -> KernelRows:
        from core.features.base import kernel_standardisation
        from core.solvers.threads import one_blas_thread
        from core.students.landmark_fit import neighbour_distance

        X, spec = examples.all_X, examples.feature_spec
        if not isinstance(X, np.ndarray) or spec is None:
            message = "compact students need dense raw rows: their landmarks are dense"
            raise InvalidProblem(Fault("X", "sparse", message))
        n, d = X.shape
        run.report("compact_rows", 0, n)
        centred, gamma = kernel_standardisation(X, spec)
        scale = np.sqrt(gamma) * centred.scale
        rows = np.empty(X.shape, dtype=np.float32)
        for block in row_blocks(n, d):
            run.check_cancel()
            rows[block] = (X[block] - centred.shift) * scale
            run.report("compact_rows", block.stop, n)
        with one_blas_thread():
            neighbour = neighbour_distance(rows, run)
        return cls(centred.shift, scale, rows, neighbour)


@dataclass(frozen=True, slots=True, eq=False)
class CompactStudent(Student):
    """A compact student.

    fitted: the decision on scaled rows. rows: how rows are scaled. relative_cost: multiplications of its
    query divided by those of the teacher's query.
    """

    fitted: FittedNetwork
    rows: KernelRows
    relative_cost: float
    summary: Summary

    @property
    def n_landmarks(self) -> int:
        """p, the number of kernel values in a query."""
        return len(self.fitted.landmarks)

    def scores(self, examples: Examples) -> FloatArray:
        """Scores of raw rows (n, d), shape (n,)."""
        from core.solvers.threads import one_blas_thread

        decision = self.pack()
        packed = PackedStudent(decision.map, decision.form, threshold=0.0, label="")
        with one_blas_thread():
            return packed.scores(examples.X)

    def pack(self) -> Decision:
        """The decision on raw rows: the column scales are folded into the standardisation."""
        fitted, rows = self.fitted, self.rows
        basis = RbfBasis(rows.shift, rows.scale * fitted.scale, fitted.landmarks)
        form = LinearForm(fitted.coef, fitted.intercept, fitted.gate_coef, fitted.gate_intercept)
        return Decision(basis, form)

    def metadata(self) -> dict[str, MetadataValue]:
        """Landmarks, jitter, how the descent ended, loss, and how well the gate follows the teacher."""
        fitted = self.fitted
        return {
            "n_landmarks": self.n_landmarks,
            "jitter": float(fitted.jitter),
            "descent_steps": fitted.steps,
            "descent_ended": "settled" if fitted.settled else "steps",
            "relative_gradient": fitted.relative_gradient,
            "loss": fitted.loss,
            "gate_r2": fitted.gate_r2,
        }

    def facts(self) -> dict[str, Any]:
        """Landmarks and relative cost."""
        return {"n_landmarks": self.n_landmarks, "relative_cost": self.relative_cost}
