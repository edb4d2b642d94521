"""Parsing of inference requests: rows, classes and requested outputs.

    {"parameters": {"class": "A"}, "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": …}]}

With the header Inference-Header-Content-Length the body consists of that many bytes of JSON and the data of
all inputs that have a ``binary_data_size``, in order. A length of 0 means that there is no JSON: the body
contains only the rows, as FP64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from app.domain.errors import InvalidRequest, ServiceError, TooLarge
from app.domain.near_names import listed
from app.http.types import Body
from app.serving.decision import MAX_CLASSES
from app.serving.open_inference.paths import ParsedPath, check_label
from app.serving.open_inference.record_inputs import is_table, read_columns
from app.serving.open_inference.tensors import DTYPES, TEXTS, Array, Tensor
from app.serving.record_faults import check_once, pairs_of
from app.serving.record_sources import CellSource
from app.serving.records import Records

CLASS: Final = "class"
"""Name of the parameter and of the input for the target class."""

DEFAULT_OUTPUTS: Final = ("match", "score", "probability", "threshold")
"""Outputs by default; the probability only for calibrated students."""

ROWS: Final = "x"
"""Name of the numeric input in the metadata; requests may use any other name."""

OUTPUTS: Final = (*DEFAULT_OUTPUTS, "gate", "rejection")

Parameters = dict[str, Any]
_UNSUPPORTED: Final = ("shared_memory_region", "classification")


_NONE: Final = msgspec.Raw(b"null")

MAX_OBJECTS: Final = 10_000
"""Decoded objects take many times their bytes: their number is bounded, all other parts stay as they came."""
_MAX_PARAMETERS: Final = 16 * 1024


class _Input(msgspec.Struct):
    name: str
    shape: list[Annotated[int, msgspec.Meta(ge=0, le=2**31)]]
    datatype: str
    parameters: msgspec.Raw = _NONE
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Output(msgspec.Struct):
    name: str
    parameters: msgspec.Raw = _NONE


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: msgspec.Raw = _NONE
    outputs: list[_Output] | None = None


_DECODER: Final = msgspec.json.Decoder(_Request)
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw] | None)
_PARAMETERS: Final = msgspec.json.Decoder(Parameters | None)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output of the answer. binary: whether it follows the JSON as binary data."""

    name: str
    binary: bool


@dataclass(frozen=True, slots=True)
class Inference:
    """A parsed request.

    rows: (n, d), float32 or float64, not validated. labels: one class for all rows, or one for each row.
    requested_outputs: None for the default outputs, in binary if ``binary``. distinct: the distinct labels.
    columns: names of the columns of ``rows``, where each came as a tensor of its own. texts: names of tensors
    of texts that came beside them. source: of records, whose ``rows`` have no columns.
    """

    rows: Array
    labels: list[str]
    id: str | None = None
    requested_outputs: list[RequestedOutput] | None = None
    binary: bool = False
    columns: list[str] | None = None
    texts: list[str] = field(default_factory=list)
    source: CellSource | None = None
    distinct: dict[str, None] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "distinct", dict.fromkeys(self.labels))


def parse_inference(
    body: Body,
    header_length: bytes | None,
    path: ParsedPath,
    columns: int | None,
    max_rows: int,
    records: Records | None = None,
) -> Inference:
    """Parse ``body``. columns: of the model's rows, if the path names a student. records: of its version, if
    it is known to have an encoder.

    Raises InvalidRequest, TooLarge, and NotFound for an impossible class name.
    """
    length = _header_length(header_length, len(body))
    if length == 0 and header_length is not None:
        if path.label is None or columns is None:
            message = f"Name the target class in the path: {path.name}:CLASS."
            raise InvalidRequest(message, code="class_missing")
        if records is not None and not records.encoder.takes_numbers:
            message = f"Each column is an input: {listed(records.encoder.names)}."
            raise InvalidRequest(message, code="needs_record")
        return Inference(_rows(_raw_rows(body, columns), max_rows), [path.label], binary=True)
    request = _decode(memoryview(body)[:length])
    tensors = _tensors(request.inputs, memoryview(body)[length:], header_length is not None)
    parameters = _parameters(request.parameters, "The request")
    binary = _flag(parameters, "binary_data_output", False)
    outputs = [
        (output.name, _parameters(output.parameters, f"Output {output.name!r:.100}"))
        for output in request.outputs or ()
    ]
    requested_outputs = requested(outputs, binary)
    return read_inference(
        tensors, parameters, path, max_rows, records, id=request.id, outputs=requested_outputs, binary=binary
    )


def read_inference(
    tensors: list[Tensor],
    parameters: Parameters,
    path: ParsedPath,
    max_rows: int,
    records: Records | None = None,
    *,
    id: str | None = None,  # noqa: A002 - as the protocol calls it
    outputs: list[RequestedOutput] | None = None,
    binary: bool = False,
) -> Inference:
    """The request with these inputs and parameters, of HTTP or gRPC. Raises as `parse_inference`."""
    target = _target(tensors, path, records)
    others = [tensor for tensor in tensors if tensor is not target]
    if not others:
        text = "The request has 0 inputs of numbers; one table of rows is needed, or one for each column."
        raise InvalidRequest(text, code="wrong_inputs")
    names: list[str] | None = None
    source: CellSource | None = None
    if records is not None and not is_table(others, records):
        source = read_columns(others, records, max_rows)
        rows = np.empty((len(source), 0))
    elif len(others) == 1:
        rows = _rows(others[0], max_rows)
    else:
        rows = _joined(others, max_rows)
        names = [tensor.name for tensor in others if tensor.datatype != TEXTS]
    return Inference(
        rows,
        _labels(path, parameters, target, len(rows)),
        id,
        outputs,
        binary,
        names,
        [tensor.name for tensor in others if tensor.datatype == TEXTS],
        source,
    )


def classes_of(body: Body, header_length: bytes | None, path: ParsedPath) -> list[str]:
    """The distinct classes that a request names beside its path; none if it cannot be read."""
    try:
        length = _header_length(header_length, len(body))
        request = _decode(memoryview(body)[:length])
        tensors = _tensors(request.inputs, memoryview(body)[length:], header_length is not None)
        return labels_of(tensors, _parameters(request.parameters, "The request"), path)
    except ServiceError:
        return []


def labels_of(tensors: list[Tensor], parameters: Parameters, path: ParsedPath) -> list[str]:
    """The distinct classes that inputs and parameters name beside a path. Raises as `parse_inference`."""
    target = next(filter(_is_target, tensors), None)
    rows = 1 if target is None else prod(target.shape)
    return list(dict.fromkeys(_labels(path, parameters, target, rows)))


def how_to_name(path: ParsedPath) -> str:
    """The ways to name the target class, for messages and metadata."""
    model = path.reference or path.model
    return f'model name "{model}:CLASS", parameter "{CLASS}", or BYTES input "{CLASS}"'


def _header_length(value: bytes | None, size: int) -> int:
    if value is None:
        return size
    if not value.isdigit() or len(value) > 18 or int(value) > size:
        raise InvalidRequest(
            f"Inference-Header-Content-Length must be a number from 0 to the {size} bytes of the body.",
            code="bad_header_length",
        )
    return int(value)


def _decode(head: memoryview) -> _Request:
    if bytes(head).count(b"{") > MAX_OBJECTS:
        raise TooLarge(f"The request has more than {MAX_OBJECTS} objects.", code="too_many_objects")
    try:
        request = _DECODER.decode(head)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The request cannot be used: {error}.", code="wrong_body") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text, hint = bytes(head), ""
        if b"NaN" in text or b"Infinity" in text:
            hint = " NaN and infinite values are no JSON, and no decision can be made on them."
        elif not text.strip():
            hint = " It is empty."
        raise InvalidRequest(f"The request is not JSON: {error}.{hint}", code="malformed_json") from error
    if _may_repeat_keys(bytes(head), request):
        check_keys(bytes(head))
    return request


def _may_repeat_keys(text: bytes, request: _Request) -> bool:
    """Whether the JSON of a request may have a key twice, beside those in parameters; never a slow look."""
    tensors = [*request.inputs, *(request.outputs or ())]
    times = {
        "inputs": 1,
        "id": request.id is not None,
        "outputs": request.outputs is not None,
        "name": len(tensors),
        "shape": len(request.inputs),
        "datatype": len(request.inputs),
        "data": sum(tensor.data is not msgspec.UNSET for tensor in request.inputs),
        "parameters": sum(bytes(one.parameters) != b"null" for one in (request, *tensors)),
    }
    return b"\\" in text or any(text.count(b'"%s"' % name.encode()) != n for name, n in times.items())


def check_keys(text: bytes) -> None:
    """Raise InvalidRequest for a key of a request, or of one of its tensors, that is there twice."""
    check_once(text)
    fields = dict(pairs_of(text))
    for field_ in ("inputs", "outputs"):
        for k, tensor in enumerate(_LIST.decode(fields.get(field_, b"[]")) or ()):
            check_once(bytes(tensor), f"{field_}[{k}]")


def _parameters(raw: msgspec.Raw, of: str) -> Parameters:
    if len(raw) > _MAX_PARAMETERS:
        raise InvalidRequest(f"{of} has parameters beyond {_MAX_PARAMETERS} bytes.", code="wrong_body")
    try:
        parameters: Parameters | None = _PARAMETERS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{of} has unusable parameters: {error}.", code="wrong_body") from error
    if parameters is None:
        return {}
    check_once(bytes(raw), "parameters")
    return parameters


def _tensors(inputs: list[_Input], rest: memoryview, with_binary: bool) -> list[Tensor]:
    tensors: list[Tensor] = []
    position = 0
    for tensor in inputs:
        parameters = _parameters(tensor.parameters, f"Input {tensor.name!r:.100}")
        check_supported(tensor.name, parameters)
        size = parameters.get("binary_data_size")
        shape = tuple(tensor.shape)
        if size is None:
            if tensor.data is msgspec.UNSET:
                raise InvalidRequest(f"Input {tensor.name!r:.100} has no data.", code="bad_tensor")
            data = memoryview(tensor.data)
            tensors.append(Tensor(tensor.name, tensor.datatype, shape, data, binary=False))
            continue
        if tensor.data is not msgspec.UNSET or type(size) is not int or size < 0:
            message = f"Input {tensor.name!r:.100} needs either data or a binary_data_size in bytes."
            raise InvalidRequest(message, code="bad_tensor")
        data = rest[position : position + size]
        if len(data) != size or not with_binary:
            message = f"The body ends before the {size} bytes of input {tensor.name!r:.100}."
            raise InvalidRequest(message, code="bad_tensor")
        tensors.append(Tensor(tensor.name, tensor.datatype, shape, data, binary=True))
        position += size
    if position != len(rest):
        message = f"The body has {len(rest) - position} bytes behind the data of its inputs."
        raise InvalidRequest(message, code="bad_tensor")
    return tensors


def check_supported(name: str, parameters: Parameters) -> None:
    """Raise InvalidRequest if a tensor has a parameter that would change its meaning."""
    for parameter in _UNSUPPORTED:
        if parameter in parameters:
            message = f"{name!r:.100} has the parameter {parameter!r}, which is not supported."
            raise InvalidRequest(message, code="unsupported_parameter")


def _raw_rows(body: Body, columns: int) -> Tensor:
    rows = len(body) // (columns * DTYPES["FP64"].itemsize)
    return Tensor(ROWS, "FP64", (rows, columns), memoryview(body), binary=True)


def _is_target(tensor: Tensor) -> bool:
    return tensor.name == CLASS and tensor.datatype == TEXTS


def _target(tensors: list[Tensor], path: ParsedPath, records: Records | None) -> Tensor | None:
    """The input that names the class of each row; a column of records may have its name."""
    if records is not None and path.label is not None and CLASS in records.encoder.names:
        return None
    return next(filter(_is_target, tensors), None)


def _rows(tensor: Tensor, max_rows: int) -> Array:
    """The rows (n, d) of an input of shape (n, d) or (d,), a single row."""
    shape = tensor.shape
    if len(shape) not in (1, 2) or 0 in shape:
        raise tensor.error(f"has the shape {list(shape)}; rows × columns are needed, at least one of each")
    rows = shape[0] if len(shape) == 2 else 1
    if rows > max_rows:
        raise TooLarge(f"The request has {rows} rows; at most {max_rows} are taken.", code="too_many_rows")
    # Every number takes at least a byte in both encodings, so the body bounds the allocation.
    if rows * shape[-1] > len(tensor.data):
        raise tensor.error(f"has too little data for its shape {list(shape)}")
    table = tensor.numbers().reshape(rows, shape[-1])
    # The smaller of float32 and float64 that holds every value; 64-bit integers lose their last digits.
    return table.astype(np.promote_types(table.dtype, np.float32), copy=False)


def _joined(tensors: list[Tensor], max_rows: int) -> Array:
    """The rows (n, d) of inputs that are one column each, of shape (n,) or (n, 1), without those of texts."""
    rows = tensors[0].shape[0] if tensors[0].shape else 0
    for tensor in tensors:
        if tensor.shape not in ((rows,), (rows, 1)):
            raise tensor.error(
                f"has the shape {list(tensor.shape)}; {len(tensors)} inputs are the columns of one table,"
                " each of the shape [rows] or [rows, 1] with the same number of rows"
            )
    numeric = [replace(tensor, shape=(rows, 1)) for tensor in tensors if tensor.datatype != TEXTS]
    if not numeric:
        raise tensors[0].error("holds BYTES where numbers are needed")
    return np.concatenate([_rows(tensor, max_rows) for tensor in numeric], axis=1)


def _labels(path: ParsedPath, parameters: Parameters, target: Tensor | None, rows: int) -> list[str]:
    named = parameters.get(CLASS)
    if (path.label is not None) + (named is not None) + (target is not None) != 1:
        raise InvalidRequest(f"Name the target class in one way: {how_to_name(path)}.", code="class_missing")
    if path.label is not None:
        return [path.label]
    if target is None:
        if not isinstance(named, str):
            raise InvalidRequest(f'The parameter "{CLASS}" must be text.', code="wrong_body")
        return [check_label(path.model, named)]
    if prod(target.shape) not in (1, rows):
        raise target.error(
            f"names {prod(target.shape)} classes; one is needed, or one for each of {rows} rows"
        )
    labels = target.texts()
    distinct = dict.fromkeys(labels)
    if len(distinct) > MAX_CLASSES:
        raise TooLarge(f"At most {MAX_CLASSES} different classes are taken.", code="too_many_classes")
    for label in distinct:
        check_label(path.model, label)
    return labels


def requested(outputs: Sequence[tuple[str, Parameters]], binary: bool) -> list[RequestedOutput] | None:
    """The outputs with these names and parameters; None if there are none. Raises InvalidRequest.

    binary: whether those are binary that do not say it.
    """
    if not outputs:
        return None
    requested_outputs: dict[str, RequestedOutput] = {}
    for name, parameters in outputs:
        if name not in OUTPUTS:
            known = ", ".join(OUTPUTS)
            raise InvalidRequest(f"There is no output {name!r:.100}, only {known}.", code="no_output")
        check_supported(name, parameters)
        if name in requested_outputs:
            raise InvalidRequest(f"Output {name!r} is asked for twice.", code="wrong_body")
        requested_outputs[name] = RequestedOutput(name, _flag(parameters, "binary_data", binary))
    return list(requested_outputs.values())


def _flag(parameters: Parameters, name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequest(f"The parameter {name!r} must be true or false.", code="wrong_body")
    return value
