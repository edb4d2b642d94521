"""All that the students of one model share: feature map, features, teacher, scores.

A preparation is made once, and can be stored without its features: another process that has the same data
makes them again, bit for bit, and trains other classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from core.data.dataset import LabelledData
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.features.maps import FeatureMap, feature_map_from_bytes, fit_feature_map
from core.model_selection.folds import fold_assignment, refuse_lone_rows, tune_teacher
from core.packed import PackedTeacher
from core.packed.codec import Buffer, Header, decode, encode, package_errors, take_array
from core.packed.maps import frozen_array
from core.run import Run
from core.solvers.solution import Summary
from core.solvers.threads import one_blas_thread
from core.students.base import Lesson
from core.students.difficulty import ScoreRanks, difficulty_degrees
from core.teachers.linear_head import LinearHead
from core.teachers.ssvm import LinearTeacher, fit_ssvm
from core.training.config import SSVM, TrainingConfig
from core.training.stages import Stages
from core.types import FloatArray, IntArray, Matrix

_FORMAT = "stms.preparation.1"
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """The common part of all students.

    feature_map: φ. features: Φ, (n, m). labels: codes, (n,). classes: K names. teacher: W.
    scores: S = Φ Wᵀ, (n, K). ranks: the two largest of each row. config: what it was made with.
    data_digest: SHA-256 of the data. seconds: wall time by stage.
    fold_teachers: one a fold, fitted to the rows of the other folds; none unless the configuration tunes.
    """

    feature_map: FeatureMap
    features: Matrix
    labels: IntArray
    classes: tuple[str, ...]
    teacher: LinearTeacher
    scores: FloatArray
    ranks: ScoreRanks
    config: TrainingConfig
    data_digest: str
    seconds: dict[str, float]
    fold_teachers: tuple[LinearTeacher, ...] = ()

    def lesson(self, target: int, *, floor: float = 0.3) -> Lesson:
        """What the student of class code ``target`` learns from; floor is ϵ of Eq. (11).

        Raises InvalidProblem for an unknown class or one without examples, or of nothing but examples.
        """
        if not 0 <= target < len(self.classes):
            message = f"class code {target} is outside 0 to {len(self.classes) - 1}"
            raise InvalidProblem(Fault("target", "unknown_class", message))
        positive = self.labels == target
        if not positive.any() or positive.all():
            who = "every" if positive.any() else "no"
            message = f"{who} example is of class {self.classes[target]!r}; both sides are needed"
            raise InvalidProblem(Fault("target", "single_class", message))
        return Lesson(
            positive=positive,
            gate=np.ascontiguousarray(self.scores[:, target]),
            gate_weights=self.teacher.weights[target],
            difficulty=difficulty_degrees(self.scores, self.labels, target, floor=floor, ranks=self.ranks),
        )

    def packed_teacher(self) -> PackedTeacher:
        """The teacher with its map, ready for queries."""
        basis, coef, intercept = self.feature_map.fold(self.teacher.weights)
        metadata: dict[str, str | float | int] = {
            "method": self.config.teacher,
            "C": float(self.config.teacher_C),
            "seed": int(self.config.seed),
            "data_digest": self.data_digest,
        }
        return PackedTeacher(basis, coef, intercept, self.classes, metadata)

    def to_bytes(self) -> bytes:
        """Map and teacher as safetensors, for ``from_bytes``; features and scores are not stored.

        Nor is the time that the teacher took, so a repeated run gives the same bytes.
        """
        summary = self.teacher.summary
        header = {
            "format": _FORMAT,
            "recipe": self.config.recipe(),
            "data": self.data_digest,
            "summary": None if summary is None else replace(summary, seconds=0.0).as_dict(),
        }
        arrays = {
            "feature_map": np.frombuffer(self.feature_map.to_bytes(), dtype=np.uint8),
            "weights": self.teacher.weights,
        }
        if self.fold_teachers:
            arrays["fold_weights"] = np.vstack([teacher.weights for teacher in self.fold_teachers])
        return encode(header, arrays)

    @classmethod
    def from_bytes(
        cls,
        stored: Buffer,
        data: LabelledData,
        config: TrainingConfig,
        *,
        run: Run = Run(),
    ) -> Preparation:
        """The preparation that ``to_bytes`` stored, features and scores made again: the same bits.

        ``config`` may differ from the stored one in what concerns students only.

        Raises InvalidPackage for bytes that are not a preparation, InvalidProblem when they belong to other
        data or to another configuration, Cancelled.
        """
        header, arrays = decode(stored, _FORMAT)
        digest = data_digest(data)
        if header.get("data") != digest:
            message = "the stored preparation was made from other data"
            raise InvalidProblem(Fault("data", "other_data", message))
        if header.get("recipe") != config.recipe():
            message = "the stored preparation was made with other features, teacher or seed"
            raise InvalidProblem(Fault("config", "other_config", message))
        feature_map = feature_map_from_bytes(take_array(arrays, "feature_map").tobytes())
        shape = (data.K, feature_map.n_features_out)
        fold_weights: Iterable[FloatArray] = ()
        with package_errors("teacher"):
            weights = frozen_array(take_array(arrays, "weights"), "weights", shape)
            if config.tuning is not None:
                folds, (K, m) = config.tuning.folds, shape
                stacked = frozen_array(take_array(arrays, "fold_weights"), "fold_weights", (folds * K, m))
                fold_weights = stacked.reshape(folds, K, m)
        teacher = LinearTeacher(weights, _summary(header), C=config.teacher_C)
        fold_teachers = tuple(LinearTeacher(each, C=config.teacher_C) for each in fold_weights)
        stages = Stages(run)
        with one_blas_thread():
            features = _transform(feature_map, data.X, stages)
            restored = _with_scores(feature_map, features, data, teacher, config, digest, stages)
        return replace(restored, fold_teachers=fold_teachers)


def prepare(
    data: LabelledData,
    config: TrainingConfig | None = None,
    *,
    head: LinearHead | None = None,
    warm_start: LinearTeacher | None = None,
    run: Run = Run(),
) -> Preparation:
    """Fit the feature map and the teacher, and score the training rows (Algorithm 2, line 1).

    Where the configuration tunes, also a teacher for each of its folds, from the dual of the one of all rows.
    head: the teacher, where ``config.teacher`` names one from outside; nothing is fitted then, for folds
        neither, as it has not seen the rows.
    warm_start: a teacher fitted to the same data and features, e.g. at another C.
    run: fold teachers are fitted in its threads; reports stages ``"features"``, ``"teacher"``, ``"scores"``
        and ``"tuning_teacher"`` (in folds).

    Raises InvalidProblem, also where tuning meets a class with one row; Cancelled.
    """
    config = TrainingConfig() if config is None else config
    run = run.with_seed(config.seed)
    stages = Stages(run)
    if (head is None) != (config.teacher == SSVM):
        message = f"the configuration's teacher is {config.teacher!r}; give its head, and only then"
        raise InvalidProblem(Fault("teacher", "other_teacher", message))
    if config.tuning is not None:
        refuse_lone_rows(data.y, data.classes)
    with one_blas_thread():
        stages.begin("features", data.n)
        feature_map = fit_feature_map(data.X, config.features, config.seed)
        features = _transform(feature_map, data.X, stages)
        if head is not None:
            given = _given(head, feature_map, data)
            found = _with_scores(feature_map, features, data, given, config, data_digest(data), stages)
            folds = 0 if config.tuning is None else config.tuning.folds
            return replace(found, fold_teachers=(given,) * folds)
        stages.begin("teacher", config.teacher_max_epochs)
        teacher = fit_ssvm(
            features,
            data.y,
            data.K,
            C=config.teacher_C,
            tolerance=config.teacher_tolerance,
            max_epochs=config.teacher_max_epochs,
            warm_start=warm_start,
            run=run.stage("teacher"),
        )
        preparation = _with_scores(feature_map, features, data, teacher, config, data_digest(data), stages)
        if config.tuning is None:
            return preparation
        stages.begin("tuning_teacher", config.tuning.folds)
        fold_teachers = _fold_teachers(preparation, config.tuning.folds, run)
        seconds = preparation.seconds | stages.end()
        return replace(preparation, fold_teachers=fold_teachers, seconds=seconds)


def _fold_teachers(
    preparation: Preparation,
    folds: int,
    run: Run,
) -> tuple[LinearTeacher, ...]:
    """The teacher of each fold at the configured C, started from the dual of the teacher of all rows."""
    config = preparation.config
    return tune_teacher(
        preparation.features,
        preparation.labels,
        len(preparation.classes),
        fold_assignment(preparation.labels, folds, config.seed),
        (config.teacher_C,),
        tolerance=config.teacher_tolerance,
        max_epochs=config.teacher_max_epochs,
        warm_start=preparation.teacher,
        run=run,
    ).teachers


def _given(head: LinearHead, feature_map: FeatureMap, data: LabelledData) -> LinearTeacher:
    if len(head.weights) != data.K:
        message = f"the teacher has {len(head.weights)} classes, the data {data.K}"
        raise InvalidProblem(Fault("teacher", "wrong_classes", message))
    return head.on(feature_map)


def _with_scores(
    feature_map: FeatureMap,
    features: Matrix,
    data: LabelledData,
    teacher: LinearTeacher,
    config: TrainingConfig,
    digest: str,
    stages: Stages,
) -> Preparation:
    stages.begin("scores", data.n)
    scores = teacher.scores(features, stages.run)
    ranks = ScoreRanks.of(scores)
    stages.run.report("scores", data.n, data.n)
    seconds = stages.end()
    return Preparation(
        feature_map, features, data.y, data.classes, teacher, scores, ranks, config, digest, seconds
    )


def _transform(feature_map: FeatureMap, X: Matrix, stages: Stages) -> Matrix:
    """Φ by blocks of rows, with cancel checks between them; linear features are fast enough without."""
    n = X.shape[0]
    stages.begin("features", n)
    if feature_map.kind == "linear":
        features = feature_map.transform(X)
        stages.run.report("features", n, n)
        return features
    features = np.empty((n, feature_map.n_features_out), dtype=feature_map.dtype)
    for start in range(0, n, _ROWS_AT_ONCE):
        stages.run.check_cancel()
        stop = min(start + _ROWS_AT_ONCE, n)
        features[start:stop] = feature_map.transform(X[start:stop])
        stages.run.report("features", stop, n)
    return features


def _summary(header: Header) -> Summary | None:
    try:
        return msgspec.convert(header.get("summary"), Summary | None)
    except msgspec.ValidationError as error:
        raise InvalidPackage(f"The preparation has an unusable summary: {error}") from error


def data_digest(data: LabelledData) -> str:
    """SHA-256 of rows, labels and class names, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    X: Any = data.X
    for array in (X,) if isinstance(X, np.ndarray) else (X.data, X.indices, X.indptr):
        digest.update(f"{array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    digest.update(np.ascontiguousarray(data.y, dtype=np.int64).data)
    digest.update("\0".join((str(data.d), *data.classes)).encode())
    return digest.hexdigest()
