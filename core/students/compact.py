"""Compact students, with few landmarks of their own instead of the teacher's features: hyper-parameters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from core.errors import Fault, InvalidProblem
from core.parameters import Doc, Ge, Gt, Le, check_parameters
from core.students.base import HeldOutScorer, MetadataValue, Need, Selection, StudentSpec
from core.students.gated import GSVM

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.run import Run
    from core.students.base import Problem
    from core.students.compact_student import CompactStudent

MAX_LANDMARKS = 1000
DEFAULT_LANDMARKS = 100
SIZES = (12, 25, 50, 100, 200, 400)
"""Numbers of landmarks tried, rising, for a budget of F."""


@dataclass(frozen=True, slots=True)
class Compact(StudentSpec):
    """Students with few landmarks of their own, cheaper to ask than the teacher's features; dense rows only.

    It distils the teacher's score, so that it needs no teacher that is linear in the features. Difficulty and
    gate shape its landmarks, but nothing pulls its decision to the gate: see ``core.students.landmark_fit``.

    One budget at most; without any it is 100 landmarks. reference: the full student that ``max_f1_loss``
    compares with. Raises InvalidProblem naming every wrong field.
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
        from core.students.compact_student import KernelRows

        KernelRows.shared(examples, run)

    def fit(self, problem: Problem, run: Run) -> CompactStudent:
        """Fit with the landmarks that the budget allows. run: reports stage ``"student"`` in steps."""
        from core.students.compact_student import fit_compact

        return fit_compact(self, problem, self.affordable(problem), run)

    def affordable(self, problem: Problem) -> int:
        """Landmarks that the number or the relative cost allows. Raises InvalidProblem if it is none."""
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
        """Whether the number of landmarks is chosen by held-out F."""
        return self.max_f1_loss is not None

    def select(self, scorer: HeldOutScorer, run: Run) -> Selection | None:
        """The first size whose F is near enough to the full student's; if none is, the one with the best F.

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
    """F in [0, 1] on the held-out folds with so many landmarks."""

    n_landmarks: int
    f1: float


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """How the number of landmarks was chosen by F.

    full_f1: F of the full student on the same folds. points: sizes tried, rising.
    met: whether the last of them is within the budget; if not, the size with the best F was taken.
    n_landmarks: the size taken. max_f1_loss: the budget.
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
