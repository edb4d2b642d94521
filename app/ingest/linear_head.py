"""Reads linear heads from safetensors or .npz files. The weights are read block by block.

weights (or weight)          (K, d) float32 or float64, row c the class c
bias                         (K,), optional
threshold (or thresholds)    (K,), optional
labels                       (K,) text or whole numbers, or (K, width) bytes, UTF-8 padded with zeros;
                             or, in safetensors, a JSON list of text as the metadata "labels"
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest, TooLarge, UnsupportedFormat
from app.domain.file_formats import FileFormat
from app.domain.npy_header import ArrayHeader
from app.ingest.formats import beginning_of, binary_format
from app.ingest.npy import check_text
from app.ingest.npz import npz_archive
from app.ingest.raw import MAX_FAULTS, invalid_file
from app.ingest.safetensors import safetensors_file
from core.data.labels import MAX_NAME_LENGTH, check_class_names
from core.data.validation import value_fault, value_faults
from core.errors import InvalidProblem

BLOCK_BYTES: Final = 4 * 1024**2
_MAX_LABEL_BYTES: Final = 4096
_NAMES: Final = {
    "weights": "weights",
    "weight": "weights",
    "bias": "bias",
    "threshold": "threshold",
    "thresholds": "threshold",
    "labels": "labels",
}
_F64: Final = np.dtype("<f8")
_TEXT: Final = msgspec.json.Decoder(str)
_LIST: Final = msgspec.json.Decoder(list[str])


class _Arrays(Protocol):
    """Interface of both container formats."""

    @property
    def entries(self) -> Collection[str]: ...

    def open(self, name: str) -> AbstractContextManager[tuple[ArrayHeader, IO[bytes]]]: ...


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Largest head that is accepted. max_bytes: of the decompressed weights."""

    max_classes: int
    max_columns: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class HeadFile:
    """An open head. labels: K valid names, not yet checked for duplicates. bias, threshold: float64 (K,)."""

    columns: int
    dtype: np.dtype[Any]
    labels: Sequence[str]
    bias: NDArray[np.float64]
    threshold: NDArray[np.float64] | None
    arrays: _Arrays
    name: str

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Blocks (rows, d) of the weights in class order, little-endian and finite, a few MiB each.

        Raises InvalidRequest that names the first rows and columns with values that are not finite.
        """
        with self.arrays.open(self.name) as (header, stream):
            row_bytes = self.columns * header.dtype.itemsize
            step = max(1, BLOCK_BYTES // row_bytes)
            for first in range(0, len(self.labels), step):
                rows = min(step, len(self.labels) - first)
                block = _read(stream, header, rows * row_bytes).reshape(rows, self.columns)
                _check_values(block, "weights", first)
                yield block.astype(self.dtype, copy=False)


@contextmanager
def head_file(path: Path, limits: HeadLimits) -> Iterator[HeadFile]:
    """Open the head in a file; everything except the weights is read and checked.

    Raises TooLarge, UnsupportedFormat, and InvalidRequest that names field, row and column of the fault.
    """
    kind = binary_format(path, beginning_of(path))
    if kind is FileFormat.SAFETENSORS:
        with safetensors_file(path, _NAMES, ["labels"]) as arrays:
            yield _head(arrays, arrays.metadata.get("labels"), limits)
    elif kind is FileFormat.NPZ:
        with npz_archive(path) as archive:
            yield _head(archive, None, limits)
    else:
        raise UnsupportedFormat("The file is neither safetensors nor .npz.", code="wrong_format")


def _head(arrays: _Arrays, label_metadata: bytes | None, limits: HeadLimits) -> HeadFile:
    names = _names(arrays.entries)
    if "weights" not in names:
        raise _fault("weights", "missing_array", f"The file has no array 'weights'. It has {_listed(names)}.")
    with arrays.open(names["weights"]) as (header, _):
        K, columns, dtype = _weights(header, limits)
    if "labels" in names:
        with arrays.open(names["labels"]) as (header, stream):
            labels = _labels(header, stream, K)
    elif label_metadata is not None:
        labels = _labels_from_metadata(label_metadata)
    else:
        text = 'The file has no labels. Add an array "labels" or, in safetensors, the metadata "labels".'
        raise _fault("labels", "missing_array", text)
    _check_length(len(labels), K)
    _check_names(labels, 0)
    bias = _vector(arrays, names, "bias", K)
    return HeadFile(
        columns=columns,
        dtype=dtype,
        labels=labels,
        bias=np.zeros(K) if bias is None else bias,
        threshold=_vector(arrays, names, "threshold", K),
        arrays=arrays,
        name=names["weights"],
    )


def _check_length(count: int, K: int) -> None:
    if count != K:
        text = f"weights has {K} rows and there are {count} labels; row c must be class c."
        raise _fault("labels", "wrong_length", text)


def _check_names(labels: Sequence[str], first: int) -> None:
    """Raise InvalidRequest for invalid class names. first: row of the first of them."""
    try:
        check_class_names(labels, "labels", range(first, first + len(labels)))
    except InvalidProblem as error:
        raise as_invalid_request(error) from error


def as_invalid_request(error: InvalidProblem) -> InvalidRequest:
    """Convert an error that core raised for a head."""
    faults = [InputFault(f.field, f.code, f.message, f.row, f.column) for f in error.faults]
    return invalid_file(faults[0].message, code="invalid_head", faults=faults)


def _names(array_names: Collection[str]) -> dict[str, str]:
    """Array names of the file by their field. Raises InvalidRequest for unknown names and for duplicates."""
    names: dict[str, str] = {}
    for name in array_names:
        field = _NAMES.get(name)
        if field is None:
            text = f"The file has an array {name!r:.80}; a head has only weights, bias, threshold and labels."
            raise _fault(name[:80], "unknown_array", text)
        if field in names:
            raise _fault(
                field, "ambiguous_array", f"The file has {field} twice, as {names[field]} and {name}."
            )
        names[field] = name
    return names


def _weights(header: ArrayHeader, limits: HeadLimits) -> tuple[int, int, np.dtype[Any]]:
    """K, d and the dtype that is stored. Raises InvalidRequest and TooLarge."""
    if len(header.shape) != 2 or 0 in header.shape:
        shape = " × ".join(map(str, header.shape)) or "a single number"
        text = f"weights must be a table with one row for each class; it is {shape}."
        raise _fault("weights", "wrong_shape", text)
    if header.dtype.kind != "f" or header.dtype.itemsize not in {4, 8}:
        text = f"weights must be float32 or float64, not {header.dtype}."
        raise _fault("weights", "wrong_type", text)
    if header.order == "F" and min(header.shape) > 1:
        text = "weights is stored in column-major order; save numpy.ascontiguousarray(weights)."
        raise _fault("weights", "stored_by_columns", text)
    K, columns = header.shape
    for count, limit, what in ((K, limits.max_classes, "classes"), (columns, limits.max_columns, "columns")):
        if count > limit:
            raise TooLarge(f"The head has {count} {what}; the limit is {limit}.", code=f"too_many_{what}")
    if header.size > limits.max_bytes:
        text = f"The weights take {header.size} bytes; the limit is {limits.max_bytes}."
        raise TooLarge(text, code="head_too_large")
    return K, columns, header.dtype.newbyteorder("<")


def _vector(arrays: _Arrays, names: dict[str, str], field: str, K: int) -> NDArray[np.float64] | None:
    if field not in names:
        return None
    with arrays.open(names[field]) as (header, stream):
        if header.shape != (K,) or header.dtype.kind != "f":
            shape = " × ".join(map(str, header.shape)) or "()"
            text = f"{field} must be {K} float32 or float64 numbers, one for each class; it is {shape} of "
            raise _fault(field, "wrong_shape", f"{text}{header.dtype}.")
        values = _read(stream, header, header.size).astype(_F64)
    # One number per class, so the row of a fault is the index of its class.
    _check_values(values.reshape(-1, 1), field, 0)
    return values


def _labels(header: ArrayHeader, stream: IO[bytes], K: int) -> list[str]:
    text_table = header.dtype == np.uint8 and len(header.shape) == 2
    width = header.dtype.itemsize * (header.shape[1] if text_table else 1)
    if not text_table and (len(header.shape) != 1 or header.dtype.kind not in "iuUS"):
        text = "labels must be a list of text or of whole numbers, or a table of UTF-8 bytes."
        raise _fault("labels", "wrong_type", text)
    _check_length(header.shape[0], K)
    if not 0 < width <= _MAX_LABEL_BYTES or (header.order == "F" and text_table):
        text = f"labels must be stored in rows of 1 to {_MAX_LABEL_BYTES} bytes; a row has {width} bytes."
        raise _fault("labels", "wrong_shape", text)
    labels: list[str] = []
    step = max(1, BLOCK_BYTES // width)
    while len(labels) < K:
        block = _read(stream, header, min(step, K - len(labels)) * width)
        texts = _texts(block.view(f"S{width}") if text_table else block, len(labels))
        if max(map(len, texts)) > MAX_NAME_LENGTH:
            # Checked before the next block is read, because long texts take little room in an archive.
            _check_names(texts, len(labels))
        labels += texts
    return labels


def _texts(block: NDArray[Any], first: int) -> list[str]:
    values = block.tolist()
    if block.dtype.kind in "iuU":
        return list(map(str, values))
    texts = []
    for row, value in enumerate(values, first):
        try:
            texts.append(value.decode())
        except UnicodeDecodeError as error:
            text = f"The label in row {row} (counted from 0) is not UTF-8."
            raise _fault("labels", "bad_encoding", text, row) from error
    return texts


def _labels_from_metadata(metadata: bytes) -> list[str]:
    """Decode the metadata value: a JSON string that contains a JSON list of strings."""
    try:
        return _LIST.decode(_TEXT.decode(metadata))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _fault("labels", "bad_json", "The metadata labels are not a JSON list of text.") from error


def _read(stream: IO[bytes], header: ArrayHeader, size: int) -> NDArray[Any]:
    data = stream.read(size)
    if len(data) != size:
        raise invalid_file(f"Array {header.name!r:.80} is cut off.", code="truncated_upload")
    values = np.frombuffer(data, header.dtype)
    check_text(values, header.name)
    return values


def _check_values(block: NDArray[Any], field: str, first: int) -> None:
    """Raise InvalidRequest for values that are not finite. first: row of the block within the array."""
    block_faults = value_faults(block, field)
    if block_faults:
        faults = []
        for block_fault in block_faults[:MAX_FAULTS]:
            row, column = block_fault.row or 0, block_fault.column or 0
            fault = value_fault(float(block[row, column]), field, first + row, column)
            faults.append(InputFault(field, fault.code, fault.message, fault.row, fault.column))
        raise invalid_file(faults[0].message, code="invalid_head", faults=faults)


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _fault(field: str, code: str, text: str, row: int | None = None) -> InvalidRequest:
    return invalid_file(text, code=code, faults=[InputFault(field, code, text, row)])
