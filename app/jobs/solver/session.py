"""Training session of the solver process: one job's data in memory and core's training on it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np

from app.domain.entities import Json
from app.domain.training_spec import TrainingSpec
from app.services.datasets import load_dataset
from app.services.imported_teacher import teacher_rows
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.data.dataset import LabelledData
from core.errors import Fault, InvalidProblem
from core.labelling.base import Labelling
from core.model_selection.folds import Folds
from core.model_selection.setting_search import Setting
from core.packed.codec import Buffer
from core.run import Run
from core.teachers.linear_head import ImportedHead, LinearHead
from core.training.config import TrainingConfig
from core.training.evaluation import ClassResult, Evaluator
from core.training.pipeline import measure
from core.training.preparation import Preparation, prepare
from core.training.student_training import TrainedStudent, class_batches, train_student
from core.types import IntArray, ProgressCallback

MAX_CURVES = 20_000
"""Students of jobs with more classes have no curves, which take some kilobytes each."""


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
        tuning=spec.tuning,
        threshold=spec.threshold.rule,
        budget=spec.threshold.max_false_positive_rate,
        calibration=spec.calibration.kind,
        folds=spec.threshold.folds,
        guard=spec.guard.kind or "off",
        seed=spec.seed,
    )


Score: TypeAlias = Callable[[LabelledData, int], LabelledData]
"""Gives rows the scores of a remote teacher; 0 for the training part, 1 for the test part."""


def load_parts(
    store: Store,
    files: BlobCache,
    dataset_id: str,
    spec: TrainingSpec,
    labels: Labelling | None = None,
    score: Score | None = None,
) -> tuple[LabelledData, LabelledData | None]:
    """The training rows, and the test rows if the job has any, with labels coded by the training classes.

    labels: what the job's labelling has found for all training rows of the data set; rows are held out by
    the labels that were given. score: of a remote teacher.
    Raises NotFound, InvalidProblem, and what ``score`` raises.
    """
    train, test = load_dataset(store, files, dataset_id)
    measured = _held_out_rows(train, spec)
    if labels is not None:
        train = labels.applied_to(train)
    if spec.evaluation.dataset_id is not None:
        other, _ = load_dataset(store, files, spec.evaluation.dataset_id)
        other = other.labelled()
        names = np.asarray(other.classes)[other.y]
        test = LabelledData.with_codes(other.X, names, train.classes, n_columns=train.d)
    fraction = spec.evaluation.test_fraction
    if score is not None:
        train = score(train, 0)
        test = score(test, 1) if test is not None and fraction is None else None
    if len(measured):
        # The split takes scores along, so that which rows are asked for does not depend on it.
        train, test = train.take(_others(train, measured)), train.take(measured)
    return train, test


def label_rows(
    store: Store,
    files: BlobCache,
    dataset_id: str,
    spec: TrainingSpec,
    n_threads: int,
    progress: ProgressCallback,
) -> Labelling:
    """Labels for the training rows of a data set. Rows that the job holds out take no part, and keep theirs.

    Raises NotFound, InvalidProblem.
    """
    if spec.labelling is None:
        raise RuntimeError("the job has no labelling")
    data, _ = load_dataset(store, files, dataset_id)
    rows = _others(data, _held_out_rows(data, spec))
    run = Run(spec.seed, n_threads=n_threads, progress=progress)
    return spec.labelling.label(data.take(rows), run.stage("labelling")).of_rows(rows, data)


def _others(data: LabelledData, rows: IntArray) -> IntArray:
    return np.setdiff1d(np.arange(data.n), rows)


def _held_out_rows(data: LabelledData, spec: TrainingSpec) -> IntArray:
    """Ascending row numbers of a stratified part of the labelled rows, the same for the same seed."""
    fraction, seed = spec.evaluation.test_fraction, spec.seed
    if fraction is None or spec.evaluation.dataset_id is not None:
        return np.empty(0, dtype=np.intp)
    from sklearn.model_selection import StratifiedShuffleSplit  # a second of start that most jobs do not need

    splitter = StratifiedShuffleSplit(n_splits=1, test_size=fraction, random_state=seed)
    try:
        known = np.flatnonzero(data.y >= 0)
        _, held_out = next(splitter.split(np.zeros(len(known)), data.y[known]))
    except ValueError as error:
        fault = Fault("evaluation.test_fraction", "cannot_split", f"The rows cannot be split: {error}")
        raise InvalidProblem(fault) from error
    rows: IntArray = np.sort(known[held_out])
    return rows


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

    folds: for searches and held-out scores. n_threads: for the search of one student.
    """

    folds: Folds | None
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
    evaluator: Evaluator | None

    @classmethod
    def prepared(
        cls,
        parts: tuple[LabelledData, LabelledData | None],
        spec: TrainingSpec,
        run: Run,
        head: LinearHead | None = None,
    ) -> TrainingSession:
        """Fit features and teacher. head: an imported teacher, which is not fitted. Raises InvalidProblem."""
        config = config_of(spec, head)
        made = prepare(parts[0], config, run)
        return cls._of(parts, made)

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
        made = Preparation.from_bytes(stored, parts[0], config, Run(progress=progress))
        return cls._of(parts, made)

    @classmethod
    def _of(
        cls,
        parts: tuple[LabelledData, LabelledData | None],
        preparation: Preparation,
    ) -> TrainingSession:
        data, test = parts
        draws_curves = len(preparation.classes) <= MAX_CURVES
        evaluator = None if test is None else Evaluator.of(preparation, test, draws_curves=draws_curves)
        return cls(preparation.config, data, preparation, evaluator)

    def teacher_report(self, targets: Sequence[int]) -> Json:
        """Summary of the teacher's fit and its metrics as a binary classifier of each target; JSON-ready."""
        summary = self.preparation.teacher.summary
        measured = [] if self.evaluator is None else [self.evaluator.teacher(target) for target in targets]
        choice = self.preparation.choice
        return {
            **({"search": choice.search()} if isinstance(choice, Setting) else {}),
            "summary": {} if summary is None else summary.as_dict(),
            "seconds": self.preparation.seconds,
            "features": self.preparation.feature_choice.as_dict(),
            "metrics": [
                {"class_index": target, "label": result.label, "metrics": _metrics(result)} | _curve(result)
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
        groups = [set(group) for group in class_batches(self.preparation, targets)]
        return [[pair for pair in pairs if pair[0] in group] for group in groups]

    def context(
        self, batch: Sequence[tuple[int, str]], n_threads: int, progress: ProgressCallback
    ) -> BatchContext:
        """The shared data of a batch. Release it before the next batch's is computed.

        Raises InvalidProblem.
        """
        run = Run(self.config.seed, progress=progress)
        names = {name for _, name in batch}
        specs = {spec.name: spec for spec in self.config.students if spec.name in names}
        for spec in specs.values():
            spec.prepare(self.preparation.examples, run)
        targets = [target for target, name in batch if name in specs and self.config.holds_out(specs[name])]
        folds = self.preparation.folds(targets) if targets else None
        return BatchContext(folds, max(1, n_threads // len(batch)))

    def student(
        self, target: int, method: str, context: BatchContext, progress: ProgressCallback
    ) -> StudentArtifact:
        """Train one student. Data missing from the context is computed for it alone, with the same result.

        Raises InvalidProblem.
        """
        trained = train_student(
            self.preparation,
            target,
            self.config.student(method),
            folds=context.folds,
            run=Run(n_threads=context.n_threads, progress=progress),
        )
        summary = trained.summary
        row = {
            "objective": summary.objective,
            "gap": summary.relative_gap,
            "iterations": summary.iterations,
            "status": summary.status,
            "chosen": trained.chosen,
        }
        return self._artifact(trained, row)

    def _artifact(self, trained: TrainedStudent, row: Json) -> StudentArtifact:
        packed = trained.packed
        calibration = {} if packed.calibration is None else {"calibration": packed.calibration.kind}
        checked = {} if trained.verdict is None else {"guard": trained.verdict.as_dict()}
        checked |= {} if trained.promise is None else {"false_positives": trained.promise.as_dict()}
        if trained.own_rows.warning is not None and "warning" not in checked.get("guard", {}):
            # The guard's figures are of rows that the student has not seen, and say more.
            checked["own_rows"] = trained.own_rows.as_dict()
        result = None if self.evaluator is None else measure(self.evaluator, trained)
        measured = {} if result is None else _metrics(result)
        row |= {} if result is None else _curve(result)
        row |= {
            "seconds": trained.seconds,
            "threshold": packed.threshold,
            "metrics": calibration | checked | measured,
        }
        trace = trained.trace
        compressed = None if trace is None else zlib.compress(msgspec.json.encode(trace))
        return StudentArtifact(row, packed.to_bytes(), compressed)


def _metrics(result: ClassResult) -> Json:
    metrics: Json = {**result.metrics.as_dict(), "classes_evaluated": result.classes_evaluated}
    if result.reliability is not None:
        trust = result.reliability.as_dict()
        metrics |= {"brier": trust["brier"], "base_brier": trust["base_brier"]}
        metrics |= {"calibration_error": trust["error"], "reliability": trust["bins"]}
    if result.beside_teacher is not None:
        metrics["beside_teacher"] = result.beside_teacher
    return metrics


def _curve(result: ClassResult) -> Json:
    return {} if result.curve is None else {"curve": result.curve.as_dict()}
