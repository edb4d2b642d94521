"""Columns of raw cells from Arrow arrays, without a Python object for each cell.

Cells that mean a missing value become gaps, and texts lose the blanks around them. Equal columns become
equal cells, from every format: texts are in the order in which they first occur, and columns
whose texts are all numbers, or all true or false, become numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from app.ingest.picture_cells import picture_cells
from core.data.cell_values import NULLS, TRUTH
from core.data.schema import Kind, KindSpec
from core.data.table import GAP, Cells, NumberCells, PictureCells, TextCells, Texts, VectorCells
from core.data.validation import MAX_MAGNITUDE

MAX_TEXT_BYTES: Final = 64 * 1024
"""Longest text of a cell; longer ones are cut."""
AS_TEXT: Final = frozenset({Kind.CATEGORY, Kind.DATE, Kind.TEXT, Kind.IMAGE})
"""Kinds whose columns keep their texts also where all of them are numbers."""

NUMBER_PATTERN: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?$"
"""Texts that `core.data.cell_values.number_of` reads as numbers, without its checks of codes and size."""
LEADING_ZERO: Final = "^[+-]?0[0-9]"
"""Beginning of codes: digits behind a needless zero."""

_THOUSANDS: Final = r"^[+-]?([0-9]{1,3}|[1-9][0-9]{0,2}[.,][0-9]{3})$|^$"
_MAY_BE_THOUSANDS: Final = re.compile(_THOUSANDS)

_MOST_TRUTHS: Final = 32
"""Ways to write true and false in letters of either case, about."""
_FIRST: Final = 64
_CODES: Final = pa.dictionary(pa.int32(), pa.large_string())


@dataclass(frozen=True, slots=True)
class Column:
    """The cells of a column. nulls: tokens that were read as gaps, with counts. cut: shortened cells."""

    cells: Cells
    nulls: Mapping[str, int] = field(default_factory=dict)
    cut: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the cells in memory."""
        if isinstance(self.cells, TextCells):
            return self.cells.codes.nbytes + self.cells.texts.nbytes
        if isinstance(self.cells, PictureCells):
            return self.cells.codes.nbytes + self.cells.pictures.nbytes
        return self.cells.values.nbytes


def null_tokens(said: Iterable[str] | None) -> frozenset[str]:
    """The tokens of missing values, including those that a sender gave."""
    return NULLS | frozenset(said or ())


def text_column(
    chunks: Sequence[pa.Array], nulls: Collection[str], kind: KindSpec | None = None, decimal: str = "."
) -> Column:
    """A column from chunks of texts, dictionary-encoded or not. kind: the given kind of the column.

    decimal: decimal sign. Raises ArrowInvalid for texts that are not UTF-8.
    """
    if kind is not None and kind.kind is Kind.IMAGE:
        return picture_column(chunks)
    codes, texts = _joined(chunks)
    trimmed, long = _shortened(pc.utf8_trim_whitespace(texts))
    cut = int(np.isin(codes, long).sum()) if len(long) else 0
    is_free = not keeps_texts(kind)
    if decimal != "." and is_free:
        trimmed = _with_points(trimmed, nulls, decimal)
        # If commas are decimal signs, points are not.
        is_free = not pc.any(pc.match_substring(texts, ".")).as_py()
    if not trimmed.equals(texts):
        # Different texts may be equal now.
        coded = trimmed.dictionary_encode()
        codes = _mapped(coded.indices.to_numpy(zero_copy_only=False), codes)
        texts = coded.dictionary
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    is_null = pc.is_in(texts, value_set=pa.array(sorted(nulls), pa.large_string()))
    places = np.flatnonzero(is_null.to_numpy(zero_copy_only=False))
    found = {texts[int(place)].as_py(): int(counts[place]) for place in places if counts[place]}
    codes, order = _in_order_of_rows(codes, len(texts), places)
    if len(order) < len(texts) or (np.diff(order) < 0).any():
        texts = texts.take(pa.array(order, pa.int64()))
    cells = _plain(codes, texts) if is_free else None
    return Column(cells or TextCells(codes, _texts(texts)), found, cut)


def picture_column(chunks: Sequence[pa.Array]) -> Column:
    """A column of pictures from chunks of bytes, of base64 or of data URLs.

    Raises InvalidRequest that names rows and why their pictures are refused.
    """
    return Column(picture_cells(value.as_py() for chunk in chunks for value in chunk))


def keeps_texts(kind: KindSpec | None) -> bool:
    """Whether a column of texts is read as texts because of its given kind."""
    return kind is not None and (kind.kind in AS_TEXT or kind.pattern is not None)


def number_column(values: NDArray[np.float64], nulls: Mapping[str, int], *, is_truth: bool = False) -> Column:
    """A column of numbers (n,), NaN for gaps."""
    return Column(NumberCells(values, is_truth), nulls)


def _plain(codes: NDArray[np.int32], texts: pa.Array) -> NumberCells | None:
    """The cells of a column whose texts are all numbers, or all true or false; None for other columns."""
    words = pc.utf8_lower(texts) if len(texts) <= _MOST_TRUTHS else texts
    if not len(texts) or pc.all(pc.is_in(words, value_set=pa.array([*TRUTH], texts.type))).as_py():
        known = pc.equal(words, "true").to_numpy(zero_copy_only=False).astype(np.float64)
        return NumberCells(np.append(known, np.nan)[codes], len(texts) > 0)
    # For most columns the first texts are enough to decide.
    for some in (texts.slice(0, _FIRST), texts):
        is_number = pc.match_substring_regex(some, NUMBER_PATTERN)
        is_code = pc.match_substring_regex(some, LEADING_ZERO)
        if not pc.all(pc.and_not(is_number, is_code)).as_py():
            return None
    if _may_have_thousands(texts, "."):
        return None
    known = pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False)
    if not (np.abs(known) <= MAX_MAGNITUDE).all():
        return None
    return NumberCells(np.append(known, np.nan)[codes])


def vector_column(lists: Sequence[pa.Array], width: int) -> Column:
    """A column from chunks of fixed-size lists of float64; a list that is missing is a gap."""
    blocks = []
    for chunk in lists:
        block = np.full((len(chunk), width), np.nan)
        known = np.flatnonzero(chunk.is_valid().to_numpy(zero_copy_only=False))
        block[known] = chunk.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
        blocks.append(block)
    return Column(VectorCells(np.concatenate(blocks)))


def _joined(chunks: Sequence[pa.Array]) -> tuple[NDArray[np.int32], pa.Array]:
    """Codes (n,) of all chunks and the texts of their common dictionary."""
    coded = []
    for chunk in chunks:
        one = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        coded.append(
            pa.DictionaryArray.from_arrays(
                one.indices.cast(pa.int32()), one.dictionary.cast(pa.large_string(), safe=True)
            )
        )
    if not coded:
        return np.empty(0, dtype=np.int32), pa.array([], pa.large_string())
    joined = pa.chunked_array(coded, type=_CODES).unify_dictionaries()
    codes = [pc.fill_null(chunk.indices, GAP).to_numpy() for chunk in joined.chunks]
    return np.concatenate(codes), joined.chunk(joined.num_chunks - 1).dictionary


def _with_points(texts: pa.Array, nulls: Collection[str], decimal: str) -> pa.Array:
    """The texts, with decimal points if all of them are numbers with another decimal sign, or gaps."""
    sign = re.escape(decimal)
    is_number = pc.match_substring_regex(texts, rf"^[+-]?[0-9]*{sign}?[0-9]+([eE][+-]?[0-9]+)?$")
    is_gap = pc.is_in(texts, value_set=pa.array(sorted(nulls), texts.type))
    if not pc.all(pc.or_(is_number, is_gap)).as_py() or _may_have_thousands(texts, decimal):
        return texts
    return pc.if_else(is_number, pc.replace_substring(texts, decimal, "."), texts)


def may_be_thousands(values: NDArray[np.float64], sample: Iterable[str]) -> bool:
    """Whether numbers (n,) may be thousands that were read as decimals, 1.200 as 1.2. sample: some cells."""
    known = values[~np.isnan(values)]
    return (
        all(_MAY_BE_THOUSANDS.fullmatch(cell) for cell in sample)
        and bool((np.abs(known) < 1000.0).all())
        and bool((known != np.rint(known)).any())
    )


def _may_have_thousands(texts: pa.Array, mark: str) -> bool:
    """Whether numbers below 1000 have no mark, and all others one before three digits."""
    if not pc.all(pc.match_substring_regex(texts, _THOUSANDS)).as_py():
        return False
    has_mark = pc.match_substring(texts, mark)
    return bool(pc.any(has_mark).as_py() and not pc.all(has_mark).as_py())


def _shortened(texts: pa.Array) -> tuple[pa.Array, NDArray[np.intp]]:
    """The texts, with the longest ones cut, and the positions of these."""
    long = np.flatnonzero(pc.greater(pc.binary_length(texts), MAX_TEXT_BYTES).to_numpy(zero_copy_only=False))
    if not len(long):
        return texts, long
    kept = {
        int(place): texts[int(place)].as_py().encode()[:MAX_TEXT_BYTES].decode(errors="ignore").strip()
        for place in long
    }
    mask = np.zeros(len(texts), dtype=bool)
    mask[long] = True
    shorter = pa.array([kept[int(place)] for place in long], pa.large_string())
    return pc.replace_with_mask(texts, pa.array(mask), shorter), long


def _mapped(table: NDArray[Any], codes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Codes by another table of texts; gaps stay."""
    mapped: NDArray[np.int32] = np.append(table, GAP).astype(np.int32)[codes]
    return mapped


def _in_order_of_rows(
    codes: NDArray[np.int32], count: int, nulls: NDArray[np.intp]
) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """Codes of the texts, without ``nulls``, in order of first occurrence; the positions of nulls."""
    first = np.full(count + 1, len(codes), dtype=np.int64)
    # Of the rows that are assigned to one text, the last one stays.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    first[[*nulls, count]] = len(codes)
    order = np.argsort(first, kind="stable")
    order = order[: int(np.count_nonzero(first < len(codes)))]
    table = np.full(count + 1, GAP, dtype=np.int32)
    table[order] = np.arange(len(order), dtype=np.int32)
    return table[codes], order


def _texts(texts: pa.Array) -> Texts:
    """The texts of an Arrow array, whose memory they share."""
    if not len(texts):
        return Texts.of(())
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    content = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return Texts(content[: int(ends[-1])], ends)
