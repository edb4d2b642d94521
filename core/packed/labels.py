"""Names of very many classes, packed: finds the row of a class and the class of a row, without a dictionary.

    fences   every 512th of the hashes, int64
    hashes   (K,) int64, rising: the first 64 bits of BLAKE2b of each name, UTF-8
    rows     (K,) int64: the row of the name with that hash
    offsets  (K + 1,) int64, text (offsets[K],) uint8: the name of row k is text[offsets[k]:offsets[k + 1]]

A search reads the fences, 4 KiB of hashes, and one entry of each other array, for any K. A function reads the
bytes, so the table may be a file that is never in memory as a whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, final, overload

import numpy as np
from numpy.typing import NDArray

from core.data.validation import MAX_FAULTS
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.packed.codec import Arrays, Buffer, Reader, decode, encode, encode_front, reader_of, take_array

_HASH_BYTES = 8
_I64 = 8
_FENCE = 512


@final
@dataclass(frozen=True, eq=False)
class PackedLabels(Sequence[str]):
    """The K different names of a model's classes in order of their rows, as a sequence.

    read: returns bytes of the package between two positions. fences: (⌈K / 512⌉,) int64. places: slices of
    the arrays in the package. K: number of names. Methods that read names raise InvalidPackage when ``read``
    does.
    """

    FORMAT: ClassVar[str] = "stms.labels.1"

    read: Reader
    fences: NDArray[np.int64]
    places: Mapping[str, slice]
    K: int

    @classmethod
    def of(cls, names: Sequence[str]) -> PackedLabels:
        """The table of ``names``. Raises InvalidProblem naming the rows of names that occur twice."""
        encoded = [name.encode() for name in names]
        hashes = np.fromiter(map(_hash, encoded), dtype=np.int64, count=len(encoded))
        rows = np.argsort(hashes, kind="stable")
        hashes = hashes[rows]
        _refuse_twins(encoded, hashes, rows)
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), out=offsets[1:])
        arrays: Arrays = {
            "fences": hashes[::_FENCE],
            "hashes": hashes,
            "rows": rows.astype(np.int64, copy=False),
            "offsets": offsets,
            "text": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        }
        return cls.from_bytes(encode({"format": cls.FORMAT}, arrays))

    def to_bytes(self) -> bytes:
        """The table as safetensors; the same names always give the same bytes."""
        return bytes(self.read(0, self.places["text"].stop))

    @classmethod
    def from_bytes(cls, data: Buffer, *, read: Reader | None = None) -> PackedLabels:
        """The table that ``to_bytes`` stored; reads only its header and fences. Raises InvalidPackage.

        read: reads the same bytes, if they must be checked before they are used.
        """
        read = reader_of(data) if read is None else read
        header, arrays = decode(data, cls.FORMAT, read=read)
        sizes = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        K, text = len(take_array(arrays, "rows")), take_array(arrays, "text")
        if text.ndim != 1 or sizes != _sizes(K, len(text)):
            raise InvalidPackage("The parts of the table of class names do not fit.")
        _, places = encode_front(header, sizes)
        fences = np.frombuffer(read(places["fences"].start, places["fences"].stop), dtype="<i8")
        table = cls(read, fences, places, K)
        if table._numbers("offsets", K)[0] != len(text):
            raise InvalidPackage("The parts of the table of class names do not fit.")
        return table

    def verify(self) -> None:
        """Check all bytes; raises InvalidPackage unless they are exactly the table of the names.

        Takes a few bytes of memory for each name.
        """
        text = self.places["text"]
        sizes = _sizes(self.K, text.stop - text.start)
        front, _ = encode_front({"format": self.FORMAT}, sizes)
        hashes, rows, offsets = (
            np.frombuffer(self._numbers(name, 0, self.K + more), dtype="<i8")
            for name, more in (("hashes", 0), ("rows", 0), ("offsets", 1))
        )
        is_table = bytes(self.read(0, len(front))) == front and offsets[0] == 0
        is_table = is_table and all((part[1:] >= part[:-1]).all() for part in (hashes, offsets))
        is_table = is_table and np.array_equal(self.fences, hashes[::_FENCE])
        if not is_table or (self.K and not (rows.min() >= 0 and rows.max() < self.K)):
            raise InvalidPackage("The table of class names is not in order.")
        alike: list[tuple[int, bytes]] = []
        last = None
        for start in range(0, self.K, _FENCE):
            block = slice(start, start + _FENCE)
            for key, row in zip(hashes[block].tolist(), rows[block].tolist(), strict=True):
                name = self._encoded(row)
                alike = alike if key == last else []
                # Different names with equal hashes are in the order of their rows; no names are equal.
                if _hash(name) != key or any(name == other or row <= above for above, other in alike):
                    raise InvalidPackage(f"The class name of row {row} has another hash, or stands twice.")
                alike.append((row, name))
                last = key

    def find(self, name: str) -> int | None:
        """Row of the class ``name``, or None."""
        wanted = name.encode("utf-8", "surrogatepass")
        key = _hash(wanted)
        # The first position of the key is after the last fence below it.
        for block in range(max(0, bisect_left(self._fences, key) - 1), len(self._fences)):
            first = block * _FENCE
            hashes = self._numbers("hashes", first, min(first + _FENCE, self.K))
            for place in range(bisect_left(hashes, key), len(hashes)):
                if hashes[place] != key:
                    return None
                row = int(self._numbers("rows", first + place)[0])
                if self._encoded(row) == wanted:
                    return row
        return None

    @cached_property
    def codes(self) -> Mapping[str, int]:
        """The same table as a mapping from name to row."""
        return _Codes(self)

    def __len__(self) -> int:
        return self.K

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[k] for k in range(*row.indices(self.K))]
        if not 0 <= row < self.K:
            raise IndexError(row)
        try:
            return self._encoded(row).decode()
        except UnicodeDecodeError as error:
            raise InvalidPackage(f"The class name of row {row} is not UTF-8.") from error

    @cached_property
    def _fences(self) -> memoryview:
        # Indexing a memoryview takes a quarter of the time of indexing an array.
        return self.fences.data

    def _numbers(self, name: str, first: int, last: int | None = None) -> memoryview:
        """Numbers ``first`` to ``last`` of an int64 array; by default one number."""
        start = self.places[name].start
        end = first + 1 if last is None else last
        return self.read(start + first * _I64, start + end * _I64).cast("q")

    def _encoded(self, row: int) -> bytes:
        if not 0 <= row < self.K:
            raise InvalidPackage(f"The table of class names names row {row} of {self.K}.")
        start, stop = self._numbers("offsets", row, row + 2)
        text = self.places["text"]
        if not 0 <= start <= stop <= text.stop - text.start:
            raise InvalidPackage(f"The class name of row {row} is not within the text.")
        return bytes(self.read(text.start + start, text.start + stop)) if stop > start else b""


class _Codes(Mapping[str, int]):
    def __init__(self, labels: PackedLabels) -> None:
        self._labels = labels

    def __getitem__(self, name: str) -> int:
        row = self._labels.find(name)
        if row is None:
            raise KeyError(name)
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)


def _sizes(K: int, text: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Types and shapes of the arrays for K names, whose text takes ``text`` bytes."""
    lengths = {"fences": -(-K // _FENCE), "hashes": K, "rows": K, "offsets": K + 1}
    numbers = {name: (np.dtype("<i8"), (length,)) for name, length in lengths.items()}
    return {**numbers, "text": (np.dtype("u1"), (text,))}


def _hash(encoded: bytes) -> int:
    return int.from_bytes(blake2b(encoded, digest_size=_HASH_BYTES).digest(), "little", signed=True)


def _refuse_twins(encoded: Sequence[bytes], hashes: NDArray[np.int64], rows: NDArray[np.intp]) -> None:
    """Raise InvalidProblem for equal names; different names may have equal hashes."""
    faults: list[Fault] = []
    for place in np.flatnonzero(np.diff(hashes) == 0).tolist():
        run = rows[: place + 1][hashes[: place + 1] == hashes[place + 1]]
        later = int(rows[place + 1])
        first = next((int(row) for row in run if encoded[row] == encoded[later]), None)
        if first is not None:
            name = encoded[later].decode()
            message = f"Row {later} has the label {name!r:.80} of row {first} (counted from 0) again."
            faults.append(Fault("labels", "duplicate", message, later))
        if len(faults) == MAX_FAULTS:
            break
    if faults:
        raise InvalidProblem(*sorted(faults, key=lambda fault: fault.row or 0))
