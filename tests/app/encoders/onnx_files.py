"""Small ONNX files: a network of pictures of 40 kB, and hostile ones with the code that each gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SIDE: Final = 32


def model(
    nodes: Sequence[Any],
    tensors: Sequence[Any] = (),
    *,
    opset: int = 13,
    sides: Sequence[Any] = ("n", 3, SIDE, SIDE),
    kind: int = TensorProto.FLOAT,
    **more: Any,
) -> bytes:
    """A graph from ``image`` to ``y``."""
    image = helper.make_tensor_value_info("image", kind, sides)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", [image], [result], list(tensors))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **more)
    return made.SerializeToString()


def network(seed: int = 0, width: int = 64) -> bytes:
    """Two convolutions and the mean of their answers."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(16, 3, 5, 5)).astype(np.float32) / 8
    second = rng.normal(size=(width, 16, 3, 3)).astype(np.float32) / 8
    nodes = [
        helper.make_node("Conv", ["image", "first"], ["a"], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second"], ["c"], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["y"]),
    ]
    return model(nodes, [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")])


def _numbers(name: str, values: Any) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(operator, list(inputs), list(outputs), **attributes)


def _loop() -> bytes:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [_node("Identity", ["c"], ["c2"]), _node("Identity", ["s"], ["s2"])],
        "b",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("s", TensorProto.FLOAT, [])],
        [info("c2", TensorProto.BOOL, []), info("s2", TensorProto.FLOAT, [])],
    )
    truth = numpy_helper.from_array(np.array(True), "t")
    zero = numpy_helper.from_array(np.float32(0), "z")
    return model([_node("Loop", ["m", "t", "z"], ["y"], body=body)], [_numbers("m", 2**62), truth, zero])


def _external() -> bytes:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../../etc/passwd")
    return model([_node("Identity", ["w"], ["y"])], [tensor])


def _external_attribute() -> bytes:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.external_data.add(key="location", value="/etc/passwd")
    return model([_node("Constant", [], ["y"], value=tensor)])


def _functions() -> bytes:
    function = helper.make_function("own", "f", ["a"], ["b"], [_node("Relu", ["a"], ["b"])], [])
    return model([_node("Relu", ["image"], ["y"])], functions=[function])


def _strings() -> bytes:
    words = helper.make_tensor("w", TensorProto.STRING, [1], [b"a"])
    return model([_node("Identity", ["image"], ["y"])], [words])


def _sparse() -> bytes:
    values = numpy_helper.from_array(np.ones(1, np.float32), "v")
    tensor = helper.make_sparse_tensor(values, _numbers("i", [0]), [4])
    return model([_node("Constant", [], ["y"], sparse_value=tensor)])


def _chain(length: int) -> bytes:
    names = ["image", *(f"x{k}" for k in range(1, length)), "y"]
    return model([_node("Relu", names[k : k + 1], names[k + 1 : k + 2]) for k in range(length)])


def _two_graphs() -> bytes:
    """Readers of protobuf put two graphs together."""
    return network() + _loop()


HOSTILE: Final[Mapping[str, tuple[str, Callable[[], bytes]]]] = {
    "loop of 2^62 turns": ("bad_operator", _loop),
    "a loop in a second graph": ("bad_operator", _two_graphs),
    "random numbers": ("bad_operator", lambda: model([_node("RandomNormalLike", ["image"], ["y"])])),
    "another domain": ("bad_operator", lambda: model([_node("Relu", ["image"], ["y"], domain="evil")])),
    "data of another file": ("external_data", _external),
    "data of another file in an attribute": ("external_data", _external_attribute),
    "functions": ("has_functions", _functions),
    "texts": ("string_tensor", _strings),
    "sparse numbers": ("sparse_tensor", _sparse),
    "30 000 nodes": ("too_many_nodes", lambda: _chain(30_000)),
    "3000 tensors": (
        "too_many_tensors",
        lambda: model([_node("Relu", ["image"], ["y"])], [_numbers(f"t{k}", [1]) for k in range(3000)]),
    ),
    "operators of the future": ("bad_opset", lambda: model([_node("Relu", ["image"], ["y"])], opset=99)),
    "nothing": ("no_opset", lambda: b""),
    "random bytes": ("not_onnx", lambda: np.random.default_rng(0).bytes(5000)),
    "a truncated model": ("not_onnx", lambda: network()[:1000]),
}
"""Files that are refused before anything runs them."""
COSTLY: Final[Mapping[str, tuple[str, Callable[[], bytes]]]] = {
    "4 GB": (
        "encoder_failed",
        lambda: model([_node("ConstantOfShape", ["s"], ["y"])], [_numbers("s", [1 << 30])]),
    ),
    "endless products": (
        "encoder_too_costly",
        lambda: model(
            [
                _node("ConstantOfShape", ["s"], ["x0"]),
                *(_node("MatMul", ["x0", f"x{k}"], [f"x{k + 1}" if k < 39 else "y"]) for k in range(40)),
            ],
            [_numbers("s", [4096, 4096])],
        ),
    ),
    "no vector": ("encoder_failed", lambda: model([_node("Relu", ["image"], ["y"])])),
    "3 numbers": (
        "bad_encoder_output",
        lambda: model([_node("GlobalAveragePool", ["image"], ["p"]), _node("Flatten", ["p"], ["y"])]),
    ),
    "not finite": (
        "encoder_failed",
        lambda: model(
            [_node("Flatten", ["image"], ["f"]), _node("Sub", ["f", "f"], ["z"]), _node("Log", ["z"], ["y"])]
        ),
    ),
}
"""Files that only the trial in a child refuses."""
