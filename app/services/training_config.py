"""The configuration of core for the specification of a job."""

from __future__ import annotations

from app.domain.training_spec import TrainingSpec
from core.teachers.linear_head import ImportedHead, LinearHead
from core.training.config import TrainingConfig


def config_of(spec: TrainingSpec, head: LinearHead | None = None) -> TrainingConfig:
    """The configuration of core for a TrainingSpec. Raises InvalidProblem.

    head: weights of the imported teacher, where it is not restored.
    """
    teacher = spec.teacher
    return TrainingConfig(
        features=spec.features,
        teacher=teacher.spec if teacher.model is None else ImportedHead(teacher.model, head),
        students=spec.students,
        automatic=bool(spec.automatic),
        automatic_seconds=spec.automatic_seconds,
        tuning=spec.tuning,
        threshold=spec.threshold.rule,
        budget=spec.threshold.max_false_positive_rate,
        confidence=spec.threshold.confidence,
        calibration=spec.calibration.kind,
        folds=spec.threshold.folds,
        guard=spec.guard.kind or "off",
        seed=spec.seed,
    )
