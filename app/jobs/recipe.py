"""From a job's hyper-parameters to core's training flow. For the solver process only: it imports numerics."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import StratifiedShuffleSplit

from app.domain.entities import Json
from app.domain.spec import TrainingSpec
from app.services.datasets import load_dataset
from app.store.unit_of_work import Store
from core.config import TrainingConfig
from core.dataset import LabelledData
from core.errors import Fault, InvalidProblem
from core.evaluation import ClassResult, Examination
from core.features import FeatureSpec
from core.pipeline import train_student
from core.preparation import Preparation, prepare
from core.scaling import Scaling
from core.students import StudentSpec
from core.types import IntArray, ProgressCallback


def config_of(spec: TrainingSpec) -> TrainingConfig:
    """The configuration of core that a TrainingSpec means. Raises InvalidProblem."""
    return TrainingConfig(
        features=FeatureSpec(
            kind=spec.features.kind,
            n_components=spec.features.n_components,
            gamma=spec.features.gamma,
            scaling=Scaling(spec.features.scaling),
        ),
        teacher_C=spec.teacher.C,
        teacher_tolerance=spec.teacher.tolerance,
        teacher_max_epochs=spec.teacher.max_epochs,
        student=StudentSpec(
            method=spec.student.method,
            C=spec.student.C,
            margin=spec.student.margin,
            floor=spec.student.difficulty_floor,
            solver=spec.student.solver,
            tolerance=spec.student.tolerance,
            max_epochs=spec.student.max_epochs,
        ),
        comparisons=spec.evaluation.baselines,
        threshold=spec.threshold.rule,
        budget=spec.threshold.max_false_positive_rate,
        folds=spec.threshold.folds,
        seed=spec.seed,
    )


def load_parts(store: Store, dataset_id: str, spec: TrainingSpec) -> tuple[LabelledData, LabelledData | None]:
    """The rows to train on, and those to test on if the job has any, coded with the classes of training.

    Raises NotFound, InvalidProblem.
    """
    train, test = load_dataset(store, dataset_id)
    if spec.evaluation.dataset_id is not None:
        other, _ = load_dataset(store, spec.evaluation.dataset_id)
        labels = np.asarray(other.classes)[other.y]
        test = LabelledData.with_codes(other.X, labels, train.classes, n_columns=train.d)
    elif spec.evaluation.test_fraction is not None:
        train, test = _held_out(train, spec.evaluation.test_fraction, spec.seed)
    return train, test


def _held_out(data: LabelledData, fraction: float, seed: int) -> tuple[LabelledData, LabelledData]:
    """A stratified split of the rows, the same for the same seed."""
    splitter = StratifiedShuffleSplit(n_splits=1, test_size=fraction, random_state=seed)
    try:
        kept, held_out = next(splitter.split(np.zeros(data.n), data.y))
    except ValueError as error:
        fault = Fault("evaluation.test_fraction", "cannot_split", f"The rows cannot be split: {error}")
        raise InvalidProblem(fault) from error
    return _rows(data, np.sort(kept)), _rows(data, np.sort(held_out))


def _rows(data: LabelledData, rows: IntArray) -> LabelledData:
    return dataclasses.replace(data, X=data.X[rows], y=data.y[rows])


@dataclass(frozen=True, slots=True)
class Workbench:
    """One job's data and preparation in this process's memory, from which its students are trained."""

    config: TrainingConfig
    preparation: Preparation
    examination: Examination | None

    @classmethod
    def prepared(
        cls, parts: tuple[LabelledData, LabelledData | None], spec: TrainingSpec, progress: ProgressCallback
    ) -> Workbench:
        """Fit features and teacher. Raises InvalidProblem."""
        config = config_of(spec)
        return cls._of(config, prepare(parts[0], config, progress=progress), parts[1])

    @classmethod
    def restored(
        cls,
        stored: bytes,
        parts: tuple[LabelledData, LabelledData | None],
        spec: TrainingSpec,
        progress: ProgressCallback,
    ) -> Workbench:
        """Features and scores again from a stored preparation. Raises InvalidProblem, InvalidPackage."""
        config = config_of(spec)
        return cls._of(config, Preparation.from_bytes(stored, parts[0], config, progress=progress), parts[1])

    @classmethod
    def _of(cls, config: TrainingConfig, preparation: Preparation, test: LabelledData | None) -> Workbench:
        return cls(config, preparation, None if test is None else Examination.of(preparation, test))

    def teacher_report(self, targets: Sequence[int]) -> Json:
        """How the teacher's fit ended and how it does as a binary classifier of each target; JSON-ready."""
        summary = self.preparation.teacher.summary
        measured = (
            [] if self.examination is None else [self.examination.teacher(target) for target in targets]
        )
        return {
            "summary": {} if summary is None else summary.as_dict(),
            "seconds": self.preparation.seconds,
            "metrics": [
                {"class_index": target, "label": result.label, "metrics": _metrics(result)}
                for target, result in zip(targets, measured, strict=False)
            ],
        }

    def student(self, target: int, method: str, progress: ProgressCallback) -> tuple[Json, bytes]:
        """Train one student: its row's numbers, JSON-ready, and its packed bytes. Raises InvalidProblem."""
        spec = next(spec for spec in self.config.specs() if spec.method == method)
        trained = train_student(self.preparation, target, spec, progress=progress)
        threshold = trained.packed.threshold
        examination = self.examination
        result = None if examination is None else examination.student(target, trained.fitted, threshold)
        row = {
            "objective": trained.summary.objective,
            "gap": trained.summary.relative_gap,
            "iterations": trained.summary.iterations,
            "seconds": trained.seconds,
            "status": trained.summary.status,
            "threshold": threshold,
            "metrics": {} if result is None else _metrics(result),
        }
        return row, trained.packed.to_bytes()


def _metrics(result: ClassResult) -> Json:
    return {**result.metrics.as_dict(), "classes_evaluated": result.classes_evaluated}
