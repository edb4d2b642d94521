"""Options that a sender gives for a file, and the decisions of its reader: the choices and their reasons.

Each decision is a record that is stored with the data set, and each can be given as an option instead.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping
from typing import Final, Literal

import msgspec

from app.domain.errors import InputFault, InvalidRequest
from core.data.schema import Kind, KindSpec
from core.errors import InvalidProblem

SEPARATORS: Final = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
"""Separators that have a word; the first four are recognised."""
GIVEN: Final = "given"
"""The reason of a decision that the sender made."""
NO_COLUMN: Final = "none"
"""As ``index_column``: every column is a feature."""

_SEPARATOR_OF: Final = {**SEPARATORS, "\\t": "\t"}
_DECIMAL_OF: Final = {".": ".", ",": ",", "point": ".", "comma": ","}
_CHOICES: Final = {
    "header": ("auto", "yes", "no"),
    "decimal": ("auto", *_DECIMAL_OF),
    "index_base": ("auto", "0", "1"),
    "encoding": ("auto", "utf-8", "latin-1", "windows-1252"),
    "rare_classes": ("auto", "drop", "keep", "refuse"),
    "unlabelled": ("auto", "accept", "drop", "refuse"),
}
MAX_SKIPPED: Final = 1000
"""Largest number of lines above a table that can be skipped."""
MAX_SAID: Final = 10_000
"""Most columns or tokens that an option lists."""
_OF_ALL: Final = frozenset({"rare_classes", "subject_column"})
"""What can be said of every file."""
_SAID_KIND: Final = re.compile(rf"(.+?):((?:{'|'.join(Kind)})(?::.*)?)", re.DOTALL)


class Decision(msgspec.Struct, frozen=True):
    """One decision of a reader. name: the option that can set it. value: the choice. reason: `GIVEN`, or
    a clause with the reason.
    """

    name: str
    value: str
    reason: str


class ReadingOptions(msgspec.Struct, frozen=True):
    """Options that a sender gives for a file; the reader decides those that are None.

    label_column, index_column: name, or number counted from 0, negative from the end; the index column is
    left out, and ``"none"`` says that there is none. header: whether line 1 names the columns. separator: one
    character. decimal: sign of decimals, point or comma. index_base: first index of sparse rows, 0 or 1.
    columns: kinds of columns by name, as `KindSpec.parse` takes them. null_values: further tokens that stand
    for a missing value. skip_lines: how many lines stand above the table. column_names: of a file without a
    header, or in place of it. encoding: of a CSV file, UTF-8 by default. rare_classes, unlabelled:
    what becomes of the rows of classes that are too small, and of training rows without a label; None leaves
    a few of them out; ``"keep"`` is for files to test on, and to append. subject_column: name, or number, of
    the column that tells whom a row is about, of which pseudonyms are stored beside the rows.
    """

    label_column: str | None = None
    header: Literal["yes", "no"] | None = None
    separator: str | None = None
    decimal: Literal[".", ","] | None = None
    index_column: str | None = None
    index_base: Literal[0, 1] | None = None
    columns: dict[str, str] | None = None
    null_values: tuple[str, ...] | None = None
    skip_lines: int | None = None
    column_names: tuple[str, ...] | None = None
    encoding: Literal["latin-1", "windows-1252"] | None = None
    rare_classes: Literal["drop", "keep", "refuse"] | None = None
    unlabelled: Literal["accept", "drop", "refuse"] | None = None
    subject_column: str | None = None

    @classmethod
    def parse(
        cls,
        *,
        label_column: str | None = None,
        header: str | None = None,
        separator: str | None = None,
        decimal: str | None = None,
        index_column: str | None = None,
        index_base: str | None = None,
        columns: str | None = None,
        null_values: str | None = None,
        skip_lines: str | None = None,
        column_names: str | None = None,
        encoding: str | None = None,
        rare_classes: str | None = None,
        unlabelled: str | None = None,
        subject_column: str | None = None,
    ) -> ReadingOptions:
        """Options from text, in which empty and ``auto`` mean that the reader decides.

        columns: ``NAME:KIND`` of each, separated by commas; it, null_values and column_names are lines of a
        CSV file, in which quotes enclose commas. Raises InvalidRequest that names the choices.
        """
        texts = {
            "header": header,
            "decimal": decimal,
            "index_base": index_base,
            "encoding": encoding,
            "rare_classes": rare_classes,
            "unlabelled": unlabelled,
        }
        for name, text in texts.items():
            if text and text not in _CHOICES[name]:
                raise _unknown(name, text, f"one of {', '.join(_CHOICES[name])}")
        mark = _separator(separator)
        sign = None if not decimal or decimal == "auto" else _DECIMAL_OF[decimal]
        if mark is not None and mark == sign:
            text = f"separator and decimal are both {mark!r}; a cell could not be told from a part of one."
            raise InvalidRequest(text, faults=[InputFault("decimal", "contradiction", text)])
        return msgspec.convert(
            {
                "label_column": label_column or None,
                "header": None if not header or header == "auto" else header,
                "separator": mark,
                "decimal": sign,
                "index_column": index_column or None,
                "index_base": None if not index_base or index_base == "auto" else int(index_base),
                "columns": _kinds(columns) if columns else None,
                "null_values": _listed("null_values", null_values) if null_values else None,
                "skip_lines": _skipped(skip_lines) if skip_lines else None,
                "column_names": _listed("column_names", column_names) if column_names else None,
                "encoding": None if not encoding or encoding in ("auto", "utf-8") else encoding,
                "rare_classes": None if not rare_classes or rare_classes == "auto" else rare_classes,
                "unlabelled": None if not unlabelled or unlabelled == "auto" else unlabelled,
                "subject_column": subject_column or None,
            },
            cls,
        )

    @property
    def said(self) -> tuple[str, ...]:
        """Names of the options that the sender gave, without ``unlabelled``."""
        names = (name for name in self.__struct_fields__ if name != "unlabelled")
        return tuple(name for name in names if getattr(self, name) is not None)

    @property
    def kinds(self) -> Mapping[str, KindSpec]:
        """The kinds that the sender gave, by the names of the columns."""
        return {name: KindSpec.parse(kind) for name, kind in (self.columns or {}).items()}

    def only(self, kind: str, names: Collection[str]) -> None:
        """Raise InvalidRequest for options other than ``names``, those of a file of this ``kind``."""
        unused = [name for name in self.said if name not in names and name not in _OF_ALL]
        if unused:
            has = f"; {', '.join(names)} can be said of it" if names else ""
            faults = [
                InputFault(name, "option_not_used", f"{name} says nothing of {kind}{has}.") for name in unused
            ]
            raise InvalidRequest(faults[0].message, code="option_not_used", faults=faults)


def separator_word(mark: str) -> str:
    """A separator as people name it."""
    return next((word for word, known in SEPARATORS.items() if known == mark), mark)


def _separator(text: str | None) -> str | None:
    """One character, or None. Raises InvalidRequest."""
    # A blank is a separator, not an empty option.
    if text is None or text in ("", "auto"):
        return None
    mark = _SEPARATOR_OF.get(text, text)
    usable = len(mark) == 1 and mark.isascii() and not mark.isalnum() and mark not in "\"'.+-\r\n\0"
    if not usable:
        raise _unknown("separator", text, f"one character, or one of {', '.join(SEPARATORS)}")
    return mark


def _listed(name: str, text: str) -> tuple[str, ...]:
    """The parts of a line between its commas, without blanks around them. Raises InvalidRequest."""
    try:
        [parts] = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        message = f"{name} must be one line of texts between commas: {error}."
        raise InvalidRequest(message, faults=[InputFault(name, "bad_list", message)]) from error
    if len(parts) > MAX_SAID:
        message = f"{name} lists {len(parts)} texts; the limit is {MAX_SAID}."
        raise InvalidRequest(message, faults=[InputFault(name, "too_many", message)])
    return tuple(part.strip() for part in parts)


def _kinds(text: str) -> dict[str, str]:
    """The kinds of columns by name. Raises InvalidRequest."""
    kinds: dict[str, str] = {}
    for part in _listed("columns", text):
        found = _SAID_KIND.fullmatch(part)
        if found is None or found[1] in kinds:
            what = "says the same column twice" if found else "is not NAME:KIND or NAME:date:PATTERN"
            message = f"columns: {part!r:.80} {what}; kinds are {', '.join(Kind)}."
            raise InvalidRequest(message, faults=[InputFault("columns", "bad_kind", message)])
        try:
            kinds[found[1]] = str(KindSpec.parse(found[2]))
        except InvalidProblem as error:
            message = f"columns: {part!r:.80}: {error.faults[0].message}"
            raise InvalidRequest(message, faults=[InputFault("columns", "bad_kind", message)]) from error
    return kinds


def _skipped(text: str) -> int | None:
    """The number of lines to leave out; None for 0. Raises InvalidRequest."""
    if not (text.isascii() and text.isdigit() and len(text) < 5 and int(text) <= MAX_SKIPPED):
        raise _unknown("skip_lines", text, f"a number of lines from 0 to {MAX_SKIPPED}")
    return int(text) or None


def _unknown(name: str, text: str, choices: str) -> InvalidRequest:
    message = f"{name} must be {choices}, got {text!r:.40}."
    return InvalidRequest(message, faults=[InputFault(name, "unknown_choice", message)])
