"""A student ready to answer: with it, the parts of its answers that never change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from app.domain.entities import ModelVersion
from app.serving.query.negotiation import MediaType, RequestFormat
from core.packed import PackedStudent
from core.packed.student import row_scorer

INLINE_BYTES: Final = 32 * 1024
"""Larger bodies are decoded and decided in a thread; below, changing threads costs more than the work."""

INLINE_TENSOR_BYTES: Final = 4 * 1024**2
"""The same for raw numbers on a linear map, whose decisions cost less than receiving them did."""

_MIN_INLINE_BYTES: Final = 2 * 1024


@dataclass(frozen=True, slots=True)
class ServableStudent:
    """A loaded student with the parts of its JSON answers that never change.

    score: function from one row, a list of numbers, to its score, see `PackedStudent.score`.
    json_threshold: ``,"threshold":…``. json_model_fields: ``,"model":…,"version":…}``.
    json_suffix: both, the end of the answer for one row of a student without probabilities.
    json_class: ``{"class":…,``, the beginning of one entry of an answer for several classes.
    inline_bytes: bodies up to this size are answered in the event loop, larger ones in a thread. A map with
        many basis values per column makes the same number of bytes more work, so its limit is lower.
    """

    student: PackedStudent
    score: Callable[[list[float]], float]
    model: str
    version: int
    json_threshold: bytes
    json_model_fields: bytes
    json_suffix: bytes
    json_class: bytes
    inline_bytes: int

    def is_quick(self, size: int, format_: RequestFormat) -> bool:
        """Whether a body of ``size`` bytes is answered sooner than a thread would take it over."""
        if format_.encoding is not None:
            return False
        if MediaType.JSON in (format_.body, format_.answer) or self.student.map.kind != "linear":
            return size <= self.inline_bytes
        return size <= INLINE_TENSOR_BYTES


def make_servable(student: PackedStudent, version: ModelVersion) -> ServableStudent:
    """A loaded student with the parts of its answers that never change."""
    threshold = b',"threshold":' + msgspec.json.encode(student.threshold)
    model_fields = b"," + msgspec.json.encode({"model": version.model, "version": version.version})[1:]
    spread = max(1, student.map.n_basis // student.map.n_columns)
    return ServableStudent(
        student=student,
        score=row_scorer(student),
        model=version.model,
        version=version.version,
        json_threshold=threshold,
        json_model_fields=model_fields,
        json_suffix=threshold + model_fields,
        json_class=b'{"class":' + msgspec.json.encode(student.label) + b",",
        inline_bytes=max(_MIN_INLINE_BYTES, INLINE_BYTES // spread),
    )
