"""Parsing of inference requests: rows, classes and requested outputs.

    {"parameters": {"class": "A"}, "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": …}]}

With the header Inference-Header-Content-Length the body consists of that many bytes of JSON and the data of
all inputs that have a ``binary_data_size``, in order. A length of 0 means that there is no JSON: the body
contains only the rows, as FP64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any, Final

import msgspec

from app.domain.errors import InvalidRequest, TooLarge
from app.http.types import Body
from app.serving.columns.base import Columns, Rows
from app.serving.decision import MAX_CLASSES
from app.serving.json_keys import check_once, constants_as_text, pairs_of
from app.serving.open_inference.inputs import FIELD, rows_of
from app.serving.open_inference.paths import ParsedPath, check_label
from app.serving.open_inference.tensors import DTYPES, TEXTS, Tensor

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
    """A parsed request, before its version is known.

    tensors: all inputs. path: of the model, and of the class if it names one. labels: one class for all rows,
    or one for each row. requested_outputs: None for the default outputs, in binary if ``binary``. bare: rows
    of FP64 without JSON, in place of tensors. distinct: the distinct labels.
    """

    tensors: Sequence[Tensor]
    path: ParsedPath
    labels: list[str]
    id: str | None = None
    requested_outputs: list[RequestedOutput] | None = None
    binary: bool = False
    bare: Body | None = None
    distinct: dict[str, None] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "distinct", dict.fromkeys(self.labels))

    def rows(self, columns: Columns, max_rows: int) -> Rows:
        """The rows for a version with these columns. Raises InvalidRequest and TooLarge."""
        if self.bare is not None:
            columns.check_lists(FIELD)
            return rows_of([_raw_rows(self.bare, columns.n_columns)], columns, max_rows)
        target = next(filter(_is_target, self.tensors), None)
        if self.path.label is not None and target is not None:
            # A column may have this name.
            if CLASS not in (columns.names or ()):
                raise _class_missing(self.path)
            target = None
        others = [tensor for tensor in self.tensors if tensor is not target]
        if not others:
            text = "The request has 0 inputs of numbers; one table of rows is needed, or one for each column."
            raise InvalidRequest(text, code="wrong_inputs")
        rows = rows_of(others, columns, max_rows)
        if target is not None and prod(target.shape) not in (1, len(rows)):
            named = prod(target.shape)
            raise target.error(f"names {named} classes; one is needed, or one for each of {len(rows)} rows")
        return rows


def parse_inference(body: Body, header_length: bytes | None, path: ParsedPath) -> Inference:
    """Parse ``body``. Raises InvalidRequest, TooLarge, and NotFound for an impossible class name."""
    length = _header_length(header_length, len(body))
    if length == 0 and header_length is not None:
        if path.label is None:
            message = f"Name the target class in the path: {path.name}:CLASS."
            raise InvalidRequest(message, code="class_missing")
        return Inference((), path, [path.label], binary=True, bare=body)
    request = _decode(memoryview(body)[:length])
    tensors = _tensors(request.inputs, memoryview(body)[length:], header_length is not None)
    parameters = _parameters(request.parameters, "The request")
    binary = _flag(parameters, "binary_data_output", False)
    outputs = [
        (output.name, _parameters(output.parameters, f"Output {output.name!r:.100}"))
        for output in request.outputs or ()
    ]
    labels = labels_of(tensors, parameters, path)
    return Inference(tensors, path, labels, request.id, requested(outputs, binary), binary)


def labels_of(tensors: Sequence[Tensor], parameters: Parameters, path: ParsedPath) -> list[str]:
    """The class for all rows, or for each row, that a path, parameters or inputs name.

    Raises as `parse_inference`.
    """
    named, target = parameters.get(CLASS), next(filter(_is_target, tensors), None)
    if path.label is not None and named is None:
        return [path.label]
    if path.label is not None or (named is None) == (target is None):
        raise _class_missing(path)
    if target is None:
        if not isinstance(named, str):
            raise InvalidRequest(f'The parameter "{CLASS}" must be text.', code="wrong_body")
        return [check_label(path.model, named)]
    labels = target.texts()
    distinct = dict.fromkeys(labels)
    if len(distinct) > MAX_CLASSES:
        raise TooLarge(f"At most {MAX_CLASSES} different classes are taken.", code="too_many_classes")
    for label in distinct:
        check_label(path.model, label)
    return labels


def _class_missing(path: ParsedPath) -> InvalidRequest:
    return InvalidRequest(f"Name the target class in one way: {how_to_name(path)}.", code="class_missing")


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
        text, hint, code = bytes(head), "", "malformed_json"
        if constants_as_text(text) is not text:
            hint = " NaN and infinite values are no JSON, and no decision can be made on them."
            code = "not_finite"
        elif not text.strip():
            hint = " It is empty."
        raise InvalidRequest(f"The request is not JSON: {error}.{hint}", code=code) from error
    if _may_repeat_keys(bytes(head), request):
        check_keys(bytes(head))
    return request


def _may_repeat_keys(text: bytes, request: _Request) -> bool:
    """Whether the JSON of a request may repeat a key outside of parameters; always a quick check."""
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


def requested(outputs: Sequence[tuple[str, Parameters]], binary: bool) -> list[RequestedOutput] | None:
    """The outputs with these names and parameters; None if there are none. Raises InvalidRequest.

    binary: whether outputs are binary that do not specify it.
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
