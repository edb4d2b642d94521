"""Students with several rejections: each group of rival classes has a gated SVM, which is called a piece.

The student answers yes iff S^y ≥ θ_j·φ for every piece j, that is min_j v_j·φ ≥ 0: a convex polytope in
feature space. Every piece must accept the positive rows; each other row i is assigned to one piece a(i),
which has to reject it. With the centre c_j of a piece

    P(v, a) = Σ_j [ ½‖v_j − c_j‖² + Σ_{z_i = 1} U_i [ε − v_j·φ_i]_+ + Σ_{a(i) = j} U_i [ε + v_j·φ_i]_+ ],

U_i = C/(n d_i). For a given a, P is a sum of one gated hinge problem for each piece, Eq. (12) with the gate
c_j·φ. For given v, the best a(i) is the piece with the smallest v_j·φ_i. The two steps alternate, so that P
does not rise beyond the solver's tolerance. P is not convex in v and a together: the result is a local
minimum. Compare Kantchelian et al., Large-Margin Convex Polytope Machine (NIPS 2014).

K-means on the rivals' weight vectors makes the groups, and c_j = w_y − (mean of w_k over group j). Before it
has learnt, the student is the teacher restricted to p representative rivals; with one group for each rival it
is the teacher. With a single piece, c is w_y and the student is gSVM.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np

from core.errors import Fault, InvalidProblem
from core.packed import PolytopeForm
from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.students.base import Decision, MetadataValue, Need, Student, StudentSpec, folded
from core.students.grid import grid_of

if TYPE_CHECKING:
    from core.features.base import FeatureMap
    from core.features.examples import Examples
    from core.run import Run
    from core.solvers.solution import Solution, Summary
    from core.students.base import Problem
    from core.types import BoolArray, FloatArray, IntArray

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
        """Fit pieces and assignment in turn, until no row changes its piece or ``rounds`` is reached.

        Raises InvalidProblem, Cancelled.
        """
        from core.solvers.products import matvec

        started = time.perf_counter()
        weights, all_weights = problem.gate_weights, problem.class_weights
        if weights is None or all_weights is None:
            message = f"{self.name} needs a teacher whose scores are linear in the features"
            raise InvalidProblem(Fault("teacher", "no_gate", message))
        centres, piece_of = initial_pieces(problem, weights, all_weights, self.pieces, run)
        features = problem.examples.features
        gates = problem.linear_gate[:, None] if len(centres) == 1 else matvec(features, centres, run)
        pieces = _Pieces(self, problem, gates)
        for rounds in range(1, self.rounds + 1):
            solutions = [pieces.solve(piece, piece_of == piece, run) for piece in range(len(centres))]
            decisions = centres - np.stack([solution.value for solution in solutions])
            nearest = matvec(features, decisions, run).argmin(axis=1)
            run.report("polytope", rounds, self.rounds)
            changed = (nearest != piece_of) & ~problem.positive
            if not changed.any():
                break
            piece_of = np.where(problem.positive, piece_of, nearest)
        summary = _summary(solutions, pieces.iterations, time.perf_counter() - started)
        return PolytopeStudent(decisions, weights, summary, rounds, problem.examples.feature_map)

    def grid(self, choice: Any) -> tuple[Self, ...]:
        """Numbers of pieces times the values of C of a ``Grid`` or a named grid, C rising first."""
        return tuple(replace(self, pieces=pieces, C=C) for pieces, C in product(PIECES, grid_of(choice).C))

    def params(self) -> dict[str, Any]:
        """Pieces, C, ε and ϵ."""
        return {"pieces": self.pieces, "C": self.C, "margin": self.margin, "floor": self.difficulty_floor}

    def metadata(self) -> dict[str, MetadataValue]:
        """The fields that the decision depends on."""
        return {**self.params(), "rounds": self.rounds, "tolerance": self.tolerance}


@dataclass(frozen=True, slots=True, eq=False)
class PolytopeStudent(Student):
    """It answers yes where min_j v_j·φ >= threshold.

    decisions: v, (p, m). gate_weights: w_y, (m,). rounds: number of assignments that were fitted.
    feature_map: φ; None if the student cannot be packed.
    """

    decisions: FloatArray
    gate_weights: FloatArray
    summary: Summary
    rounds: int
    feature_map: FeatureMap | None = None

    def scores(self, examples: Examples) -> FloatArray:
        """min_j v_j·φ, (n,)."""
        from core.run import Run
        from core.solvers.products import matvec

        values: FloatArray = matvec(examples.features, self.decisions, Run()).min(axis=1)
        return values

    def pack(self) -> Decision:
        """All pieces and the gate folded into the basis of the feature map."""
        basis, coef, intercept, gate = folded(self.feature_map, self.decisions, self.gate_weights)
        return Decision(basis, PolytopeForm(coef, intercept, *gate))

    def metadata(self) -> dict[str, MetadataValue]:
        """Objective, gap and status of the fits for the last assignment."""
        values = self.summary.as_dict()
        return {name: values[name] or 0.0 for name in ("objective", "relative_gap", "status")}

    def facts(self) -> dict[str, Any]:
        """Number of pieces, and number of assignments that were fitted."""
        return {"pieces": len(self.decisions), "rounds": self.rounds}


def initial_pieces(
    problem: Problem, gate_weights: FloatArray, class_weights: FloatArray, pieces: int, run: Run
) -> tuple[FloatArray, IntArray]:
    """Centres c (p, m) of at most ``pieces`` pieces, and the piece of each row (n,), −1 for positive rows.

    gate_weights: w_y, (m,). class_weights: W, (K, m). Only classes that have rows are rivals.
    """
    rivals, position, counts = np.unique(
        problem.codes[~problem.positive], return_inverse=True, return_counts=True
    )
    rival_weights = class_weights[rivals]
    p = min(pieces, len(rivals))
    if p == 1:
        centres, group = gate_weights[None], np.zeros(len(rivals), dtype=np.int64)
    elif p == len(rivals):
        centres, group = gate_weights - rival_weights, np.arange(p)
    else:
        from sklearn.cluster import KMeans  # importing it takes a second, and most jobs do not need it

        clusters = KMeans(p, n_init=4, random_state=run.seed).fit(rival_weights, sample_weight=counts)
        centres, group = gate_weights - clusters.cluster_centers_, clusters.labels_
    piece_of = np.full(len(problem.positive), -1, dtype=np.int64)
    piece_of[~problem.positive] = group[position]
    return centres, piece_of


class _Pieces:
    """The hinge problems of all pieces; each is solved starting from its last dual solution.

    gates: c_j·φ, (n, p).
    """

    def __init__(self, spec: Polytope, problem: Problem, gates: FloatArray) -> None:
        self._spec, self._problem, self._gates = spec, problem, gates
        self._difficulty = problem.difficulty(spec.difficulty_floor)
        self._duals = np.zeros(gates.shape[::-1])
        self.iterations = 0

    def solve(self, piece: int, assigned: BoolArray, run: Run) -> Solution:
        """Fit one piece to the positive rows and those ``assigned`` to it, (n,)."""
        from core.solvers.dual_cd import solve_dual_cd
        from core.solvers.gated_hinge import GatedHingeProblem

        spec, problem = self._spec, self._problem
        rows = np.flatnonzero(problem.positive | assigned)
        hinge = GatedHingeProblem.gated(
            problem.examples.features[rows],
            problem.signs[rows],
            np.ascontiguousarray(self._gates[rows, piece]),
            C=spec.C * len(rows) / len(problem.positive),
            margin=spec.margin,
            difficulty=self._difficulty[rows],
        )
        solution = solve_dual_cd(
            hinge,
            tolerance=spec.tolerance,
            max_epochs=spec.max_epochs,
            initial_dual=self._duals[piece, rows],
            run=run.silent(),
        )
        self._duals[piece, rows] = solution.dual
        self.iterations += solution.iterations
        return solution


def _summary(solutions: Sequence[Solution], iterations: int, seconds: float) -> Summary:
    """P of the last assignment, its gap, and the worst status of the pieces."""
    from core.solvers.solution import Status, Summary

    objective = sum(solution.objective for solution in solutions)
    gap = sum(solution.gap for solution in solutions)
    statuses = {solution.status for solution in solutions}
    status = next(one for one in (Status.STALLED, Status.MAX_ITERATIONS, Status.CONVERGED) if one in statuses)
    return Summary(objective, gap, gap / max(abs(objective), 1e-12), iterations, seconds, status.value)
