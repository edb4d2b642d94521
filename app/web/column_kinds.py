"""The kinds of columns on pages: what a select beside each column offers, and what was chosen in it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final, NamedTuple

from app.domain.entities import Json
from app.ingest.options import ReadingOptions
from core.data.schema import Kind

MOST_COLUMNS: Final = 200
"""Columns that a page lists."""
_NUMERIC: Final = (Kind.NUMBER, Kind.BOOLEAN, Kind.CATEGORY, "date:%Y%m%d", Kind.TEXT, Kind.IGNORE)
_OTHERS: Final = (
    *(Kind.NUMBER, Kind.BOOLEAN, Kind.CATEGORY, Kind.DATE),
    *("date:%d/%m/%Y", "date:%m/%d/%Y", "date:%d.%m.%Y", "date:%Y/%m/%d", "date:%d-%b-%Y"),
    *(Kind.TEXT, Kind.IGNORE),
)
_EXAMPLE: Final = date(2024, 5, 31)


class Choice(NamedTuple):
    """An option of a select. value: ``NAME:KIND`` as the option ``columns`` of an upload has it, or empty."""

    value: str
    title: str
    is_chosen: bool


class ShownColumn(NamedTuple):
    """A column of a table on a page. entry: of the summary's ``schema``. choices: of its kind."""

    entry: Json
    choices: Sequence[Choice]

    @property
    def examples(self) -> Sequence[str]:
        """Some cells as they stand in the file; none of columns after many characters."""
        examples: Sequence[str] = self.entry.get("examples", ())
        return examples


def shown_columns(summary: Json, *, is_stored: bool) -> list[ShownColumn]:
    """The first columns of a data set, or of a file that is not stored yet; none of columns without names.

    Tables of numbers, which have no schema, have one here. is_stored: whether the kinds are those of a data
    set; otherwise a kind that was said of a column is the one that is chosen.
    """
    entries = summary.get("schema") or [*_entries_of_numbers(summary)]
    return [
        ShownColumn(entry, _choices(entry, is_said=not is_stored and entry["code"] == "given"))
        for entry in entries[:MOST_COLUMNS]
    ]


def chosen_kinds(texts: Iterable[str]) -> Mapping[str, str]:
    """The kinds by the names of the columns, from the values of all selects. Raises InvalidRequest."""
    return ReadingOptions.parse(columns=",".join(text for text in texts if text.strip())).columns or {}


def listed_kinds(kinds: Mapping[str, str]) -> str:
    """Kinds by name as the option ``columns`` of an upload has them."""
    line = io.StringIO()
    if kinds:
        csv.writer(line, lineterminator="").writerow([f"{name}:{kind}" for name, kind in kinds.items()])
    return line.getvalue()


def said_kinds(hyperparameters: Mapping[str, Any]) -> Mapping[str, str]:
    """The kinds that hyper-parameters say of columns, by name, as far as they can be understood."""
    found: Any = hyperparameters
    for part in ("inputs", "columns"):
        found = found.get(part) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    kinds = {name: one.get("kind") for name, one in found.items() if isinstance(one, Mapping)}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, str)}


def _entries_of_numbers(summary: Json) -> Iterator[Json]:
    for column in summary.get("features", ()):
        if column.get("name") is None or summary.get("sparse"):
            return
        found = {"kind": Kind.NUMBER.value, "code": "numbers", "reason": "all values are numbers"}
        yield {"gaps": 0, "distinct": None, "hint": None, **column, **found}


def _choices(entry: Json, *, is_said: bool) -> list[Choice]:
    found = entry["kind"] + (f":{entry['pattern']}" if entry.get("pattern") else "")
    offered = [*_offered(entry)]
    if is_said and found not in offered:
        offered.append(found)
    first = "as it is found" if is_said else _title(found)
    return [
        Choice("", first, not is_said),
        *(
            Choice(listed_kinds({entry["name"]: kind}), _title(kind), is_said and kind == found)
            for kind in offered
            if is_said or kind != found
        ),
    ]


def _offered(entry: Json) -> Sequence[str]:
    if entry["kind"] == Kind.VECTOR or "width" in entry:
        return (Kind.VECTOR, Kind.IGNORE)
    return _NUMERIC if entry["kind"] == Kind.NUMBER else _OTHERS


def _title(kind: str) -> str:
    """A kind as it is shown, with an example of its dates or numbers."""
    word, _, pattern = kind.partition(":")
    if not pattern:
        return word
    # The pattern of numbers is an example itself.
    return f"{word} like {_EXAMPLE.strftime(pattern) if word == Kind.DATE else pattern}"
