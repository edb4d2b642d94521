"""Runs the ONNX file of an encoder on the pixels of a picture. Only child processes import this."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from app.encoders.faults import EncoderFailed
from app.encoders.picture_input import scaled
from app.encoders.pixels import decode
from app.encoders.specification import EncoderSpecification
from core.packed.onnx_wire import message, number, text


def warm_up() -> None:
    """Load and run a small model, so that the library has opened all that it needs."""
    session = _session(_small_model())
    session.run(None, {"x": np.ones((1, 4), np.float32)})
    try:
        _session(b"no model")
    except EncoderFailed as failed:
        str(failed)


def encoder_of(encoder: EncoderSpecification, file: bytes) -> Callable[[bytes], NDArray[np.float32]]:
    """What turns the bytes of a picture into its vector. It raises EncoderFailed, and so does this."""
    session = _session(file)
    [name] = [port.name for port in session.get_inputs()]

    def encode(picture: bytes) -> NDArray[np.float32]:
        pixels = decode(picture, encoder.side, crop=encoder.crop, bicubic=True)
        given = {name: scaled(pixels, encoder.order, encoder.scaling)}
        try:
            [result] = session.run([encoder.output], given)
        except Exception as error:  # noqa: BLE001 - the library raises errors of many classes
            raise _failed(_reason(error)) from None
        if not isinstance(result, np.ndarray) or result.dtype != np.float32 or result.shape[:1] != (1,):
            raise _failed("its output is not one vector of float32")
        if max(result.shape) != result.size:
            raise _failed(f"its output has the shape {list(result.shape)}, which is no vector")
        if not np.isfinite(result).all():
            raise _failed("its output has numbers that are not finite")
        return np.ascontiguousarray(result.ravel())

    return encode


def library_version() -> str:
    """Name and version of the library."""
    return f"onnxruntime {onnxruntime.__version__}"


def _session(file: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - the library raises errors of many classes
        raise _failed(_reason(error)) from None


def _failed(reason: str) -> EncoderFailed:
    return EncoderFailed("encoder_failed", f"The encoder cannot be run: {reason}.")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _small_model() -> bytes:
    """One node: y = Relu(x), of shape (1, 4)."""
    sides = b"".join(message(1, number(1, side)) for side in (1, 4))
    tensor = message(2, message(1, number(1, 1) + message(2, sides)))
    node = message(1, text(1, "x") + text(2, "y") + text(4, "Relu"))
    graph = node + text(2, "g") + message(11, text(1, "x") + tensor) + message(12, text(1, "y") + tensor)
    return number(1, 8) + message(8, text(1, "") + number(2, 13)) + message(7, graph)
