"""The fit of students that optimise a performance measure over several views of the columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from core.data.extras import View
from core.features.linear import LinearMap
from core.features.spec import FeatureSpec
from core.packed import LinearForm
from core.run import Run
from core.solvers.measures.cutting_planes import MeasureProblem, solve_measure
from core.solvers.measures.violation import best_cut
from core.solvers.products import matvec
from core.solvers.solution import Solution, Summary
from core.students.base import Decision, MetadataValue, Problem, Student
from core.types import FloatArray

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.students.multiview import MultiView


@dataclass(frozen=True, slots=True, eq=False)
class MultiViewStudent(Student):
    """It answers yes where v·(x', 1) >= threshold, with x' the scaled columns.

    decision: v, (d + 1,), the weights of all views side by side; zeros for columns outside of the views, and
    last the sum of their constants, less ``best_cut`` of the training rows. columns: the scaling
    x ↦ (x', 1).
    """

    decision: FloatArray
    solution: Solution
    columns: LinearMap

    @property
    def summary(self) -> Summary:  # type: ignore[override]
        """How the solver ended."""
        return self.solution.summary()

    def scores(self, examples: Examples) -> FloatArray:
        """v·(x', 1), (n,)."""
        return matvec(self.columns.transform(examples.X), self.decision, Run())

    def pack(self) -> Decision:
        """One linear function of the raw columns, without a gate."""
        basis, coef, intercept = self.columns.fold(self.decision[np.newaxis])
        return Decision(basis, LinearForm(coef[0], float(intercept[0]), np.zeros_like(coef[0]), 0.0))

    def metadata(self) -> dict[str, MetadataValue]:
        """Objective, gap and status of the solver."""
        solution = self.solution
        return {
            "objective": solution.objective,
            "relative_gap": solution.relative_gap,
            "status": solution.status.value,
        }


def fit_multiview(spec: MultiView, problem: Problem, run: Run) -> MultiViewStudent:
    """Minimise the objective of ``MultiView``. Raises InvalidProblem, Cancelled."""
    examples = problem.examples
    columns = _scaling(examples)
    rows = columns.transform(examples.X)
    views = examples.views or (View("all", 0, columns.n_columns),)
    constant = rows[:, -1:]
    parts = [np.hstack([rows[:, view.columns], constant]) for view in views]
    positives = int(problem.positive.sum())
    stated = MeasureProblem(
        features=np.hstack(parts),
        widths=tuple(part.shape[1] for part in parts),
        positive=problem.positive,
        measure=spec.measure,
        C=spec.C,
        consistency=spec.consistency,
        k=spec.accepted(positives, len(problem.positive)),
    )
    solution = solve_measure(stated, tolerance=spec.tolerance, max_iterations=spec.max_iterations, run=run)
    decision = np.zeros(columns.n_features_out)
    for view, weights in zip(views, np.split(solution.value, np.cumsum(stated.widths)[:-1]), strict=True):
        decision[view.columns] = weights[:-1]
        decision[-1] += weights[-1]
    decision[-1] -= best_cut(spec.measure, stated.positive, stated.features @ solution.value, stated.k)
    return MultiViewStudent(decision, solution, columns)


def _scaling(examples: Examples) -> LinearMap:
    """The linear map of the columns: that of the features, or one with the same scaling."""
    if isinstance(examples.feature_map, LinearMap):
        return examples.feature_map
    spec = examples.feature_spec or FeatureSpec()

    def fit() -> LinearMap:
        return LinearMap.fit(examples.all_X, FeatureSpec("linear", scaling=spec.scaling), 0)

    return examples.shared.get("multiview.scaling", fit)
