"""Hyper-parameters of the gated SVMs (You et al., AAAI 2018) and their baseline; ``linear`` has the fit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.students.base import MetadataValue, Need, StudentSpec
from core.students.grid import Grid, grid_of

if TYPE_CHECKING:
    from core.run import Run
    from core.students.base import Problem
    from core.students.folds import Budget, Fold, FoldResult
    from core.students.linear import LinearStudent

Method: TypeAlias = Literal["gsvm", "gsvm0", "svm"]
Solver: TypeAlias = Literal["dual_cd", "mm_irls"]


class Point(NamedTuple):
    """C; ε of Eq. (6); ϵ of Eq. (11); and β, the exponent of the class balance."""

    C: float
    margin: float
    floor: float
    balance: float


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
        """(C, ε, ϵ, β) as the method uses them: ϵ = 1 makes every difficulty 1."""

    def fit(self, problem: Problem, run: Run) -> LinearStudent:
        """Fit Eq. (12), see ``core.students.linear.fit_gated``. Raises InvalidProblem, Cancelled."""
        from core.students.linear import fit_gated

        return fit_gated(self, problem, run)

    def grid(self, choice: Any) -> tuple[Self, ...]:
        """The points of a ``Grid``, or of the one named, that differ for this method, C rising first."""
        grid = grid_of(choice)
        return tuple(
            replace(self, C=C, margin=margin, difficulty_floor=floor, balance=balance)
            for C, margin, floor, balance in product(
                grid.C, self._margins(grid), self._floors(grid), grid.balances or (self.balance,)
            )
        )

    @classmethod
    def walk(cls, specs: Sequence[Self], fold: Fold, budget: Budget, run: Run) -> FoldResult:
        """Fit the points one after another, each started from the solution of its neighbour."""
        from core.students.path import FoldPath

        return FoldPath(fold, run).walk(specs, budget)

    def params(self) -> dict[str, Any]:
        """C, ε and ϵ, and β where it is not 0."""
        balance = {"balance": self.balance} if self.balance else {}
        return {"C": self.C, "margin": self.margin, "floor": self.difficulty_floor, **balance}

    def metadata(self) -> dict[str, MetadataValue]:
        """All fields, ϵ under the name ``floor``, β where it is not 0."""
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
