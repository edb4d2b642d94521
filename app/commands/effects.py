"""The effects of columns on a score, as `stms query --explain` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.commands.output import Column, Json, Part, Table, one_line
from app.domain.event_text import text

_SHOWN: Final = 10
"""Columns of one row that are printed, the largest effects first."""
_SHOWN_IN_A_TABLE: Final = 3
_ROUNDING: Final = 1e-9
"""Smaller effects are those of rounding."""
_SHOWN_WORDS: Final = 3
_SHOWN_LETTERS: Final = 60


def effect_parts(decision: Json) -> list[Part]:
    """What the columns of one row add to its score, and its text if a column has one with known words."""
    effects = decision["columns"]
    rest = sum(entry["effect"] for entry in effects[_SHOWN:]) + (decision.get("rest") or 0.0)
    entries = [*effects[:_SHOWN], *([{"name": "all other columns", "effect": rest}] if rest else [])]
    about = "" if decision["exact"] else "about "
    title = f"A typical row has the score {text(decision['base'])}; the columns of this one add {about}this:"
    return [title, Table(_COLUMNS, entries, empty="The model uses no column.")]


def effects_line(decision: Mapping[str, Any]) -> str:
    """The columns with the largest effects on one line: ``Sex -0.147, Age +0.0629``."""
    return ", ".join(
        f"{one_line(entry['name'])} {_signed(entry['effect'])}"
        for entry in decision["columns"][:_SHOWN_IN_A_TABLE]
        if abs(entry["effect"]) > _ROUNDING
    )


def _signed(effect: float) -> str:
    return f"{effect:+.3g}" if abs(effect) > _ROUNDING else "0"


def _value(entry: Mapping[str, Any]) -> str:
    """A column's value in this row; a gap and what training did not have are said."""
    if "value" not in entry:
        return ""
    value = entry["value"]
    shown = "no value" if value is None else one_line(text(value))
    cut = shown if len(shown) <= _SHOWN_LETTERS else f"{shown[:_SHOWN_LETTERS]}…"
    return cut if entry.get("known", True) else f"{cut} (not in training)"


def _words(entry: Mapping[str, Any]) -> str:
    words = entry.get("words", ())[:_SHOWN_WORDS]
    return ", ".join(f"{one_line(one['word'])} {_signed(one['effect'])}" for one in words)


_COLUMNS: Final[tuple[Column, ...]] = (
    ("effect", lambda entry: _signed(entry["effect"])),
    ("column", lambda entry: one_line(str(entry["name"]))),
    ("value", _value),
    ("words", _words),
)
