"""The protocol of students: what a student is fitted to, and what a fitted student can do.

A new student is one module: a frozen dataclass that derives from ``StudentSpec``, whose annotated fields are
its hyper-parameters (``core.parameters``), a class that derives from ``Student``, and one line in
``core.learners``. The module of the specification imports NumPy at most; solvers are imported inside ``fit``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from core.errors import Fault, InvalidProblem

if TYPE_CHECKING:
    from core.features.base import FeatureMap
    from core.features.examples import Examples
    from core.packed import PackedMap, TreesBasis
    from core.packed.forms import Form
    from core.run import Run
    from core.solvers.solution import Solution, Summary
    from core.teachers.base import TeacherSpec
    from core.types import BoolArray, FloatArray, IntArray, Matrix

Need: TypeAlias = Literal["gate_weights", "dense", "privileged", "views", "trees", "held_out"]
"""What a student needs of the data or the teacher.

``"gate_weights"``: the teacher's score as a linear function of φ. Every teacher has it: if its score is not
linear in φ, the function is distilled. ``"dense"``: raw rows must not be sparse. ``"trees"``: a teacher of
trees. ``"held_out"``: the teacher's scores of rows that it was not fitted to. ``"privileged"``, ``"views"``:
the data set must have privileged columns, or views of its columns, which a fit reads from
``problem.examples.privileged`` and ``problem.examples.views``.
"""

Floats: TypeAlias = NDArray[np.float64]
MetadataValue: TypeAlias = str | float | int

TIE: Final = -float(np.finfo(np.float64).smallest_subnormal)
"""Added to a margin that must be positive, because argmax prefers the first class among equal scores."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """The training problem of one student: the truth about its class, and the teacher's scores.

    positive: whether the example is of the class, (n,). gate: the teacher's score S^y, (n,).
    gate_weights: w_y with S^y = Φ w_y, (m,); distilled if S^y is not linear in φ. None if the caller has
        none.
    rival: r, the largest score of another class, (n,).
    codes: class codes of the examples, (n,). class_weights: W with S = Φ Wᵀ, (K, m); distilled or None like
        ``gate_weights``.
    teacher_cost: number of multiplications of a query to the packed teacher.
    is_distilled: whether Φ w_y only approximates S^y. trees: the teacher's trees, whose sums are its scores;
        None for other teachers.
    held_out: scores by teachers that were not fitted to the row, (n, K), NaN for rows without such scores;
        None if no row has any.
    """

    positive: BoolArray
    examples: Examples
    gate: FloatArray
    gate_weights: FloatArray | None
    rival: FloatArray
    codes: IntArray
    class_weights: FloatArray | None
    teacher_cost: int = 0
    is_distilled: bool = False
    trees: TreesBasis | None = None
    held_out: FloatArray | None = None

    @property
    def linear_gate(self) -> FloatArray:
        """The gate as a query evaluates it, (n,): S^y, or Φ w_y if that differs."""
        if not self.is_distilled or self.gate_weights is None:
            return self.gate
        from core.run import Run
        from core.solvers.products import matvec

        return matvec(self.examples.features, self.gate_weights, Run())

    @property
    def signs(self) -> FloatArray:
        """z, +1 for the class and −1 for the rest, (n,)."""
        return np.where(self.positive, 1.0, -1.0)

    @property
    def offers(self) -> frozenset[Need]:
        """The needs of students that data and teacher fulfil."""
        present: dict[Need, bool] = {
            "gate_weights": self.gate_weights is not None,
            "dense": isinstance(self.examples.all_X, np.ndarray),
            "privileged": self.examples.privileged is not None,
            "views": bool(self.examples.views),
            "trees": self.trees is not None,
            "held_out": self.held_out is not None,
        }
        return frozenset(need for need, is_present in present.items() if is_present)

    def difficulty(self, floor: float) -> FloatArray:
        """d of Eq. (11), in [floor, 1], (n,). floor: ϵ in (0, 1]."""
        from core.students.difficulty import degrees_of_class

        return degrees_of_class(self.gate, self.positive, self.rival, floor)

    def take(self, rows: IntArray) -> Problem:
        """The same problem on some of the rows."""
        return Problem(
            self.positive[rows],
            self.examples.take(rows),
            self.gate[rows],
            self.gate_weights,
            self.rival[rows],
            self.codes[rows],
            self.class_weights,
            self.teacher_cost,
            self.is_distilled,
            self.trees,
            None if self.held_out is None else self.held_out[rows],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A decision function for queries: a form on the basis values of a map.

    ``core.training`` adds threshold, calibration and label.
    """

    map: PackedMap
    form: Form


def folded(
    feature_map: FeatureMap | None, functions: FloatArray, gate_weights: FloatArray
) -> tuple[PackedMap, Floats, Floats, tuple[Floats, float]]:
    """Fold linear functions of φ and the gate into functions on the basis of the map.

    functions: (q, m), or (m,) for one. gate_weights: (m,). Returns the basis, coefficients (q, b) and
    intercepts (q,) of the functions, and coefficients (b,) and intercept of the gate. Raises InvalidProblem
    if there is no map.
    """
    if feature_map is None:
        raise InvalidProblem(Fault("features", "no_map", "features without a map cannot be packed"))
    basis, coef, intercept = feature_map.fold(np.vstack([functions, gate_weights]))
    return basis, coef[:-1], intercept[:-1], (coef[-1], float(intercept[-1]))


class Student(ABC):
    """A fitted student of one class.

    summary: how its fit ended.
    """

    summary: Summary

    @abstractmethod
    def scores(self, examples: Examples) -> FloatArray:
        """Scores (n,), float64: the larger, the more likely an example of the class."""

    def of_teacher(self, scores: FloatArray) -> FloatArray | None:
        """The student's scores (n,), if they follow from the teacher's scores (n, K); otherwise None."""
        del scores
        return None

    @property
    def expects_f1(self) -> bool:
        """Whether 0 was chosen as by the rule ``expected_f1``; another threshold must then be better."""
        return False

    @abstractmethod
    def pack(self) -> Decision:
        """The decision function for queries."""

    def rival_codes(self) -> Sequence[int]:
        """Codes of the classes that its first rejections stand for, in order; empty by default."""
        return ()

    def metadata(self) -> dict[str, MetadataValue]:
        """What the packed student says about its fit."""
        summary = self.summary
        return {"objective": summary.objective}

    def facts(self) -> dict[str, Any]:
        """Further results of the fit, JSON-ready, for example the number of landmarks."""
        return {}


class SolvedStudent(Student):
    """A student whose fit is one convex problem. solution: its solution, with a certificate."""

    solution: Solution

    @property
    def summary(self) -> Summary:  # type: ignore[override]
        """How the solver ended."""
        return self.solution.summary()

    def metadata(self) -> dict[str, MetadataValue]:
        """Objective, gap and status of the solver."""
        solution = self.solution
        return {
            "objective": solution.objective,
            "relative_gap": solution.relative_gap,
            "status": solution.status.value,
        }


@dataclass(frozen=True, slots=True)
class Budget:
    """How exactly to solve. tolerance: relative duality gap at which to stop.

    max_epochs: limit of epochs of coordinate descent. finish: iteration limit of the full solver, for fits
    that miss the tolerance; 0 disables it.
    """

    tolerance: float = 1e-3
    max_epochs: int = 300
    finish: int = 100


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """One fold for one class.

    number, target: number of the fold, and code of the class. problem: all n rows, with the scores of the
    teacher that was fitted to the rows of the other folds. is_training: whether a row is fitted to, (n,).
    single: Φ in float32, (n, m); sums over it are computed in float64. norms: ‖φ_i‖², (n,).
    """

    number: int
    target: int
    problem: Problem
    is_training: BoolArray
    single: Matrix
    norms: FloatArray

    @property
    def held_out(self) -> IntArray:
        """Numbers of the rows that are held out."""
        return np.flatnonzero(~self.is_training)

    def fit(self, spec: StudentSpec, run: Run) -> Student:
        """A student fitted to the training rows."""
        return spec.fit(self.problem.take(np.flatnonzero(self.is_training)), run)

    def held_out_scores(self, student: Student) -> FloatArray:
        """Scores of the held-out rows, in their order."""
        return student.scores(self.problem.examples.take(self.held_out))


@dataclass(frozen=True, slots=True, eq=False)
class FoldResult:
    """Scores of the fold's held-out rows at each point, (points, rows); gaps and seconds, (points,).

    gaps: relative duality gaps; 0 for students without a gap. seconds: wall time of the fits.
    """

    scores: NDArray[np.float32]
    gaps: FloatArray
    seconds: FloatArray


class HeldOutScorer(Protocol):
    """Cross-validation of one class, for specifications that use it to choose their own hyper-parameters."""

    n_rows: int

    @property
    def offers(self) -> frozenset[Need]:
        """The needs of students that data and teacher fulfil."""
        ...

    def scores(self, spec: StudentSpec) -> FloatArray:
        """Score of each row by a student, and a teacher, that were not fitted to it, (n,)."""
        ...

    def f1(self, scores: FloatArray) -> float:
        """F of held-out scores (n,) at the threshold that the run's rule chooses."""
        ...


class Report(Protocol):
    """How hyper-parameters were chosen."""

    def summary(self) -> dict[str, Any]:
        """The choice and its score, JSON-ready."""
        ...

    def trace(self) -> list[dict[str, Any]]:
        """Every point that was tried, JSON-ready."""
        ...

    def metadata(self) -> dict[str, MetadataValue]:
        """What the packed student says about the choice."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Hyper-parameters chosen by cross-validation.

    spec: the choice. held_out_scores: scores of every training row by students with ``spec`` that were not
    fitted to it, (n,).
    """

    spec: StudentSpec
    held_out_scores: FloatArray
    report: Report


class StudentSpec(ABC):
    """Hyper-parameters of a student: the fields of a frozen dataclass.

    name: key in ``core.learners.STUDENTS`` and in the API. needs: what the data and the teacher must offer.
    copies_teacher: whether the student's scores follow from the teacher's. The teacher's held-out scores then
    serve in place of students that are fitted in folds.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    copies_teacher: ClassVar[bool] = False

    @abstractmethod
    def fit(self, problem: Problem, run: Run) -> Student:
        """Fit the student; the same arguments give the same bits. Raises InvalidProblem, Cancelled."""

    def suited(self, teacher: TeacherSpec) -> StudentSpec:
        """The specification to fit for a teacher of this kind; by default this specification itself."""
        del teacher
        return self

    def with_point(self, values: dict[str, Any]) -> StudentSpec:
        """The same with these hyper-parameters; their names are those of the suited specification."""
        changed: StudentSpec = replace(self, **values)  # type: ignore[type-var]
        return changed

    def prepare(self, examples: Examples, run: Run) -> None:
        """Compute what all students of this specification share, before the first fit.

        The result is stored in ``examples.shared``.
        """
        del examples, run

    def grid(self, choice: Any) -> tuple[Self, ...]:
        """The points that a search tries; none if there is nothing to search for.

        choice: ``"paper"``, ``"open"`` or a ``Grid``. Fields that are not searched keep their values.
        """
        del choice
        return ()

    @classmethod
    def walk(cls, specs: Sequence[Self], fold: Fold, budget: Budget, run: Run) -> FoldResult:
        """Held-out scores of several points in one fold. The default fits each point alone.

        budget: how exactly to solve; the default ignores it and uses the specifications. Raises Cancelled.
        """
        del budget
        return fit_each(specs, fold, run)

    @property
    def selects(self) -> bool:
        """Whether ``select`` chooses a hyper-parameter, which needs held-out scores."""
        return False

    def select(self, scorer: HeldOutScorer, run: Run) -> Selection | None:
        """Choose the hyper-parameters that are left open, by cross-validation of one class."""
        del scorer, run
        return None

    def params(self) -> dict[str, Any]:
        """The hyper-parameters that a search reports for each point, JSON-ready."""
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]

    def metadata(self) -> dict[str, MetadataValue]:
        """The hyper-parameters for the metadata of the packed student."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if isinstance(value, str | float | int)}


def fit_each(specs: Sequence[StudentSpec], fold: Fold, run: Run) -> FoldResult:
    """Fit every point on its own. Raises InvalidProblem, Cancelled."""
    scores = np.empty((len(specs), len(fold.held_out)), dtype=np.float32)
    gaps, seconds = np.zeros(len(specs)), np.empty(len(specs))
    for index, spec in enumerate(specs):
        run.check_cancel()
        started = time.perf_counter()
        student = fold.fit(spec, run.silent())
        scores[index] = fold.held_out_scores(student)
        gaps[index] = student.summary.relative_gap or 0.0
        seconds[index] = time.perf_counter() - started
    return FoldResult(scores, gaps, seconds)
