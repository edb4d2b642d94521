"""Training session of the solver process: one job's data in memory and core's training on it."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from sklearn.model_selection import StratifiedShuffleSplit

from app.domain.entities import Json
from app.domain.training_spec import TrainingSpec
from app.services.datasets import load_dataset
from app.services.imported_teacher import teacher_rows
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.compact import CompactRows, CompactSpec, TrainedCompact, train_compact_student
from core.data.dataset import LabelledData
from core.errors import Fault, InvalidProblem
from core.model_selection.folds import TuningFolds
from core.packed.codec import Buffer
from core.run import Run
from core.teachers.linear_head import LinearHead
from core.training.config import SSVM, TrainingConfig
from core.training.evaluation import ClassResult, Examination
from core.training.pipeline import measure
from core.training.preparation import Preparation, prepare
from core.training.student_training import TrainedStudent, train_student, tuning_batches, tuning_folds
from core.types import IntArray, ProgressCallback

COMPACT: Final = "compact"


def config_of(spec: TrainingSpec) -> TrainingConfig:
    """The configuration of core for a TrainingSpec. Raises InvalidProblem."""
    return TrainingConfig(
        features=spec.features,
        teacher_C=spec.teacher.C,
        teacher_tolerance=spec.teacher.tolerance,
        teacher_max_epochs=spec.teacher.max_epochs,
        student=spec.student,
        comparisons=spec.evaluation.baselines,
        compact=spec.compact,
        tuning=spec.tuning,
        threshold=spec.threshold.rule,
        budget=spec.threshold.max_false_positive_rate,
        calibration=spec.calibration.kind,
        folds=spec.threshold.folds,
        seed=spec.seed,
        teacher=spec.teacher.model or SSVM,
    )


def load_parts(
    store: Store, files: BlobCache, dataset_id: str, spec: TrainingSpec
) -> tuple[LabelledData, LabelledData | None]:
    """The training rows, and the test rows if the job has any, with labels coded by the training classes.

    Raises NotFound, InvalidProblem.
    """
    train, test = load_dataset(store, files, dataset_id)
    if spec.evaluation.dataset_id is not None:
        other, _ = load_dataset(store, files, spec.evaluation.dataset_id)
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


def load_head(store: Store, files: BlobCache, spec: TrainingSpec, data: LabelledData) -> LinearHead | None:
    """The imported teacher's rows for the classes of the data; None without an imported teacher.

    Raises NotFound, Unavailable, InvalidProblem.
    """
    if spec.teacher.model is None:
        return None
    return LinearHead(*teacher_rows(store, files, spec.teacher.model, data.classes))


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Data that the students of a batch share.

    folds: for tuned students. rows: scaled, for compact students. n_threads: for the search of one student.
    """

    folds: TuningFolds | None
    rows: CompactRows | None
    n_threads: int


@dataclass(frozen=True, slots=True)
class StudentArtifact:
    """One trained student. row: its numbers, JSON-ready.

    trace: hyper-parameter search as JSON compressed by zlib; None without a search.
    """

    row: Json
    packed: bytes
    trace: bytes | None


@dataclass(frozen=True, slots=True)
class TrainingSession:
    """One job's data and preparation in memory, from which its students are trained."""

    config: TrainingConfig
    data: LabelledData
    preparation: Preparation
    examination: Examination | None

    @classmethod
    def prepared(
        cls,
        parts: tuple[LabelledData, LabelledData | None],
        spec: TrainingSpec,
        n_threads: int,
        progress: ProgressCallback,
        head: LinearHead | None = None,
    ) -> TrainingSession:
        """Fit features and teacher. head: an imported teacher, which is not fitted. Raises InvalidProblem."""
        config = config_of(spec)
        made = prepare(parts[0], config, head=head, run=Run(n_threads=n_threads, progress=progress))
        return cls._of(config, parts, made)

    @classmethod
    def restored(
        cls,
        stored: Buffer,
        parts: tuple[LabelledData, LabelledData | None],
        spec: TrainingSpec,
        progress: ProgressCallback,
    ) -> TrainingSession:
        """Recompute features and scores from a stored preparation. Raises InvalidProblem, InvalidPackage."""
        config = config_of(spec)
        return cls._of(
            config, parts, Preparation.from_bytes(stored, parts[0], config, run=Run(progress=progress))
        )

    @classmethod
    def _of(
        cls,
        config: TrainingConfig,
        parts: tuple[LabelledData, LabelledData | None],
        preparation: Preparation,
    ) -> TrainingSession:
        data, test = parts
        return cls(config, data, preparation, None if test is None else Examination.of(preparation, test))

    def teacher_report(self, targets: Sequence[int]) -> Json:
        """Summary of the teacher's fit and its metrics as a binary classifier of each target; JSON-ready."""
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

    def batches(self, pairs: Sequence[tuple[int, str]]) -> list[list[tuple[int, str]]]:
        """The (class, method) pairs in batches whose `context` fits into memory.

        Raises InvalidProblem for unknown classes.
        """
        targets = list(dict.fromkeys(target for target, _ in pairs))
        last = len(self.preparation.classes) - 1
        if not all(0 <= target <= last for target in targets):
            message = f"class codes must lie in 0 to {last}, not {targets}"
            raise InvalidProblem(Fault("target", "unknown_class", message))
        groups = [set(group) for group in tuning_batches(self.preparation, targets)]
        return [[pair for pair in pairs if pair[0] in group] for group in groups]

    def context(
        self, batch: Sequence[tuple[int, str]], n_threads: int, progress: ProgressCallback
    ) -> BatchContext:
        """The shared data of a batch. Release it before the next batch's is computed.

        Raises InvalidProblem for compact students on sparse rows.
        """
        compact = {pair for pair in batch if pair[1] == COMPACT}
        rows = CompactRows.of(self.preparation, self.data, run=Run(progress=progress)) if compact else None
        searched = sorted({target for target, _ in set(batch) - compact})
        folds = None
        if self.config.tuning is not None and searched:
            folds = tuning_folds(self.preparation, searched)
        return BatchContext(folds, rows, max(1, n_threads // len(batch)))

    def student(
        self, target: int, method: str, context: BatchContext, progress: ProgressCallback
    ) -> StudentArtifact:
        """Train one student. Data missing from the context is computed for it alone, with the same result.

        Raises InvalidProblem.
        """
        spec = next(spec for spec in self.config.specs() if spec.method == method)
        if isinstance(spec, CompactSpec):
            rows = context.rows or CompactRows.of(self.preparation, self.data, run=Run(progress=progress))
            return self._compact(target, spec, rows, progress)
        trained = train_student(
            self.preparation,
            target,
            spec,
            folds=context.folds,
            run=Run(n_threads=context.n_threads, progress=progress),
        )
        search = trained.search
        row = {
            "objective": trained.summary.objective,
            "gap": trained.summary.relative_gap,
            "iterations": trained.summary.iterations,
            "status": trained.summary.status,
            "chosen": None if search is None else search.summary(),
        }
        return self._artifact(trained, row, None if search is None else search.as_dict())

    def _compact(
        self, target: int, spec: CompactSpec, rows: CompactRows, progress: ProgressCallback
    ) -> StudentArtifact:
        trained = train_compact_student(rows, target, spec, run=Run(progress=progress))
        chosen: Json = {"n_landmarks": trained.n_landmarks, "relative_cost": trained.relative_cost}
        trace, choice = None, trained.choice
        if choice is not None:
            points = [dataclasses.asdict(point) for point in choice.points]
            score = next(point.f1 for point in choice.points if point.n_landmarks == choice.n_landmarks)
            chosen |= {"score": score, "full_score": choice.full_f1, "met": choice.met, "points": len(points)}
            trace = {"chosen": chosen, "points": points}
        row = {
            "objective": trained.fitted.loss,
            "gap": None,
            "iterations": spec.steps,
            "status": None,
            "chosen": chosen,
        }
        return self._artifact(trained, row, trace)

    def _artifact(
        self, trained: TrainedStudent | TrainedCompact, row: Json, trace: Json | None
    ) -> StudentArtifact:
        packed = trained.packed
        calibration = {} if packed.calibration is None else {"calibration": packed.calibration.kind}
        measured = {} if self.examination is None else _metrics(measure(self.examination, trained))
        row |= {
            "seconds": trained.seconds,
            "threshold": packed.threshold,
            "metrics": calibration | measured,
        }
        compressed = None if trace is None else zlib.compress(msgspec.json.encode(trace))
        return StudentArtifact(row, packed.to_bytes(), compressed)


def _metrics(result: ClassResult) -> Json:
    metrics: Json = {**result.metrics.as_dict(), "classes_evaluated": result.classes_evaluated}
    if result.reliability is not None:
        trust = result.reliability.as_dict()
        metrics |= {"brier": trust["brier"], "base_brier": trust["base_brier"]}
        metrics |= {"calibration_error": trust["error"], "reliability": trust["bins"]}
    return metrics
