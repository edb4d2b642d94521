"""Makes columns of encoders from the headers and arrays of packages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from core.data.schema import MAX_NULLS, Kind, KindSpec
from core.data.table import Texts
from core.data.validation import MAX_MAGNITUDE
from core.errors import InvalidPackage
from core.packed.codec import Arrays, Header, take, take_array
from core.packed.embedded_column import EmbeddedColumn
from core.packed.encoded_columns import (
    CYCLES,
    FILLS,
    MAX_COLUMNS,
    MAX_VALUES,
    CategoryColumn,
    ColumnEncoder,
    DateColumn,
    NumberColumn,
    TextColumn,
    VectorColumn,
)
from core.packed.term_table import TermTable

_MAX_MOMENT: Final = 400_000 * 86_400_000_000


def column_from(entry: Any, place: int, arrays: Arrays) -> ColumnEncoder:
    """A column made from its entry in a package's header. Raises InvalidPackage, InvalidProblem."""
    if not isinstance(entry, dict):
        raise InvalidPackage("The encoder in the package has a column that is no object.")
    column: Any = _column(entry, place, arrays)
    if FILLS not in entry:
        return column  # type: ignore[no-any-return]
    if take(entry, FILLS, bool) and (column.required or column.marks_gaps):
        raise InvalidPackage("A column in the package both refuses or marks gaps, and fills them.")
    return replace(column, fills=entry[FILLS])  # type: ignore[no-any-return]


def _column(entry: Header, place: int, arrays: Arrays) -> ColumnEncoder:
    name, required = take(entry, "name", str), take(entry, "required", bool)
    kind = take(entry, "kind", str)
    own = {
        key.partition(".")[2]: array for key, array in arrays.items() if key.partition(".")[0] == str(place)
    }
    tables = _term_tables(entry, own, is_text=kind == Kind.TEXT)
    if kind in (Kind.NUMBER, Kind.BOOLEAN):
        low, high = _range(entry)
        fallback, marks = take(entry, "fallback", float), take(entry, "marks_gaps", bool)
        pattern, nulls = _written(entry, kind)
        return NumberColumn(
            name, required, _number(fallback), marks, low, high, kind == Kind.BOOLEAN, pattern, nulls
        )
    if kind == Kind.CATEGORY:
        values, rare = _read_texts(own, "values"), _read_texts(own, "rare")
        if len(values) > MAX_VALUES or len({*values, *rare}) != len(values) + len(rare):
            raise InvalidPackage("The values of a category in the package are unusable.")
        rare_column, gaps, refuses = (
            take(entry, flag, bool) for flag in ("marks_rare", "marks_gaps", "refuses_unseen")
        )
        return CategoryColumn(name, required, values, rare, rare_column, gaps, refuses, tables)
    if kind == Kind.DATE:
        low, high = _range(entry)
        first, fallback = take(entry, "first", int), take(entry, "fallback", int)
        cycles, (pattern, nulls) = take(entry, "cycles", list), _written(entry, kind)
        usable = max(map(abs, (first, fallback, int(low), int(high)))) <= _MAX_MOMENT
        if not usable or [one for one in CYCLES if one in cycles] != cycles:
            raise InvalidPackage("A date in the package is unusable.")
        marks = take(entry, "marks_gaps", bool)
        return DateColumn(
            name, required, first, fallback, tuple(cycles), marks, pattern, int(low), int(high), nulls
        )
    if kind == Kind.TEXT:
        return TextColumn(name, required, tables)
    if kind == Kind.VECTOR:
        fallback = take_array(own, "fallback")
        if fallback.ndim != 1 or fallback.dtype != np.float64 or not 1 <= len(fallback) <= MAX_COLUMNS:
            raise InvalidPackage("A vector in the package is unusable.")
        if not np.isfinite(fallback).all():
            raise InvalidPackage("A vector in the package is not finite.")
        return VectorColumn(name, required, fallback, take(entry, "marks_gaps", bool))
    if kind == Kind.IMAGE:
        return _embedded(name, required, entry, own)
    raise InvalidPackage(f"The package has a column of unknown kind {kind!r:.40}.")


def _embedded(name: str, required: bool, entry: Header, own: Arrays) -> EmbeddedColumn:
    centre, scale = take_array(own, "centre"), take_array(own, "scale")
    usable = centre.ndim == 1 and centre.shape == scale.shape and 1 <= len(centre) <= MAX_COLUMNS
    if not usable or any(one.dtype != np.float64 or not np.isfinite(one).all() for one in (centre, scale)):
        raise InvalidPackage("How pictures are scaled in the package is unusable.")
    encoder, encoder_name, pixels = (take(entry, key, str) for key in ("encoder", "encoder_name", "pixels"))
    if (
        not 0
        < min(map(len, (encoder, encoder_name, pixels)))
        <= max(map(len, (encoder, encoder_name)))
        <= 200
    ):
        raise InvalidPackage("The encoder of pictures in the package has no usable name.")
    marks = take(entry, "marks_gaps", bool)
    return EmbeddedColumn(name, required, encoder, encoder_name, pixels, centre, scale, marks)


def _written(entry: Header, kind: str) -> tuple[str | None, tuple[str, ...]]:
    """Pattern and nulls of numbers or dates. Raises InvalidPackage, InvalidProblem."""
    pattern, nulls = entry.get("pattern"), entry.get("nulls", [])
    usable = (pattern is None or isinstance(pattern, str)) and isinstance(nulls, list)
    if not usable or len(nulls) > MAX_NULLS or not all(isinstance(text, str) for text in nulls):
        raise InvalidPackage("How a column is written in the package is unusable.")
    spec = KindSpec(Kind(kind), pattern, tuple(nulls))
    return spec.pattern, spec.nulls


def _term_tables(entry: Header, own: Arrays, *, is_text: bool) -> tuple[TermTable, ...]:
    tables = tuple(_term_table(one, own) for one in entry.get("terms", ()))
    if is_text and not tables:
        raise InvalidPackage("A text in the package has no terms.")
    return tables


def _term_table(entry: Any, arrays: Arrays) -> TermTable:
    if not isinstance(entry, dict):
        raise InvalidPackage("The encoder in the package has terms that are no object.")
    family = take(entry, "family", str)
    terms, idf = take_array(arrays, f"{family}.terms"), take_array(arrays, f"{family}.idf")
    if terms.dtype != np.int64 or idf.dtype != np.int64:
        raise InvalidPackage("The terms in the package are no whole numbers.")
    return TermTable(family, terms.view(np.uint64), idf, take(entry, "unknown_idf", int))


def _range(entry: Header) -> tuple[float, float]:
    low, high = take(entry, "range", list)
    if not _number(low) <= _number(high):
        raise InvalidPackage("A range in the package is unusable.")
    return low, high


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= MAX_MAGNITUDE:
        raise InvalidPackage("A number in the package is unusable.")
    return value  # type: ignore[no-any-return]


def _read_texts(arrays: Arrays, name: str) -> tuple[str, ...]:
    """Texts stored by `_texts_arrays`. Raises InvalidPackage."""
    data, offsets = take_array(arrays, name), take_array(arrays, f"{name}.offsets")
    usable = (
        data.dtype == np.uint8
        and data.ndim == 1
        and offsets.dtype == np.int64
        and offsets.ndim == 1
        and len(offsets) > 0
        and offsets[0] == 0
        and offsets[-1] == len(data)
        and (np.diff(offsets) >= 0).all()
    )
    if not usable:
        raise InvalidPackage(f"The texts {name!r:.40} of the package do not fit together.")
    return tuple(Texts(data, offsets))
