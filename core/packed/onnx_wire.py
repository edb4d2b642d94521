"""Writes ONNX models: the few messages of its protobuf schema that a graph of arithmetic needs.

Field numbers are those of onnx.proto, IR version 8; the same graph always gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

IR_VERSION: Final = 8
OPSET: Final = 18
ML_OPSET: Final = 2
"""Of the domain ai.onnx.ml, which has the look-up of texts."""
ML: Final = "ai.onnx.ml"
MAX_BYTES: Final = 2**31 - 2**20
"""A protobuf message is smaller than 2 GiB."""

DOUBLE: Final = 11
BOOL: Final = 9
STRING: Final = 8
_TYPES: Final = {np.dtype("<f8"): DOUBLE, np.dtype("<i8"): 7, np.dtype("<i4"): 6, np.dtype("?"): BOOL}

_VARINT: Final = 0
_BYTES: Final = 2
_FLOAT, _INT, _INTS, _STRINGS = 1, 2, 7, 8

Attribute: TypeAlias = int | Sequence[int] | Sequence[str]


def varint(value: int) -> bytes:
    """A whole number; negative ones as 64 bits in two's complement."""
    value &= 2**64 - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def number(tag: int, value: int) -> bytes:
    """A field that is a whole number."""
    return varint(tag << 3 | _VARINT) + varint(value)


def message(tag: int, content: bytes) -> bytes:
    """A field that is a message, a text or bytes."""
    return varint(tag << 3 | _BYTES) + varint(len(content)) + content


def text(tag: int, value: str) -> bytes:
    """A field that is a text."""
    return message(tag, value.encode())


def tensor(name: str, values: NDArray[Any]) -> bytes:
    """A TensorProto of float64, int64, int32 or bool, little-endian."""
    dims = b"".join(number(1, size) for size in values.shape)
    data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    return dims + number(2, _TYPES[values.dtype]) + text(8, name) + message(9, data)


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
    """A graph in the making: nodes and constants in the order in which they are added."""

    nodes: list[bytes] = field(default_factory=list)
    constants: list[bytes] = field(default_factory=list)
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

    def constant(self, values: Any) -> str:
        """An array of float64, int64, int32 or bool, or a float."""
        array = np.asarray(values)
        name = f"/constant_{len(self.constants)}"
        self.nbytes += array.nbytes
        self.constants.append(tensor(name, array))
        return name

    def op(self, kind: str, *sources: str, domain: str = "", **attributes: Attribute) -> str:
        """The only output of an operator."""
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

    def model(self, name: str, producer: str, properties: Mapping[str, str]) -> bytes:
        """The graph as a ModelProto. properties: texts that travel with the model."""
        graph = [message(1, node) for node in self.nodes] + [text(2, name)]
        graph += [message(5, constant) for constant in self.constants]
        graph += [message(11, value) for value in self.inputs]
        graph += [message(12, value) for value in self.outputs]
        opsets = [text(1, "") + number(2, OPSET)]
        opsets += [text(1, ML) + number(2, ML_OPSET)] if self.uses_ml else []
        parts = [number(1, IR_VERSION), text(2, producer), message(7, b"".join(graph))]
        parts += [message(8, opset) for opset in opsets]
        parts += [message(14, text(1, key) + text(2, value)) for key, value in sorted(properties.items())]
        return b"".join(parts)
