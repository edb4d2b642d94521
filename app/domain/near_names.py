"""Finds names similar to an unknown name, for error messages."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

_COMPARED_NAMES: Final = 200
_COMPARED_LETTERS: Final = 40
"""Longest name that is compared letter by letter with up to _COMPARED_NAMES others."""
_FOLDED_NAMES: Final = 10_000
_LISTED: Final = 10
_SHOWN_LETTERS: Final = 60


def near_name(name: str, known: Sequence[str]) -> str | None:
    """A known name that differs only in case or blanks, or by a few letters if the names are short."""
    folded = name.strip().casefold()
    same = next((other for other in known[:_FOLDED_NAMES] if other.strip().casefold() == folded), None)
    if same is not None or len(name) > _COMPARED_LETTERS:
        return same
    short = [other for other in known[:_COMPARED_NAMES] if len(other) <= _COMPARED_LETTERS]
    return next(iter(get_close_matches(name, short, 1, 0.75)), None)


def spellings(name: str) -> list[str]:
    """The usual spellings of a name, for a look-up if names cannot be compared one by one."""
    bare = name.strip()
    ways = (bare, bare.lower(), bare.upper(), bare.capitalize(), bare.title(), bare.casefold())
    return [way for way in dict.fromkeys(ways) if way != name]


def listed(names: Sequence[str]) -> str:
    """The first names in quotes, each shortened, and the number of the other names."""
    shown = ", ".join(
        repr(name) if len(name) <= _SHOWN_LETTERS else repr(name[:_SHOWN_LETTERS]) + "…"
        for name in names[:_LISTED]
    )
    more = len(names) - _LISTED
    return f"{shown} and {more} more" if more > 0 else shown


def known_names(
    name: str, known: Sequence[str], what: str, *, count: int | None = None, near: str = ""
) -> str:
    """The end of a sentence about an unknown name: the known names, and which of them may be meant.

    known: the first of ``count`` names (at least ten), or all. near: a name that is known to be similar.
    """
    total = len(known) if count is None else count
    names = list(known[:_LISTED])
    rest = total - len(names)
    shown = f": {listed(names)}" if names else ""
    meant = near or near_name(name, known)
    return (
        f"it has {total} {what}{shown}{f' and {rest} more' if names and rest > 0 else ''}."
        f"{f' Is {meant!r} meant?' if meant else ''}"
    )
