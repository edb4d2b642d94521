"""Compact students in the units of the raw columns: rows scaled for the kernel, fit, decision for queries."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from core.data.validation import row_blocks
from core.errors import Fault, InvalidProblem
from core.features.base import kernel_standardisation
from core.features.examples import Examples
from core.packed import LinearForm, PackedStudent, RbfBasis
from core.run import Run
from core.solvers.solution import Summary
from core.solvers.threads import one_blas_thread
from core.students.base import Decision, MetadataValue, Problem, Student
from core.students.cost import query_cost
from core.students.landmark_fit import FittedNetwork, Floats, Singles, fit_network, neighbour_distance

if TYPE_CHECKING:
    from core.students.compact import Compact
    from core.types import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class KernelRows:
    """All rows, scaled for the kernel.

    shift, scale: (d,), x' = (x − shift)·scale with the kernel's √γ inside scale; γ and scaling are those of
    the teacher's features, for linear features γ is ``scale_rule``'s.
    rows: x' of the rows, (N, d) float32. neighbour: ``neighbour_distance`` of them.
    """

    shift: Floats
    scale: Floats
    rows: Singles
    neighbour: float

    @classmethod
    def shared(cls, examples: Examples, run: Run) -> KernelRows:
        """Of all rows, computed once for all classes. run: reports stage ``"compact_rows"`` in rows.

        Raises InvalidProblem for sparse rows, Cancelled.
        """
        return examples.shared.get("compact_rows", lambda: cls._of(examples, run))

    @classmethod
    def _of(cls, examples: Examples, run: Run) -> KernelRows:
        X, spec = examples.all_X, examples.feature_spec
        if sp.issparse(X) or spec is None:
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

    fitted: on scaled rows. rows: how they are scaled. relative_cost: multiplications of its query over the
    teacher's.
    """

    fitted: FittedNetwork
    rows: KernelRows
    relative_cost: float
    summary: Summary

    @property
    def n_landmarks(self) -> int:
        """p, kernel values in a query."""
        return len(self.fitted.landmarks)

    def scores(self, examples: Examples) -> FloatArray:
        """Scores of raw rows (n, d), shape (n,)."""
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


def fit_compact(spec: Compact, problem: Problem, n_landmarks: int, run: Run) -> CompactStudent:
    """Fit a compact student with at most ``n_landmarks`` landmarks. Raises InvalidProblem, Cancelled."""
    started = time.perf_counter()
    examples = problem.examples
    rows = KernelRows.shared(examples, run)
    fitted = fit_network(
        rows.rows if examples.index is None else rows.rows[examples.index],
        problem.positive,
        problem.gate,
        problem.difficulty(spec.difficulty_floor),
        n_landmarks,
        spec,
        neighbour=rows.neighbour,
        run=run,
    )
    basis = RbfBasis(rows.shift, rows.scale * fitted.scale, fitted.landmarks)
    summary = Summary(fitted.loss, None, None, fitted.steps, time.perf_counter() - started, None)
    cost = query_cost(basis, 1) / problem.teacher_cost if problem.teacher_cost else float("nan")
    return CompactStudent(fitted, rows, cost, summary)
