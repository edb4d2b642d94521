"""All that the students of one model share: feature map, features, teacher, scores.

A preparation is made once, and can be stored without its features: another process that has the same data
makes them again, bit for bit, and trains other classes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from core.config import TrainingConfig
from core.dataset import LabelledData
from core.difficulty import ScoreRanks, difficulty_degrees
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.features import FeatureMap, feature_map_from_bytes, fit_feature_map
from core.packed import PackedTeacher
from core.packed.codec import Buffer, Header, decode, encode, package_errors, take_array
from core.packed.maps import frozen_array
from core.solution import Summary
from core.stages import Stages
from core.students import Lesson
from core.teachers.ssvm import LinearTeacher, fit_ssvm
from core.threads import one_blas_thread
from core.types import CancelCheck, FloatArray, IntArray, Matrix, ProgressCallback

_FORMAT = "stms.preparation.1"
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """The common part of all students.

    feature_map: φ. features: Φ, (n, m). labels: codes, (n,). classes: K names. teacher: W.
    scores: S = Φ Wᵀ, (n, K). ranks: the two largest of each row. config: what it was made with.
    data_digest: SHA-256 of the data. seconds: wall time by stage.
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
            "method": "ssvm",
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
        stored_map = np.frombuffer(self.feature_map.to_bytes(), dtype=np.uint8)
        return encode(header, {"feature_map": stored_map, "weights": self.teacher.weights})

    @classmethod
    def from_bytes(
        cls,
        stored: Buffer,
        data: LabelledData,
        config: TrainingConfig,
        *,
        progress: ProgressCallback | None = None,
        should_cancel: CancelCheck | None = None,
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
        with package_errors("teacher"):
            weights = frozen_array(take_array(arrays, "weights"), "weights", shape)
        teacher = LinearTeacher(weights, _summary(header), C=config.teacher_C)
        stages = Stages(progress, should_cancel)
        with one_blas_thread():
            features = _transform(feature_map, data.X, stages)
            return _with_scores(feature_map, features, data, teacher, config, digest, stages)


def prepare(
    data: LabelledData,
    config: TrainingConfig | None = None,
    *,
    warm_start: LinearTeacher | None = None,
    progress: ProgressCallback | None = None,
    should_cancel: CancelCheck | None = None,
) -> Preparation:
    """Fit the feature map and the teacher, and score the training rows (Algorithm 2, line 1).

    progress: told of the stages ``"features"``, ``"teacher"`` and ``"scores"``.
    warm_start: a teacher fitted to the same data and features, e.g. at another C.

    Raises InvalidProblem, Cancelled.
    """
    config = TrainingConfig() if config is None else config
    stages = Stages(progress, should_cancel)
    with one_blas_thread():
        stages.begin("features", data.n)
        feature_map = fit_feature_map(data.X, config.features, config.seed)
        features = _transform(feature_map, data.X, stages)
        stages.begin("teacher", config.teacher_max_epochs)
        teacher = fit_ssvm(
            features,
            data.y,
            data.K,
            C=config.teacher_C,
            tolerance=config.teacher_tolerance,
            max_epochs=config.teacher_max_epochs,
            seed=config.seed,
            warm_start=warm_start,
            progress=stages.of_solver("teacher"),
            should_cancel=should_cancel,
        )
        return _with_scores(feature_map, features, data, teacher, config, data_digest(data), stages)


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
    scores = teacher.scores(features, stages.poll)
    ranks = ScoreRanks.of(scores)
    stages.tell("scores", data.n, data.n)
    seconds = stages.end()
    return Preparation(
        feature_map, features, data.y, data.classes, teacher, scores, ranks, config, digest, seconds
    )


def _transform(feature_map: FeatureMap, X: Matrix, stages: Stages) -> Matrix:
    """Φ in row blocks, with a look for a cancel between them. Linear features cost less than looking."""
    n = X.shape[0]
    stages.begin("features", n)
    if feature_map.kind == "linear":
        features = feature_map.transform(X)
        stages.tell("features", n, n)
        return features
    features = np.empty((n, feature_map.n_features_out), dtype=feature_map.dtype)
    for start in range(0, n, _ROWS_AT_ONCE):
        stages.poll()
        stop = min(start + _ROWS_AT_ONCE, n)
        features[start:stop] = feature_map.transform(X[start:stop])
        stages.tell("features", stop, n)
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
