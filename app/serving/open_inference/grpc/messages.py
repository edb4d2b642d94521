"""Converts protobuf messages: requests to `Inference`, outputs and other documents to messages.

Rows in ``raw_input_contents`` are not copied: these fields are cut out of the received bytes before the rest
is parsed, and remain views of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from app.domain.errors import InvalidRequest, ServiceError, TooLarge
from app.serving.open_inference.evaluate import Outputs
from app.serving.open_inference.grpc.descriptors import message_classes
from app.serving.open_inference.operations import InferenceForm
from app.serving.open_inference.paths import ParsedPath
from app.serving.open_inference.requests import (
    MAX_OBJECTS,
    Inference,
    Parameters,
    RequestedOutput,
    check_supported,
    labels_of,
    requested,
)
from app.serving.open_inference.responses import InferenceModel, InferenceStatistics
from app.serving.open_inference.tensors import DTYPES, TEXTS, Tensor, datatype_of, to_bytes
from app.serving.servable import ServableStudent

_INPUT, _OUTPUT, _RAW = (number << 3 | 2 for number in (5, 6, 7))
"""Tags of fields of ModelInferRequest that are messages or bytes."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types."""
_MAX_VARINT: Final = 10
_MAX_SIZE: Final = 2**31

_CONTENTS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    TEXTS: "bytes_contents",
}
"""Where InferTensorContents has the elements of a tensor; FP16 is not there."""


def parse(name: str, data: bytes) -> Any:
    """The message of `TABLE` in these bytes. Raises InvalidRequest."""
    try:
        return message_classes()[name].FromString(data)
    except DecodeError as error:
        raise _malformed() from error


def serialized(name: str, /, **fields: Any) -> bytes:
    """The bytes of a message of `TABLE`."""
    data: bytes = message_classes()[name](**fields).SerializeToString()
    return data


@dataclass(slots=True)
class GrpcInference(InferenceForm[bytes]):
    """A ModelInferRequest. message: without its raw contents. raw: these. size: bytes of everything."""

    message: Any
    raw: list[memoryview]
    size: int

    @classmethod
    def read(cls, data: bytes) -> GrpcInference:
        """Read a message. Raises InvalidRequest, and TooLarge for one of too many parts."""
        rest: list[memoryview] = []
        raw: list[memoryview] = []
        view, parts = memoryview(data), 0
        for tag, start, content, end in _fields(view):
            if tag == _RAW:
                raw.append(view[content:end])
            else:
                rest.append(view[start:end])
            # A message of protobuf takes many times its bytes.
            parts += 1 if tag not in (_INPUT, _OUTPUT) else 1 + _count(view[content:end], MAX_OBJECTS)
            if parts > MAX_OBJECTS:
                raise TooLarge(f"The request has more than {MAX_OBJECTS} parts.", code="too_many_objects")
        return cls(parse("ModelInferRequest", b"".join(rest)), raw, len(data))

    def parse(self, path: ParsedPath) -> Inference:
        message, tensors = self.message, self._tensors()
        outputs = [(output.name, _parameters(output.parameters)) for output in message.outputs]
        is_raw = bool(self.raw)
        labels = labels_of(tensors, _parameters(message.parameters), path)
        return Inference(tensors, path, labels, message.id or None, requested(outputs, is_raw), is_raw)

    def encode(
        self,
        inference: Inference,
        outputs: Outputs,
        requested_outputs: Sequence[RequestedOutput],
        path: ParsedPath,
        student: ServableStudent,
    ) -> bytes:
        """The bytes of a ModelInferResponse; its contents are raw if those of the request were."""
        response = message_classes()["ModelInferResponse"](
            model_name=path.name, model_version=str(student.version), id=inference.id
        )
        for output in requested_outputs:
            array = outputs[output.name]
            tensor = response.outputs.add(
                name=output.name, datatype=datatype_of(array), shape=list(array.shape)
            )
            if inference.binary:
                response.raw_output_contents.append(to_bytes(array))
            else:
                getattr(tensor.contents, _CONTENTS[tensor.datatype]).extend(array.tolist())
        data: bytes = response.SerializeToString()
        return data

    def _tensors(self) -> list[Tensor]:
        given = self.message.inputs
        if self.raw and len(self.raw) != len(given):
            message = f"The request has {len(given)} inputs, but {len(self.raw)} raw_input_contents."
            raise InvalidRequest(message, code="bad_tensor")
        if not self.raw:
            return [_typed(one, _tensor(one, memoryview(b""))) for one in given]
        for one in given:
            if one.HasField("contents"):
                message = f"Input {one.name!r:.100} has contents beside raw_input_contents."
                raise InvalidRequest(message, code="bad_tensor")
        return [_tensor(one, data) for one, data in zip(given, self.raw, strict=True)]


def metadata_message(document: InferenceModel) -> bytes:
    """A ModelMetadataResponse. It has no field for the ``parameters`` of HTTP."""
    names = ("name", "datatype", "shape")
    tensors = {
        part: [{name: tensor[name] for name in names} for tensor in document[part]]  # type: ignore[literal-required]
        for part in ("inputs", "outputs")
    }
    return serialized(
        "ModelMetadataResponse",
        name=document["name"],
        versions=document["versions"],
        platform=document["platform"],
        **tensors,
    )


def statistics_message(document: InferenceStatistics) -> bytes:
    """A ModelStatisticsResponse."""
    versions = [
        {name: value for name, value in counted.items() if name != "batch_stats"}
        for counted in document["model_stats"]
    ]
    return serialized("ModelStatisticsResponse", model_stats=versions)


def streamed(answer: bytes) -> bytes:
    """A ModelStreamInferResponse with a ModelInferResponse."""
    response = message_classes()["ModelStreamInferResponse"]()
    response.infer_response.MergeFromString(answer)
    data: bytes = response.SerializeToString()
    return data


def streamed_error(detail: str, code: str, request: bytes) -> bytes:
    """A ModelStreamInferResponse with an error. request: whose id the client looks for."""
    try:
        identity = GrpcInference.read(request).message.id
    except ServiceError:
        identity = ""
    parameters = {"stms-code": {"string_param": code}}
    return serialized(
        "ModelStreamInferResponse",
        error_message=detail,
        infer_response={"id": identity, "parameters": parameters},
    )


def _parameters(given: Any) -> Parameters:
    """The values of a map of InferParameter."""
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in given.items()}
    return {name: getattr(given[name], choice) for name, choice in chosen.items() if choice is not None}


def _tensor(given: Any, data: memoryview) -> Tensor:
    shape = tuple(given.shape)
    tensor = Tensor(given.name, given.datatype, shape, data, binary=True)
    if any(not 0 <= size <= _MAX_SIZE for size in shape):
        raise tensor.error(f"has the shape {list(shape)[:8]}, whose sizes must be from 0 to {_MAX_SIZE}")
    check_supported(tensor.name, _parameters(given.parameters))
    return tensor


def _typed(given: Any, tensor: Tensor) -> Tensor:
    """A tensor with the elements of its ``contents``."""
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise tensor.error(f"has {tensor.datatype}, for which there are only raw_input_contents")
    elements = getattr(given.contents, field)
    expected = prod(tensor.shape)
    if len(elements) != expected:
        noun = "texts" if tensor.datatype == TEXTS else "numbers"
        raise tensor.error(f"has {len(elements)} {noun} in {field}; its shape needs {expected}")
    if tensor.datatype == TEXTS:
        data = b"".join(len(text).to_bytes(4, "little") + text for text in elements)
        return replace(tensor, data=memoryview(data))
    try:
        array = np.fromiter(elements, DTYPES[tensor.datatype], expected)
    except OverflowError as error:
        raise tensor.error(f"has a number that {tensor.datatype} cannot hold") from error
    return replace(tensor, data=memoryview(array.tobytes()))


def _fields(view: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: tag, start of the field, start of its content, and end.

    https://protobuf.dev/programming-guides/encoding; groups are refused. Raises InvalidRequest.
    """
    position, size = 0, len(view)
    while position < size:
        start = position
        tag, position = _varint(view, position)
        content, wire_type = position, tag & 7
        if wire_type == _VARINT:
            _, position = _varint(view, position)
        elif wire_type == _BYTES:
            length, content = _varint(view, position)
            position = content + length
        elif wire_type == _FIXED64:
            position += 8
        elif wire_type == _FIXED32:
            position += 4
        else:
            raise _malformed()
        if position > size:
            raise _malformed()
        yield tag, start, content, position


def _count(view: memoryview, most: int) -> int:
    """The number of fields of a message, counted up to ``most`` + 1."""
    count = 0
    for _ in _fields(view):
        count += 1
        if count > most:
            break
    return count


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    for byte in view[position : position + _MAX_VARINT]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _malformed()


def _malformed() -> InvalidRequest:
    return InvalidRequest("The message is not of the type that this call takes.", code="malformed_message")
