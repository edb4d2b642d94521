"""Labels that hold several labels each, such as ``a|b``: a data set has one label for each row.

A class is considered several labels if it is written as a list, such as ``['a', 'b']`` or ``#a #b``, or
if a separator joins parts that are classes themselves. If none of the parts is a class, they must recur
in other classes, and in other positions: the parts of "Boston, MA" always have the same position.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from core.data.dataset import LabelledRows
from core.data.reading_hints import reading_hint

_LIST: Final = re.compile(r"\[(.*)\]|\{(.*)\}", re.DOTALL)
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*\"""")
_NUMBER: Final = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?")
_HASHTAGS: Final = re.compile(r"#\S+(\s*[,;|]?\s*#\S+)+")
_OF_LISTS: Final = ("|", ";", ",")
"""Separators of lists, which are seldom part of a name."""
_OF_NAMES: Final = ("/", "&", "+", " and ", "_", "-", " ")
"""Separators that are often part of a name: all of the parts must be classes."""
_SHOWN: Final = 5


class _Joined(NamedTuple):
    """Codes of classes that hold several labels each, and the separator of these."""

    codes: tuple[int, ...]
    separator: str


def several_labels_warning(train: LabelledRows) -> list[tuple[str, str]]:
    """The warning that classes look like several labels in one cell."""
    joined = _joined(train.classes)
    if joined is None:
        return []
    names = [train.classes[code] for code in joined.codes]
    rows = int(train.class_counts[np.array(joined.codes)].sum())
    shown = ", ".join(f"{name!r:.80}" for name in names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    text = (
        f"{len(names)} of {train.K} classes look like several labels in one cell, {joined.separator}: {shown}"
        f" ({rows} rows). Each is a class of its own, so its rows count against its parts. A row has one"
        " label: keep one of them, or make a column for each label, with yes and no, and train a model on"
        f" each: {reading_hint('label_column', 'COLUMN')}."
    )
    return [("several_labels", text)]


def _joined(classes: Sequence[str]) -> _Joined | None:
    lists = {code: parts for code, name in enumerate(classes) if len(parts := _listed(name)) > 0}
    several = tuple(code for code, parts in lists.items() if len(parts) > 1)
    if several:
        return _Joined(several, "written as lists")
    for separator in (*_OF_LISTS, *_OF_NAMES):
        parts_of = {code: _parts(name, separator) for code, name in enumerate(classes)}
        codes = _several(parts_of, is_of_lists=separator in _OF_LISTS)
        if codes:
            return _Joined(codes, f"joined by {separator!r}")
    return None


def _parts(name: str, separator: str) -> list[str]:
    """The parts of a name; parts of lists may be empty, as in ``|a|b|``."""
    if separator == " ":
        return name.casefold().split()
    parts = [part.strip().casefold() for part in name.split(separator)]
    return [part for part in parts if part] if separator in _OF_LISTS else parts


def _listed(name: str) -> list[str]:
    """The parts of a class that is written as a list; empty for others, such as intervals of numbers."""
    text = name.strip()
    if _HASHTAGS.fullmatch(text):
        return re.findall(r"#[^\s,;|#]+", text)
    found = _LIST.fullmatch(text)
    if found is None:
        return []
    inside = found[1] if found[1] is not None else found[2]
    parts = _QUOTED.findall(inside) or [part.strip() for part in re.split(r"[,;|]", inside)]
    return [] if all(_NUMBER.fullmatch(part.lower()) for part in parts) else [part for part in parts if part]


def _several(parts_of: Mapping[int, Sequence[str]], *, is_of_lists: bool) -> tuple[int, ...]:
    """The classes, by code, that are made of others."""
    classes = {parts[0] for parts in parts_of.values() if len(parts) == 1}
    whole = {code: parts for code, parts in parts_of.items() if len(parts) > 1}
    of_classes = tuple(code for code, parts in whole.items() if classes.issuperset(parts))
    if not is_of_lists:
        # Names that have the separator for another reason speak against it.
        return of_classes if 2 * len(of_classes) >= len(whole) else ()
    users: dict[str, set[int]] = defaultdict(set)
    positions: dict[str, set[int]] = defaultdict(set)
    for code, parts in whole.items():
        for place, part in enumerate(parts):
            users[part].add(code)
            positions[part].add(place)
    recurring = {part for part, codes in users.items() if len(codes) > 1 or part in classes}
    made = tuple(code for code, parts in whole.items() if recurring.issuperset(parts))
    moves = any(len(positions[part]) > 1 for code in made for part in whole[code])
    return made if moves and 2 * len(made) >= len(whole) else of_classes
