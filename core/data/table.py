"""Tables of raw cells, as people bring them: numbers with gaps, and texts.

A table keeps what its file contains, and nothing more: a schema (``core.data.schema``) says whether a column
of texts holds categories, dates or sentences, and can be changed without reading the file again.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from core.errors import Fault, InvalidProblem
from core.types import IntArray

GAP: Final = -1
"""Code of a cell without a value."""
_TEXTS_AT_ONCE: Final = 4096


class _Pieces:
    """n pieces of one buffer ``data`` of bytes: piece i is from ``offsets[i]`` to ``offsets[i + 1]``."""

    __slots__ = ("data", "offsets")

    def __init__(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self.data, self.offsets = data, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Memory of the buffer and its offsets."""
        return self.data.nbytes + self.offsets.nbytes

    @staticmethod
    def _joined(pieces: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """A buffer of its own for some pieces, and its offsets."""
        offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum([*map(len, pieces)], out=offsets[1:])
        return np.frombuffer(b"".join(pieces), dtype=np.uint8), offsets

    def _piece(self, index: int) -> bytes:
        place = range(len(self))[index]
        return self.data[self.offsets[place] : self.offsets[place + 1]].tobytes()


class Texts(_Pieces, Sequence[str]):
    """n texts in one buffer of UTF-8.

    A million short texts take tens of megabytes like this and hundreds as objects.
    """

    __slots__ = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """The texts in a buffer of their own. Raises UnicodeEncodeError for lone surrogates."""
        return cls(*cls._joined([text.encode() for text in texts]))

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._piece(index).decode()

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _TEXTS_AT_ONCE):
            ends = self.offsets[first : first + _TEXTS_AT_ONCE + 1]
            data, start = self.data[ends[0] : ends[-1]].tobytes(), 0
            for end in (ends[1:] - ends[0]).tolist():
                yield data[start:end].decode()
                start = end

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each, (n,)."""
        return np.diff(self.offsets)


class ByteStrings(_Pieces, Sequence[bytes]):
    """n strings of bytes in one buffer."""

    __slots__ = ()

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> ByteStrings:
        """The strings in a buffer of their own."""
        return cls(*cls._joined(strings))

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._piece(index)


@dataclass(frozen=True, slots=True, eq=False)
class NumberCells:
    """values: (n,) float64, NaN for gaps. is_truth: whether they are 0 and 1 for false and true."""

    values: NDArray[np.float64]
    is_truth: bool = False

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_gap(self) -> NDArray[np.bool_]:
        """Which cells have no value, (n,)."""
        return np.isnan(self.values)

    def take(self, rows: IntArray) -> NumberCells:
        """The cells of some rows."""
        return NumberCells(self.values[rows], self.is_truth)


@dataclass(frozen=True, slots=True, eq=False)
class TextCells:
    """codes: (n,) int32, the place of each cell's text in ``texts``, `GAP` for gaps. texts: all different."""

    codes: NDArray[np.int32]
    texts: Texts

    @classmethod
    def of(cls, cells: Iterable[str | None]) -> TextCells:
        """The cells of texts; None for gaps."""
        places: dict[str, int] = {}
        codes = [GAP if cell is None else places.setdefault(cell, len(places)) for cell in cells]
        return cls(np.array(codes, dtype=np.int32), Texts.of(places))

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def is_gap(self) -> NDArray[np.bool_]:
        """Which cells have no value, (n,)."""
        is_gap: NDArray[np.bool_] = self.codes == GAP
        return is_gap

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each text occurs, (texts,)."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))

    def without(self, texts: Collection[str]) -> TextCells:
        """The cells with gaps in place of some texts."""
        gone = [place for place, text in enumerate(self.texts) if text in texts] if texts else []
        if not gone:
            return self
        return TextCells(np.where(np.isin(self.codes, gone), GAP, self.codes).astype(np.int32), self.texts)

    def take(self, rows: IntArray) -> TextCells:
        """The cells of some rows; the texts stay, also those that no cell has."""
        return TextCells(self.codes[rows], self.texts)


@dataclass(frozen=True, slots=True, eq=False)
class VectorCells:
    """values: (n, w) float64, a list of w numbers in each cell; NaN throughout for gaps."""

    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_gap(self) -> NDArray[np.bool_]:
        """Which cells have no value, (n,)."""
        return np.asarray(np.isnan(self.values).all(axis=1))

    def take(self, rows: IntArray) -> VectorCells:
        """The cells of some rows."""
        return VectorCells(self.values[rows])


@dataclass(frozen=True, slots=True, eq=False)
class PictureCells:
    """codes: (n,) int32, the place of each cell's picture in ``pictures``, `GAP` for gaps.

    pictures: the bytes of files, all different. vectors: of the pictures, (pictures, w) float32, by the
    digest of the encoder that made them; none before pictures were encoded. encoders: name and version of the
    pixels of each of these, by its digest.
    """

    codes: NDArray[np.int32]
    pictures: ByteStrings
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    encoders: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Iterable[bytes | None]) -> PictureCells:
        """The cells of the bytes of pictures; None for gaps. Equal pictures are kept once."""
        places: dict[bytes, int] = {}
        pictures: list[bytes] = []
        codes = []
        for cell in cells:
            if cell is None:
                codes.append(GAP)
                continue
            place = places.setdefault(sha256(cell).digest(), len(places))
            if place == len(pictures):
                pictures.append(cell)
            codes.append(place)
        return cls(np.array(codes, dtype=np.int32), ByteStrings.of(pictures))

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def is_gap(self) -> NDArray[np.bool_]:
        """Which cells have no picture, (n,)."""
        is_gap: NDArray[np.bool_] = self.codes == GAP
        return is_gap

    def take(self, rows: IntArray) -> PictureCells:
        """The cells of some rows; the pictures stay, also those that no cell has."""
        return replace(self, codes=self.codes[rows])


Cells: TypeAlias = NumberCells | TextCells | VectorCells | PictureCells


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """n rows of named columns. names: all different. cells: of each column, n of them.

    Raises InvalidProblem where names and cells do not fit together.
    """

    names: tuple[str, ...]
    cells: tuple[Cells, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.cells) or not self.names:
            message = f"{len(self.names)} names for {len(self.cells)} columns of a table"
            raise InvalidProblem(Fault("X", "wrong_columns", message))
        if len(set(self.names)) != len(self.names):
            raise InvalidProblem(Fault("X", "duplicate", "two columns of a table have the same name"))
        if len({len(column) for column in self.cells}) != 1:
            raise InvalidProblem(Fault("X", "wrong_length", "the columns of a table differ in length"))

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.cells[0])

    def column(self, name: str) -> Cells:
        """The cells of a column. Raises KeyError."""
        try:
            return self.cells[self.names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    def take(self, rows: IntArray) -> Table:
        """Some of the rows, given by their numbers."""
        return Table(self.names, tuple(column.take(rows) for column in self.cells))

    def record(self, row: int) -> dict[str, Any]:
        """The cells of one row by name, JSON-ready; None for gaps."""
        return {name: _value(cells, row) for name, cells in zip(self.names, self.cells, strict=True)}


def _value(cells: Cells, row: int) -> Any:
    if isinstance(cells, TextCells):
        code = int(cells.codes[row])
        return None if code == GAP else cells.texts[code]
    if isinstance(cells, PictureCells):
        code = int(cells.codes[row])
        return None if code == GAP else {"b64": b64encode(cells.pictures[code]).decode()}
    if isinstance(cells, VectorCells):
        return None if cells.is_gap[row] else cells.values[row].tolist()
    value = float(cells.values[row])
    if value != value:
        return None
    return bool(value) if cells.is_truth else (int(value) if value.is_integer() else value)
