"""One student from a preparation to its package: hyper-parameters, fit, threshold, calibration."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from core.errors import Fault, InvalidProblem
from core.model_selection.folds import TunedTeacher, TuningFolds, fold_assignment
from core.model_selection.grid import Point
from core.model_selection.results import SearchReport
from core.model_selection.search import tune_student
from core.model_selection.threshold import HeldOut, held_out_scores
from core.model_selection.tuning_spec import TuningSpec
from core.packed import LinearForm, PackedStudent
from core.packed.calibration import Calibration
from core.run import Run
from core.solvers.solution import Summary
from core.solvers.threads import one_blas_thread
from core.students.base import FittedStudent
from core.students.fitting import fit_student
from core.students.spec import StudentSpec
from core.training.preparation import Preparation

_FOLD_SCORE_BYTES = 512 * 1024**2


@dataclass(frozen=True, slots=True, eq=False)
class TrainedStudent:
    """One student: as it is shipped (``packed``), and in feature space (``fitted``) for measuring.

    target, label: code and name of its class. summary: how its solver ended. seconds: wall time, search,
        threshold and calibration included. search: for its hyper-parameters; None where they were given.
    """

    target: int
    label: str
    packed: PackedStudent
    fitted: FittedStudent
    summary: Summary
    seconds: float
    search: SearchReport | None = None

    @property
    def method(self) -> str:
        """``"gsvm"``, ``"gsvm0"`` or ``"svm"``."""
        return self.fitted.spec.method

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the arrays and the points of the search."""
        calibration = self.packed.calibration
        return {
            "label": self.label,
            "method": self.method,
            "threshold": self.packed.threshold,
            "calibration": None if calibration is None else calibration.kind,
            "digest": self.packed.digest,
            "chosen": None if self.search is None else self.search.summary(),
            "training_seconds": self.seconds,
            **self.summary.as_dict(),
        }


def tuning_folds(
    preparation: Preparation,
    targets: Sequence[int] | None = None,
    run: Run = Run(),
) -> TuningFolds:
    """What the searches for several students share; ``train_student`` makes its own unless it is given this.

    targets: class codes that it shall serve; by default all. Memory: a float32 copy of the features, and
    folds × rows × targets scores; let go of it when the searches are done.

    Raises InvalidProblem for a preparation whose configuration does not tune, Cancelled.
    """
    config = preparation.config
    if config.tuning is None:
        raise InvalidProblem(Fault("tuning", "missing", "the preparation was made without tuning"))
    return TuningFolds.of(
        preparation.features,
        preparation.labels,
        preparation.classes,
        fold_assignment(preparation.labels, config.tuning.folds, config.seed),
        TunedTeacher(config.teacher_C, preparation.fold_teachers, ()),
        targets=targets,
        run=run,
    )


def tuning_batches(preparation: Preparation, targets: Sequence[int]) -> list[Sequence[int]]:
    """Class codes in groups, the ``tuning_folds`` of each with at most half a gigabyte of scores."""
    tuning = preparation.config.tuning
    if tuning is None:
        return [targets]
    size = max(1, _FOLD_SCORE_BYTES // (8 * tuning.folds * len(preparation.labels)))
    return [targets[start : start + size] for start in range(0, len(targets), size)]


def train_student(
    preparation: Preparation,
    target: int,
    spec: StudentSpec | None = None,
    *,
    folds: TuningFolds | None = None,
    run: Run = Run(),
) -> TrainedStudent:
    """Train and pack the student of class code ``target``; the same arguments give the same bytes.

    spec: by default the configured student's. A configuration that tunes takes C, ε and ϵ from the search for
        this class and method instead. Threshold rule, budget, calibration, folds and seed are the
        configuration's.
    folds: ``tuning_folds`` that are at hand already; the result is the same without.
    run: folds of a search are fitted in its threads; reports stages ``"tuning"`` (in fits) and ``"student"``.

    Safe to call from several threads at once.

    Raises InvalidProblem, Cancelled.
    """
    config = preparation.config
    spec = config.student if spec is None else spec
    run = run.with_seed(config.seed)
    started = time.perf_counter()
    search, held_out = None, None
    with one_blas_thread():
        if config.tuning is not None:
            if folds is None:
                folds = tuning_folds(preparation, [target], run)
            search, held_out = _search(preparation, config.tuning, folds, target, spec, run)
            C, margin, floor = search.chosen
            spec = replace(spec, C=C, margin=margin, difficulty_floor=floor)
        lesson = preparation.lesson(target, floor=spec.difficulty_floor)
        fitted = fit_student(preparation.features, lesson, spec, run.stage("student"))
        if held_out is None and config.needs_held_out:
            held_out = held_out_scores(
                preparation.features,
                lesson,
                spec,
                folds=config.folds,
                run=run,
            )
        threshold, calibration = config.settle(lesson.positive, None if held_out is None else held_out.scores)
        n_folds = 0 if held_out is None else held_out.folds
        packed = _pack(preparation, target, fitted, threshold, calibration, n_folds, search)
    return TrainedStudent(
        target=target,
        label=packed.label,
        packed=packed,
        fitted=fitted,
        summary=fitted.solution.summary(),
        seconds=time.perf_counter() - started,
        search=search,
    )


def _search(
    preparation: Preparation,
    tuning: TuningSpec,
    folds: TuningFolds,
    target: int,
    spec: StudentSpec,
    run: Run,
) -> tuple[SearchReport, HeldOut]:
    """The search of one student, and the held-out scores of its choice."""
    config = preparation.config
    started = time.perf_counter()
    tuned = tune_student(
        folds,
        target,
        spec.method,
        tuning.grid,
        strategy=tuning.strategy,
        metric=tuning.metric,
        threshold_rule=config.threshold,
        budget=config.budget,
        run=run,
    )
    report = SearchReport(
        chosen=Point(tuned.spec.C, tuned.spec.margin, tuned.spec.difficulty_floor),
        score=tuned.score,
        standard_error=tuned.standard_error,
        metric=tuning.metric,
        strategy=tuning.strategy,
        folds=tuning.folds,
        points=tuned.trace,
        seconds=time.perf_counter() - started,
    )
    return report, HeldOut(tuned.held_out_scores, tuning.folds)


def _pack(
    preparation: Preparation,
    target: int,
    fitted: FittedStudent,
    threshold: float,
    calibration: Calibration | None,
    folds: int,
    search: SearchReport | None,
) -> PackedStudent:
    """Fold decision and gate into the map's basis. The metadata say how to make the same student again."""
    config, spec, solution = preparation.config, fitted.spec, fitted.solution
    basis, coef, intercept = preparation.feature_map.fold(np.stack([fitted.decision, fitted.gate_weights]))
    metadata: dict[str, str | float | int] = {
        "method": spec.method,
        "C": float(spec.C),
        "margin": float(spec.margin),
        "floor": float(spec.difficulty_floor),
        "solver": spec.solver,
        "tolerance": float(spec.tolerance),
        "max_epochs": int(spec.max_epochs),
        "seed": int(config.seed),
        "threshold_rule": config.threshold,
        "threshold_folds": folds,
        "calibration": "none" if calibration is None else calibration.kind,
        "objective": solution.objective,
        "relative_gap": solution.relative_gap,
        "status": solution.status.value,
        "data_digest": preparation.data_digest,
    }
    if search is not None:
        metadata |= {
            "tuning_strategy": search.strategy,
            "tuning_metric": search.metric,
            "tuning_points": len(search.points),
            "tuning_score": search.score,
            "tuning_standard_error": search.standard_error,
        }
    return PackedStudent(
        map=basis,
        form=LinearForm(coef[0], float(intercept[0]), coef[1], float(intercept[1])),
        threshold=threshold,
        label=preparation.classes[target],
        metadata=metadata,
        calibration=calibration,
    )
