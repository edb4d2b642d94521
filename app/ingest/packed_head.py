"""Writes the packed head of an import: its arrays, and what its students need without any data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest, TooLarge
from core.packed.codec import encode_front
from core.packed.head import Kind, head_header, head_shapes
from core.teachers.rivals import nearest_rivals, typical_largest_score

if TYPE_CHECKING:
    from app.ingest.linear_head import HeadFile

MAX_RIVAL_WORK: Final = 400_000_000_000
"""Most multiply-adds to find the nearest rivals: some thirty seconds of a core."""


def write_head(
    path: Path, head: HeadFile, kind: Kind, rivals: int = 0, row_norm: float | None = None
) -> None:
    """Write the packed head in the format of `core.packed.PackedHead`.

    rivals: number for each class's student; 0: the student is the score alone. row_norm: length of a typical
    row, for the threshold of heads without thresholds. Raises InvalidRequest and TooLarge.
    """
    _check_options(head, kind, rivals, row_norm)
    K = len(head.labels)
    with_threshold = head.threshold is not None or row_norm is not None
    shapes = head_shapes(K, head.columns, head.dtype, with_threshold, min(rivals, K - 1))
    front, places = encode_front(head_header(kind), shapes)
    with path.open("wb") as output:
        output.write(front)
        for name in ("weights", "bias", "threshold"):
            if name in places:
                output.seek(places[name].start)
                for block in _blocks(head, name):
                    output.write(np.ascontiguousarray(block).data.cast("B"))
        output.flush()
        if rivals == 0 and row_norm is None:
            return
        # Looked at through a map: the weights may be larger than the memory of this process.
        place = places["weights"].start
        weights = np.asarray(np.memmap(path, head.dtype, "r", offset=place, shape=(K, head.columns)))
        if rivals:
            output.seek(places["rivals"].start)
            output.write(nearest_rivals(weights, head.bias, rivals).data.cast("B"))
        if row_norm is not None:
            threshold = typical_largest_score(weights, head.bias, row_norm)
            if not np.isfinite(threshold):
                text = "row_norm is so large that the scores of random rows are not finite."
                raise _fault("row_norm", "out_of_range", text)
            output.seek(places["threshold"].start)
            output.write(np.full(K, threshold).data.cast("B"))


def _check_options(head: HeadFile, kind: Kind, rivals: int, row_norm: float | None) -> None:
    K = len(head.labels)
    if kind != "head" and (rivals or row_norm is not None):
        field = "rivals" if rivals else "row_norm"
        raise _fault(field, "not_a_head", f"{field} is for heads; these rows are finished students.")
    if rivals and K == 1:
        raise _fault("rivals", "no_rivals", "A head of one class has no rivals.")
    if row_norm is not None and head.threshold is not None:
        text = "The file has thresholds; leave out row_norm, which would choose others."
        raise _fault("row_norm", "has_thresholds", text)
    if rivals and K * K * head.columns > MAX_RIVAL_WORK:
        text = (
            f"To find the rivals among {K} classes with {head.columns} columns takes "
            f"{K * K * head.columns:.2g} multiply-adds; at most {MAX_RIVAL_WORK:.2g} are computed. "
            "Import the head without rivals."
        )
        raise TooLarge(text, code="too_many_classes")


def _blocks(head: HeadFile, name: str) -> Iterator[NDArray[Any]]:
    if name == "weights":
        yield from head.blocks()
    elif name == "bias":
        yield head.bias
    elif head.threshold is not None:
        yield head.threshold


def _fault(field: str, code: str, text: str) -> InvalidRequest:
    return InvalidRequest(text, code=code, faults=[InputFault(field, code, text)])
