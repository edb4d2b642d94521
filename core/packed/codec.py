"""Converts arrays and a small header to bytes and back: safetensors, with one JSON document as its metadata.

Nothing is ever unpickled. The same header and arrays always give the same bytes: the JSON has sorted keys and
safetensors orders the arrays by type and name. Reading makes views of the buffer, no copies.

Layout (safetensors): u64 little-endian length of the header | header, JSON | arrays without gaps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from core.errors import InvalidPackage, InvalidProblem

Buffer: TypeAlias = bytes | bytearray | memoryview
Arrays: TypeAlias = dict[str, NDArray[Any]]
Header: TypeAlias = dict[str, Any]
Reader: TypeAlias = Callable[[int, int], memoryview]
"""Returns the checked bytes of a package between two positions. Raises InvalidPackage if they are damaged."""

MAX_HEADER_BYTES = 1 << 20
_DTYPES: dict[str, np.dtype[Any]] = {  # in the order in which safetensors stores them
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH_BYTES = 8


def encode(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """``header`` (JSON-ready) and ``arrays`` (float64, float32, int64, int32 or uint8) as bytes.

    Raises InvalidPackage if the header is too large, ValueError if it is not JSON-ready (NaN included) and
    TypeError for another array type.
    """
    for name, array in arrays.items():
        if array.dtype not in _NAMES:
            raise TypeError(f"Array {name!r} has type {array.dtype}, which is not stored.")
    text = json.dumps(header, sort_keys=True, allow_nan=False, separators=(",", ":"))
    data: bytes = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {"stms": text})
    if int.from_bytes(data[:_LENGTH_BYTES], "little") > MAX_HEADER_BYTES:
        raise InvalidPackage(f"The header is larger than {MAX_HEADER_BYTES} bytes.")
    return data


def encode_front(
    header: Mapping[str, Any], shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
) -> tuple[bytes, dict[str, slice]]:
    """The bytes that `encode` writes before the arrays, and each array's slice of the whole package.

    For arrays that do not fit into memory: type and shape are enough, and the caller writes the bytes in the
    order of the result. Raises as `encode`.
    """
    text = json.dumps(header, sort_keys=True, allow_nan=False, separators=(",", ":"))
    order = list(_DTYPES)
    ordered = sorted(shapes, key=lambda name: (order.index(_NAMES[shapes[name][0]]), name))
    front, places = safetensors_header({"stms": text}, [(name, *shapes[name]) for name in ordered])
    if len(front) - _LENGTH_BYTES > MAX_HEADER_BYTES:
        raise InvalidPackage(f"The header is larger than {MAX_HEADER_BYTES} bytes.")
    return front, places


def safetensors_header(
    metadata: Mapping[str, str], arrays: Iterable[tuple[str, np.dtype[Any], tuple[int, ...]]]
) -> tuple[bytes, dict[str, slice]]:
    """The start of a safetensors file, and the slice of the whole file for each array.

    arrays: name, dtype and shape, in the order in which their bytes follow. The header is padded so that the
    arrays begin at a multiple of eight bytes.
    """
    index: Header = {"__metadata__": metadata}
    position = 0
    offsets: dict[str, tuple[int, int]] = {}
    for name, dtype, shape in arrays:
        offsets[name] = position, position + prod(shape) * dtype.itemsize
        kind = f"{dtype.kind.upper()}{8 * dtype.itemsize}"
        index[name] = {"dtype": kind, "shape": shape, "data_offsets": offsets[name]}
        position = offsets[name][1]
    text = json.dumps(index, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    start = _LENGTH_BYTES + len(text)
    places = {name: slice(start + begin, start + end) for name, (begin, end) in offsets.items()}
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, places


def reader_of(data: Buffer) -> Reader:
    """A reader of bytes that are already known to be correct."""
    view = memoryview(data).cast("B")
    return lambda start, stop: view[start:stop]


def decode(data: Buffer, *format_names: str, read: Reader | None = None) -> tuple[Header, Arrays]:
    """Header and read-only arrays of bytes that ``encode`` wrote; ``header["format"]`` in ``format_names``.

    The arrays are views of ``data``. read: returns the header's bytes, and raises InvalidPackage if they are
    damaged. Raises InvalidPackage for anything else than exactly such bytes.
    """
    view = memoryview(data).cast("B")
    if read is not None:
        read(0, min(len(view), _LENGTH_BYTES + int.from_bytes(read(0, _LENGTH_BYTES), "little")))
    index, body = _split(view)
    metadata = index.pop("__metadata__", None)
    if not isinstance(metadata, dict) or set(metadata) != {"stms"} or not isinstance(metadata["stms"], str):
        raise InvalidPackage("The bytes are safetensors, but not written by this program.")
    header = _parse(metadata["stms"])
    if header.get("format") not in format_names:
        raise InvalidPackage(f"The package is {header.get('format')!r:.80}, not {format_names[-1]!r}.")
    return header, _read_arrays(index, body)


def _split(view: memoryview) -> tuple[Header, memoryview]:
    if len(view) < _LENGTH_BYTES:
        raise InvalidPackage("The package is cut off before its header.")
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise InvalidPackage("The package does not begin with a header of acceptable length.")
    if length > len(view) - _LENGTH_BYTES:
        raise InvalidPackage("The package is cut off within its header.")
    end = _LENGTH_BYTES + length
    return _parse(bytes(view[_LENGTH_BYTES:end])), view[end:]


def _parse(text: str | bytes) -> Header:
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise InvalidPackage("The header of the package is not a JSON document.") from error
    if not isinstance(value, dict):
        raise InvalidPackage("The header of the package is not a JSON object.")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Header:
    items = dict(pairs)
    if len(items) != len(pairs):
        raise InvalidPackage("The header of the package names something twice.")
    return items


def _read_arrays(index: Header, body: memoryview) -> Arrays:
    entries = sorted((_entry(name, item) for name, item in index.items()), key=lambda entry: entry[3:])
    arrays: Arrays = {}
    position = 0
    for name, dtype, shape, begin, end in entries:
        if begin != position:
            raise InvalidPackage(f"Array {name!r:.80} does not follow the one before it.")
        if end > len(body):
            raise InvalidPackage(f"The package is cut off within array {name!r:.80}.")
        array = np.frombuffer(body[begin:end], dtype=dtype).reshape(shape)
        array = array if array.flags.aligned else array.copy()
        array.setflags(write=False)
        arrays[name] = array
        position = end
    if position != len(body):
        raise InvalidPackage("The package has bytes after its last array.")
    return arrays


def _entry(name: str, item: Any) -> tuple[str, np.dtype[Any], tuple[int, ...], int, int]:
    """Name, type, shape and position of one array, checked against each other."""
    if not isinstance(item, dict) or set(item) != {"dtype", "shape", "data_offsets"}:
        raise InvalidPackage(f"Array {name!r:.80} is not described as safetensors describe arrays.")
    shape, offsets = item["shape"], item["data_offsets"]
    if not isinstance(item["dtype"], str) or item["dtype"] not in _DTYPES:
        raise InvalidPackage(f"Array {name!r:.80} has a type that is not stored.")
    dtype = _DTYPES[item["dtype"]]
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(shape) > 2 or len(offsets) != 2:
        raise InvalidPackage(f"Array {name!r:.80} has an impossible shape or place.")
    n_bytes = dtype.itemsize
    for size in shape:
        n_bytes *= size
    if offsets[1] - offsets[0] != n_bytes:
        raise InvalidPackage(f"Array {name!r:.80} does not have the size of its shape.")
    return name, dtype, tuple(shape), offsets[0], offsets[1]


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def take(header: Header, name: str, kind: type[Any]) -> Any:
    """``header[name]``, which must be of exactly this JSON type. Raises InvalidPackage."""
    value = header.get(name)
    if type(value) is not kind:
        raise InvalidPackage(f"The header of the package has no usable {name!r}.")
    return value


def take_array(arrays: Arrays, name: str) -> NDArray[Any]:
    """``arrays[name]``. Raises InvalidPackage if it is missing."""
    if name not in arrays:
        raise InvalidPackage(f"The package has no array {name!r}.")
    return arrays[name]


def check_digest(data: Buffer, digest: str | None) -> None:
    """Raise InvalidPackage if the SHA-256 of ``data`` is not ``digest``."""
    if digest is not None and hashlib.sha256(data).hexdigest() != digest:
        raise InvalidPackage("The package does not have the digest that it was stored under.")


def refuse_extra(arrays: Arrays, known: set[str]) -> None:
    """Raise InvalidPackage if there are unexpected arrays."""
    extra = sorted(set(arrays) - known)
    if extra:
        raise InvalidPackage(f"The package has an unknown array {extra[0]!r:.80}.")


@contextmanager
def package_errors(what: str) -> Iterator[None]:
    """Convert a constructor's errors about bad values to InvalidPackage, because the bytes are at fault."""
    try:
        yield
    except InvalidProblem as error:
        raise InvalidPackage(f"The {what} in the package is not usable: {error}") from error
