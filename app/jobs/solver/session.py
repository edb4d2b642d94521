"""Training session of the solver process: one job's data in memory and core's training on it."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from app.domain.curves import MOST_PAIRED_CLASSES, RowAnswers
from app.domain.entities import Json
from app.domain.training_spec import TrainingSpec
from app.jobs.solver.job_data import JobData
from app.services.training_plan import config_of
from core.data.dataset import LabelledData
from core.errors import Fault, InvalidProblem
from core.model_selection.folds import Folds
from core.monitoring.suspects import Suspects, class_probabilities, suspect_labels
from core.packed import PackedStudent
from core.packed.codec import Buffer
from core.packed.encoder import Encoder
from core.packed.input_profile import InputProfile
from core.packed.map_packages import MIN_SHARED_BYTES
from core.run import Run
from core.teachers.linear_head import LinearHead
from core.training.config import TrainingConfig
from core.training.evaluation import ClassResult, Evaluator
from core.training.pipeline import measure, prepare
from core.training.preparation import MOST_COPIED_BYTES, Preparation
from core.training.rehearsal import with_gaps
from core.training.student_training import TrainedStudent, class_batches, train_student
from core.types import IntArray, ProgressCallback

_MOST_PAIRED_ROWS = 200_000
MAX_CURVES = 20_000
"""Students of jobs with more classes have no curves, which take some kilobytes each."""


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

    map: the package of the map that ``packed`` names; None if ``packed`` contains it. trace: hyper-parameter
    search as JSON compressed by zlib; None without a search.
    """

    row: Json
    packed: bytes
    map: bytes | None
    trace: bytes | None


@dataclass(frozen=True, slots=True)
class SuspectRows:
    """Suspect rows of a job, and the number of rows that were checked."""

    found: Suspects
    of: int

    def report(self) -> Json:
        """JSON-ready."""
        return {"rows": len(self.found), "of": self.of}


@dataclass(frozen=True, slots=True)
class TrainingSession:
    """One job's data and preparation in memory, from which its students are trained.

    training_numbers, test_numbers: numbers of the rows in the data set, (n,) and (t,); the latter is None
    unless the job has held out its test rows from the same part.
    """

    config: TrainingConfig
    data: LabelledData
    preparation: Preparation
    evaluator: Evaluator | None
    training_numbers: IntArray
    test_numbers: IntArray | None = None
    encoder: Encoder | None = None
    profile: InputProfile | None = None

    @classmethod
    def prepared(
        cls,
        rows: JobData,
        spec: TrainingSpec,
        run: Run,
        head: LinearHead | None = None,
    ) -> TrainingSession:
        """Fit features and teacher. head: an imported teacher, which is not fitted. Raises InvalidProblem."""
        config = config_of(spec, head)
        made = prepare(rows.train, config, run)
        return cls._of(rows, made)

    @classmethod
    def restored(
        cls,
        stored: Buffer,
        rows: JobData,
        spec: TrainingSpec,
        progress: ProgressCallback,
    ) -> TrainingSession:
        """Recompute features and scores from a stored preparation. Raises InvalidProblem, InvalidPackage."""
        config = config_of(spec)
        made = Preparation.from_bytes(stored, rows.train, config, Run(progress=progress))
        return cls._of(rows, made)

    @classmethod
    def _of(
        cls,
        rows: JobData,
        preparation: Preparation,
    ) -> TrainingSession:
        test, draws_curves = rows.test, len(preparation.classes) <= MAX_CURVES
        evaluator = None if test is None else Evaluator.of(preparation, test, draws_curves=draws_curves)
        return cls(
            preparation.config,
            rows.train,
            preparation,
            evaluator,
            rows.training_numbers,
            rows.held_out if rows.measures_held_out else None,
            rows.encoder,
            rows.profile,
        )

    def suspects(self, limit: int, confirmed: Sequence[int] = ()) -> SuspectRows | None:
        """The rows whose labels are probably wrong, the most suspect first, at most ``limit``.

        They are among the labelled training rows that have scores of a teacher that has not seen them, and
        the test rows that the job has held out. confirmed: numbers of rows whose labels people have
        confirmed. None if no row has such scores, or if there are too many, because their tables need four
        times the memory.
        """
        preparation, evaluator = self.preparation, self.evaluator
        rows = len(preparation.labelled.labels) + (0 if evaluator is None else len(evaluator.labels))
        is_small = 8 * rows * len(preparation.classes) <= MOST_COPIED_BYTES // 4
        scores = preparation.unseen_scores() if is_small else None
        if scores is None:
            return None
        labels = preparation.labelled.labels
        numbers = self.training_numbers[self.data.y >= 0]
        if evaluator is not None and self.test_numbers is not None:
            scores = np.concatenate([scores, evaluator.scores])
            labels = np.concatenate([labels, evaluator.labels])
            numbers = np.concatenate([numbers, self.test_numbers])
        known = ~np.isnan(scores).any(axis=1)
        if not known.any():
            return None
        labels, numbers = labels[known], numbers[known]
        found = suspect_labels(labels, class_probabilities(labels, scores[known]), limit + len(confirmed))
        in_test = np.isin(numbers, [] if self.test_numbers is None else self.test_numbers)
        found = found.renumbered(numbers, in_test)
        found = found.where(~np.isin(found.rows, np.asarray(confirmed, dtype=np.int64)))
        return SuspectRows(found.where(np.arange(len(found)) < limit), len(numbers))

    def teacher_report(self, targets: Sequence[int]) -> Json:
        """Summary of the teacher's fit and its metrics as a binary classifier of each target; JSON-ready."""
        summary = self.preparation.teacher.summary
        measured = [] if self.evaluator is None else [self.evaluator.teacher(target) for target in targets]
        choice = self.preparation.choice
        search = {} if choice is None else choice.search()
        return {
            **({"search": search} if search else {}),
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
        run = Run(n_threads=context.n_threads, progress=progress)
        trained = train_student(
            self.preparation,
            target,
            self.config.student(method),
            folds=context.folds,
            run=run,
        )
        if self.encoder is not None and method == self.config.students[0].name:
            trained = with_gaps(trained, self.preparation, self.encoder, run)
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
        packed = self._sharing_map(trained.packed)
        calibration = {} if packed.calibration is None else {"calibration": packed.calibration.kind}
        rule = {"threshold_rule": packed.metadata["threshold_rule"]}
        checked = {} if trained.verdict is None else {"guard": trained.verdict.as_dict()}
        checked |= {} if trained.promise is None else {"false_positives": trained.promise.as_dict()}
        if trained.own_rows.warning is not None and "warning" not in checked.get("guard", {}):
            # The guard measures on rows that the student has not seen, which tells more.
            checked["own_rows"] = trained.own_rows.as_dict()
        result = None if self.evaluator is None else measure(self.evaluator, trained)
        answers, kind = (trained.answers, "held-out") if result is None else (result.answers, "test")
        # With a budget of false positives, recall and precision follow from the budget.
        if answers is not None and self.config.threshold != "fpr" and (weak := answers.warning(kind)):
            checked["weak"] = weak
        measured = {} if result is None else _metrics(result)
        row |= {} if result is None else _curve(result) | self._row_answers(result, trained.target)
        row |= {
            "seconds": trained.seconds,
            "threshold": packed.threshold,
            "metrics": rule | calibration | checked | measured,
        }
        trace = trained.trace
        compressed = None if trace is None else zlib.compress(msgspec.json.encode(trace))
        shared_map = packed.map.to_bytes() if packed.shares_map else None
        return StudentArtifact(row, packed.to_bytes(), shared_map, compressed)

    def _sharing_map(self, packed: PackedStudent) -> PackedStudent:
        """The student; it only names its map if that is the job's map and large enough."""
        if packed.map.nbytes < MIN_SHARED_BYTES:
            return packed
        return dataclasses.replace(packed, shares_map=packed.map.digest == self.preparation.map_digest)

    def _row_answers(self, result: ClassResult, target: int) -> Json:
        """Truth and answers row by row, for comparisons with other versions; empty if there are many rows."""
        evaluator = self.evaluator
        if evaluator is None or result.decision is None or result.curve is None:
            return {}
        if len(evaluator.classes) > MOST_PAIRED_CLASSES or len(evaluator.labels) > _MOST_PAIRED_ROWS:
            return {}
        answers = RowAnswers(evaluator.labels == target, result.decision)
        return {"curve": result.curve.as_dict() | {"row_answers": answers.as_dict()}}


def _metrics(result: ClassResult) -> Json:
    metrics: Json = {**result.metrics.as_dict(), "classes_evaluated": result.classes_evaluated}
    if result.reliability is not None:
        trust = result.reliability.as_dict()
        metrics |= {"brier": trust["brier"], "base_brier": trust["base_brier"]}
        metrics |= {"calibration_error": trust["error"], "reliability": trust["bins"]}
    if result.beside_teacher is not None:
        metrics["beside_teacher"] = result.beside_teacher
    if result.answers is not None:
        metrics["yes_by_class"] = result.answers.as_dict()
    return metrics


def _curve(result: ClassResult) -> Json:
    return {} if result.curve is None else {"curve": result.curve.as_dict()}
