"""Infers the kinds of a table's columns, from all its rows by fixed rules; the user may state some kinds.

Most cells of a column decide. A column holds numbers or dates if all its cells do, except words that mark a
gap, such as - and n.a., and except one cell in a hundred; the schema lists these exceptions. With more other
cells the column is doubtful, and is refused with the ways to state its kind, unless the other cells are so
many or so different that the column holds categories or texts. Whole numbers are never inferred to be
categories. They identify the rows if they count them, or if all are different, in any order, in a column
named like an id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.data.cell_formats import CellFormat, date_format, number_format
from core.data.cell_values import GAP_WORDS, TRUTH
from core.data.characters import SPACELESS
from core.data.id_names import is_id_name, is_number_name
from core.data.number_texts import NumberFormat
from core.data.reading_hints import reading_hint
from core.data.schema import MAX_NULLS, ColumnSchema, Kind, KindSpec, cells_as
from core.data.table import Cells, NumberCells, PictureCells, Table, TextCells, Texts, VectorCells
from core.data.validation import MAX_FAULTS, MAX_MAGNITUDE
from core.errors import Fault, InvalidProblem

MOSTLY_NUMBERS: Final = 0.95
"""A text column with at least this share of numbers or dates is not a category because of its other cells."""
FEW_OTHERS: Final = 0.01
"""Up to this share of cells in another format is read as gaps, with a warning."""
MANY_NUMBERS: Final = 0.6
"""Like MOSTLY_NUMBERS, for columns whose other cells have only a few different texts."""
_FEW_TEXTS: Final = 5
ALMOST_UNIQUE: Final = 0.99
WORDS_OF_TEXT: Final = 4.0
"""Texts with at least this many words on average are sentences."""
WORDS_OF_NAME: Final = 1.5
FEWEST_TEXTS: Final = 64
_FEW_CELLS: Final = 5
FEW_NUMBERS: Final = 20
MANY_ROWS: Final = 200
LEAST_ROWS: Final = 10
"""Least number of rows of a table for leaving out a column whose values are all different."""
SPARSEST: Final = 4.0
"""The range of row numbers is less than this multiple of the number of rows, even if rows are missing."""
_SPACELESS: Final = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in SPACELESS)}]")
_FIRST_OF_OTHERS: Final = 0x80
"""First byte that is no ASCII character."""
_BLOCK_BYTES: Final = 1 << 20
_IS_BLANK: Final = np.isin(np.arange(256), [*b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f "])
_LETTERS_OF_WORD: Final = 2
"""Letters of a word, about, in scripts without spaces."""
_SHOWN: Final = 5
_FORMATS: Final[Mapping[Kind, Callable[[Texts, NDArray[np.int64]], CellFormat | None]]] = {
    Kind.NUMBER: number_format,
    Kind.DATE: date_format,
}
_WORDS: Final = {Kind.NUMBER: "numbers", Kind.DATE: "dates"}


class _DoubtfulFormat(InvalidProblem):
    """The cells of a column can be read in two ways."""


@dataclass(frozen=True, slots=True)
class _Guess:
    kind: Kind
    code: str
    reason: str
    hint: str | None = None
    pattern: str | None = None
    nulls: tuple[str, ...] = ()


def infer_schema(
    table: Table, said: Mapping[str, KindSpec] | None = None, usage: Collection[str] = ()
) -> tuple[ColumnSchema, ...]:
    """The schema of a table's columns. said: kinds given by the user, by name. usage: see `infer_column`.

    If the cells of a column can be read in two ways, the format of the table's other columns decides. Raises
    InvalidProblem for unknown columns, and for doubtful columns, with the names of all of them.
    """
    given = dict(said or {})
    unknown = [name for name in given if name not in table.names]
    if unknown:
        message = f"The table has no column {unknown[0]!r:.80}."
        raise InvalidProblem(Fault("columns", "unknown_column", message))
    columns: dict[int, ColumnSchema] = {}
    doubts: dict[int, _DoubtfulFormat] = {}
    faults: list[Fault] = []
    for number, (name, cells) in enumerate(zip(table.names, table.cells, strict=True)):
        try:
            columns[number] = infer_column(name, cells, given.get(name), usage)
        except _DoubtfulFormat as error:
            doubts[number] = error
        except InvalidProblem as error:
            faults += [replace(fault, column=number) for fault in error.faults]
    others = {
        *usage,
        *(
            _usage(KindSpec(column.kind, column.pattern))
            for column in columns.values()
            if column.pattern is not None
        ),
    }
    for number, doubt in doubts.items():
        name = table.names[number]
        try:
            columns[number] = infer_column(name, table.cells[number], given.get(name), others)
        except _DoubtfulFormat:
            faults += [replace(fault, column=number) for fault in doubt.faults]
    if faults:
        raise InvalidProblem(*sorted(faults, key=lambda fault: fault.column or 0)[:MAX_FAULTS])
    return tuple(columns[number] for number in range(len(table.names)))


def infer_column(
    name: str, cells: Cells, said: KindSpec | None = None, usage: Collection[str] = ()
) -> ColumnSchema:
    """The schema of one column. said: its kind as given by the user; a pattern that is not given is inferred.
    usage: how other columns are written: the decimal mark (``"."`` or ``","``), and ``"day"`` or ``"month"``
    for what comes first in dates.

    Raises InvalidProblem if it is doubtful what the column holds.
    """
    gaps = int(cells.is_gap.sum())
    if isinstance(cells, TextCells):
        distinct = int(np.count_nonzero(cells.counts))
    elif isinstance(cells, NumberCells):
        distinct = len(np.unique(cells.values[~cells.is_gap]))
    elif isinstance(cells, PictureCells):
        distinct = len(np.unique(cells.codes[cells.codes >= 0]))
    else:
        distinct = len(cells) - gaps
    if said is not None:
        guess = _of_said(name, cells, said, usage)
    else:
        guess = _without_use(cells, gaps, distinct) or _of_cells(name, cells, gaps, distinct, usage)
    gaps += _count_of(cells, guess.nulls)
    distinct -= len({*guess.nulls}.intersection(cells.texts)) if isinstance(cells, TextCells) else 0
    return ColumnSchema(
        name, guess.kind, guess.code, guess.reason, gaps, distinct, guess.pattern, guess.hint, guess.nulls
    )


def _of_said(name: str, cells: Cells, said: KindSpec, usage: Collection[str]) -> _Guess:
    format_of = _FORMATS.get(said.kind)
    if format_of is None or said.pattern is not None or not isinstance(cells, TextCells):
        return _Guess(said.kind, "given", "given", pattern=said.pattern, nulls=said.nulls)
    texts, counts = _used(cells)
    written = format_of(texts, counts) if len(texts) else None
    if written is None:
        return _Guess(said.kind, "given", "given", nulls=said.nulls)
    others = (texts[int(place)] for place in written.others)
    nulls = tuple(dict.fromkeys((*said.nulls, *filter(_is_gap_word, others))))
    pattern = _pattern(name, said.kind, written, usage)
    return _Guess(said.kind, "given", "given", pattern=pattern, nulls=nulls)


def _of_cells(name: str, cells: Cells, gaps: int, distinct: int, usage: Collection[str]) -> _Guess:
    if isinstance(cells, TextCells):
        return _of_texts(name, cells, distinct, usage)
    if isinstance(cells, NumberCells):
        return _of_numbers(name, cells, gaps, distinct)
    if isinstance(cells, PictureCells):
        return _Guess(Kind.IMAGE, "pictures", "each cell is the file of a picture")
    return _Guess(Kind.VECTOR, "lists", f"each cell is a list of {cells.values.shape[1]} numbers")


def _used(cells: TextCells) -> tuple[Texts, NDArray[np.int64]]:
    """The texts that cells have, and how many have each."""
    counts = cells.counts
    used = np.flatnonzero(counts)
    if len(used) == len(counts):
        return cells.texts, counts
    return Texts.of(cells.texts[int(place)] for place in used), counts[used]


def _count_of(cells: Cells, texts: Collection[str]) -> int:
    """How many cells have one of some texts."""
    if not texts or not isinstance(cells, TextCells):
        return 0
    return int(cells.counts[[place for place, text in enumerate(cells.texts) if text in texts]].sum())


def _without_use(cells: Cells, gaps: int, distinct: int) -> _Guess | None:
    """Why no model could use a column, if that is so."""
    n = len(cells)
    if gaps == n:
        return _Guess(Kind.IGNORE, "no_values", "no row has a value")
    if distinct == 1 and not gaps and not isinstance(cells, VectorCells):
        return _Guess(Kind.IGNORE, "constant", "all rows have the same value")
    return None


def identifies_rows(name: str, cells: NumberCells) -> bool:
    """Whether a column of numbers identifies the rows: whole numbers, all different, and the name of an id.

    If the name only says that it numbers something, there must also be many rows and the numbers must be
    dense, in any order: few numbers, or numbers that are far apart, may be measurements or counts.
    """
    n, values = len(cells), cells.values
    if n < LEAST_ROWS or cells.is_truth or not (is_id_name(name) or is_number_name(name)):
        return False
    if cells.is_gap.any() or not (values == np.rint(values)).all() or len(np.unique(values)) < n:
        return False
    is_dense = n >= MANY_ROWS and float(np.ptp(values)) < SPARSEST * n
    return is_id_name(name) or is_dense


def _of_numbers(name: str, cells: NumberCells, gaps: int, distinct: int) -> _Guess:
    n = len(cells)
    if cells.is_truth:
        return _Guess(Kind.BOOLEAN, "truth", "all values are true or false")
    values = cells.values[~cells.is_gap]
    whole = bool((values == np.rint(values)).all())
    step = 1.0 if values[-1] > values[0] else -1.0
    if whole and not gaps and n >= LEAST_ROWS and bool((np.diff(values) == step).all()):
        reason = "it counts the rows, and a file that is sorted by its classes would tell them by it"
        return _Guess(Kind.IGNORE, "counts_rows", reason)
    if identifies_rows(name, cells):
        reason = "it identifies rows: each has a whole number of its own, and its name is that of an id"
        return _Guess(Kind.IGNORE, "identifier", reason)
    hint = None
    if whole and distinct == n >= LEAST_ROWS:
        hint = "each row has a number of its own: if they identify the rows, say ignore"
    elif whole and 2 < distinct <= FEW_NUMBERS and n >= MANY_ROWS:
        hint = f"there are {distinct} different whole numbers: if they are names, say category"
    return _Guess(Kind.NUMBER, "numbers", "all values are numbers", hint)


def _of_texts(name: str, cells: TextCells, distinct: int, usage: Collection[str]) -> _Guess:
    texts, counts = _used(cells)
    total = int(counts.sum())
    if all(text.lower() in TRUTH for text in texts):
        return _Guess(Kind.BOOLEAN, "truth", "all values are true or false")
    hint = None
    for kind, format_of in _FORMATS.items():
        written = format_of(texts, counts)
        if written is not None:
            guess = _of_format(name, cells, kind, written, usage)
            if guess is not None:
                return guess
            hint = hint or _hint(name, kind, written, texts, counts)
    words = mean_words(texts)
    if len(cells) >= LEAST_ROWS and distinct >= ALMOST_UNIQUE * total and words < WORDS_OF_NAME:
        reason = f"it identifies rows: {distinct} of {total} values are different, and none says anything"
        return _Guess(Kind.IGNORE, "identifier", reason, hint)
    if words >= WORDS_OF_TEXT and distinct > max(FEWEST_TEXTS, total / 20):
        return _Guess(Kind.TEXT, "sentences", f"the {distinct} different values have {words:.1f} words")
    return _Guess(Kind.CATEGORY, "few_texts", f"there are {distinct} different texts in {total} values", hint)


def _of_format(
    name: str, cells: TextCells, kind: Kind, written: CellFormat, usage: Collection[str]
) -> _Guess | None:
    """The guess that a column holds numbers or dates; None if too many cells are others."""
    texts, counts = _used(cells)
    others: list[int] = written.others.tolist()
    gaps = [place for place in others if _is_gap_word(texts[place])]
    rest = [place for place in others if not _is_gap_word(texts[place])]
    few, values = int(counts[rest].sum()), int(counts.sum() - counts[gaps].sum())
    if rest and kind is Kind.NUMBER and all(_is_endless(texts[place]) for place in rest):
        raise InvalidProblem(_endless(name, cells, [texts[place] for place in rest]))
    if few > FEW_OTHERS * values or len(rest) + len(gaps) > MAX_NULLS:
        is_varied = kind is Kind.DATE or len(texts) - len(written.others) > FEW_NUMBERS
        are_few = few <= (1.0 - MANY_NUMBERS) * values and len(rest) <= _FEW_TEXTS and is_varied
        if few <= _most_others(values) or are_few:
            raise InvalidProblem(_mixed(name, cells, kind, [texts[place] for place in rest], few, values))
        return None
    pattern = _pattern(name, kind, written, usage)
    nulls = tuple(texts[place] for place in (*gaps, *rest))
    spec = KindSpec(kind, pattern, nulls)
    which = "all other values" if nulls else "all values"
    if kind is Kind.DATE:
        form = "of ISO 8601, such as 2024-05-06" if pattern is None else f"of the pattern {pattern}"
        code = "iso_dates" if pattern is None else "dates"
        return _Guess(kind, code, f"{which} are dates {form}", pattern=pattern, nulls=nulls)
    numbers = cells_as(name, cells, spec)
    assert isinstance(numbers, NumberCells)  # noqa: S101 - the kind says so
    guess = _of_numbers(name, numbers, int(numbers.is_gap.sum()), len(texts) - len(nulls))
    if guess.kind is not kind:
        return guess
    form = "" if pattern is None else f", written as {pattern}"
    return replace(guess, reason=f"{which} are numbers{form}", pattern=pattern, nulls=nulls)


def _is_gap_word(text: str) -> bool:
    return text.lower() in GAP_WORDS


def _pattern(name: str, kind: Kind, written: CellFormat, usage: Collection[str]) -> str | None:
    """The pattern of a format; of two patterns, the one that fits ``usage``.

    Raises InvalidProblem if doubtful.
    """
    patterns = written.patterns
    if len(patterns) == 1:
        return patterns[0]
    usual = [pattern for pattern in patterns if _usage(KindSpec(kind, pattern)) in usage]
    if len(usual) == 1 or not written.is_doubtful:
        return usual[0] if len(usual) == 1 else patterns[0]
    options = " or ".join(reading_hint("columns", f"{name:.60}:{kind}:{pattern}") for pattern in patterns)
    what = (
        f"numbers such as {written.shown!r}: its mark may stand between thousands or before decimals"
        if kind is Kind.NUMBER
        else f"dates such as {written.shown!r}, in which day and month cannot be told apart"
    )
    code = "ambiguous_decimal" if kind is Kind.NUMBER else "ambiguous_date"
    message = f"Column {name!r:.80} has {what}. Say how they are written: {options}."
    raise _DoubtfulFormat(Fault("X", code, message))


def _usage(spec: KindSpec) -> str:
    """What the columns of one table usually share: the decimal mark, or whether the day comes first in dates.

    It is empty for dates without a day or a month.
    """
    pattern = spec.pattern
    if pattern is None:
        return "."
    if spec.kind is Kind.DATE:
        day, month = pattern.find("%d"), max(pattern.find("%m"), pattern.find("%b"))
        return "" if min(day, month) < 0 else "day" if day < month else "month"
    return NumberFormat.parse(pattern).decimal


def _hint(name: str, kind: Kind, written: CellFormat, texts: Texts, counts: NDArray[np.int64]) -> str | None:
    """That many cells of a column are numbers or dates."""
    total, others = int(counts.sum()), int(counts[written.others].sum())
    if 2 * others > total:
        return None
    shown = ", ".join(f"{texts[int(place)]!r:.40}" for place in written.others[:_SHOWN])
    return (
        f"{total - others} of {total} values are {_WORDS[kind]} such as {written.shown!r:.40}, others are"
        f" {shown}: if these stand for missing values, say"
        f" {reading_hint('null_values', 'TOKEN')} and {reading_hint('columns', f'{name:.60}:{kind}')}"
    )


def mean_words(texts: Texts) -> float:
    """Average number of words of a text; letters of scripts without spaces are counted as parts of words."""
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


def _most_others(values: int) -> float:
    """How many of ``values`` cells may be others without making the column a category; one of five may."""
    return max((1.0 - MOSTLY_NUMBERS) * values, float(values >= _FEW_CELLS))


def _is_endless(text: str) -> bool:
    """Whether a cell is a number that is infinite or too large to be used."""
    try:
        return abs(float(text)) > MAX_MAGNITUDE
    except ValueError:
        return False


def _first_row(cells: TextCells, texts: Iterable[str]) -> int:
    """The first row that has one of some texts."""
    wanted = {*texts}
    places = [place for place, text in enumerate(cells.texts) if text in wanted]
    return int(np.flatnonzero(np.isin(cells.codes, places))[0])


def _endless(name: str, cells: TextCells, wrong: list[str]) -> Fault:
    row = _first_row(cells, wrong)
    text = cells.texts[int(cells.codes[row])]
    message = (
        f"Row {row} (counted from 0), column {name!r:.80}: {text!r:.40} is infinite or beyond"
        f" ±{MAX_MAGNITUDE:g}. If it stands for a missing value, say so: {reading_hint('null_values', text)}."
    )
    return Fault("X", "not_finite", message, row=row)


def _mixed(name: str, cells: TextCells, kind: Kind, wrong: list[str], few: int, values: int) -> Fault:
    shown = ", ".join(f"{text!r:.40}" for text in wrong[:_SHOWN])
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    row = _first_row(cells, wrong)
    message = (
        f"Column {name!r:.80} has {_WORDS[kind]} in all but {few} of {values} cells: {shown}{more}, first in"
        f" row {row} (counted from 0). If they stand for missing values, say so:"
        f" {reading_hint('null_values', *wrong[:_SHOWN])}; if all are names,"
        f" {reading_hint('columns', f'{name:.60}:category')}."
    )
    return Fault("X", "mixed_column", message, row=row)
