"""The gated SVMs (You et al., AAAI 2018) and their baseline."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np

from core.errors import Fault, InvalidProblem
from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.students.base import MetadataValue, Need, StudentSpec
from core.students.grid import Grid, Point, grid_of

if TYPE_CHECKING:
    from core.run import Run
    from core.solvers.gated_hinge import GatedHingeProblem
    from core.solvers.solution import Solution
    from core.students.base import Budget, Fold, FoldResult, Problem
    from core.students.linear import LinearStudent

Method: TypeAlias = Literal["gsvm", "gsvm0", "svm"]
Solver: TypeAlias = Literal["dual_cd", "mm_irls"]


@dataclass(frozen=True, slots=True)
class GatedSpec(StudentSpec):
    """What the gated SVMs and their baseline share. Raises InvalidProblem naming every wrong field."""

    C: Annotated[float, Ge(1e-6), Le(1e8), Doc("Loss weight; the loss of one example weighs C/(n d).")] = 1e5
    margin: Annotated[float, Ge(0), Le(100), Doc("ε of Eq. 6: how far past the gate is wanted.")] = 1.0
    difficulty_floor: Annotated[
        float, Gt(0), Le(1), Doc("ϵ of Eq. 11: the difficulty of the easiest examples; gsvm only.")
    ] = 0.3
    balance: Annotated[
        float,
        Ge(0),
        Le(1),
        Doc(
            "β: loss of an example of the class weighs (n₋/n₊)^β as much as that of another; 1 balances both."
        ),
    ] = 0.0
    solver: Annotated[Solver, Doc("Dual coordinate descent, or the paper's MM/IRLS (Algorithm 2).")] = (
        "dual_cd"
    )
    tolerance: Annotated[float, Gt(0), Lt(1), Doc("Stop at this relative duality gap.")] = 1e-3
    max_epochs: Annotated[
        int, Ge(1), Le(100_000), Doc("At most this many passes (dual_cd) or iterations (mm_irls).")
    ] = 2000

    uses_gate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    @property
    @abstractmethod
    def point(self) -> Point:
        """(C, ε, ϵ, β) as the method uses them; ϵ = 1 makes every difficulty 1."""

    def fit(self, problem: Problem, run: Run) -> LinearStudent:
        """Fit Eq. (12):

            min_θ ½‖θ‖² + (C/n) Σ_i b_i d_i⁻¹ [ε + z_i θ·φ_i − z_i S_i]_+

        with d = 1 for gSVM-0, Eq. (8), and with S = 0 and ε = 1 for the SVM. b is 1 in the paper; here it is
        (n₋/n₊)^β for examples of the class.

        The decision S^y >= θ·φ of Eq. (4) is v·φ >= 0 with v = w_y − θ, as the teacher is linear in the same
        features. Raises InvalidProblem, Cancelled.
        """
        from core.solvers.gated_hinge import GatedHingeProblem
        from core.students.difficulty import class_weights
        from core.students.linear import LinearStudent

        C, margin, floor, balance = self.point
        examples = problem.examples
        weights = class_weights(problem.positive, balance) if balance else None
        if not self.uses_gate:
            difficulty = None if weights is None else 1.0 / weights
            hinge = GatedHingeProblem.svm(examples.features, problem.signs, C=C, difficulty=difficulty)
            solution = self._solve(hinge, run)
            zeros = np.zeros_like(solution.value)
            return LinearStudent(-solution.value, zeros, solution, examples.feature_map)
        if problem.gate_weights is None:
            message = f"{self.name} needs a teacher whose scores are linear in the features"
            raise InvalidProblem(Fault("teacher", "no_gate", message))
        difficulty = None if floor == 1.0 else problem.difficulty(floor)
        if weights is not None:
            difficulty = 1.0 / weights if difficulty is None else difficulty / weights
        gated = GatedHingeProblem.gated(
            examples.features,
            problem.signs,
            problem.linear_gate,
            C=C,
            margin=margin,
            difficulty=difficulty,
        )
        solution = self._solve(gated, run)
        decision = problem.gate_weights - solution.value
        return LinearStudent(decision, problem.gate_weights, solution, examples.feature_map)

    def _solve(self, problem: GatedHingeProblem, run: Run) -> Solution:
        from core.solvers.dual_cd import solve_dual_cd
        from core.solvers.mm_irls import solve_mm_irls

        if self.solver == "mm_irls":
            return solve_mm_irls(problem, tolerance=self.tolerance, max_iterations=self.max_epochs, run=run)
        return solve_dual_cd(problem, tolerance=self.tolerance, max_epochs=self.max_epochs, run=run)

    def grid(self, choice: Any) -> tuple[Self, ...]:
        """The points of a ``Grid`` or of a named grid that differ for this method, C rising first."""
        grid = grid_of(choice)
        return tuple(
            replace(self, C=C, margin=margin, difficulty_floor=floor, balance=balance)
            for C, margin, floor, balance in product(
                grid.C, self._margins(grid), self._floors(grid), grid.balances or (self.balance,)
            )
        )

    @classmethod
    def walk(cls, specs: Sequence[Self], fold: Fold, budget: Budget, run: Run) -> FoldResult:
        """Fit the points one after another, each starting from the solution of its neighbour."""
        from core.students.path import FoldPath

        path = FoldPath(fold, run, uses_gate=cls.uses_gate)
        return path.walk([spec.point for spec in specs], budget)

    def params(self) -> dict[str, Any]:
        """C, ε and ϵ, and β if it is not 0."""
        balance = {"balance": self.balance} if self.balance else {}
        return {"C": self.C, "margin": self.margin, "floor": self.difficulty_floor, **balance}

    def metadata(self) -> dict[str, MetadataValue]:
        """All fields; ϵ has the name ``floor``, and β is present if it is not 0."""
        return {
            "C": float(self.C),
            "margin": float(self.margin),
            "floor": float(self.difficulty_floor),
            **({"balance": float(self.balance)} if self.balance else {}),
            "solver": self.solver,
            "tolerance": float(self.tolerance),
            "max_epochs": int(self.max_epochs),
        }

    def _margins(self, grid: Grid) -> tuple[float, ...]:
        return grid.margins

    def _floors(self, grid: Grid) -> tuple[float, ...]:
        del grid
        return (1.0,)


@dataclass(frozen=True, slots=True)
class GSVM(GatedSpec):
    """gSVM, Eq. (12): the teacher's score is the gate, its difficulty d weighs the loss by C/(n d)."""

    name: ClassVar[str] = "gsvm"
    needs: ClassVar[frozenset[Need]] = frozenset({"gate_weights"})

    @property
    def point(self) -> Point:
        """(C, ε, ϵ, β)."""
        return Point(self.C, self.margin, self.difficulty_floor, self.balance)

    def _floors(self, grid: Grid) -> tuple[float, ...]:
        return grid.floors


@dataclass(frozen=True, slots=True)
class GSVM0(GatedSpec):
    """gSVM-0, Eq. (8): the teacher's score is the gate, all examples are equally difficult."""

    name: ClassVar[str] = "gsvm0"
    needs: ClassVar[frozenset[Need]] = frozenset({"gate_weights"})

    @property
    def point(self) -> Point:
        """(C, ε, 1, β)."""
        return Point(self.C, self.margin, 1.0, self.balance)


@dataclass(frozen=True, slots=True)
class SVM(GatedSpec):
    """The baseline without a teacher: an ordinary linear SVM of the class against the rest; ε is 1."""

    name: ClassVar[str] = "svm"
    uses_gate: ClassVar[bool] = False

    @property
    def point(self) -> Point:
        """(C, 1, 1, β)."""
        return Point(self.C, 1.0, 1.0, self.balance)

    def _margins(self, grid: Grid) -> tuple[float, ...]:
        del grid
        return (1.0,)


GATED: dict[Method, type[GatedSpec]] = {"gsvm": GSVM, "gsvm0": GSVM0, "svm": SVM}
"""The gated SVMs and their baseline, by name."""
