"""Reads single rows of a stored data set with NumPy alone, so that a server need not load all rows.

The file is that of `app.ingest.dataset_format`, or of `app.ingest.table_format`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FORMAT: Final = "stms.dataset.1"
TABLE_FORMAT: Final = "stms.dataset.2"
DTYPES: Final = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
MAX_VALUES: Final = 200_000
"""Most values of a page of rows; a longer row is a page of its own."""

Reader = Callable[[int, int], memoryview]
"""The bytes from a position to another one."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row. number: counted from 0 in its part. code: of its class, −1 without a label.

    x: all values; for a sparse data set ``indices`` and ``values`` of the stored ones, and
    ``index_base``, 0. is_record: whether x has the cells of a table by the names of its columns instead, None
    for gaps. row_id: that the row keeps in later revisions, its number where it is in none.
    """

    number: int
    code: int
    x: list[float] | dict[str, Any]
    is_record: bool = False
    row_id: int | None = None

    @property
    def size(self) -> int:
        """Values of the row."""
        return len(self.x) if self.is_record or isinstance(self.x, list) else len(self.x["values"])


class StoredPart:
    """The training part (``"train"``) or the test part (``"test"``) of a data set.

    Raises ValueError for a file of another format, and KeyError without such a part.
    """

    def __init__(self, read: Reader, part: str) -> None:
        self._read, self._part = read, part
        length = int.from_bytes(read(0, 8), "little")
        self._start = 8 + length
        self._index = json.loads(bytes(read(8, self._start)))
        file_format = self._index.pop("__metadata__", {}).get("format")
        if file_format not in (FORMAT, TABLE_FORMAT):
            raise ValueError(f"The blob is not a data set of format {FORMAT} or {TABLE_FORMAT}.")
        self._columns: tuple[str, ...] = ()
        self._truths = frozenset[int]()
        if file_format == TABLE_FORMAT:
            entry = self._index["names"]["data_offsets"]
            names = json.loads(bytes(read(self._start + entry[0], self._start + entry[1])))
            self._columns = tuple(names["columns"])
            self._truths = frozenset(names["truths"].get(part, ()))
        [self.n] = self._index[f"{part}.y"]["shape"]

    def rows(self, *, code: int | None, after: int, limit: int) -> tuple[Sequence[StoredRow], bool]:
        """Rows with numbers above ``after``, and whether there are more. code: of one class; None: of all.

        There are fewer than ``limit`` if they would have more than `MAX_VALUES` values.
        """
        first = min(after + 1, self.n)
        if code is None:
            numbers: Sequence[int] = range(first, min(first + limit + 1, self.n))
        else:
            numbers = (first + np.flatnonzero(self.codes(first) == code)[: limit + 1]).tolist()
        rows = self.rows_at(numbers[:limit])
        return rows, len(rows) < len(numbers)

    def rows_at(self, numbers: Sequence[int]) -> Sequence[StoredRow]:
        """The rows with these numbers in their order; the last ones are left out if all would have more than
        `MAX_VALUES` values.
        """
        rows: list[StoredRow] = []
        values = 0
        for number in numbers:
            row = self._row(number)
            values += row.size
            if rows and values > MAX_VALUES:
                break
            rows.append(row)
        return rows

    def codes(self, first: int = 0) -> NDArray[np.int32]:
        """The classes of the rows from number ``first`` on, (n − first,), −1 without a label."""
        return self._array("y", first, self.n)

    @property
    def picture_columns(self) -> tuple[tuple[int, str], ...]:
        """Number and name of each column of pictures."""
        return tuple(
            (number, name)
            for number, name in enumerate(self._columns)
            if f"{self._part}.c{number}.pictures" in self._index
        )

    def picture_count(self, column: int) -> int:
        """How many different pictures a column has."""
        [ends] = self._index[f"{self._part}.c{column}.offsets"]["shape"]
        return int(ends) - 1

    def pictures(self, column: int, first: int, end: int) -> list[bytes]:
        """The bytes of different pictures of a column, numbered in the order of their first rows."""
        ends = self._array(f"c{column}.offsets", first, end + 1)
        return [
            self._array(f"c{column}.pictures", int(start), int(stop)).tobytes()
            for start, stop in pairwise(ends)
        ]

    def rows_of_picture(self, column: int, picture: int) -> list[int]:
        """The rows that have a picture, by its number."""
        return np.flatnonzero(self._array(f"c{column}", 0, self.n) == picture).tolist()

    def subjects(self) -> NDArray[np.uint8]:
        """The pseudonyms of whom the rows are about, (n, 16); (0, 16) where that is not known."""
        if f"{self._part}.subjects" not in self._index:
            return np.empty((0, 16), dtype=np.uint8)
        return self._array("subjects", 0, self.n)

    def _row(self, number: int) -> StoredRow:
        code = int(self._array("y", number, number + 1)[0])
        row_id = number
        if f"{self._part}.ids" in self._index:
            row_id = int(self._array("ids", number, number + 1)[0])
        if self._columns:
            cells = {name: self._cell(k, number) for k, name in enumerate(self._columns)}
            return StoredRow(number, code, cells, is_record=True, row_id=row_id)
        if f"{self._part}.X" in self._index:
            values = self._array("X", number, number + 1)[0].tolist()
            return StoredRow(number, code, values, row_id=row_id)
        begin, end = map(int, self._array("X.indptr", number, number + 2))
        stored = {
            "indices": self._array("X.indices", begin, end).tolist(),
            "values": self._array("X.data", begin, end).tolist(),
            "index_base": 0,
        }
        return StoredRow(number, code, stored, row_id=row_id)

    def _cell(self, column: int, row: int) -> Any:
        """The value of a cell of a table, ready for JSON; None for a gap."""
        name = f"c{column}"
        value = self._array(name, row, row + 1)[0]
        if value.dtype == np.int32:
            if value < 0:
                return None
            begin, end = map(int, self._array(f"{name}.offsets", int(value), int(value) + 2))
            if f"{self._part}.{name}.pictures" in self._index:
                # The bytes of pictures would fill a page: what a picture is called by is its digest.
                data = self._array(f"{name}.pictures", begin, end).tobytes()
                return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            return self._array(f"{name}.texts", begin, end).tobytes().decode()
        if np.isnan(value).all():
            return None
        if value.ndim:
            return value.tolist()
        number = float(value)
        if column in self._truths:
            return bool(number)
        return int(number) if number.is_integer() else number

    def _array(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Entries of an array along its first axis."""
        entry = self._index[f"{self._part}.{name}"]
        dtype, shape = np.dtype(DTYPES[entry["dtype"]]), entry["shape"][1:]
        if end <= first:
            return np.empty((0, *shape), dtype)
        size = prod(shape) * dtype.itemsize
        origin = self._start + entry["data_offsets"][0]
        data = self._read(origin + first * size, origin + end * size)
        return np.frombuffer(data, dtype).reshape(end - first, *shape)
