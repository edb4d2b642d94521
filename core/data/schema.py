"""What the columns of a table hold: each has a kind, which is given or inferred (``core.data.column_kinds``).

number      numbers, with gaps or without; plain ones unless a pattern is said
boolean     true and false
category    texts, or numbers that are names, of which there are few
date        days or moments, ISO 8601 unless a pattern is said
text        sentences, of which words count
vector      a list of numbers in each cell
image       the bytes of a picture, of which an encoder makes numbers
ignore      nothing that a model could use
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from core.data.cell_values import TRUTH, category_key, microseconds_of, number_of
from core.data.number_texts import NumberFormat
from core.data.table import Cells, NumberCells, PictureCells, TextCells, VectorCells
from core.data.validation import MAX_FAULTS
from core.errors import Fault, InvalidProblem

MAX_NULLS: Final = 100
"""Different cells of a column that stand for a gap, besides those that do in every column."""


class Kind(StrEnum):
    """What a column holds; see the module."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    CATEGORY = "category"
    DATE = "date"
    TEXT = "text"
    VECTOR = "vector"
    IMAGE = "image"
    IGNORE = "ignore"


def _is_usable(pattern: str) -> bool:
    """Whether ``strptime`` accepts a pattern; it reports a faulty pattern only when it reads a text."""
    try:
        datetime.strptime("", pattern)
    except re.error:
        return False
    except ValueError as error:
        # All but these two mean that the text does not have the pattern.
        return "bad directive" not in str(error) and "stray %" not in str(error)
    return True


@dataclass(frozen=True, slots=True)
class KindSpec:
    """How the cells of a column are read.

    pattern: of its dates, as ``strptime`` has it, None for ISO 8601; of its numbers, such as $1,234.5, None
    for plain ones. nulls: cells that stand for a gap in this column, besides those that do in every column.
    Raises InvalidProblem for a pattern of another kind, and for one that cannot be used.
    """

    kind: Kind
    pattern: str | None = None
    nulls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.pattern is None:
            return
        message = None
        if self.kind is Kind.NUMBER:
            try:
                NumberFormat.parse(self.pattern)
            except ValueError as error:
                message = f"The pattern of numbers is not usable: {error}."
        elif self.kind is not Kind.DATE:
            message = f"Only dates and numbers have a pattern, not columns of kind {self.kind}."
        elif not _is_usable(self.pattern):
            message = f"The pattern {self.pattern!r:.60} has unknown parts, or one of them twice."
        if message is not None:
            raise InvalidProblem(Fault("columns", "bad_kind", message))

    @classmethod
    def parse(cls, text: str) -> KindSpec:
        """A kind, or ``date:`` or ``number:`` and a pattern. Raises InvalidProblem."""
        word, _, pattern = text.partition(":")
        if word not in set(Kind):
            message = f"The kind of a column must be one of {', '.join(Kind)}, not {word!r:.40}."
            raise InvalidProblem(Fault("columns", "bad_kind", message))
        return cls(Kind(word), pattern or None)

    def __str__(self) -> str:
        return self.kind if self.pattern is None else f"{self.kind}:{self.pattern}"

    @property
    def value_of(self) -> Callable[[str], float | None]:
        """A function from a cell to its number, or to its microseconds since 1970; None for other cells."""
        if self.kind is Kind.DATE:
            return partial(microseconds_of, pattern=self.pattern)
        return number_of if self.pattern is None else NumberFormat.parse(self.pattern).number_of


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """One column. code, reason: why it has this kind, a word and a clause; ``"given"`` if it was said.

    gaps: cells without a value. distinct: how many different values there are. hint: what else it may be.
    pattern, nulls: see `KindSpec`.
    """

    name: str
    kind: Kind
    code: str
    reason: str
    gaps: int
    distinct: int
    pattern: str | None = None
    hint: str | None = None
    nulls: tuple[str, ...] = ()

    @property
    def spec(self) -> KindSpec:
        """How its cells are read."""
        return KindSpec(self.kind, self.pattern, self.nulls)


def cells_as(name: str, cells: Cells, spec: KindSpec) -> Cells:
    """The cells of a column in the form that its kind has: numbers as numbers, all others as texts.

    Texts of categories are their keys, see `category_key`. Raises InvalidProblem naming the first cells that
    are nothing of this kind.
    """
    kind = spec.kind
    if kind is Kind.IGNORE:
        return cells
    is_other = (kind is Kind.VECTOR) != isinstance(cells, VectorCells)
    if is_other or (kind is Kind.IMAGE) != isinstance(cells, PictureCells):
        message = f"Column {name!r:.80} cannot be of kind {kind}."
        raise InvalidProblem(Fault("columns", "bad_kind", message))
    if isinstance(cells, VectorCells | PictureCells):
        return cells
    if kind in (Kind.NUMBER, Kind.BOOLEAN):
        return _numbers(name, cells, spec)
    texts = _texts(cells).without(spec.nulls)
    if kind is Kind.CATEGORY:
        return _with_keys(texts)
    if kind is Kind.DATE:
        _check_dates(name, texts, spec)
    return texts


def _texts(cells: NumberCells | TextCells) -> TextCells:
    """Numbers and truth values as texts."""
    if isinstance(cells, TextCells):
        return cells
    values, codes = np.unique(cells.values, return_inverse=True)
    known = values[~np.isnan(values)]
    texts = [category_key(bool(value) if cells.is_truth else float(value)) for value in known]
    return TextCells(np.where(cells.is_gap, -1, codes).astype(np.int32), TextCells.of(texts).texts)


def _with_keys(cells: TextCells) -> TextCells:
    """The cells with the keys of categories as their texts."""
    keys = [category_key(text) for text in cells.texts]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    codes = np.array([*(places[key] for key in keys), -1], dtype=np.int32)
    return TextCells(codes[cells.codes], TextCells.of(places).texts)


def _numbers(name: str, cells: NumberCells | TextCells, spec: KindSpec) -> NumberCells:
    wants_truth = spec.kind is Kind.BOOLEAN
    if isinstance(cells, NumberCells):
        if wants_truth and not cells.is_truth and not np.isin(cells.values[~cells.is_gap], (0.0, 1.0)).all():
            message = f"Column {name!r:.80} has other numbers than 0 and 1, so it cannot be of kind boolean."
            raise InvalidProblem(Fault("X", "not_boolean", message))
        return replace(cells, is_truth=wants_truth)
    cells, value_of = cells.without(spec.nulls), spec.value_of
    values = [TRUTH.get(text.lower()) if wants_truth else value_of(text) for text in cells.texts]
    bad = _rows_without(cells, values)
    if len(bad):
        code, what = "not_numeric", "not a number"
        if wants_truth:
            code, what = "not_boolean", "neither true nor false"
        elif spec.pattern is not None:
            what = f"not a number written as {spec.pattern}"
        raise InvalidProblem(*_cell_faults(name, cells, bad, code, what))
    numbers = np.array([*(np.nan if value is None else float(value) for value in values), np.nan])
    return NumberCells(numbers[cells.codes], wants_truth)


def _check_dates(name: str, cells: TextCells, spec: KindSpec) -> None:
    bad = _rows_without(cells, [*map(spec.value_of, cells.texts)])
    if len(bad):
        like = (
            "2024-05-06 or 2024-05-06T07:08:09+02:00"
            if spec.pattern is None
            else f"the pattern {spec.pattern}"
        )
        raise InvalidProblem(*_cell_faults(name, cells, bad, "bad_date", f"not a date like {like}"))


def _rows_without(cells: TextCells, values: list[float | None]) -> np.ndarray:
    """Rows of cells whose texts have no value."""
    wrong = [place for place, value in enumerate(values) if value is None]
    return np.flatnonzero(np.isin(cells.codes, wrong))


def _cell_faults(name: str, cells: TextCells, rows: np.ndarray, code: str, what: str) -> list[Fault]:
    faults = []
    for row in map(int, islice(rows, MAX_FAULTS)):
        text = cells.texts[int(cells.codes[row])]
        message = f"Row {row} (counted from 0), column {name!r:.80}: {text!r:.40} is {what}."
        faults.append(Fault("X", code, message, row=row))
    return faults
