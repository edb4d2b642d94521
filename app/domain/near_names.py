"""Names that may be meant by one that is not there, for the messages of errors."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

_COMPARED_NAMES: Final = 200
_COMPARED_LETTERS: Final = 40
"""Names of at most so many letters are compared letter by letter with so many others."""
_FOLDED_NAMES: Final = 10_000
_LISTED: Final = 10
_SHOWN_LETTERS: Final = 60


def near_name(name: str, known: Sequence[str]) -> str | None:
    """A known name that differs in case or blanks only, or by a few letters if the names are short."""
    folded = name.strip().casefold()
    same = next((other for other in known[:_FOLDED_NAMES] if other.strip().casefold() == folded), None)
    if same is not None or len(name) > _COMPARED_LETTERS:
        return same
    short = [other for other in known[:_COMPARED_NAMES] if len(other) <= _COMPARED_LETTERS]
    return next(iter(get_close_matches(name, short, 1, 0.75)), None)


def spellings(name: str) -> list[str]:
    """The usual spellings of a name, to look up where names cannot be compared one by one."""
    bare = name.strip()
    ways = (bare, bare.lower(), bare.upper(), bare.capitalize(), bare.title(), bare.casefold())
    return [way for way in dict.fromkeys(ways) if way != name]


def listed(names: Sequence[str]) -> str:
    """The first names in quotes, each shortened, and how many there are beyond them."""
    shown = ", ".join(
        repr(name) if len(name) <= _SHOWN_LETTERS else repr(name[:_SHOWN_LETTERS]) + "…"
        for name in names[:_LISTED]
    )
    more = len(names) - _LISTED
    return f"{shown} and {more} more" if more > 0 else shown


def known_names(
    name: str, known: Sequence[str], what: str, *, count: int | None = None, near: str = ""
) -> str:
    """The end of a sentence about a name that is not there: what there is, and what may be meant.

    known: of ``count`` names the first ones, at least ten, or all. near: a name that is known to be near.
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
