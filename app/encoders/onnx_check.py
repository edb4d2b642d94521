"""What an ONNX file may contain, read without any library: the walk of its protobuf messages is bounded.

A file that passes is still a program of others, which only a child without rights loads. The check keeps out
what could run for ever (loops), reach other files (external data), give other bits each time (random
operators), or come from another domain of operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from app.domain.errors import InvalidRequest

MAX_NODES: Final = 5000
MAX_TENSORS: Final = 2000
_MAX_FIELDS: Final = 1_000_000
_MAX_NAME: Final = 512
_IR_VERSIONS: Final = range(3, 11)
_OPSETS: Final = range(11, 22)
_FLOAT: Final = 1
_NUMBER_TYPES: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13})
"""Kinds of numbers of tensors; strings, complex numbers and those of 8 bits and fewer are not among them."""

_OPERATORS: Final = """
    Abs Add And ArgMax AveragePool BatchNormalization Cast Ceil Clip Concat Constant ConstantOfShape Conv
    ConvInteger ConvTranspose CumSum DepthToSpace DequantizeLinear Div DynamicQuantizeLinear Einsum Elu Equal
    Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool
    Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MatMul MatMulInteger Max
    MaxPool Min Mish Mod Mul Neg Not Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear Range
    Reciprocal ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Resize Selu Shape Sigmoid Sign
    Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tanh Tile TopK Transpose
    Unsqueeze Where
"""
OPERATORS: Final = frozenset(_OPERATORS.split())
"""The operators of exported networks of pictures and texts that compute the same each time and always end."""

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


def _fields(passed_over: tuple[int, ...], **named: int | tuple[int, ...]) -> Mapping[int, str | None]:
    """The numbers of the fields of a message: those that are passed over, and those that have a name here."""
    fields: dict[int, str | None] = dict.fromkeys(passed_over)
    for name, numbers in named.items():
        fields |= dict.fromkeys(numbers if isinstance(numbers, tuple) else (numbers,), name)
    return fields


_MODEL: Final = _fields((2, 3, 4, 5, 6, 14), ir=1, graph=7, opset=8)
_GRAPH: Final = _fields((2, 10, 13, 14, 16), node=1, tensor=5, input=11, output=12, sparse=15)
_NODE: Final = _fields((1, 2, 3, 6, 9), operator=4, attribute=5, domain=7)
_ATTRIBUTE: Final = _fields((1, 2, 3, 4, 7, 8, 9, 13, 20), tensor=(5, 10), graph=(6, 11), sparse=(22, 23))
_TENSOR: Final = _fields((1, 4, 5, 7, 9, 10, 11, 12, 16), kind=2, name=8, external=13, place=14)


class Port(NamedTuple):
    """An input or output. kind: of its numbers, 1 for float32. sides: -1 where any length may be."""

    name: str
    kind: int
    sides: tuple[int, ...]


@dataclass(slots=True)
class OnnxSummary:
    """What a file contains. inputs: without those that have a value in the file. opset: of its operators."""

    opset: int = 0
    nodes: int = 0
    operators: set[str] = field(default_factory=set)
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    tensors: set[str] = field(default_factory=set)


def check_onnx(data: bytes) -> OnnxSummary:
    """What a file contains that may be run in a child.

    Raises InvalidRequest with the code not_onnx, no_opset, bad_opset, bad_operator, has_functions,
    external_data, sparse_tensor, string_tensor, too_many_nodes or too_many_tensors.
    """
    walk = _Walk(data)
    try:
        walk.model()
    except (IndexError, ValueError, OverflowError, RecursionError) as error:
        raise _fault("not_onnx", f"The file is no ONNX model: {error}.") from None
    return walk.summary


class _Walk:
    """One walk over the messages of a model."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fields = 0
        self.summary = OnnxSummary()

    def model(self) -> None:
        opsets = []
        for name, start, end in self._known(0, len(self._data), _MODEL, "model"):
            if name == "ir" and start not in _IR_VERSIONS:
                raise _fault("bad_opset", f"The IR version {start} is not among 3 to 10. Export it anew.")
            if name == "opset":
                opsets.append(self._opset(start, end))
            elif name == "graph":
                self._graph(start, end)
        if not opsets:
            raise _fault("no_opset", "The file names no set of operators (opset), as each ONNX model does.")
        self.summary.opset = max(opsets)
        named = self.summary.tensors
        self.summary.inputs = [port for port in self.summary.inputs if port.name not in named]

    def _opset(self, start: int, end: int) -> int:
        version = 0
        for tag, _, first, last in self._all(start, end):
            if tag == 1:
                self._require_domain(first, last)
            elif tag == 2:
                version = first
        if version not in _OPSETS:
            text = f"The operators are of opset {version}; those of 11 to 21 are run. Export it anew."
            raise _fault("bad_opset", text)
        return version

    def _graph(self, start: int, end: int) -> None:
        for name, first, last in self._known(start, end, _GRAPH, "graph"):
            if name == "node":
                self._node(first, last)
            elif name == "tensor":
                self._tensor(first, last)
            elif name == "sparse":
                raise _fault("sparse_tensor", "The file has sparse tensors, which are not run.")
            elif name == "input":
                self.summary.inputs.append(self._port(first, last))
            elif name == "output":
                self.summary.outputs.append(self._port(first, last))
            if len(self.summary.tensors) + len(self.summary.inputs) > MAX_TENSORS:
                raise _fault("too_many_tensors", f"The file has more than {MAX_TENSORS} tensors.")

    def _node(self, start: int, end: int) -> None:
        self.summary.nodes += 1
        if self.summary.nodes > MAX_NODES:
            raise _fault("too_many_nodes", f"The file has more than {MAX_NODES} nodes.")
        has_operator = False
        for name, first, last in self._known(start, end, _NODE, "node"):
            if name == "operator":
                operator = self._text(first, last)
                if operator not in OPERATORS:
                    raise _fault(
                        "bad_operator", f"The operator {operator!r} is not among those that are run."
                    )
                self.summary.operators.add(operator)
                has_operator = True
            elif name == "domain":
                self._require_domain(first, last)
            elif name == "attribute":
                self._attribute(first, last)
        if not has_operator:
            raise ValueError("a node has no operator")

    def _attribute(self, start: int, end: int) -> None:
        for name, first, last in self._known(start, end, _ATTRIBUTE, "attribute"):
            if name == "graph":
                raise _fault("bad_operator", "An operator has a graph inside (a loop or a branch).")
            if name == "sparse":
                raise _fault("sparse_tensor", "An attribute is a sparse tensor, which is not run.")
            if name == "tensor":
                self._tensor(first, last, is_named=False)

    def _tensor(self, start: int, end: int, *, is_named: bool = True) -> None:
        for name, first, last in self._known(start, end, _TENSOR, "tensor"):
            if name == "external" or (name == "place" and first != 0):
                raise _fault("external_data", "A tensor is in another file. Save the model as one file.")
            if name == "kind" and first not in _NUMBER_TYPES:
                raise _fault("string_tensor", f"A tensor is of the type {first}, which is not run.")
            if name == "name" and is_named:
                self.summary.tensors.add(self._text(first, last))

    def _port(self, start: int, end: int) -> Port:
        name, kind = "", 0
        sides: tuple[int, ...] = ()
        for tag, _, first, last in self._all(start, end):
            if tag == 1:
                name = self._text(first, last)
            elif tag == 2:
                kind, sides = self._type(first, last)
        return Port(name, kind, sides)

    def _type(self, start: int, end: int) -> tuple[int, tuple[int, ...]]:
        kind = 0
        sides: tuple[int, ...] = ()
        for tag, wire, first, last in self._all(start, end):
            if tag != 1 or wire != _BYTES:
                continue
            for of_tensor, _, left, right in self._all(first, last):
                if of_tensor == 1:
                    kind = left
                elif of_tensor == 2:
                    sides = tuple(self._side(*place) for _, _, *place in self._all(left, right))
        return kind, sides

    def _side(self, start: int, end: int) -> int:
        values = [first for tag, wire, first, _ in self._all(start, end) if (tag, wire) == (1, _VARINT)]
        return values[-1] if values else -1

    def _require_domain(self, start: int, end: int) -> None:
        domain = self._text(start, end)
        if domain not in {"", "ai.onnx"}:
            raise _fault("bad_operator", f"Operators of the domain {domain!r} are not run.")

    def _text(self, start: int, end: int) -> str:
        if end - start > _MAX_NAME:
            raise ValueError("a name is too long")
        return self._data[start:end].decode("utf-8")

    def _known(
        self, start: int, end: int, fields: Mapping[int, str | None], message: str
    ) -> Iterator[tuple[str, int, int]]:
        """The fields of a message that matter: (what it is, value or start, end). Others are an error."""
        for tag, wire, first, last in self._all(start, end):
            if tag == 25 and message == "model":
                raise _fault("has_functions", "The file has functions of its own, which are not run.")
            if tag not in fields:
                raise ValueError(f"a {message} has the field {tag}, which is unknown")
            name = fields[tag]
            if name is None:
                continue
            if (wire == _VARINT) != (name in {"ir", "kind", "place"}):
                raise ValueError(f"the field {tag} of a {message} is of another type")
            yield name, first, last

    def _all(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """All fields of a message: (number, type, value or start, end)."""
        at = start
        while at < end:
            self._fields += 1
            if self._fields > _MAX_FIELDS:
                raise ValueError("it has too many parts")
            key, at = self._varint(at, end)
            tag, wire = key >> 3, key & 7
            if wire == _VARINT:
                value, at = self._varint(at, end)
                yield tag, wire, value, at
                continue
            if wire == _BYTES:
                length, at = self._varint(at, end)
            elif wire in {_EIGHT, _FOUR}:
                length = 8 if wire == _EIGHT else 4
            else:
                raise ValueError(f"byte {at} has the unknown type {wire}")
            if tag == 0 or length > end - at:
                raise ValueError(f"byte {at} is no field")
            yield tag, wire, at, at + length
            at += length

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                break
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise ValueError(f"byte {at} does not end a number")


def require_picture_input(summary: OnnxSummary, side: int, output: str) -> str:
    """The name of the output that gives the vector of a square picture.

    side: its pixels. output: the wanted name; empty if there is only one. Raises InvalidRequest with the
    code bad_encoder_input or bad_encoder_output.
    """
    if len(summary.inputs) != 1:
        listed = ", ".join(port.name for port in summary.inputs[:10])
        text = f"The model has {len(summary.inputs)} inputs ({listed}); one of pictures is needed."
        raise _fault("bad_encoder_input", text)
    [port] = summary.inputs
    wanted = (1, 3, side, side)
    fits = len(port.sides) == len(wanted) and all(
        have in {-1, want} for have, want in zip(port.sides, wanted, strict=True)
    )
    if port.kind != _FLOAT or not fits:
        text = (
            f"The input {port.name} has the type {port.kind} and the shape {list(port.sides)}; float32 of "
            f"{list(wanted)} is needed, where the first side may be open. Check --input."
        )
        raise _fault("bad_encoder_input", text)
    names = [port.name for port in summary.outputs]
    if (output and output not in names) or (not output and len(names) != 1):
        text = f"The model has the outputs {', '.join(names[:10])}; name one of them by --output."
        raise _fault("bad_encoder_output", text)
    return output or names[0]


def _fault(code: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, code=code)
