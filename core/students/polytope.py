"""Hyper-parameters of students with several rejections; ``core.students.polytope_fit`` has the fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.students.base import MetadataValue, Need, StudentSpec
from core.students.grid import grid_of

if TYPE_CHECKING:
    from core.run import Run
    from core.students.base import Problem
    from core.students.polytope_fit import PolytopeStudent

MAX_PIECES = 64
PIECES = (1, 2, 3, 4, 8)
"""Numbers of pieces that a search tries."""


@dataclass(frozen=True, slots=True)
class Polytope(StudentSpec):
    """A gated SVM with several rejections: it answers yes where S^y ≥ max_j θ_j·φ, j = 1 … p.

    One rejection is one hyperplane (p = 1 is gSVM). A teacher rejects by the maximum over all rivals, which
    one hyperplane cannot follow where the class lies between others; p = K − 1 can be the teacher's own
    answer on any features. A query costs p products. Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "polytope"
    needs: ClassVar[frozenset[Need]] = frozenset({"gate_weights"})

    pieces: Annotated[
        int, Ge(1), Le(MAX_PIECES), Doc("p, the number of rejections; at most one for each other class.")
    ] = 4
    C: Annotated[float, Ge(1e-6), Le(1e8), Doc("Loss weight; the loss of one example weighs C/(n d).")] = 1e4
    margin: Annotated[float, Ge(0), Le(100), Doc("ε of Eq. 6: how far past the gate is wanted.")] = 1.0
    difficulty_floor: Annotated[
        float, Gt(0), Le(1), Doc("ϵ of Eq. 11: the difficulty of the easiest examples; 1 makes all equal.")
    ] = 0.3
    rounds: Annotated[
        int, Ge(1), Le(100), Doc("At most so many assignments of the other classes' rows to rejections.")
    ] = 5
    tolerance: Annotated[float, Gt(0), Lt(1), Doc("Stop at this relative duality gap.")] = 1e-3
    max_epochs: Annotated[int, Ge(1), Le(100_000), Doc("At most this many passes for each fit.")] = 2000

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    def fit(self, problem: Problem, run: Run) -> PolytopeStudent:
        """Fit the pieces, see ``core.students.polytope_fit``. Raises InvalidProblem, Cancelled."""
        from core.students.polytope_fit import fit_polytope

        return fit_polytope(self, problem, run)

    def grid(self, choice: Any) -> tuple[Self, ...]:
        """Numbers of pieces times the values of C of a ``Grid``, or of the one named, C rising first."""
        return tuple(replace(self, pieces=pieces, C=C) for pieces, C in product(PIECES, grid_of(choice).C))

    def params(self) -> dict[str, Any]:
        """Pieces, C, ε and ϵ."""
        return {"pieces": self.pieces, "C": self.C, "margin": self.margin, "floor": self.difficulty_floor}

    def metadata(self) -> dict[str, MetadataValue]:
        """The fields that the decision depends on."""
        return {**self.params(), "rounds": self.rounds, "tolerance": self.tolerance}
