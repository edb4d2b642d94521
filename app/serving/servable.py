"""Loaded students with the constant parts of their responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from app.domain.entities import ModelVersion
from app.domain.names import DEFAULT_TENANT
from app.http.types import Body
from app.serving.columns.base import Columns
from app.serving.columns.of_version import columns_of
from app.serving.loop_time import LoopTime
from app.serving.watch import AnswerWatch
from app.serving.work import INLINE_WORK
from core.packed import PackedStudent
from core.packed.head import RIVALS
from core.packed.maps import BesideTerms
from core.packed.record_rows import Values
from core.packed.student import packed_row_scorer, row_scorer, sparse_scorer

INLINE_BYTES: Final = 32 * 1024
"""Larger JSON bodies are handled in a thread; for smaller ones a thread switch takes longer than the work."""

INLINE_TENSOR_BYTES: Final = 4 * 1024**2
"""The same for raw numbers and a linear map, whose decisions cost less than receiving the numbers."""

_MIN_INLINE_BYTES: Final = 2 * 1024
UNWATCHED: Final = AnswerWatch()


@dataclass(frozen=True, slots=True)
class ServableStudent:
    """A loaded student with the parts of its JSON answers that never change.

    n_columns: numbers of a row.
    score: function from one row, a list of numbers, to its score, see `PackedStudent.score`.
    score_packed: the same for a row of `row_decoder`.
    score_sparse: the same from columns and values of stored entries; None unless the map is linear.
    metric_label: label of the model in the metrics.
    json_threshold: ``,"threshold":…``. json_model_fields: ``,"model":…,"version":…}``.
    json_suffix: both, the end of the answer for one row of a student without probabilities.
    json_pieces: ``,"piece":…`` for each of several rejections, with ``,"rival":…`` if it is the score of a
        class of a head.
    json_class: ``{"class":…,``, the beginning of one entry of an answer for several classes.
    work, explained_work: multiply-adds for a row or record, the second also for its gate and the number of
        the rejection.
    loop: times of its answers in the event loop.
    inline_bytes: bodies up to this size are answered in the event loop, larger ones in a thread. A map with
        many basis values per column makes the same number of bytes more work, so its limit is lower.
    inline_tensor_bytes: the same for raw numbers in both directions.
    score_body: function from the body of a query in JSON to the score, if it has only one record or text;
        it returns None otherwise, and for faulty records. None unless the version has an encoder.
    columns: of its version. score_record: function from the values of a record to their score;
        None unless its version has an encoder. score_columns: the same for many records by columns, with the
        same bits; None unless this is faster.
    watch: notes its answers.
    """

    student: PackedStudent
    n_columns: int
    score: Callable[[list[float]], float]
    score_packed: Callable[[bytes], float]
    score_sparse: Callable[[list[int], list[float]], float] | None
    model: str
    version: int
    tenant: str
    metric_label: str
    json_threshold: bytes
    json_model_fields: bytes
    json_suffix: bytes
    json_pieces: tuple[bytes, ...]
    json_class: bytes
    work: int
    explained_work: int
    loop: LoopTime
    inline_bytes: int
    inline_tensor_bytes: int
    score_body: Callable[[Body], float | None] | None
    columns: Columns
    score_record: Callable[[Values], float] | None = None
    score_columns: Callable[[Sequence[Sequence[Any]]], list[float]] | None = None
    watch: AnswerWatch = UNWATCHED


def metric_label(version: ModelVersion) -> str:
    """The model in the metrics: its name, preceded by that of its tenant unless this is the default one."""
    return version.model if version.tenant == DEFAULT_TENANT else version.qualified_model


def make_servable(
    student: PackedStudent,
    version: ModelVersion,
    columns: Columns | None = None,
    watch: AnswerWatch = UNWATCHED,
) -> ServableStudent:
    """Prepare a loaded student of a model version for serving. columns: of the version, if loaded."""
    columns = columns_of(version) if columns is None else columns
    scorers = columns.scorers(student)
    threshold = b',"threshold":' + msgspec.json.encode(student.threshold)
    model_fields = b"," + msgspec.json.encode({"model": version.model, "version": version.version})[1:]
    packed = student.map.of_dense if isinstance(student.map, BesideTerms) else student.map
    spread = max(1, packed.n_basis // packed.n_columns)
    inline_bytes = max(_MIN_INLINE_BYTES, INLINE_BYTES // spread)
    work, explained_work = (columns.work([student], explain=explain) for explain in (False, True))
    if explained_work > INLINE_WORK:
        inline_bytes = 0
    return ServableStudent(
        student=student,
        n_columns=student.map.n_columns,
        score=row_scorer(student),
        score_packed=packed_row_scorer(student),
        score_sparse=sparse_scorer(student),
        model=version.model,
        version=version.version,
        tenant=version.tenant,
        metric_label=metric_label(version),
        json_threshold=threshold,
        json_model_fields=model_fields,
        json_suffix=threshold + model_fields,
        json_pieces=_json_pieces(student),
        json_class=b'{"class":' + msgspec.json.encode(student.label) + b",",
        work=work,
        explained_work=explained_work,
        loop=LoopTime(f"Class {student.label!r:.80} of {version.qualified_model}@{version.version}"),
        inline_bytes=inline_bytes,
        inline_tensor_bytes=INLINE_TENSOR_BYTES if student.map.kind == "linear" else inline_bytes,
        score_body=scorers.body,
        columns=columns,
        score_record=scorers.one,
        score_columns=scorers.many,
        watch=watch,
    )


def _json_pieces(student: PackedStudent) -> tuple[bytes, ...]:
    if student.form.piece is None:
        return ()
    rivals = msgspec.json.decode(str(student.metadata.get(RIVALS, "[]")), type=list[str])
    named = [b',"rival":' + msgspec.json.encode(rival) for rival in rivals]
    # A head with thresholds has one rejection more than rivals: the class's own threshold.
    unnamed = [b""] * (len(student.form.coef) - len(rivals))
    return tuple(b',"piece":%d' % number + name for number, name in enumerate(named + unnamed))
