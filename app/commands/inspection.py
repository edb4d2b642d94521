"""What the reader of data sets finds in a file, before it is uploaded or after."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from app.commands.output import (
    Column,
    CommandFailed,
    Fields,
    Json,
    Part,
    Table,
    cli_words,
    field,
    notes,
    one_line,
)
from app.domain.errors import ServiceError

_MAX_ROWS: Final = 10_000_000
_MAX_COLUMNS: Final = 1_000_000
_MAX_BYTES: Final = 8 * 1024**3
_SHOWN_CLASSES: Final = 20
_SHOWN_NUMBERS: Final = 100
"""Columns of a table of numbers that are listed."""


def inspected(file: Path, file_format: str | None, **said: str | None) -> Json:
    """What would be stored of a file. said: as `app.ingest.options.ReadingOptions.parse` takes it.

    Raises CommandFailed.
    """
    # Loads Arrow and SciPy, which takes a while.
    import msgspec

    from app.ingest.options import ReadingOptions
    from app.ingest.orders import DatasetOrder
    from app.ingest.reading import read_dataset

    try:
        options = ReadingOptions.parse(**said)
        with tempfile.TemporaryDirectory() as folder:
            content = read_dataset(
                DatasetOrder(
                    source=str(file),
                    rows="",
                    declared=file_format,
                    filename=file.name,
                    max_rows=_MAX_ROWS,
                    max_columns=_MAX_COLUMNS,
                    max_bytes=_MAX_BYTES,
                    temp_folder=folder,
                    is_dry=True,
                    options=options,
                )
            )
    except ServiceError as error:
        listed = [f"  {fault.message}" for fault in error.faults[1:]]
        raise CommandFailed("\n".join([error.message, *listed])) from error
    found: Json = msgspec.to_builtins(content)
    return found


def reading_parts(content: Json) -> list[Part]:
    """What is printed of a file that was read."""
    summary, names = content["summary"], content["classes"]
    counts = summary.get("class_counts", {})
    fields = {
        "format": content["source_format"],
        "rows": f"{content['rows']} to train, {content['test_rows']} to test",
        "columns": content["columns"],
        "label column": summary.get("label_column"),
        "classes": [f"{name} ({counts.get(name, '?')})" for name in names[:_SHOWN_CLASSES]]
        + (["…"] if len(names) > _SHOWN_CLASSES else []),
    }
    for decision in summary["reading"]:
        fields[decision["name"].replace("_", " ")] = f"{decision['value']} ({decision['reason']})"
    return [Fields(fields), *schema_and_notes(summary)]


def schema_and_notes(summary: Json) -> list[Part]:
    """The columns of a table with their kinds, some cells and why they have these kinds, and the warnings.

    Of a table of numbers alone the first columns are listed.
    """
    columns: list[Column] = [
        ("column", lambda row: one_line(row["name"])),
        ("kind", lambda row: row["kind"] + (f" {row['pattern']}" if row.get("pattern") else "")),
        ("examples", _examples),
        field("reason", "why"),
        ("gaps", _gaps),
        field("distinct", "values"),
        ("hint", lambda row: cli_words(row["hint"] or "")),
    ]
    schema = summary.get("schema") or [*_number_columns(summary)]
    table = [Table(columns, schema, empty="There are no columns.")] if schema else []
    return [*table, *notes(summary.get("warnings", []))]


def _number_columns(summary: Json) -> Iterator[Json]:
    """The first columns of numbers, which have no schema, as entries of one."""
    features = [] if summary.get("sparse") else summary.get("features", [])
    for number, column in enumerate(features[:_SHOWN_NUMBERS]):
        name = str(number) if column.get("name") is None else column["name"]
        entry = {"kind": "number", "reason": "all values are numbers", "gaps": 0, "nulls": {}}
        yield {**entry, "distinct": None, "hint": None, **column, "name": name}


def kinds_of(said: Sequence[str]) -> dict[str, str]:
    """Kinds of columns by name, of options NAME:KIND. Raises CommandFailed."""
    from app.domain.errors import InvalidRequest
    from app.ingest.options import ReadingOptions

    try:
        return ReadingOptions.parse(columns=listed(said)).columns or {}
    except InvalidRequest as error:
        raise CommandFailed(error.message) from error


def names_of(text: str | None) -> list[str]:
    """The names of a line with commas between them."""
    return [] if text is None else [part.strip() for part in next(csv.reader([text], skipinitialspace=True))]


def listed(texts: Iterable[str]) -> str | None:
    """Texts as one line with commas between them; None for no text."""
    out, parts = io.StringIO(), list(texts)
    csv.writer(out, lineterminator="").writerow(parts)
    return out.getvalue() if parts else None


def _examples(row: Mapping[str, Any]) -> str:
    """Some cells in one line, as literals if commas or blanks would hide where they end."""
    return ", ".join(_cell(text) for text in row.get("examples", ()))


def _cell(text: str) -> str:
    is_alone = bool(text) and text == text.strip() and "," not in text
    return one_line(text) if is_alone else repr(text)


def _gaps(row: Mapping[str, Any]) -> str:
    tokens = ", ".join(f"{token!r} {count}" for token, count in row["nulls"].items())
    return f"{row['gaps']} ({tokens})" if tokens else str(row["gaps"])
