"""Writes ONNX models with the few protobuf messages that a graph of arithmetic needs.

Field numbers are those of onnx.proto, IR version 8; the same graph always gives the same bytes. A model is
written in pieces, so that its numbers are not copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

IR_VERSION: Final = 8
OPSET: Final = 18
ML_OPSET: Final = 2
"""Version of the domain ai.onnx.ml, which has the look-up of texts."""
ML: Final = "ai.onnx.ml"
MAX_BYTES: Final = 2**31 - 2**20
"""A protobuf message is smaller than 2 GiB."""

DOUBLE: Final = 11
BOOL: Final = 9
STRING: Final = 8
INT64: Final = np.dtype("<i8")
_TYPES: Final = {np.dtype("<f8"): DOUBLE, INT64: 7, np.dtype("<i4"): 6, np.dtype("?"): BOOL}
PIECE_BYTES: Final = 1 << 20
"""Largest number of bytes of an array that are written at once."""

_VARINT: Final = 0
_BYTES: Final = 2
_FLOAT, _INT, _INTS, _STRINGS = 1, 2, 7, 8

Attribute: TypeAlias = int | Sequence[int] | Sequence[str]


def varint(value: int) -> bytes:
    """A whole number; negative ones are written as 64 bits in two's complement."""
    value &= 2**64 - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def number(tag: int, value: int) -> bytes:
    """A field with a whole number."""
    return varint(tag << 3 | _VARINT) + varint(value)


def message(tag: int, content: bytes) -> bytes:
    """A field with a message, a text or bytes."""
    return _head(tag, len(content)) + content


def text(tag: int, value: str) -> bytes:
    """A field with a text."""
    return message(tag, value.encode())


@dataclass(frozen=True, slots=True)
class Tensor:
    """A TensorProto of an array, which is read while the model is written.

    values: of any shape. kind: the written type, float64, int64, int32 or bool, little-endian.
    """

    name: str
    values: NDArray[Any]
    kind: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return self.values.size * self.kind.itemsize

    @property
    def front(self) -> bytes:
        """The bytes before the numbers."""
        dims = b"".join(number(1, size) for size in self.values.shape)
        return dims + number(2, _TYPES[self.kind]) + text(8, self.name) + _head(9, self.nbytes)

    def pieces(self) -> Iterator[bytes]:
        """The numbers in row-major order, about `PIECE_BYTES` at a time."""
        for block in _blocks(self.values, max(1, PIECE_BYTES // self.kind.itemsize)):
            yield block.astype(self.kind, copy=False).tobytes()


def _blocks(values: NDArray[Any], most: int) -> Iterator[NDArray[Any]]:
    """An array in row-major order, as parts of it with at most ``most`` numbers each."""
    if values.flags.c_contiguous:
        values = values.reshape(-1)
    of_row = 1 if values.ndim == 1 else values[0].size
    if of_row > most:
        for row in values:
            yield from _blocks(row, most)
        return
    for first in range(0, len(values), most // of_row):
        yield values[first : first + most // of_row]


class OnnxModel:
    """A ModelProto, which is written in pieces. size: total number of bytes."""

    def __init__(self, parts: Sequence[bytes | Tensor]) -> None:
        self._parts = parts
        self.size = _size(parts)

    def pieces(self) -> Iterator[bytes]:
        """The same bytes at every call, in pieces of about `PIECE_BYTES`."""
        waiting = bytearray()
        for part in self._parts:
            for piece in part.pieces() if isinstance(part, Tensor) else [part]:
                waiting += piece
                if len(waiting) >= PIECE_BYTES:
                    yield bytes(waiting)
                    waiting.clear()
        if waiting:
            yield bytes(waiting)


def _size(parts: Sequence[bytes | Tensor]) -> int:
    return sum(part.nbytes if isinstance(part, Tensor) else len(part) for part in parts)


def _head(tag: int, size: int) -> bytes:
    """The bytes before a message, a text or bytes of this size."""
    return varint(tag << 3 | _BYTES) + varint(size)


def _attribute(name: str, value: Attribute) -> bytes:
    """An AttributeProto of a whole number, or of several, or of texts."""
    if isinstance(value, int):
        return text(1, name) + number(3, value) + number(20, _INT)
    if value and isinstance(value[0], str):
        return text(1, name) + b"".join(text(9, str(item)) for item in value) + number(20, _STRINGS)
    return text(1, name) + b"".join(number(8, int(item)) for item in value) + number(20, _INTS)


def _value(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    """A ValueInfoProto; sizes that differ from call to call have a name."""
    sizes = (text(2, size) if isinstance(size, str) else number(1, size) for size in shape)
    dims = b"".join(message(1, size) for size in sizes)
    return text(1, name) + message(2, message(1, number(1, kind) + message(2, dims)))


@dataclass(slots=True)
class Graph:
    """A graph under construction: nodes and constants in the order in which they were added."""

    nodes: list[bytes] = field(default_factory=list)
    constants: list[Tensor] = field(default_factory=list)
    inputs: list[bytes] = field(default_factory=list)
    outputs: list[bytes] = field(default_factory=list)
    uses_ml: bool = False
    nbytes: int = 0

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        """Declare an input."""
        self.inputs.append(_value(name, kind, shape))
        return name

    def output(self, source: str, name: str, kind: int, shape: Sequence[int | str]) -> None:
        """Declare that a value is an output of this name."""
        self._add("Identity", [source], name, {}, "")
        self.outputs.append(_value(name, kind, shape))

    def constant(self, values: Any, kind: np.dtype[Any] | None = None) -> str:
        """An array of float64, int64, int32 or bool, or a float. kind: its type in the graph, if different.

        It is read when the model is written, and must not change before that.
        """
        array = np.asarray(values)
        own = array.dtype if kind is None else kind
        tensor = Tensor(f"/constant_{len(self.constants)}", array, own.newbyteorder("<"))
        self.nbytes += tensor.nbytes
        self.constants.append(tensor)
        return tensor.name

    def op(self, kind: str, *sources: str, domain: str = "", **attributes: Attribute) -> str:
        """Add an operator and return its only output."""
        name = f"/{kind.lower()}_{len(self.nodes)}"
        self._add(kind, sources, name, attributes, domain)
        return name

    def _add(
        self, kind: str, sources: Sequence[str], name: str, attributes: Mapping[str, Attribute], domain: str
    ) -> None:
        parts = [text(1, source) for source in sources]
        parts += [text(2, name), text(3, f"/node_{len(self.nodes)}"), text(4, kind)]
        parts += [message(5, _attribute(*attribute)) for attribute in sorted(attributes.items())]
        if domain:
            self.uses_ml = True
            parts.append(text(7, domain))
        self.nodes.append(b"".join(parts))

    def model(self, name: str, producer: str, properties: Mapping[str, str]) -> OnnxModel:
        """The graph as a ModelProto. properties: texts that travel with the model."""
        graph: list[bytes | Tensor] = [*(message(1, node) for node in self.nodes), text(2, name)]
        for constant in self.constants:
            front = constant.front
            graph += [_head(5, len(front) + constant.nbytes) + front, constant]
        graph += [message(11, value) for value in self.inputs]
        graph += [message(12, value) for value in self.outputs]
        opsets = [text(1, "") + number(2, OPSET)]
        opsets += [text(1, ML) + number(2, ML_OPSET)] if self.uses_ml else []
        parts = [number(1, IR_VERSION), text(2, producer), _head(7, _size(graph)), *graph]
        parts += [message(8, opset) for opset in opsets]
        parts += [message(14, text(1, key) + text(2, value)) for key, value in sorted(properties.items())]
        return OnnxModel(parts)
