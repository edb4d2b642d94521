"""Finds how the numbers and dates of a column are written, from all cells of the column together.

The format of a column is the one that most of its cells have. Cells in another format are left to the caller.
If cells can be read in two ways, such as 1,234 or 05/06/2001, and no cell of the column decides between them,
the format has two patterns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.data.cell_values import microseconds_of, number_of
from core.data.number_texts import NumberFormat, NumberText, split_number

_SAMPLE: Final = 512
_MOST_LOOKED_AT: Final = 50_000
_LEAST_OF_SAMPLE: Final = 0.25
"""Share of texts at equal distances that must be numbers or dates before all are looked at."""
_NAMES: Final = re.compile("jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec")
_FULL_NAMES: Final = re.compile(
    "january|february|march|april|may|june|july|august|september|october|november|december"
)
_TIME: Final = (
    r"(?:(?P<gap>,? |T)(?P<hour>[0-9]{1,2}):[0-9]{2}(?P<second>:[0-9]{2}(?P<fraction>\.[0-9]{1,6})?)?"
    r"(?P<half>(?P<blank> ?)[AaPp][Mm])?(?P<zone>(?P<apart> ?)(?:Z|[+-][0-9]{2}:?[0-9]{2}))?)?"
)
_NUMERIC: Final = re.compile(
    r"(?P<a>[0-9]{1,4})(?P<mark>[-/. ])(?P<b>[0-9]{1,2})(?P=mark)(?P<c>[0-9]{1,2}|[0-9]{4})" + _TIME
)
_NAMED: Final = re.compile(
    r"(?:(?P<week>[A-Za-z]{3,9})(?P<comma>,? ))?"
    r"(?:(?P<day>[0-9]{1,2})(?P<mark>[- /.]?)(?P<month>[A-Za-z]{3,9})"
    r"(?P<point>[.,]?)(?P<again>[- /.]?)"
    r"|(?P<first>[A-Za-z]{3,9})(?P<dot>\.?) (?P<of>[0-9]{1,2})(?P<then>,? ))(?P<year>[0-9]{2}|[0-9]{4})"
    + _TIME
)


@dataclass(frozen=True, slots=True)
class CellFormat:
    """How most cells of a column are written.

    patterns: of numbers in the notation of `NumberFormat`, of dates in that of ``strptime``; None for plain
    numbers and ISO 8601 dates; two patterns, the likelier one first, if both are possible. others: positions
    of the texts that do not have this format. shown: an example text in this format; if there are two
    patterns, it can be read in both ways. is_doubtful: whether neither of two patterns is likelier.
    """

    patterns: tuple[str | None, ...]
    others: NDArray[np.intp]
    shown: str
    is_doubtful: bool = False


def number_format(texts: Sequence[str], counts: NDArray[np.int64]) -> CellFormat | None:
    """The format of the numbers among different texts; None if hardly any text is a number.

    counts: how many cells have each text, (texts,). If there are very many texts, an evenly spaced sample
    decides.
    """
    if not _may_have(texts, lambda text: split_number(text) is not None):
        return None
    places = _spread(len(texts), _MOST_LOOKED_AT)
    some = [texts[place] for place in places]
    weights: list[int] = counts[places].tolist()
    parts = [split_number(text) for text in some]
    sign, before, after = _sign(parts, weights)
    usable = [part if part is not None and part.sign in ("", sign) else None for part in parts]
    decimals, is_doubtful = _decimals(usable, weights, is_signed=bool(sign))
    numbers = [
        (text, part)
        for text, part in zip(some, usable, strict=True)
        if part is not None and any(part.value(decimal) is not None for decimal in decimals)
    ]
    if not numbers:
        return None
    formats = [NumberFormat(before, after, decimal) for decimal in decimals]
    shown = next((text for text, part in numbers if len(decimals) > 1 and _is_doubtful(part)), numbers[0][0])
    is_plain = not sign and decimals[0] == "." and not is_doubtful
    if is_plain and all(number_of(text) is not None for text, _ in numbers):
        others = [place for place, text in enumerate(texts) if number_of(text) is None]
        return CellFormat((None, *map(str, formats[1:])), np.array(others, dtype=np.intp), shown)
    others = [
        place for place, text in enumerate(texts) if all(form.number_of(text) is None for form in formats)
    ]
    return CellFormat(tuple(map(str, formats)), np.array(others, dtype=np.intp), shown, is_doubtful)


def _sign(parts: Sequence[NumberText | None], weights: Sequence[int]) -> tuple[str, str, str]:
    """The most frequent sign, and what stands before and after the numbers; three empty texts for no sign."""
    signs: Counter[str] = Counter()
    written: dict[str, Counter[tuple[str, str]]] = {}
    for part, weight in zip(parts, weights, strict=True):
        if part is not None:
            signs[part.sign] += weight
            written.setdefault(part.sign, Counter())[part.before, part.after] += weight
    bare = signs.pop("", 0)
    sign, signed = signs.most_common(1)[0] if signs else ("", 0)
    if not sign or signed < bare:
        return "", "", ""
    return (sign, *written[sign].most_common(1)[0][0])


def _is_doubtful(part: NumberText) -> bool:
    """Whether another mark of decimals makes another number of it."""
    point, comma = part.value("."), part.value(",")
    return point is not None and comma is not None and point != comma


def _decimals(
    parts: Sequence[NumberText | None], weights: Sequence[int], *, is_signed: bool
) -> tuple[tuple[str, ...], bool]:
    """The decimal mark, or both (the likelier first) if no cell decides; and whether neither is likelier."""
    only = {".": 0, ",": 0}
    doubtful: list[str] = []
    longest = 0
    for part, weight in zip(parts, weights, strict=True):
        if part is None:
            continue
        point, comma = part.value("."), part.value(",")
        if point is None or comma is None:
            only["." if comma is None else ","] += weight * (point is not comma)
        elif point != comma:
            doubtful.append(part.digits)
        elif part.digits.isdigit():
            longest = max(longest, len(part.digits))
    if any(only.values()):
        return ("," if only[","] > only["."] else ".",), False
    return _doubtful_decimals(doubtful, longest, is_signed=is_signed) if doubtful else ((".",), False)


def _doubtful_decimals(
    digits: Sequence[str], longest: int, *, is_signed: bool
) -> tuple[tuple[str, ...], bool]:
    """Like `_decimals`, if every mark may be for thousands or decimals.

    longest: digits of numbers without mark.
    """
    marks = {mark for one in digits for mark in one if mark in ".,"}
    if len(marks) > 1:
        return (".", ","), True
    mark = marks.pop()
    other = "," if mark == "." else "."
    if longest > 3:
        # Thousands have no mark, so that others have decimals.
        return (mark,), False
    if longest:
        # Numbers below 1000 have no mark and larger numbers all have one: the mark separates thousands.
        is_sure = mark == "," or any(one.endswith("0") for one in digits)
        return ((other,), False) if is_sure else ((".", ","), True)
    return (".", ","), mark == "," or is_signed


def date_format(texts: Sequence[str], counts: NDArray[np.int64]) -> CellFormat | None:
    """The format of the dates among different texts; None if hardly any is a date.

    counts: see `number_format`.
    """
    if not _may_have(texts, lambda text: microseconds_of(text) is not None or bool(_patterns(text))):
        return None
    weights: Counter[str | None] = Counter()
    for text, count in zip(texts, counts.tolist(), strict=True):
        for pattern in (None,) if microseconds_of(text) is not None else _patterns(text):
            weights[pattern] += count
    if not weights:
        return None
    most = max(weights.values())
    best = tuple(pattern for pattern, weight in weights.items() if weight == most)
    if len(best) > 1 and best[0] is not None and "." in best[0]:
        # Dates with points have the day first.
        best = tuple(pattern for pattern in best if pattern is not None and pattern.startswith("%d"))[:1]
    others: list[int] = []
    shown = settled = None
    for place, text in enumerate(texts):
        moments = {microseconds_of(text, pattern) for pattern in best[:2]}
        if moments == {None}:
            others.append(place)
        elif len(moments) > 1:
            shown = shown or text
        else:
            settled = settled or text
    patterns = best[:1] if shown is None else best[:2]
    return CellFormat(
        patterns, np.array(others, dtype=np.intp), shown or settled or "", is_doubtful=shown is not None
    )


def _may_have(texts: Sequence[str], is_such: Callable[[str], bool]) -> bool:
    """Whether enough texts of an evenly spaced sample pass ``is_such``, so that all should be examined."""
    if len(texts) <= _SAMPLE:
        return True
    some = [texts[place] for place in _spread(len(texts), _SAMPLE)]
    return sum(map(is_such, some)) >= _LEAST_OF_SAMPLE * _SAMPLE


def _spread(n: int, most: int) -> list[int]:
    """At most ``most`` of n positions, evenly spaced."""
    return [*range(n)] if n <= most else [place * n // most for place in range(most)]


def _patterns(text: str) -> list[str]:
    """The patterns that a date may have, day first and month first."""
    if len(text) > 40 or not text.isascii():
        return []
    numeric = _NUMERIC.fullmatch(text)
    if numeric is not None:
        return [found for found in _numeric_patterns(numeric) if microseconds_of(text, found) is not None]
    named = _NAMED.fullmatch(text)
    if named is None:
        return []
    return [found for found in _named_patterns(named) if microseconds_of(text, found) is not None]


def _numeric_patterns(parts: re.Match[str]) -> list[str]:
    mark, time = parts["mark"], _time_pattern(parts)
    if len(parts["a"]) == 4:
        return [f"%Y{mark}%m{mark}%d{time}"] if len(parts["c"]) <= 2 else []
    if len(parts["a"]) > 2 or len(parts["c"]) == 1:
        return []
    year = "%Y" if len(parts["c"]) == 4 else "%y"
    return [f"{first}{mark}{second}{mark}{year}{time}" for first, second in (("%d", "%m"), ("%m", "%d"))]


def _named_patterns(parts: re.Match[str]) -> list[str]:
    year = "%Y" if len(parts["year"]) == 4 else "%y"
    lead = "" if parts["week"] is None else f"{'%a' if len(parts['week']) == 3 else '%A'}{parts['comma']}"
    name = (parts["month"] or parts["first"]).lower()
    months = ["%b"] * bool(_NAMES.fullmatch(name)) + ["%B"] * bool(_FULL_NAMES.fullmatch(name))
    if parts["day"] is not None:
        behind = f"{parts['point']}{parts['again']}{year}{_time_pattern(parts)}"
        return [f"{lead}%d{parts['mark']}{month}{behind}" for month in months]
    behind = f"{parts['dot']} %d{parts['then']}{year}{_time_pattern(parts)}"
    return [f"{lead}{month}{behind}" for month in months]


def _time_pattern(parts: re.Match[str]) -> str:
    """The part of a pattern that describes the time of day."""
    if parts["hour"] is None:
        return ""
    hour = "%I" if parts["half"] else "%H"
    second = "" if parts["second"] is None else ":%S"
    fraction = "" if parts["fraction"] is None else ".%f"
    half = f"{parts['blank']}%p" if parts["half"] else ""
    zone = f"{parts['apart']}%z" if parts["zone"] else ""
    return f"{parts['gap']}{hour}:%M{second}{fraction}{half}{zone}"
