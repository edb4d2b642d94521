"""Detects the layout of a CSV file: separator, header, decimal sign, and the role of each column."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from app.domain.errors import InputFault, InvalidRequest
from app.ingest.columns import (
    Columns,
    distinct_names,
    index_candidates,
    is_column_number,
    renamed_warning,
    usual_labels,
)
from app.ingest.csv.blanks import with_single_blanks
from app.ingest.csv.quotes import quotes_enclose
from app.ingest.options import GIVEN, Decision, ReadingOptions, separator_word
from app.ingest.raw import Known, invalid_file
from core.data.reading_hints import reading_hint

if TYPE_CHECKING:
    from _csv import Reader

SEPARATORS = (",", ";", "\t", "|")
BLANK: Final = " "
"""As separator: any number of blanks and tabs, see `app.ingest.csv.blanks`."""
TRUTH: Final = {"true": 1.0, "false": 0.0}
"""Cells of columns of booleans, in any case."""

ENCODING_HINT: Final = f"If it is in Latin-1, send {reading_hint('encoding', 'latin-1')}."

_SAMPLE_LINES = 100
_LEAST_LINES = 10
_SAMPLE_BYTES = 1024**2
NULLS: Final = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?"})
"""Cells that other programs write for a missing value, in lower case."""
_LEAST_NUMBERS: Final = 0.5
"""Smallest share of numbers among cells between blanks, which separate words as well."""
COUNTS: Final = "line 1 counts the columns, which have fractions or an index below it"
"""The reason of a header of numbers."""
_LEAST_BELOW: Final = 5
"""Fewest rows of fractions below two numbers that are then names."""
_FRACTION: Final = re.compile(r"[0-9][.,][0-9]|[0-9][eE]-")
_COMMA_NUMBER: Final = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """Layout of a file; its columns have names if it has a header.

    decimal: decimal sign. booleans: positions of the columns of true and false. sample: cells of the
    first rows. decisions: how all this was found, without those of ``columns``. header: whether line 1 is
    not a row; by default it has the names. has_quotes: whether quotes enclose cells; otherwise
    they are letters. skipped: number of lines above the table. warnings: code and text of each.
    """

    separator: str
    decimal: str
    columns: Columns
    booleans: frozenset[int]
    sample: tuple[tuple[str, ...], ...]
    decisions: tuple[Decision, ...]
    header: bool | None = None
    has_quotes: bool = True
    skipped: int = 0
    warnings: tuple[tuple[str, str], ...] = ()

    @property
    def has_header(self) -> bool:
        """Whether line 1 names the columns."""
        return self.columns.names is not None if self.header is None else self.header

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows of the sample that have as many cells as there are columns."""
        return [row for row in self.sample if len(row) == self.columns.count]

    @property
    def decimal_is_given(self) -> bool:
        """Whether the sender named the sign of decimals."""
        return any(one.name == "decimal" and one.reason == GIVEN for one in self.decisions)

    def with_decimal(self, sign: str, reason: str) -> CsvLayout:
        """The same layout with another sign of decimals."""
        changed = [one for one in self.decisions if one.name != "decimal"]
        return replace(self, decimal=sign, decisions=(*changed, Decision("decimal", sign, reason)))

    def is_value(self, cell: str, position: int) -> bool:
        """Whether the fast reader accepts a stripped cell of a column of numbers or booleans."""
        if position in self.booleans:
            return cell.lower() in TRUTH
        return is_number(cell, self.decimal)

    def number(self, cell: str, position: int) -> float:
        """The number that a valid cell holds."""
        return TRUTH[cell.lower()] if position in self.booleans else float(cell.replace(self.decimal, "."))


def sniff(
    beginning: bytes,
    options: ReadingOptions,
    *,
    whole: bool,
    index: dict[int, str] | None = None,
    rows: Known | None = None,
) -> CsvLayout:
    """Detect the layout from the beginning of a file. Raises InvalidRequest.

    The separator is the one of ``, ; tab |`` that splits the first lines into equally many cells, of
    which the largest share are numbers, or otherwise the most cells; or blanks, if these give more
    numbers. Line 1 is a header if one of its cells is the requested name of the label column, or a usual
    name that does not occur again in its column, or if none of the other cells is a number, true or
    false.

    If blanks are the separator, single blanks must separate the cells, see `separator_of`.

    whole: ``beginning`` is the whole file, so its last line is complete. index: columns known to number
    the rows, each with the reason; by default the column with a usual name of an index. rows: given if
    the file has rows without labels; it may have a column of labels, which is not read.
    """
    lines = _complete_lines(beginning, whole)
    if not lines[0].strip():
        raise invalid_file("The first line of the file is empty.", code="empty_row")
    rows_read, separator, has_quotes, why = _separator(lines, options)
    first = [cell.strip() for cell in _cells(rows_read[0], separator, has_quotes)]
    below = [_lenient(line, separator, has_quotes) for line in rows_read[1:]]
    header = _header(first, below, options, () if rows is None else rows.columns or ())
    names = _names(first, header, options)
    data = below if header.value == "yes" else [first, *below]
    found = (
        dict.fromkeys([*index_candidates(names), *_empty(names, len(first), data)], "")
        if index is None
        else index
    )
    if rows is None:
        columns = Columns.of(names, len(first), options, index=found)
    else:
        columns = Columns.of_rows(names, len(first), options, index=found, known=rows)
    skipped = {columns.label} | columns.unread
    row = data[0] if data else []
    booleans = frozenset(k for k, cell in enumerate(row) if k not in skipped and cell.lower() in TRUTH)
    decimal = _decimal(
        [[cell for k, cell in enumerate(row) if k not in skipped] for row in data], separator, options
    )
    return CsvLayout(
        separator,
        decimal.value,
        columns,
        booleans,
        tuple(map(tuple, data)),
        (Decision("separator", separator_word(separator), why), header, decimal),
        header.value == "yes",
        has_quotes,
        options.skip_lines or 0,
        tuple(renamed_warning(options.column_names or first, names)) if names is not None else (),
    )


def separator_of(beginning: bytes, options: ReadingOptions, *, whole: bool) -> str:
    """The separator that `sniff` finds, also if runs of blanks separate the cells. Raises as it does."""
    return _separator(_complete_lines(beginning, whole), options)[1]


def variant_of(
    beginning: bytes, options: ReadingOptions, layout: CsvLayout, *, whole: bool
) -> tuple[str, ...]:
    """How the layout that ``options`` give differs from the one that is found without them."""
    if not {"separator", "header", "decimal", "label_column"} & set(options.said):
        return ()
    try:
        usual = {
            one.name: one.value
            for one in sniff(beginning, ReadingOptions(label_column="-1"), whole=whole).decisions
        }
    except InvalidRequest:
        usual = {}
    return tuple(f"{one.name}={one.value}" for one in layout.decisions if usual.get(one.name) != one.value)


def is_number(cell: str, decimal: str = ".") -> bool:
    """Whether the fast reader takes a cell for a number: ASCII digits, decimal sign, exponent, nan, inf."""
    if not cell.isascii() or "_" in cell:
        return False
    if decimal != ".":
        if "." in cell:
            return False
        cell = cell.replace(decimal, ".")
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_utf8(cell: str) -> bool:
    """Whether a cell that was decoded with ``surrogateescape`` contains no surrogates."""
    return not any("\udc80" <= letter <= "\udcff" for letter in cell)


def _header(
    first: Sequence[str],
    below: Sequence[Sequence[str]],
    options: ReadingOptions,
    known: Sequence[str],
) -> Decision:
    """Whether line 1 has the names of the columns. known: names that columns of the file may have."""
    said = _said_header(first, options)
    if said is not None:
        return said
    shared = sorted(set(first).intersection(known))
    if shared:
        return Decision("header", "yes", f"line 1 has the name {shared[0]!r:.60} of a column of the model")
    for position in usual_labels(first):
        column = {row[position].casefold() for row in below if position < len(row)}
        if first[position].casefold() not in column:
            return Decision(
                "header", "yes", f"line 1 has the cell {first[position]!r:.60}, a usual name of a label"
            )
    counting = _counting_header(first, below)
    if counting is not None:
        return counting
    label = _likely_label(first, options.label_column)
    features = [cell for position, cell in enumerate(first) if position != label]
    if any(map(_is_value, features)):
        return Decision("header", "no", "line 1 has numbers")
    if all(cell.lower() in NULLS for cell in features):
        return Decision("header", "no", "line 1 has no names")
    # Files that were put together repeat the header.
    others = [row for row in below if list(row) != list(first)]
    columns = zip(first, zip(*others, strict=False), strict=False)
    if not any(_is_measured(cells) and not _is_value(name) for name, cells in columns):
        columns = zip(first, zip(*below, strict=False), strict=False)
        again = [name for name, cells in columns if name in cells]
        if again or len(set(first)) < len(first):
            reason = f"the cell {again[0]!r:.60} occurs again" if again else "line 1 has the same cell twice"
            return Decision("header", "no", f"{reason}, and no column has numbers only")
    return Decision("header", "yes", "no cell of line 1 is a number")


def _said_header(first: Sequence[str], options: ReadingOptions) -> Decision | None:
    """Whether line 1 has the names of the columns, if the sender's options say so."""
    if options.header is not None:
        return Decision("header", options.header, GIVEN)
    if options.column_names is not None:
        if list(first) == list(options.column_names):
            return Decision("header", "yes", "line 1 has the names of the columns that were given")
        return Decision("header", "no", "the names of the columns were given")
    wanted = [name for name in (options.label_column, options.index_column) if name is not None]
    for name in wanted:
        if name in first and not is_column_number(name):
            return Decision(
                "header", "yes", f"line 1 has the cell {name!r:.60}, which was given as a column's name"
            )
    return None


def _counting_header(first: Sequence[str], below: Sequence[Sequence[str]]) -> Decision | None:
    """Whether line 1 names the columns by their numbers, as pandas does for a frame without names.

    None if it does not count, or has too few cells to tell. Raises InvalidRequest if such numbers may also be
    a row.
    """
    starts_with_index = bool(index_candidates(first))
    start = int(starts_with_index)
    stop = len(first) - (not first[-1].isdecimal())
    counted = first[start:stop]
    if len(counted) < 2 or list(counted) not in [[str(k + n) for k in range(len(counted))] for n in (0, 1)]:
        return None
    rows = [row for row in below if len(row) == len(first)]
    if not rows:
        return None
    yes = Decision("header", "yes", f"{COUNTS}: {', '.join(counted[:3])}, …")
    if starts_with_index and any(row[0] for row in rows):
        return yes
    has_fractions = [
        all(_FRACTION.search(row[k]) for row in rows if row[k]) and any(row[k] for row in rows)
        for k in range(start, stop)
    ]
    if any(has_fractions) if len(counted) > 2 else all(has_fractions) and len(rows) >= _LEAST_BELOW:
        return yes
    if len(counted) < 3:
        return None
    raise ambiguous_header(f"its cells, {', '.join(counted[:3])}, …, count the columns")


def ambiguous_header(why: str) -> InvalidRequest:
    """The error if line 1 may either be a row or name the columns. why: a clause."""
    text = (
        f"Line 1 has numbers, and it is doubtful whether it is a row or names the columns: {why}. If it names"
        f" the columns, send {reading_hint('header', 'yes')}; if it is a row, {reading_hint('header', 'no')}."
    )
    return invalid_file(
        text, code="ambiguous_header", faults=[InputFault("header", "ambiguous_header", text)]
    )


def _is_measured(cells: Sequence[str]) -> bool:
    """Whether all cells of a column are numbers, but for missing values."""
    known = [cell for cell in cells if cell.lower() not in NULLS]
    return bool(known) and all(map(_is_value, known))


def _names(first: Sequence[str], header: Decision, options: ReadingOptions) -> Sequence[str] | None:
    """Names of the columns, all different, or None. Raises InvalidRequest."""
    if options.column_names is not None:
        if len(options.column_names) != len(first):
            text = f"column_names has {len(options.column_names)} names; line 1 has {len(first)} cells."
            fault = InputFault("column_names", "wrong_length", text)
            raise invalid_file(text, code="wrong_column_names", faults=[fault])
        return distinct_names(options.column_names)
    if header.value != "yes":
        return None
    if not all(map(is_utf8, first)):
        raise invalid_file(f"The header of the file is not UTF-8 text. {ENCODING_HINT}", code="bad_encoding")
    return distinct_names(first)


def _empty(names: Sequence[str] | None, count: int, rows: Sequence[Sequence[str]]) -> list[int]:
    """The last column, if it has no name and no values, for example because a separator ends each line."""
    last = count - 1 if rows else 0
    is_empty = last > 1 and not any("".join(row[last:]) for row in rows)
    return [last] if is_empty and (names is None or not names[last].strip()) else []


def _is_value(cell: str) -> bool:
    return is_number(cell) or _COMMA_NUMBER.fullmatch(cell) is not None or cell.lower() in TRUTH


def _likely_label(first: Sequence[str], wanted: str | None) -> int:
    """Probable position of the label column, before it is known whether line 1 is a header."""
    if wanted is not None and wanted in first:
        return first.index(wanted)
    if wanted is not None and is_column_number(wanted) and -len(first) <= int(wanted) < len(first):
        return int(wanted) % len(first)
    return len(first) - 1


def _decimal(data: Sequence[Sequence[str]], separator: str, options: ReadingOptions) -> Decision:
    """The decimal sign; a point if both signs occur, because each column is then checked separately."""
    if options.decimal is not None:
        return Decision("decimal", options.decimal, GIVEN)
    if separator == ",":
        return Decision("decimal", ".", "commas separate the cells")
    cells = [cell for row in data for cell in row]
    comma = next((cell for cell in cells if _COMMA_NUMBER.fullmatch(cell)), None)
    point = next((cell for cell in cells if "." in cell and is_number(cell)), None)
    if comma is None:
        return Decision("decimal", ".", "no number has a decimal comma")
    if point is not None:
        return Decision("decimal", ".", f"some numbers such as {point!r:.40} have it, others commas")
    return Decision("decimal", ",", f"numbers such as {comma!r:.40} have it")


def _separator(lines: Sequence[str], options: ReadingOptions) -> tuple[Sequence[str], str, bool, str]:
    """The lines (lines that a quoted cell joins are one), the separator, whether quotes enclose cells, and
    the reason for the separator. Raises InvalidRequest for a title above the table.
    """
    has_odd = any(line.count('"') % 2 for line in lines)
    marks = SEPARATORS if options.separator is None else (options.separator,)
    if has_odd and lines[0].count('"') % 2 == 0:
        found = _with_quotes(lines, marks)
        if found is not None:
            return found
    mark, why = _separator_of_lines(lines, options)
    return lines, mark, True, why


def _with_quotes(lines: Sequence[str], marks: Sequence[str]) -> tuple[Sequence[str], str, bool, str] | None:
    """The separator of lines of which some have one quote too many; None if it is not found.

    Quotes enclose cells of several lines if the joined lines are valid rows. Otherwise they are
    letters if each line alone has the same number of separators.
    """
    joined = _joined(lines)
    text = "\n".join(joined).encode(errors="surrogateescape")
    qualities = {mark: _split_quality(joined or lines, mark) for mark in marks}
    best = max(marks, key=qualities.__getitem__)
    why = f"it splits each of the first {len(joined)} rows into {qualities[best][2]} cells"
    if joined and qualities[best][0] and quotes_enclose(text, 0, len(text), best):
        return joined, best, True, why
    for mark in marks:
        counts = {line.count(mark) for line in lines}
        if len(counts) == 1 and counts != {0}:
            split = f"it splits each of the first {len(lines)} lines into {counts.pop() + 1} cells"
            return lines, mark, False, f"{split}, in which quotes are letters"
    return (joined, best, True, why) if joined and qualities[best][0] else None


def _joined(lines: Sequence[str]) -> list[str]:
    """Rows of one or more lines, because a quoted cell may have line breaks. The last row may be left out."""
    rows, waiting = [], ""
    for line in lines:
        waiting = f"{waiting}\n{line}" if waiting else line
        if waiting.count('"') % 2 == 0:
            rows.append(waiting)
            waiting = ""
    return rows


def _separator_of_lines(lines: Sequence[str], options: ReadingOptions) -> tuple[str, str]:
    """The separator of lines that are rows, and why it is that."""
    if options.separator is not None or lines[0].startswith("sep="):
        _check_title(
            [_with_single_blanks(line) for line in lines] if options.separator == BLANK else lines,
            (options.separator,) if options.separator else SEPARATORS,
        )
    if options.separator is not None:
        return options.separator, GIVEN
    qualities = {mark: _split_quality(lines, mark) for mark in SEPARATORS}
    best = max(SEPARATORS, key=qualities.__getitem__)
    is_even, share, cells = qualities[best]
    blanks = _split_quality([_with_single_blanks(line) for line in lines], BLANK)
    if blanks[0] and blanks[1] >= _LEAST_NUMBERS and (not is_even or blanks[1] > share):
        best, (is_even, _, cells) = BLANK, blanks
    if is_even:
        shown = "line 1" if len(lines) == 1 else f"each of the first {len(lines)} lines"
        return best, f"it splits {shown} into {cells} cells"
    _check_title(lines, SEPARATORS)
    return best, "no separator splits the first lines into equally many cells"


def _with_single_blanks(line: str) -> str:
    return with_single_blanks(line.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def _check_title(lines: Sequence[str], marks: Sequence[str]) -> None:
    """Raise InvalidRequest if the first lines are a comment or a title, and the lines below are a table."""
    if re.fullmatch(r"sep=.?", lines[0].strip()):
        text = (
            f"Line 1, {lines[0].strip()!r}, is a note for a spreadsheet program and not a row of the table."
            f" Leave it out: {reading_hint('skip_lines', '1')}; the separator can be said:"
            f" {reading_hint('separator', lines[0].strip()[4:])}."
        )
        raise invalid_file(text, code="title_line")
    for mark in marks:
        cells = [_count_cells(line, mark) for line in lines]
        top = next((k for k in range(1, len(cells)) if len(set(cells[k:])) == 1), 0)
        if not 1 <= top <= 10 or cells[-1] < 2 or len(cells) - top < 2 or cells[0] == cells[-1]:
            continue
        if top == 1 and cells[0] == cells[-1] - 1 and cells[0] > 1 and not lines[0].startswith("#"):
            text = (
                f"Line 1 has {cells[0]} cells and each line below it {cells[-1]}: its names leave out one"
                " column, as R's write.table does. Write a name for each column (in R: col.names=NA)."
            )
            raise invalid_file(text, code="short_header")
        if all(count < 2 or line.startswith("#") for count, line in zip(cells[:top], lines, strict=False)):
            which = "Line 1 is" if top == 1 else f"Lines 1 to {top} are"
            text = (
                f"{which} a title or a comment ({lines[0]!r:.60}), not a row of the table: each line below"
                f" has {cells[-1]} cells. Leave out what stands above the table:"
                f" {reading_hint('skip_lines', str(top))}."
            )
            raise invalid_file(text, code="title_line")


def _complete_lines(beginning: bytes, whole: bool) -> list[str]:
    lines = beginning.split(b"\n") if b"\n" in beginning else beginning.split(b"\r")
    if len(lines) > 1 and not whole:
        lines = lines[:-1]
    elif not whole:
        raise invalid_file(
            f"The first line is longer than {len(beginning)} bytes; is this a CSV file?", code="line_too_long"
        )
    # Long lines are looked at in smaller number, but never the first one alone.
    width = max(1, len(lines[0]))
    shown = lines[: min(_SAMPLE_LINES, max(_LEAST_LINES, _SAMPLE_BYTES // width))]
    # Rows that are not UTF-8 are reported later, with their position.
    return [line.decode(errors="surrogateescape").rstrip("\r") for line in shown]


def _split_quality(lines: Sequence[str], separator: str) -> tuple[bool, float, int]:
    """Sort key of a separator: whether it splits all lines into equally many cells, the share of numbers
    below line 1, and the number of cells.
    """
    counts = [_count_cells(line, separator) if separator in line else 1 for line in lines]
    if counts[0] < 2 or len(set(counts)) != 1:
        return False, 0.0, counts[0]
    cells = [cell.strip() for line in lines[1:] or lines for cell in _split(line, separator)]
    is_value = is_number if separator == "," else _is_value
    return True, sum(map(is_value, cells)) / len(cells), counts[0]


def _count_cells(line: str, separator: str) -> int:
    try:
        return len(_split(line, separator))
    except csv.Error:
        # A long line without this separator is one cell, and exceeds the csv module's size limit.
        return 0


def _cells(line: str, separator: str, has_quotes: bool) -> list[str]:
    try:
        return _split(line, separator, has_quotes)
    except csv.Error as error:
        raise invalid_file(f"The file cannot be read as CSV: {error}.", code="unreadable_file") from error


def _lenient(line: str, separator: str, has_quotes: bool) -> list[str]:
    """The stripped cells of a line; empty if it cannot be read, because the fault is reported later."""
    try:
        return [cell.strip() for cell in _split(line, separator, has_quotes)]
    except csv.Error:
        return []


def _split(line: str, separator: str, has_quotes: bool = True) -> list[str]:
    return next(rows_of([line], separator, has_quotes), [])


def rows_of(lines: Iterable[str], separator: str, has_quotes: bool) -> Reader:
    """The cells of rows, read by the standard library's module. Raises csv.Error during reading."""
    if has_quotes:
        return csv.reader(lines, delimiter=separator)
    return csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)
