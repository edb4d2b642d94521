"""A student ready to answer: with it, the parts of its answers that never change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from app.domain.entities import ModelVersion
from app.serving.query.negotiation import Form, Manner
from core.packed import PackedStudent
from core.packed.student import row_scorer

INLINE_BYTES: Final = 32 * 1024
"""Larger bodies are decoded and decided in a thread; below, changing threads costs more than the work."""

INLINE_TENSOR_BYTES: Final = 4 * 1024**2
"""The same for raw numbers on a linear map, whose decisions cost less than receiving them did."""

_MIN_INLINE_BYTES: Final = 2 * 1024


@dataclass(frozen=True, slots=True)
class ServedStudent:
    """score: of a row of numbers, see `PackedStudent.score`.
    threshold, origin, name: ends and beginnings of JSON answers, with their commas.

    tail: the end of the answer for one row of a student that has no probabilities.
    inline_bytes: bodies of at most so many bytes are answered at once, larger ones in a thread. Where a
    number is mapped to many basis values, fewer bytes are as much work.
    """

    student: PackedStudent
    score: Callable[[list[float]], float]
    model: str
    version: int
    threshold: bytes
    origin: bytes
    tail: bytes
    name: bytes
    inline_bytes: int

    def is_quick(self, size: int, manner: Manner) -> bool:
        """Whether a body of ``size`` bytes is answered sooner than a thread would take it over."""
        if manner.encoding is not None:
            return False
        if Form.JSON in (manner.body, manner.answer) or self.student.map.kind != "linear":
            return size <= self.inline_bytes
        return size <= INLINE_TENSOR_BYTES


def serve_student(student: PackedStudent, version: ModelVersion) -> ServedStudent:
    """A loaded student with the parts of its answers that never change."""
    threshold = b',"threshold":' + msgspec.json.encode(student.threshold)
    origin = b"," + msgspec.json.encode({"model": version.model, "version": version.version})[1:]
    spread = max(1, student.map.n_basis // student.map.n_columns)
    return ServedStudent(
        student=student,
        score=row_scorer(student),
        model=version.model,
        version=version.version,
        threshold=threshold,
        origin=origin,
        tail=threshold + origin,
        name=b'{"class":' + msgspec.json.encode(student.label) + b",",
        inline_bytes=max(_MIN_INLINE_BYTES, INLINE_BYTES // spread),
    )
