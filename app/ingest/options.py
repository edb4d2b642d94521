"""What a sender says of a file, and the decisions of its reader: what was taken, and why.

Each decision is a record that is stored with the data set, and each can be said instead of being guessed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

import msgspec

from app.domain.errors import InputFault, InvalidRequest

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
}


class Decision(msgspec.Struct, frozen=True):
    """One decision of a reader. name: the option that can say it. value: what was taken. reason: `GIVEN`, or
    a clause that tells why.
    """

    name: str
    value: str
    reason: str


class ReadingOptions(msgspec.Struct, frozen=True):
    """What a sender says of a file; what is None is decided by the reader.

    label_column, index_column: name, or number counted from 0, negative from the end; the index column is
    left out, and ``"none"`` says that there is none. header: whether line 1 names the columns. separator: one
    character. decimal: sign of decimals, point or comma. index_base: first index of sparse rows, 0 or 1.
    unlabelled: whether training rows may have no label.
    """

    label_column: str | None = None
    header: Literal["yes", "no"] | None = None
    separator: str | None = None
    decimal: Literal[".", ","] | None = None
    index_column: str | None = None
    index_base: Literal[0, 1] | None = None
    unlabelled: bool = False

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
        unlabelled: bool = False,
    ) -> ReadingOptions:
        """Options from text, in which empty and ``auto`` mean that the reader decides.

        Raises InvalidRequest that names the choices.
        """
        texts = {"header": header, "decimal": decimal, "index_base": index_base}
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
                "unlabelled": unlabelled,
            },
            cls,
        )

    @property
    def said(self) -> tuple[str, ...]:
        """Names of the options that the sender gave, without ``unlabelled``."""
        names = (name for name in self.__struct_fields__ if name != "unlabelled")
        return tuple(name for name in names if getattr(self, name) is not None)

    def only(self, kind: str, names: Collection[str]) -> None:
        """Raise InvalidRequest for options other than ``names``, which a file of this ``kind`` has."""
        unused = [name for name in self.said if name not in names]
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


def _unknown(name: str, text: str, choices: str) -> InvalidRequest:
    message = f"{name} must be {choices}, got {text!r:.40}."
    return InvalidRequest(message, faults=[InputFault(name, "unknown_choice", message)])
