"""What the columns of a table hold: each has a kind, found over all rows by stated rules, or said.

    number      numbers, with gaps or without
    boolean     true and false
    category    texts, or numbers that are names, of which there are few
    date        days or moments, ISO 8601 unless a pattern is said
    text        sentences, of which words count
    vector      a list of numbers in each cell
    ignore      nothing that a model could use

The rules look at every row, never at a sample, so a file has the same schema wherever it is read. Whole
numbers are never guessed to be categories, and no text but ISO 8601 is guessed to be a date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.data.cell_values import TRUTH, category_key, microseconds_of, number_of
from core.data.characters import SPACELESS
from core.data.table import Cells, NumberCells, Table, TextCells, Texts, VectorCells
from core.data.validation import MAX_FAULTS, MAX_MAGNITUDE
from core.errors import Fault, InvalidProblem


class Kind(StrEnum):
    """What a column holds; see the module."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    CATEGORY = "category"
    DATE = "date"
    TEXT = "text"
    VECTOR = "vector"
    IGNORE = "ignore"


MOSTLY_NUMBERS: Final = 0.95
"""A column of texts of which so many are numbers is refused: a few broken cells would make it a category."""
ALMOST_UNIQUE: Final = 0.99
WORDS_OF_TEXT: Final = 4.0
"""Texts of so many words on average are sentences."""
WORDS_OF_NAME: Final = 1.5
FEWEST_TEXTS: Final = 64
_FEW_CELLS: Final = 5
FEW_NUMBERS: Final = 20
MANY_ROWS: Final = 200
LEAST_ROWS: Final = 10
"""Rows of a table in which a column that tells them all apart is left out."""
_SPACELESS: Final = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in SPACELESS)}]")
_FIRST_OF_OTHERS: Final = 0x80
"""First byte that is no ASCII character."""
_BLOCK_BYTES: Final = 1 << 20
_IS_BLANK: Final = np.isin(np.arange(256), [*b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f "])
_IS_FIRST_OF_WORDS: Final = np.isin(np.arange(256), [*b"ABCDEFGHJKLMOPQRSTUVWXYZabcdefghjklmopqrstuvwxyz"])
"""Letters that begin neither a number nor how infinity and NaN are written."""
_LETTERS_OF_WORD: Final = 2
"""Letters of a word, about, in scripts without spaces."""
_DAY_FIRST: Final = re.compile(r"[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}")
_SHOWN: Final = 5


def _is_usable(pattern: str) -> bool:
    """Whether ``strptime`` takes a pattern, which it does not say before it reads a text."""
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
    """What a sender says of a column. pattern: of its dates, as ``strptime`` has it; None means ISO 8601.

    Raises InvalidProblem for a pattern of another kind, and for one that cannot be used.
    """

    kind: Kind
    pattern: str | None = None

    def __post_init__(self) -> None:
        if self.pattern is not None and self.kind is not Kind.DATE:
            message = f"Only dates have a pattern, not columns of kind {self.kind}."
            raise InvalidProblem(Fault("columns", "bad_kind", message))
        if self.pattern is not None and not _is_usable(self.pattern):
            message = f"The pattern {self.pattern!r:.60} has unknown parts, or one of them twice."
            raise InvalidProblem(Fault("columns", "bad_kind", message))

    @classmethod
    def parse(cls, text: str) -> KindSpec:
        """A kind, or ``date:`` and a pattern. Raises InvalidProblem."""
        word, _, pattern = text.partition(":")
        if word not in set(Kind):
            message = f"The kind of a column must be one of {', '.join(Kind)}, not {word!r:.40}."
            raise InvalidProblem(Fault("columns", "bad_kind", message))
        return cls(Kind(word), pattern or None)

    def __str__(self) -> str:
        return self.kind if self.pattern is None else f"{self.kind}:{self.pattern}"


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """One column. code, reason: why it has this kind, a word and a clause; ``"given"`` if it was said.

    gaps: cells without a value. distinct: how many different values there are. hint: what else it may be.
    """

    name: str
    kind: Kind
    code: str
    reason: str
    gaps: int
    distinct: int
    pattern: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    kind: Kind
    code: str
    reason: str
    hint: str | None = None


def infer_schema(table: Table, said: Mapping[str, KindSpec] | None = None) -> tuple[ColumnSchema, ...]:
    """The schema of the columns of a table. said: kinds of some columns by name.

    Raises InvalidProblem for unknown columns, and naming all columns that are numbers but for a few cells.
    """
    given = dict(said or {})
    unknown = [name for name in given if name not in table.names]
    if unknown:
        message = f"The table has no column {unknown[0]!r:.80}."
        raise InvalidProblem(Fault("columns", "unknown_column", message))
    columns: list[ColumnSchema] = []
    faults: list[Fault] = []
    for number, (name, cells) in enumerate(zip(table.names, table.cells, strict=True)):
        try:
            columns.append(infer_column(name, cells, given.get(name)))
        except InvalidProblem as error:
            faults += [replace(fault, column=number) for fault in error.faults]
    if faults:
        raise InvalidProblem(*faults[:MAX_FAULTS])
    return tuple(columns)


def infer_column(name: str, cells: Cells, said: KindSpec | None = None) -> ColumnSchema:
    """The schema of one column. Raises InvalidProblem where most of its cells are numbers."""
    gaps = int(cells.is_gap.sum())
    if isinstance(cells, TextCells):
        used = np.flatnonzero(cells.counts)
        distinct = len(used)
    elif isinstance(cells, NumberCells):
        distinct = len(np.unique(cells.values[~cells.is_gap]))
    else:
        distinct = len(cells) - gaps
    if said is not None:
        return ColumnSchema(name, said.kind, "given", "given", gaps, distinct, pattern=said.pattern)
    found = _without_use(cells, gaps, distinct)
    if found is None:
        if isinstance(cells, TextCells):
            found = _of_texts(name, cells, distinct)
        elif isinstance(cells, NumberCells):
            found = _of_numbers(cells, gaps, distinct)
        else:
            found = _Found(Kind.VECTOR, "lists", f"each cell is a list of {cells.values.shape[1]} numbers")
    return ColumnSchema(name, found.kind, found.code, found.reason, gaps, distinct, hint=found.hint)


def cells_as(name: str, cells: Cells, kind: Kind, pattern: str | None = None) -> Cells:
    """The cells of a column in the form that its kind has: numbers as numbers, all others as texts.

    Texts of categories are their keys, see `category_key`. Raises InvalidProblem naming the first cells that
    are nothing of this kind.
    """
    if kind is Kind.IGNORE:
        return cells
    if (kind is Kind.VECTOR) != isinstance(cells, VectorCells):
        message = f"Column {name!r:.80} cannot be of kind {kind}."
        raise InvalidProblem(Fault("columns", "bad_kind", message))
    if isinstance(cells, VectorCells):
        return cells
    if kind in (Kind.NUMBER, Kind.BOOLEAN):
        return _numbers(name, cells, kind)
    texts = _texts(cells)
    if kind is Kind.CATEGORY:
        return _with_keys(texts)
    if kind is Kind.DATE:
        _check_dates(name, texts, pattern)
    return texts


def _without_use(cells: Cells, gaps: int, distinct: int) -> _Found | None:
    """Why no model could use a column, if that is so."""
    n = len(cells)
    if gaps == n:
        return _Found(Kind.IGNORE, "no_values", "no row has a value")
    if distinct == 1 and not gaps and not isinstance(cells, VectorCells):
        return _Found(Kind.IGNORE, "constant", "all rows have the same value")
    return None


def _of_numbers(cells: NumberCells, gaps: int, distinct: int) -> _Found:
    n = len(cells)
    if cells.is_truth:
        return _Found(Kind.BOOLEAN, "truth", "all values are true or false")
    values = cells.values[~cells.is_gap]
    whole = bool((values == np.rint(values)).all())
    if whole and not gaps and n >= LEAST_ROWS and len(np.unique(np.diff(values))) == 1:
        reason = "it counts the rows, and a file that is sorted by its classes would tell them by it"
        return _Found(Kind.IGNORE, "counts_rows", reason)
    hint = None
    if whole and distinct == n >= LEAST_ROWS:
        hint = "each row has a number of its own: if they identify the rows, say ignore"
    elif whole and 2 < distinct <= FEW_NUMBERS and n >= MANY_ROWS:
        hint = f"there are {distinct} different whole numbers: if they are names, say category"
    return _Found(Kind.NUMBER, "numbers", "all values are numbers", hint)


def _of_texts(name: str, cells: TextCells, distinct: int) -> _Found:
    counts = cells.counts
    used = np.flatnonzero(counts)
    texts = cells.texts
    if len(used) < len(texts):
        texts = Texts.of(texts[int(place)] for place in used)
    total = int(counts.sum())
    if all(text.lower() in TRUTH for text in texts):
        return _Found(Kind.BOOLEAN, "truth", "all values are true or false")
    wrong = _not_numbers(texts, counts[used], total)
    if not wrong:
        values = np.array([number_of(text) for text in texts])[np.searchsorted(used, cells.codes)]
        return _of_numbers(NumberCells(np.where(cells.is_gap, np.nan, values)), len(cells) - total, distinct)
    if all(microseconds_of(text) is not None for text in texts):
        return _Found(Kind.DATE, "iso_dates", "all values are dates of ISO 8601, such as 2024-05-06")
    if all(_is_endless(texts[place]) for place in wrong):
        raise InvalidProblem(_endless(name, cells, [int(used[place]) for place in wrong]))
    few = sum(int(counts[used[place]]) for place in wrong)
    if few <= _most_others(total):
        raise InvalidProblem(_mixed(name, cells, [int(used[place]) for place in wrong], few, total))
    words = mean_words(texts)
    if len(cells) >= LEAST_ROWS and distinct >= ALMOST_UNIQUE * total and words < WORDS_OF_NAME:
        reason = f"it identifies rows: {distinct} of {total} values are different, and none says anything"
        return _Found(Kind.IGNORE, "identifier", reason)
    if words >= WORDS_OF_TEXT and distinct > max(FEWEST_TEXTS, total / 20):
        return _Found(Kind.TEXT, "sentences", f"the {distinct} different values have {words:.1f} words")
    hint = None
    if all(_DAY_FIRST.fullmatch(text) for text in texts):
        hint = "the values look like dates: if they are, say date and their pattern, as in date:%d/%m/%Y"
    return _Found(Kind.CATEGORY, "few_texts", f"there are {distinct} different texts in {total} values", hint)


def mean_words(texts: Texts) -> float:
    """Words of a text on average: between blanks, and letters of scripts that have none."""
    total, n = 0.0, len(texts)
    first = 0
    while first < n:
        # Blocks of texts bound the memory of the search.
        end = int(np.searchsorted(texts.offsets, texts.offsets[first] + _BLOCK_BYTES, side="right")) - 1
        end = min(max(end, first + 1), n)
        total += _words_of_block(Texts(texts.data, texts.offsets[first : end + 1]))
        first = end
    return total / n


def _words_of_block(texts: Texts) -> float:
    data = texts.data[int(texts.offsets[0]) : int(texts.offsets[-1])]
    if bool((data >= _FIRST_OF_OTHERS).any()):
        return sum(map(_words, texts))
    is_letter = ~_IS_BLANK[data]
    begins = is_letter.copy()
    begins[1:] &= ~is_letter[:-1]
    starts = texts.offsets[:-1][texts.lengths > 0] - texts.offsets[0]
    begins[starts] = is_letter[starts]
    return float(np.count_nonzero(begins))


def _words(text: str) -> float:
    alone = 0 if text.isascii() else len(_SPACELESS.findall(text))
    return len(text.split()) + alone / _LETTERS_OF_WORD


def _not_numbers(texts: Texts, counts: np.ndarray, total: int) -> list[int]:
    """Places of the texts that are no numbers, the first ones if more than a few cells have them."""
    words = _beginning_with_letters(texts)
    enough = int(np.searchsorted(counts[words].cumsum(), _most_others(total), "right"))
    if enough < len(words):
        return [*map(int, words[: enough + 1])]
    wrong, cells = [], 0
    for place, text in enumerate(texts):
        if number_of(text) is None:
            wrong.append(place)
            cells += int(counts[place])
            if cells > _most_others(total):
                break
    return wrong


def _beginning_with_letters(texts: Texts) -> NDArray[np.intp]:
    """Places of texts whose first letter no number has, not even one that is infinite or NaN."""
    begins = texts.offsets[:-1]
    filled = np.flatnonzero(texts.lengths > 0)
    return filled[_IS_FIRST_OF_WORDS[texts.data[begins[filled]]]]


def _most_others(total: int) -> float:
    """How many of so many cells may be no numbers without making a category of them; one of five, too."""
    return max((1.0 - MOSTLY_NUMBERS) * total, float(total >= _FEW_CELLS))


def _is_endless(text: str) -> bool:
    """Whether a cell is a number that is infinite or too large to be used."""
    try:
        return abs(float(text)) > MAX_MAGNITUDE
    except ValueError:
        return False


def _endless(name: str, cells: TextCells, wrong: Sequence[int]) -> Fault:
    row = int(np.flatnonzero(np.isin(cells.codes, wrong))[0])
    text = cells.texts[int(cells.codes[row])]
    message = (
        f"Row {row} (counted from 0), column {name!r:.80}: {text!r:.40} is infinite or beyond"
        f" ±{MAX_MAGNITUDE:g}. If it stands for a missing value, say so: null_values={text:.40} (--null)."
    )
    return Fault("X", "not_finite", message, row=row)


def _mixed(name: str, cells: TextCells, wrong: Sequence[int], few: int, total: int) -> Fault:
    shown = ", ".join(f"{cells.texts[place]!r:.40}" for place in wrong[:_SHOWN])
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    row = int(np.flatnonzero(np.isin(cells.codes, wrong))[0])
    token = cells.texts[wrong[0]]
    message = (
        f"Column {name!r:.80} has numbers in all but {few} of {total} cells: {shown}{more}, first in row"
        f" {row} (counted from 0). If they stand for missing values, say so: null_values={token!s:.40}"
        f" (--null); if all are names, columns={name:.80}:category (--column)."
    )
    return Fault("X", "mixed_column", message, row=row)


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


def _numbers(name: str, cells: NumberCells | TextCells, kind: Kind) -> NumberCells:
    wants_truth = kind is Kind.BOOLEAN
    if isinstance(cells, NumberCells):
        if wants_truth and not cells.is_truth and not np.isin(cells.values[~cells.is_gap], (0.0, 1.0)).all():
            message = f"Column {name!r:.80} has other numbers than 0 and 1, so it cannot be of kind boolean."
            raise InvalidProblem(Fault("X", "not_boolean", message))
        return replace(cells, is_truth=wants_truth)
    known = [TRUTH.get(text.lower()) if wants_truth else number_of(text) for text in cells.texts]
    wrong = np.flatnonzero([value is None for value in known])
    bad = np.flatnonzero(np.isin(cells.codes, wrong))
    if len(bad):
        what = "neither true nor false" if wants_truth else "not a number"
        raise InvalidProblem(
            *_cell_faults(name, cells, bad, "not_boolean" if wants_truth else "not_numeric", what)
        )
    values = np.array([*(np.nan if value is None else float(value) for value in known), np.nan])
    return NumberCells(values[cells.codes], wants_truth)


def _check_dates(name: str, cells: TextCells, pattern: str | None) -> None:
    wrong = [place for place, text in enumerate(cells.texts) if microseconds_of(text, pattern) is None]
    bad = np.flatnonzero(np.isin(cells.codes, wrong))
    if len(bad):
        like = "2024-05-06 or 2024-05-06T07:08:09+02:00" if pattern is None else f"the pattern {pattern}"
        raise InvalidProblem(*_cell_faults(name, cells, bad, "bad_date", f"not a date like {like}"))


def _cell_faults(name: str, cells: TextCells, rows: np.ndarray, code: str, what: str) -> list[Fault]:
    faults = []
    for row in map(int, islice(rows, MAX_FAULTS)):
        text = cells.texts[int(cells.codes[row])]
        message = f"Row {row} (counted from 0), column {name!r:.80}: {text!r:.40} is {what}."
        faults.append(Fault("X", code, message, row=row))
    return faults
