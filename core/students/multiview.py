"""Hyper-parameters of students that optimise a performance measure; ``multiview_fit`` has the fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.students.base import MetadataValue, Need, StudentSpec
from core.students.grid import grid_of

if TYPE_CHECKING:
    from core.run import Run
    from core.students.base import Problem
    from core.students.multiview_fit import MultiViewStudent

CONSISTENCIES = (0.0, 0.01, 1.0)
"""Values of κ that a search tries."""


@dataclass(frozen=True, slots=True)
class MultiView(StudentSpec):
    """One linear function for each view of the columns; their sum optimises a measure of all rows together.

        min_w ½ Σ_j ‖w_j‖² + C (ξ + κ/(2n) Σ_i Σ_{j<j'} (w_j·x_i^j − w_j'·x_i^j')²)

    ξ bounds 1 minus the measure of the training rows from above (Wang, Multi-view learning for multivariate
    performance measures optimization; Joachims 2005). The views are those of the data set, each with a
    constant of its own; columns outside of them are not used, and without views all columns are one. With
    one view and the error rate it is an ordinary linear SVM. It has no gate and takes nothing of the teacher:
    the teacher is not linear in a single view. The bound of F1 is loose, and those of PRBEP and at k know no
    cut: 0 is then set where the measure of the training rows is best (``best_cut``).
    Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "multiview"
    needs: ClassVar[frozenset[Need]] = frozenset({"dense"})

    measure: Annotated[
        Literal["error", "f1", "prbep", "precision_at_k", "recall_at_k", "roc_area"],
        Doc("What is optimised; prbep is the precision where it equals the recall."),
    ] = "f1"
    k: Annotated[
        float | None,
        Gt(0),
        Le(1000),
        Doc("Of precision and recall at k: k over the number of rows of the class; null: 0.5 and 2."),
    ] = None
    C: Annotated[float, Ge(1e-6), Le(1e8), Doc("Weight of the bound of the measure's loss.")] = 1e3
    consistency: Annotated[
        float, Ge(0), Le(1e6), Doc("κ: penalty of views whose functions differ on a row; 0 without one.")
    ] = 0.01
    tolerance: Annotated[float, Gt(0), Lt(1), Doc("Stop when the duality gap is below this share of C.")] = (
        1e-3
    )
    max_iterations: Annotated[int, Ge(1), Le(100_000), Doc("At most this many rounds of cuts.")] = 500

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    def fit(self, problem: Problem, run: Run) -> MultiViewStudent:
        """Minimise the objective above. Raises InvalidProblem, Cancelled."""
        from core.students.multiview_fit import fit_multiview

        return fit_multiview(self, problem, run)

    def grid(self, choice: Any) -> tuple[Self, ...]:
        """κ of ``CONSISTENCIES`` times the values of C of a ``Grid``, or of the one named, C rising first."""
        points = product(CONSISTENCIES, grid_of(choice).C)
        return tuple(replace(self, C=C, consistency=consistency) for consistency, C in points)

    def accepted(self, positives: int, n: int) -> int:
        """k as a number of rows, for so many positive ones among n."""
        share = self.k or (0.5 if self.measure == "precision_at_k" else 2.0)
        return min(max(1, round(share * positives)), n)

    def params(self) -> dict[str, Any]:
        """Measure, k, C and κ."""
        return {"measure": self.measure, "k": self.k, "C": self.C, "consistency": self.consistency}

    def metadata(self) -> dict[str, MetadataValue]:
        """The fields that the decision depends on."""
        values = {name: value for name, value in self.params().items() if value is not None}
        return values | {"tolerance": self.tolerance}
