"""Tensors of the protocol: decoding from JSON or binary, and encoding.

Data are row-major. In JSON they are flat or nested like their shape; in binary they are little-endian, and
each text is a 4-byte length followed by its UTF-8 bytes. A number is rounded to its datatype, so that the
same tensor gives the same answer in both encodings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InvalidRequest

Array: TypeAlias = NDArray[Any]
Number: TypeAlias = int | float | bool | None

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""The numeric datatypes."""
TEXTS: Final = "BYTES"
"""The datatype of texts."""

_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    "b": msgspec.json.Decoder(list[bool]),
    "u": msgspec.json.Decoder(list[int]),
    "i": msgspec.json.Decoder(list[int]),
    "f": msgspec.json.Decoder(list[float]),
}
_WHOLE_OR_NOT: Final = msgspec.json.Decoder(list[int | float])
_TEXTS: Final = msgspec.json.Decoder(list[str | list[str]])
_NULL: Final = b"null"
_WITH_NULLS: Final = msgspec.json.Decoder(list[Number | list[Number]])
_OPTIONAL_TEXTS: Final = msgspec.json.Decoder(list[str | list[str | None] | None])
_NESTED: Final = re.compile(rb"\[\s*\[")
_GAP: Final = re.compile(rb"\s*,?\s*")
_PIECE: Final = 64 * 1024
_PATH: Final = re.compile(r" - at `\$(?:\[\.\.\.\]|\[\d+\])*`$")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input, not yet decoded. data: JSON, or the bytes of a binary tensor.

    Raises InvalidRequest for an unknown datatype.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview
    binary: bool

    def __post_init__(self) -> None:
        if self.datatype not in DTYPES and self.datatype != TEXTS:
            known = ", ".join([*DTYPES, TEXTS])
            raise self.error(f"has the unknown datatype {self.datatype!r:.40}; known are {known}")

    def error(self, what: str, code: str = "bad_tensor") -> InvalidRequest:
        """The error of this tensor."""
        return InvalidRequest(f"Input {self.name!r:.100} {what}.", code=code)

    def numbers(self) -> Array:
        """Decode the data to an array of ``shape``. Raises InvalidRequest."""
        dtype = DTYPES.get(self.datatype)
        if dtype is None:
            raise self.error("holds BYTES where numbers are needed", code="wrong_type")
        if self.binary:
            return self._binary_numbers(dtype)
        if self.datatype[:2] != "FP":
            return self._json_numbers(dtype)
        with np.errstate(over="ignore"):
            return self._json_numbers(dtype)

    def optional_numbers(self) -> tuple[Array, Array]:
        """Decode the data to an array of ``shape``, and which of its elements are gaps: null in JSON, NaN.

        Raises InvalidRequest.
        """
        if self.binary or _NULL not in bytes(self.data):
            array = self.numbers()
            is_gap = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, dtype=bool)
            return array, is_gap
        if bytes(self.data).count(b",") >= max(prod(self.shape), 1):
            raise self.error(f"has more than {prod(self.shape)} numbers; its shape needs {prod(self.shape)}")
        nulls = np.array(self._nulls(), dtype=bool)
        if len(nulls) != prod(self.shape):
            raise self.error(f"has {len(nulls)} numbers; its shape needs {prod(self.shape)}")
        stand_in = b"false" if self.datatype == "BOOL" else b"0"
        filled = replace(self, data=memoryview(bytes(self.data).replace(_NULL, stand_in)))
        return filled.numbers(), nulls.reshape(self.shape)

    def _nulls(self) -> list[bool]:
        try:
            values = _WITH_NULLS.decode(self.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._bad_form() from error
        return [one is None for value in values for one in (value if isinstance(value, list) else [value])]

    def optional_texts(self) -> list[str | None]:
        """Decode BYTES to as many texts as ``shape`` has elements; None is null. Raises InvalidRequest."""
        if self.binary or _NULL not in bytes(self.data):
            return [*self.texts()]
        try:
            found = _OPTIONAL_TEXTS.decode(self.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.error("must be a list of texts") from error
        texts = [one for text in found for one in (text if isinstance(text, list) else [text])]
        if len(texts) != prod(self.shape):
            raise self.error(f"has {len(texts)} texts; its shape needs {prod(self.shape)}")
        return texts

    def texts(self) -> list[str]:
        """Decode BYTES to as many texts as ``shape`` has elements. Raises InvalidRequest."""
        texts = list(self._binary_texts() if self.binary else self._json_texts())
        if len(texts) != prod(self.shape):
            raise self.error(f"has {len(texts)} texts; its shape needs {prod(self.shape)}")
        return texts

    def _binary_numbers(self, dtype: np.dtype[Any]) -> Array:
        expected = prod(self.shape) * dtype.itemsize
        if len(self.data) != expected:
            raise self.error(
                f"has {len(self.data)} bytes; {self.datatype} of its shape needs {expected} bytes"
            )
        array: Array
        if self.datatype == "BOOL":
            array = np.frombuffer(self.data, dtype=np.uint8) != 0
        else:
            array = np.frombuffer(self.data, dtype=dtype)
        # Unaligned numbers are slow in NumPy, and BLAS may not accept them.
        return (array if array.flags.aligned else array.copy()).reshape(self.shape)

    def _json_numbers(self, dtype: np.dtype[Any]) -> Array:
        if bytes(self.data[:1]) != b"[":
            raise self._bad_form()
        target = np.empty(prod(self.shape), dtype=dtype)
        rows = self._rows() if _NESTED.match(self.data) else self._pieces()
        filled = 0
        for row in rows:
            try:
                part = np.array(_values(row, dtype.kind), dtype=dtype)
            except msgspec.ValidationError as error:
                code = "missing_value" if "got `null`" in str(error) else "wrong_type"
                text = _PATH.sub("", f"cannot be read as {self.datatype}: {error}")
                raise self.error(text, code=code) from error
            except (msgspec.DecodeError, RecursionError) as error:
                raise self._bad_form() from error
            except OverflowError as error:
                raise self.error(f"has a number that {self.datatype} cannot hold") from error
            if filled + len(part) > len(target):
                filled += len(part)
                break
            target[filled : filled + len(part)] = part
            filled += len(part)
        if filled != len(target):
            count = f"more than {len(target)}" if filled > len(target) else str(filled)
            raise self.error(f"has {count} numbers; its shape needs {len(target)}")
        return target.reshape(self.shape)

    def _pieces(self) -> Iterator[bytes]:
        """A flat list in pieces of some thousand numbers, which bounds memory and lets other threads run."""
        inside = bytes(self.data[1:-1])
        start = 0
        while start <= len(inside):
            end = inside.find(b",", start + _PIECE)
            end = len(inside) if end < 0 else end
            yield b"[" + inside[start:end] + b"]"
            start = end + 1

    def _rows(self) -> Iterator[bytes]:
        """The rows of a nested list, each with the length in ``shape``."""
        if len(self.shape) != 2:
            raise self._bad_form()
        data = bytes(self.data)
        end = data.index(b"[") + 1
        width = self.shape[1]
        for _ in range(self.shape[0]):
            start = data.find(b"[", end)
            if start < 0 or not _GAP.fullmatch(data, end, start):
                raise self._bad_form()
            end = data.find(b"]", start) + 1
            row = data[start:end]
            if row.count(b",") != width - 1:
                raise self._bad_form()
            yield row
        if not _GAP.fullmatch(data, end, len(data) - 1):
            raise self._bad_form()

    def _json_texts(self) -> Iterator[str]:
        try:
            texts = _TEXTS.decode(self.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.error("must be a list of texts") from error
        for text in texts:
            if isinstance(text, list):
                yield from text
            else:
                yield text

    def _binary_texts(self) -> Iterator[str]:
        position = 0
        while position < len(self.data):
            start = position + 4
            position = start + int.from_bytes(self.data[position:start], "little")
            if position > len(self.data):
                raise self.error("is cut off in the middle of a text")
            try:
                yield str(self.data[start:position], "utf-8")
            except UnicodeDecodeError as error:
                raise self.error("has a text that is not UTF-8") from error

    def _bad_form(self) -> InvalidRequest:
        shape = " × ".join(map(str, self.shape))
        return self.error(f"must be a list of numbers, flat or nested as its shape {shape}")


def _values(data: bytes, kind: str) -> list[Any]:
    """Decode a JSON list of numbers of a NumPy dtype kind. Raises DecodeError."""
    try:
        values: list[Any] = _DECODERS[kind].decode(data)
    except msgspec.ValidationError:
        if kind not in "iu":
            raise
        # In JSON 1.0 is an integer, too.
        numbers = _WHOLE_OR_NOT.decode(data)
        if not all(float(number).is_integer() for number in numbers):
            raise
        return list(map(int, numbers))
    return values


def datatype_of(array: Array) -> str:
    """The protocol's name of an output's datatype."""
    return "BOOL" if array.dtype.kind == "b" else "FP64"


def to_bytes(array: Array) -> bytes:
    """The binary encoding of an output."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
