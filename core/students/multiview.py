"""Students that optimise a performance measure over several views of the columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np

from core.data.extras import View
from core.packed import LinearForm
from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.students.base import Decision, MetadataValue, Need, SolvedStudent, StudentSpec
from core.students.grid import grid_of

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.features.linear import LinearMap
    from core.run import Run
    from core.solvers.solution import Solution
    from core.students.base import Problem
    from core.types import FloatArray

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
        from core.solvers.measures.cutting_planes import MeasureProblem, solve_measure
        from core.solvers.measures.violation import best_cut

        examples = problem.examples
        columns = _scaling(examples)
        rows = columns.transform(examples.X)
        views = examples.views or (View("all", 0, columns.n_columns),)
        constant = rows[:, -1:]
        parts = [np.hstack([rows[:, view.columns], constant]) for view in views]
        positives = int(problem.positive.sum())
        whole = MeasureProblem(
            features=np.hstack(parts),
            widths=tuple(part.shape[1] for part in parts),
            positive=problem.positive,
            measure=self.measure,
            C=self.C,
            consistency=self.consistency,
            k=self.accepted(positives, len(problem.positive)),
        )
        limit = self.max_iterations
        solution = solve_measure(whole, tolerance=self.tolerance, max_iterations=limit, run=run)
        decision = np.zeros(columns.n_features_out)
        weights_of_views = np.split(solution.value, np.cumsum(whole.widths)[:-1])
        for view, weights in zip(views, weights_of_views, strict=True):
            decision[view.columns] = weights[:-1]
            decision[-1] += weights[-1]
        decision[-1] -= best_cut(self.measure, whole.positive, whole.features @ solution.value, whole.k)
        return MultiViewStudent(decision, solution, columns)

    def grid(self, choice: Any) -> tuple[Self, ...]:
        """κ of ``CONSISTENCIES`` times the values of C of a ``Grid`` or a named grid, C rising first."""
        points = product(CONSISTENCIES, grid_of(choice).C)
        return tuple(replace(self, C=C, consistency=consistency) for consistency, C in points)

    def accepted(self, positives: int, n: int) -> int:
        """k as a number of rows. positives: number of positive rows among n."""
        share = self.k or (0.5 if self.measure == "precision_at_k" else 2.0)
        return min(max(1, round(share * positives)), n)

    def params(self) -> dict[str, Any]:
        """Measure, k, C and κ."""
        return {"measure": self.measure, "k": self.k, "C": self.C, "consistency": self.consistency}

    def metadata(self) -> dict[str, MetadataValue]:
        """The fields that the decision depends on."""
        values = {name: value for name, value in self.params().items() if value is not None}
        return values | {"tolerance": self.tolerance}


@dataclass(frozen=True, slots=True, eq=False)
class MultiViewStudent(SolvedStudent):
    """It answers yes where v·(x', 1) >= threshold, with x' the scaled columns.

    decision: v, (d + 1,): the weights of all views side by side, zeros for columns outside of the views, and
    last the sum of the views' constants, minus ``best_cut`` of the training rows. columns: the scaling
    x ↦ (x', 1).
    """

    decision: FloatArray
    solution: Solution
    columns: LinearMap

    def scores(self, examples: Examples) -> FloatArray:
        """v·(x', 1), (n,)."""
        from core.run import Run
        from core.solvers.products import matvec

        return matvec(self.columns.transform(examples.X), self.decision, Run())

    def pack(self) -> Decision:
        """One linear function of the raw columns, without a gate."""
        basis, coef, intercept = self.columns.fold(self.decision[np.newaxis])
        return Decision(basis, LinearForm(coef[0], float(intercept[0]), np.zeros_like(coef[0]), 0.0))


def _scaling(examples: Examples) -> LinearMap:
    """The linear map of the columns: that of the features if it is linear, or one with the same scaling."""
    from core.features.linear import LinearMap
    from core.features.spec import FeatureSpec

    if isinstance(examples.feature_map, LinearMap):
        return examples.feature_map
    spec = examples.feature_spec or FeatureSpec()

    def fit() -> LinearMap:
        return LinearMap.fit(examples.all_X, FeatureSpec("linear", scaling=spec.scaling), 0)

    return examples.shared.get("multiview.scaling", fit)
