"""Rows as raw little-endian numbers or as .npy: arrays that share the memory of the body.

A tensor of one axis is one row, a tensor of two axes several rows.
"""

from __future__ import annotations

import io
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest
from app.domain.npy_header import read_header
from app.http.types import Body
from app.serving.query.negotiation import DTYPES, MediaType, RequestFormat, bad_header

Table = NDArray[np.float32] | NDArray[np.float64]

_KEPT: Final = tuple(DTYPES.values())
_MAX_AXES: Final = 2
_NPY_FRONT: Final = 16 * 1024


def read_tensor(data: Body, format_: RequestFormat) -> Table:
    """The rows in ``data``: (n, d), or (d,) for a single row, as float32 or float64, not yet validated.

    A raw tensor must have exactly the bytes of its shape. Numbers of other types in .npy become float64.
    Raises InvalidRequest.
    """
    return _read_npy(data) if format_.body is MediaType.NPY else _read_raw(data, format_)


def write_tensor(values: NDArray[np.float64], media_type: MediaType) -> bytes:
    """Encode numbers as raw little-endian float64 or as an .npy file."""
    if media_type is MediaType.TENSOR:
        return values.astype("<f8", copy=False).tobytes()
    stream = io.BytesIO()
    np.lib.format.write_array(stream, values, version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def _read_raw(data: Body, format_: RequestFormat) -> Table:
    if format_.dtype is None or format_.shape is None:
        name = "X-Tensor-Dtype" if format_.dtype is None else "X-Tensor-Shape"
        raise bad_header(name, f"A raw tensor needs the header {name}.")
    size = format_.dtype.itemsize * prod(format_.shape)
    if size != len(data):
        text = " × ".join(map(str, format_.shape))
        message = (
            f"The body has {len(data)} bytes; {text} numbers of {format_.dtype.itemsize} bytes are {size}."
        )
        raise _invalid("wrong_length", message, "X-Tensor-Shape")
    return np.frombuffer(data, format_.dtype).reshape(format_.shape)


def _read_npy(data: Body) -> Table:
    # The header has a bounded size; the numbers are not copied.
    stream = io.BytesIO(data[:_NPY_FRONT])
    header = read_header(stream, "body")
    start = stream.tell()
    if header.size != len(data) - start:
        message = f"The array has {len(data) - start} bytes; its header says {header.size}."
        raise _invalid("wrong_length", message)
    if header.dtype.kind not in "biuf":
        raise _invalid("not_numeric", f"The array holds {header.dtype}, not numbers.")
    if not 1 <= len(header.shape) <= _MAX_AXES:
        message = f"The array has {len(header.shape)} axes; one row has one, many rows have two."
        raise _invalid("wrong_shape", message)
    flat = np.frombuffer(data, header.dtype, offset=start)
    array = flat.reshape(header.shape, order="F" if header.order == "F" else "C")
    # Only a long double can exceed float64; it becomes an infinity, which the validation of rows refuses.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, array.dtype if array.dtype in _KEPT else np.float64)


def _invalid(code: str, message: str, field: str = "body") -> InvalidRequest:
    return InvalidRequest(message, code=code, faults=[InputFault(field, code, message)])
