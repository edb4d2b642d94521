"""All that the students of one model share: feature map, features, teacher, scores, teachers of the folds.

A preparation is made once, and can be stored without its features: another process with the same data
recomputes them bit for bit and trains other classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import msgspec
import numpy as np
import scipy.sparse as sp

from core.data.column_layout import ColumnLayout
from core.data.dataset import LabelledData, validate_rows
from core.data.digest import data_digest
from core.data.extras import NO_EXTRAS, Extras
from core.data.fold_assignment import fold_assignment
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.features.beside_terms import BesideTermsMap
from core.features.choice import FeatureChoice, choose_features
from core.features.examples import Examples
from core.features.maps import FeatureMap, feature_map_from_bytes, fit_feature_map
from core.features.spec import FeatureSpec
from core.model_selection.folds import (
    Folds,
    TunedTeacher,
    fold_task,
    held_out_scores,
    refuse_lone_rows,
    tune_teacher,
)
from core.model_selection.quick_choice import QuickChoice
from core.model_selection.setting_search import Setting
from core.packed import PackedTeacher
from core.packed.codec import Arrays, Buffer, Header, decode, encode, package_errors, take_array
from core.run import Run
from core.solvers.solution import Summary
from core.solvers.threads import one_blas_thread
from core.students.base import Problem
from core.students.cost import query_cost
from core.students.difficulty import ScoreRanks
from core.teachers.base import Task, Teacher
from core.teachers.distilled import scores_and_weights
from core.teachers.linear import LinearTeacher
from core.training.config import TrainingConfig
from core.training.needs import check_needs
from core.training.stages import Stages
from core.types import FloatArray, IntArray, Matrix

C = TypeVar("C", QuickChoice, Setting)

_FORMAT = "stms.preparation.3"
_ROWS_AT_ONCE = 4096
_GUARD_PARTS = 3
MOST_COPIED_BYTES = 512 * 1024**2
"""If the held-out scores of all classes take more bytes, the guard tries no copies of the teacher."""


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """The common part of all students.

    task: the training rows, raw and mapped, with their class codes. classes: K names. teacher: fitted to all
    labelled rows. scores: S, (n, K). class_weights: W with S = Φ Wᵀ, (K, m); distilled from S for a teacher
    that is not linear in φ. ranks: the two largest scores of each row. config: the configuration it was made
    with. data_digest: SHA-256 of the data. seconds: wall time by stage.
    choice: features and C, if the configuration left them open or searched for them; ``config`` already
        contains them.
    fold_teachers: one per fold, fitted to the rows of the other folds; none unless the configuration needs
        held-out scores.
    labelled: the rows with a true label, to which map and teachers were fitted. ``task`` holds the unlabelled
        rows after them, labelled with the teacher's answers.
    held_out: scores of the labelled rows by teachers that were not fitted to them, (n, K); NaN for rows
        without such scores. They come from the teacher itself or, for students that copy the teacher, from
        the fold teachers. Otherwise None.
    """

    task: Task
    labelled: Task
    classes: tuple[str, ...]
    teacher: Teacher
    scores: FloatArray
    class_weights: FloatArray
    ranks: ScoreRanks
    config: TrainingConfig
    data_digest: str
    seconds: dict[str, float]
    fold_teachers: tuple[Teacher, ...] = ()
    choice: QuickChoice | Setting | None = None
    held_out: FloatArray | None = None

    @property
    def examples(self) -> Examples:
        """The training rows."""
        return self.task.examples

    def examples_of(self, data: LabelledData) -> Examples:
        """Other rows, raw and mapped."""
        features = self.feature_map.transform(data.X)
        return Examples(data.X, features, self.feature_map, self.config.features, all_extras=data.extras)

    def labelled_data(self) -> LabelledData:
        """The rows with a true label, before any map is applied."""
        known = self.labelled
        return LabelledData(
            known.examples.X,
            known.labels.astype(np.int32),
            self.classes,
            extras=known.examples.extras,
            layout=self.config.features.layout,
        )

    @property
    def features(self) -> Matrix:
        """Φ, (n, m)."""
        return self.task.examples.features

    @property
    def labels(self) -> IntArray:
        """Class codes, (n,)."""
        return self.task.labels

    @property
    def feature_map(self) -> FeatureMap:
        """φ."""
        fitted = self.task.examples.feature_map
        if fitted is None:
            raise InvalidProblem(Fault("features", "no_map", "the preparation has no feature map"))
        return fitted

    def problem(self, target: int) -> Problem:
        """The training problem of the student of class code ``target``.

        Raises InvalidProblem if the class is unknown, or if no rows or all rows are of the class.
        """
        if not 0 <= target < len(self.classes):
            message = f"class code {target} is outside 0 to {len(self.classes) - 1}"
            raise InvalidProblem(Fault("target", "unknown_class", message))
        positive = self.labels == target
        if not positive.any() or positive.all():
            who = "every" if positive.any() else "no"
            message = f"{who} example is of class {self.classes[target]!r}; both sides are needed"
            raise InvalidProblem(Fault("target", "single_class", message))
        return Problem(
            positive=positive,
            examples=self.examples,
            gate=np.ascontiguousarray(self.scores[:, target]),
            gate_weights=self.class_weights[target],
            rival=self.ranks.rival(target),
            codes=self.labels,
            class_weights=self.class_weights,
            teacher_cost=self.teacher_cost,
            is_distilled=self.teacher.class_weights is None,
            trees=self.teacher.trees,
            held_out=self._held_out_of_all,
        )

    def with_held_out(self, run: Run) -> Preparation:
        """The same with scores of the labelled rows by the fold teachers, made once for all students.

        Raises Cancelled.
        """
        if self.held_out is not None:
            return self
        made = self.examples.shared.get("held_out_scores", lambda: self._scores_by_folds(run))
        return replace(self, held_out=made)

    def unseen_scores(self, run: Run = Run()) -> FloatArray | None:
        """Scores of the labelled rows by teachers that were not fitted to them, (n, K); NaN for rows without.

        The preparation does not keep them. The result is None if no such teacher exists, or if the teacher
        was imported and it is unknown which rows it was fitted to. Raises Cancelled.
        """
        if self.config.teacher.metadata().get("seen_rows") == "unknown":
            return None
        if self.held_out is not None or not self.fold_teachers:
            return self.held_out
        return self._scores_by_folds(run)

    def _scores_by_folds(self, run: Run) -> FloatArray:
        fold_of = _fold_of(self.labelled, self.config)
        return held_out_scores(self.labelled, fold_of, self.fold_teachers, run)

    @property
    def _held_out_of_all(self) -> FloatArray | None:
        """``held_out`` for all rows: NaN for the rows without a label."""
        known, further = self.held_out, len(self.labels) - len(self.labelled.labels)
        if known is None or not further:
            return known
        return np.concatenate([known, np.full((further, known.shape[1]), np.nan)])

    @property
    def feature_choice(self) -> FeatureChoice | QuickChoice | Setting:
        """Which feature map was fitted and, if the configuration left it open, why."""
        return self.choice or choose_features(self.config.features, self.labelled.examples.X)

    @property
    def teacher_cost(self) -> int:
        """Number of multiplications for one query to the packed teacher."""
        return self.examples.shared.get(
            "teacher_cost", lambda: query_cost(self.packed_teacher().map, len(self.classes))
        )

    @property
    def map_digest(self) -> str:
        """Digest of the packed map of students whose decisions are functions of the features."""

        def digest() -> str:
            none = np.zeros((1, self.feature_map.n_features_out))
            return self.feature_map.fold(none)[0].digest

        return self.examples.shared.get("map_digest", digest)

    def packed_teacher(self) -> PackedTeacher:
        """The teacher with its map, ready for queries; its distilled weights if it cannot be packed itself.

        Distilled weights have ``stand_in: distilled`` in their metadata.
        """
        metadata = {
            **self.config.teacher.metadata(),
            "seed": int(self.config.seed),
            "data_digest": self.data_digest,
        }
        packed = self.teacher.pack(self.examples, self.classes, metadata)
        if packed is not None:
            return packed
        stand_in = LinearTeacher(self.class_weights)
        return stand_in.pack(self.examples, self.classes, {**metadata, "stand_in": "distilled"})

    def folds(self, targets: Sequence[int] | None = None, run: Run = Run()) -> Folds:
        """The folds with their teachers, for searches and held-out scores of several students.

        targets: codes of the classes that the folds serve; by default all. Memory: a float32 copy of the
        features (for sparse rows in standard deviations, further features for each fold), and folds × rows ×
        targets scores; release the folds when the students are trained.

        Raises InvalidProblem for a configuration that needs no folds, Cancelled.
        """
        if not self.fold_teachers:
            raise InvalidProblem(Fault("folds", "missing", "the preparation was made without folds"))
        return Folds.of(
            self.labelled,
            self.classes,
            _fold_of(self.labelled, self.config),
            TunedTeacher(self.config.teacher, self.fold_teachers, ()),
            targets=targets,
            teacher_cost=self.teacher_cost,
            run=run,
        )

    def to_bytes(self) -> bytes:
        """Map and teachers as safetensors, for ``from_bytes``; features and scores are not stored.

        The teacher's fitting time is not stored either, so a repeated run gives the same bytes.
        """
        summary = self.teacher.summary
        header = {
            "format": _FORMAT,
            "recipe": self.config.recipe(),
            "data": self.data_digest,
            "summary": None if summary is None else replace(summary, seconds=0.0).as_dict(),
            **_choice_header(self.choice),
        }
        arrays = {"feature_map": np.frombuffer(self.feature_map.to_bytes(), dtype=np.uint8)}
        for prefix, teacher in (("teacher", self.teacher), *_numbered(self.fold_teachers)):
            arrays |= {f"{prefix}.{name}": array for name, array in teacher.arrays().items()}
        return encode(header, arrays)

    @classmethod
    def from_bytes(
        cls, stored: Buffer, data: LabelledData, config: TrainingConfig, run: Run = Run()
    ) -> Preparation:
        """The preparation that ``to_bytes`` stored; features and scores are recomputed bit for bit.

        ``config`` may differ from the stored one only in settings of the students.

        Raises InvalidPackage if the bytes are not a preparation of this version, InvalidProblem if they
        belong to other data or to another configuration, Cancelled.
        """
        header, arrays = decode(stored, _FORMAT)
        digest, known = data_digest(data), data.labelled()
        if header.get("data") != digest:
            message = "the stored preparation was made from other data"
            raise InvalidProblem(Fault("data", "other_data", message))
        choice: QuickChoice | Setting | None = None
        config = config.with_layout(data.layout)
        if config.searches_job and "setting" in header:
            choice = _stored(header, "setting", Setting, data.layout)
            config = config.with_setting(choice)
        elif config.automatic or config.searches_job:
            choice = _stored(header, "choice", QuickChoice, data.layout)
            config = config.with_choice(choice, known.n)
        if header.get("recipe") != config.recipe():
            message = "the stored preparation was made with other features, teacher, folds or seed"
            raise InvalidProblem(Fault("config", "other_config", message))
        feature_map = feature_map_from_bytes(take_array(arrays, "feature_map").tobytes())
        spec, size = config.teacher, feature_map.n_features_out
        with package_errors("teacher"):
            teacher = spec.restore(_of(arrays, "teacher"), data.K, size, _summary(header))
            fold_teachers = tuple(
                spec.restore(_of(arrays, f"fold{fold}"), data.K, size, None)
                for fold in range(_n_folds(config, known.n))
            )
        stages = Stages(run)
        with one_blas_thread():
            task = _task(known, feature_map, config, stages)
            restored = _with_scores(task, data.classes, teacher, config, digest, stages)
            restored = _with_held_out(replace(restored, fold_teachers=fold_teachers, choice=choice), run)
        return with_rest(restored, data, digest, run)


def prepare_as_given(data: LabelledData, config: TrainingConfig, run: Run = Run()) -> Preparation:
    """``core.training.pipeline.prepare`` for rows that all have a label; ``config`` leaves nothing open."""
    return fit_preparation(data, checked_config(data, config), Stages(run.with_seed(config.seed)))


def checked_config(data: LabelledData, config: TrainingConfig) -> TrainingConfig:
    """The configuration with the layout of the data.

    Raises InvalidProblem if a class has one row only and the configuration tunes, or if data or teacher do
    not offer what a student needs.
    """
    config = config.with_layout(data.layout)
    if config.tuning is not None:
        refuse_lone_rows(data.y, data.classes)
    check_needs(data, config.teacher, config.students)
    return config


def fit_preparation(
    data: LabelledData,
    config: TrainingConfig,
    stages: Stages,
    choice: QuickChoice | Setting | None = None,
    fitted: Teacher | None = None,
) -> Preparation:
    """Fit map and teacher, score the rows, and fit the fold teachers, as the completed ``config`` says.

    choice: the choice that completed ``config``. fitted: the teacher, if it was fitted during the choice.
    Raises InvalidProblem, Cancelled.
    """
    run = stages.run
    with one_blas_thread():
        stages.begin("features", data.n)
        task = _task(data, fit_feature_map(data.X, config.features, config.seed), config, stages)
        stages.begin("teacher", 1)
        teacher = (fitted or config.teacher.fit(task, run.stage("teacher"))).without_solver_state()
        made = _with_scores(task, data.classes, teacher, config, data_digest(data), stages)
        made = replace(made, choice=choice)
        if not config.needs_folds:
            return _with_held_out(made, run)
        stages.begin("tuning_teacher", _n_folds(config, data.n))
        fold_of = _fold_of(task, config)
        if config.needs_all_folds:
            teachers = tune_teacher(task, (config.teacher,), fold_of, run).teachers
        else:
            training = np.flatnonzero(fold_of != 0)
            learnt = config.teacher.fit(fold_task(task, training).take(training), run.silent())
            teachers = (learnt.without_solver_state(),)
        made = _with_held_out(replace(made, fold_teachers=teachers), run)
        return replace(made, seconds=made.seconds | stages.end())


def _with_held_out(made: Preparation, run: Run) -> Preparation:
    """Add held-out scores: the teacher's own, or those of the fold teachers if students copy scores."""
    if made.teacher.held_out is not None:
        return replace(made, held_out=made.teacher.held_out)
    return made.with_held_out(run) if made.config.copies_scores else made


def _fold_of(task: Task, config: TrainingConfig) -> IntArray:
    """The fold of each row, (n,). The guard alone holds out every third row, in a single fold."""
    labels = task.labels
    if config.needs_all_folds:
        return fold_assignment(labels, _n_folds(config, len(labels)), config.seed)
    dealt = fold_assignment(labels, min(_GUARD_PARTS, len(labels)), config.seed)
    return np.where(dealt == 0, 0, -1)


def _n_folds(config: TrainingConfig, n: int) -> int:
    """Number of folds for n rows. A search needs exactly its number; other uses take at most n folds."""
    if not config.needs_all_folds:
        return int(config.needs_folds)
    return config.n_folds if config.tuning is not None else min(config.n_folds, n)


def _numbered(teachers: Sequence[Teacher]) -> list[tuple[str, Teacher]]:
    return [(f"fold{number}", teacher) for number, teacher in enumerate(teachers)]


def _of(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays whose names start with a prefix, by their names without it."""
    start = f"{prefix}."
    return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}


def _with_scores(
    task: Task,
    classes: tuple[str, ...],
    teacher: Teacher,
    config: TrainingConfig,
    digest: str,
    stages: Stages,
) -> Preparation:
    n = len(task.labels)
    stages.begin("scores", n)
    scores, weights = scores_and_weights(teacher, task.examples, stages.run)
    ranks = ScoreRanks.of(scores)
    stages.run.report("scores", n, n)
    seconds = stages.end()
    return Preparation(task, task, classes, teacher, scores, weights, ranks, config, digest, seconds)


def _task(data: LabelledData, feature_map: FeatureMap, config: TrainingConfig, stages: Stages) -> Task:
    features = _transform(feature_map, data.X, stages)
    examples = Examples(data.X, features, feature_map, config.features, all_extras=data.extras)
    return Task(examples, data.y, data.K)


def _transform(feature_map: FeatureMap, X: Matrix, stages: Stages) -> Matrix:
    """Φ in blocks of rows, with cancel checks between them; linear features are fast enough in one block."""
    n = X.shape[0]
    stages.begin("features", n)
    if feature_map.kind == "linear":
        features = feature_map.transform(X)
        stages.run.report("features", n, n)
        return features
    is_sparse = isinstance(feature_map, BesideTermsMap)
    features = np.empty((0 if is_sparse else n, feature_map.n_features_out), dtype=feature_map.dtype)
    parts: list[Matrix] = []
    for start in range(0, n, _ROWS_AT_ONCE):
        stages.run.check_cancel()
        stop = min(start + _ROWS_AT_ONCE, n)
        block = feature_map.transform(X[start:stop])
        if is_sparse:
            parts.append(block)
        else:
            features[start:stop] = block
        stages.run.report("features", stop, n)
    return sp.csr_array(sp.vstack(parts, format="csr")) if is_sparse else features


def _choice_header(choice: QuickChoice | Setting | None) -> dict[str, Any]:
    if choice is None:
        return {}
    values = asdict(choice)
    # The layout is not stored: it is that of the data for which the preparation is restored.
    del values["features"]["layout"]
    return {"setting" if isinstance(choice, Setting) else "choice": values}


def _stored(header: Header, name: str, kind: type[C], layout: ColumnLayout | None) -> C:
    """The choice that ``_choice_header`` stored, for data of a layout. Raises InvalidPackage."""
    try:
        values = dict(header[name])
        return kind(FeatureSpec(**values.pop("features"), layout=layout), **values)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidPackage(f"The preparation has an unusable choice of features: {error}") from error


def _summary(header: Header) -> Summary | None:
    try:
        return msgspec.convert(header.get("summary"), Summary | None)
    except msgspec.ValidationError as error:
        raise InvalidPackage(f"The preparation has an unusable summary: {error}") from error


def with_rest(preparation: Preparation, data: LabelledData, digest: str, run: Run = Run()) -> Preparation:
    """Add the unlabelled rows of ``data`` after the labelled rows of a preparation.

    digest: of all rows of ``data``. Raises InvalidProblem, Cancelled.
    """
    rows = np.flatnonzero(data.y < 0)
    if not len(rows):
        return preparation
    both = with_unlabelled(preparation, data.X[rows], run, data.extras.take(rows))
    return replace(both, data_digest=digest)


def with_unlabelled(
    preparation: Preparation, X: Any, run: Run = Run(), extras: Extras = NO_EXTRAS
) -> Preparation:
    """The same map and teacher, with further rows without labels that students learn from.

    The class of such a row is the one with the teacher's largest score. Its gate and difficulty follow from
    the scores as for other rows: the larger the teacher's margin, the easier the row.

    X: rows (u, d), dense or sparse like those of the preparation; extras: of these rows. The loss weight of
    each row is C/n, and n includes the new rows. Held-out scores need true labels, so the folds hold labelled
    rows only: searches, thresholds and calibrations use students that were fitted without the new rows.

    Raises InvalidProblem, Cancelled.
    """
    known, feature_map = preparation.examples, preparation.feature_map
    rows = validate_rows(X, known.X.shape[1])
    if sp.issparse(rows) != sp.issparse(known.X):
        message = "rows without labels must be dense or sparse like the labelled ones"
        raise InvalidProblem(Fault("X", "other_format", message))
    with one_blas_thread():
        features = feature_map.transform(rows)
        spec = preparation.config.features
        further = Examples(rows, features, feature_map, spec, all_extras=extras)
        scores = preparation.teacher.scores(further, run)
    answers = scores.argmax(axis=1).astype(preparation.labels.dtype)
    both = Examples(
        _stacked(known.X, rows),
        _stacked(known.features, features),
        feature_map,
        spec,
        all_extras=known.extras.followed_by(extras),
    )
    all_scores = np.concatenate([preparation.scores, scores])
    return replace(
        preparation,
        task=Task(both, np.concatenate([preparation.labels, answers]), len(preparation.classes)),
        scores=all_scores,
        ranks=ScoreRanks.of(all_scores),
    )


def _stacked(first: Matrix, second: Matrix) -> Matrix:
    if isinstance(first, np.ndarray):
        return np.concatenate([first, second])
    return sp.csr_array(sp.vstack([first, second]))
