"""Train and pack the compact student of a class."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from core.compact.budget import SizeChoice, affordable, query_cost, smallest
from core.compact.course import Course
from core.compact.rows import CompactRows
from core.packed import LinearForm, PackedStudent, RbfBasis
from core.packed.calibration import Calibration
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.compact import FittedCompact, Floats
from core.students.spec import CompactSpec


@dataclass(frozen=True, slots=True, eq=False)
class TrainedCompact:
    """One compact student: as it is shipped (``packed``), and as it was fitted.

    target, label: code and name of its class. choice: how the size was chosen; None unless by F.
    relative_cost: multiplications of its query over the teacher's. seconds: wall time, all folds included.
    """

    target: int
    label: str
    packed: PackedStudent
    fitted: FittedCompact
    spec: CompactSpec
    choice: SizeChoice | None
    relative_cost: float
    seconds: float

    @property
    def method(self) -> str:
        """``"compact"``."""
        return self.spec.method

    @property
    def n_landmarks(self) -> int:
        """p, kernel values in a query."""
        return len(self.fitted.landmarks)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the arrays."""
        calibration = self.packed.calibration
        return {
            "label": self.label,
            "method": self.method,
            "threshold": self.packed.threshold,
            "calibration": None if calibration is None else calibration.kind,
            "digest": self.packed.digest,
            "n_landmarks": self.n_landmarks,
            "relative_cost": self.relative_cost,
            "loss": self.fitted.loss,
            "gate_r2": self.fitted.gate_r2,
            "choice": None if self.choice is None else asdict(self.choice),
            "training_seconds": self.seconds,
        }


def train_compact_student(
    rows: CompactRows,
    target: int,
    spec: CompactSpec | None = None,
    *,
    run: Run = Run(),
) -> TrainedCompact:
    """Train and pack the compact student of class code ``target``; the same arguments give the same bytes.

    Threshold rule, calibration, folds and seed are those of the preparation's configuration. Both are chosen
    on held-out scores of students fitted to the other folds: of a class with few rows a part held out once
    would leave too few to train on, and to calibrate with. Held out is the student: the teacher that gives
    gate and difficulty has seen all rows. Safe to call from several threads at once.
    run: reports stages ``"sizes"`` (sizes tried) and ``"student"`` (steps of the descent).

    Raises InvalidProblem, also where the budget does not buy one landmark; Cancelled.
    """
    spec = CompactSpec() if spec is None else spec
    started = time.perf_counter()
    course = Course(rows, target, spec, run)
    config = rows.preparation.config
    held_out: Floats | None = None
    choice = None
    with one_blas_thread():
        if spec.max_f1_loss is None:
            size = affordable(rows.preparation, spec)
        else:
            size, held_out, choice = smallest(course, spec.max_f1_loss)
        fitted = course.fit(size)
        if held_out is None and config.needs_held_out:
            held_out = course.held_out(size)
        threshold, calibration = config.settle(course.lesson.positive, held_out)
        folds = 0 if held_out is None else course.n_folds()
    packed = _pack(course, fitted, threshold, calibration, folds)
    teacher = rows.preparation
    cost = query_cost(packed.map, 1) / query_cost(teacher.packed_teacher().map, len(teacher.classes))
    seconds = time.perf_counter() - started
    return TrainedCompact(target, packed.label, packed, fitted, spec, choice, cost, seconds)


def _pack(
    course: Course, fitted: FittedCompact, threshold: float, calibration: Calibration | None, folds: int
) -> PackedStudent:
    """Fold the column scales into the standardisation. The metadata say how to make the student again."""
    rows, spec, config = course.rows, course.spec, course.config
    preparation = rows.preparation
    budget = {
        "n_landmarks": spec.n_landmarks,
        "relative_cost": spec.relative_cost,
        "max_f1_loss": spec.max_f1_loss,
    }
    metadata: dict[str, str | float | int] = {
        "method": spec.method,
        **{f"budget_{name}": value for name, value in budget.items() if value is not None},
        "n_landmarks": len(fitted.landmarks),
        "floor": float(spec.difficulty_floor),
        "gate_weight": float(spec.gate_weight),
        "jitter": float(spec.jitter),
        "steps": int(spec.steps),
        "seed": int(config.seed),
        "threshold_rule": config.threshold,
        "threshold_folds": folds,
        "calibration": "none" if calibration is None else calibration.kind,
        "loss": fitted.loss,
        "gate_r2": fitted.gate_r2,
        "data_digest": preparation.data_digest,
    }
    return PackedStudent(
        map=RbfBasis(rows.shift, rows.scale * fitted.scale, fitted.landmarks),
        form=LinearForm(fitted.coef, fitted.intercept, fitted.gate_coef, fitted.gate_intercept),
        threshold=threshold,
        label=preparation.classes[course.target],
        metadata=metadata,
        calibration=calibration,
    )
