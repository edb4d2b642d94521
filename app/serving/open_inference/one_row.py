"""Inferences of one row by one class, the most frequent ones, without arrays of one element.

    {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}]}

or the same with a ``binary_data_size`` and the numbers after the JSON, in both cases without requested
outputs. Anything else, including anything faulty, is left to `requests` and `evaluate`, which give the same
bits.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InvalidRequest
from app.http.types import Body
from app.serving.open_inference.requests import check_keys
from app.serving.open_inference.tensors import DTYPES
from app.serving.row_decoder import MAX_SQUARES, decode_list
from app.serving.servable import ServableStudent

_FLOATS: Final = ("FP64", "FP32")
_DATA: Final = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[').search
_KEPT: Final = 16
_MAX_JSON: Final = 2048
"""JSON parts in front of binary rows that are kept, and the bytes of each."""

_text: Final = msgspec.json.Encoder().encode
_MATCH: Final = b'{"name":"match","datatype":"BOOL","shape":[1],'


class _Numbers(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class _JsonRequest(msgspec.Struct, forbid_unknown_fields=True):
    inputs: list[_Numbers]
    id: str | None = None


class _Size(msgspec.Struct, forbid_unknown_fields=True):
    binary_data_size: int


class _Bytes(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    shape: list[int]
    datatype: str
    parameters: _Size


class _Outputs(msgspec.Struct, forbid_unknown_fields=True):
    binary_data_output: bool = False


class _BinaryRequest(msgspec.Struct, forbid_unknown_fields=True):
    inputs: list[_Bytes]
    id: str | None = None
    parameters: _Outputs | None = None


_JSON: Final = msgspec.json.Decoder(_JsonRequest)
_BINARY: Final = msgspec.json.Decoder(_BinaryRequest)


class OneRow(NamedTuple):
    """A row, packed as by `app.serving.row_decoder`. binary: whether the answer is in binary."""

    x: bytes
    id: str | None
    binary: bool


class _Binary(NamedTuple):
    """The contents of the JSON before a binary row. size: bytes of the row."""

    dtype: np.dtype[Any]
    size: int
    id: str | None
    binary: bool


class _Json(NamedTuple):
    """The JSON around the numbers of a row, decoded. behind: the bytes after the numbers."""

    behind: bytes
    dtype: np.dtype[Any]
    id: str | None


@dataclass(slots=True)
class OneRowReader:
    """Reads rows of ``n_columns`` numbers.

    kept: decoded JSON by the bytes before the numbers, because these bytes repeat.
    """

    n_columns: int
    kept: dict[bytes, _Binary | _Json] = field(default_factory=dict)

    def read(self, body: Body, json_length: int | None) -> OneRow | None:
        """The row of a body; None if it has another form. json_length: of its JSON, if binary data follow."""
        return self._read_json(body) if json_length is None else self._read_binary(body, json_length)

    def _read_binary(self, body: Body, json_length: int) -> OneRow | None:
        head = bytes(body[:json_length])
        layout = self.kept.get(head)
        if layout is None:
            layout = _layout_of(head)
            if layout is None:
                return None
            self._keep(head, layout)
        if not isinstance(layout, _Binary) or layout.size != self.n_columns * layout.dtype.itemsize:
            return None
        if len(body) - json_length != layout.size:
            return None
        x = _packed(np.frombuffer(body, layout.dtype, offset=json_length))
        return None if x is None else OneRow(x, layout.id, layout.binary)

    def _read_json(self, body: Body) -> OneRow | None:
        found = _DATA(body)
        if found is None:
            return None
        start = found.end() - 1
        numbers = decode_list(body, start, self.n_columns)
        if numbers is None:
            return None
        x: bytes | None
        x, end = numbers
        front = bytes(body[:start])
        layout = self.kept.get(front)
        if not isinstance(layout, _Json) or layout.behind != body[end:]:
            layout = _json_layout_of(body, end, self.n_columns)
            if layout is None:
                return None
            self._keep(front, layout)
        if layout.dtype != np.float64:
            with np.errstate(over="ignore"):
                x = _packed(np.frombuffer(x).astype(layout.dtype))
        return None if x is None else OneRow(x, layout.id, binary=False)

    def _keep(self, head: bytes, layout: _Binary | _Json) -> None:
        if len(head) <= _MAX_JSON:
            if len(self.kept) >= _KEPT:
                self.kept.clear()
            self.kept[head] = layout


def _packed(x: NDArray[Any]) -> bytes | None:
    """A row (d,), packed; None if its numbers need a closer look."""
    row = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        is_usable = row.dot(row) < MAX_SQUARES
    return row.tobytes() if is_usable else None


def _json_layout_of(body: Body, end: int, n_columns: int) -> _Json | None:
    """The JSON around the list after the first key "data", decoded. end: where the list ends."""
    try:
        request = _JSON.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # The last value of a repeated key counts, so each key must be present once, with three texts at most.
    texts = 2 + (request.id is not None)
    keys = 5 + (request.id is not None)
    if len(request.inputs) != 1 or bytes(body).count(b'"') != 2 * (keys + texts):
        return None
    [row] = request.inputs
    if row.datatype not in _FLOATS or row.shape not in ([1, n_columns], [n_columns]):
        return None
    return _Json(bytes(body[end:]), DTYPES[row.datatype], request.id)


def _layout_of(head: bytes) -> _Binary | None:
    try:
        request = _BINARY.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    try:
        check_keys(head)
    except InvalidRequest:
        return None
    if len(request.inputs) != 1:
        return None
    [row] = request.inputs
    if row.datatype not in _FLOATS or not row.shape or row.shape != [1, row.shape[-1]][-len(row.shape) :]:
        return None
    dtype = DTYPES[row.datatype]
    size = row.parameters.binary_data_size
    if size != row.shape[-1] * dtype.itemsize:
        return None
    binary = request.parameters is not None and request.parameters.binary_data_output
    return _Binary(dtype, size, request.id, binary)


class RowEncoder:
    """Encodes answers of one student, most of whose bytes are constant, as `evaluate.encode` does.

    served: the student. name: of the model in JSON.
    """

    def __init__(self, served: ServableStudent, name: bytes) -> None:
        self.served = served
        student = served.student
        self._threshold, self._calibration = student.threshold, student.calibration
        numbers = [b"score", *([] if student.calibration is None else [b"probability"]), b"threshold"]
        self._start = b'{"model_name":%s,"model_version":"%d"' % (name, served.version)
        opened = [b'{"name":"%s","datatype":"FP64","shape":[1],"data":[' % number for number in numbers]
        self._json = b',"outputs":[' + _MATCH + b'"data":['
        self._score, *probability, threshold = [b"]}," + one for one in opened]
        self._probability = b"".join(probability)
        self._end = threshold + _text(student.threshold) + b"]}]}"
        parts = [
            b'{"name":"%s","datatype":"FP64","shape":[1],"parameters":{"binary_data_size":8}}' % number
            for number in numbers
        ]
        outputs = b'"parameters":{"binary_data_size":1}},' + b",".join(parts)
        self._binary = b',"outputs":[' + _MATCH + outputs + b"]}"
        self._numbers = struct.Struct(f"<?{len(numbers)}d").pack

    def encode(self, score: float, row: OneRow) -> tuple[bytes, int | None]:
        """The default outputs for one row, and the length of the JSON if binary numbers follow it."""
        match = score >= self._threshold
        start = self._start if row.id is None else self._start + b',"id":' + _text(row.id)
        calibration = self._calibration
        probability = () if calibration is None else (calibration.probability(score),)
        if row.binary:
            head = start + self._binary
            return head + self._numbers(match, score, *probability, self._threshold), len(head)
        parts = [start, self._json, b"true" if match else b"false", self._score, _text(score)]
        if probability:
            parts += [self._probability, _text(probability[0])]
        return b"".join([*parts, self._end]), None
