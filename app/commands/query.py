"""`stms query`: query students of a model."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from app.commands.effects import effect_parts, effects_line
from app.commands.output import (
    Answer,
    CommandFailed,
    Json,
    JsonOption,
    Table,
    error_console,
    field,
    print_json,
    say,
)
from app.commands.reading_options import UNSAID, Reading, takes_reading
from app.commands.remote import DEFAULT_SERVER, KeyOption, ServerOption, client_errors, connect
from app.domain.errors import InputFault
from app.domain.event_text import text as shown_text
from app.domain.file_formats import KIND_KEY, NULLS_KEY, TABLE_LABELS, in_words
from app.domain.near_names import near_name
from app.ingest.options import ReadingOptions
from app.ingest.raw import FeatureRows, Known
from core.data.schema import Kind, KindSpec
from stms_client import Client
from stms_client.calls import class_path, model_path, post
from stms_client.pictures import encoded

SOME_LEFT_OUT: Final = 3
"""Exit code where some rows of a file were refused, and the others answered."""
_SHOWN_FAULTS: Final = 20
_NAMED = ("missing", "unseen")
_PARTS = ("score", "threshold", "probability", "gate", "rejection", "piece", "rival")
_READING = (
    "header",
    "separator",
    "decimal",
    "index_column",
    "null_values",
    "skip_lines",
    "column_names",
    "encoding",
)
_KINDS: Mapping[str, Kind] = {
    "boolean": Kind.BOOLEAN,
    "number": Kind.NUMBER,
    "array": Kind.VECTOR,
    "string": Kind.TEXT,
}
"""How the cells of a file are read for a property of a JSON Schema; the service checks dates."""


RowOption = Annotated[
    str | None,
    typer.Option(
        "--row",
        help="One example: numbers in order, NAME=NUMBER in any order, both with commas, or JSON.",
    ),
]
RecordOption = Annotated[
    str | None,
    typer.Option(
        "--record",
        metavar="JSON",
        help="One record: values by the names of the columns; null or no key for a missing value.",
    ),
]
TextOption = Annotated[
    str | None,
    typer.Option("--text", help="One text, for a model whose only column is one of texts."),
]
ImageOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--image",
        exists=True,
        dir_okay=False,
        readable=True,
        help="A picture (JPEG, PNG or WebP), for a model whose only column is one of pictures; may be"
        " repeated.",
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        exists=True,
        dir_okay=False,
        readable=True,
        help="Examples, one per row, read as an upload is: CSV or Parquet, a table as .npy, for models of"
        f" records {in_words(TABLE_LABELS)}. Columns are matched by name.",
    ),
]


@takes_reading(*_READING)
def query(
    model: Annotated[str, typer.Argument(help="MODEL, or MODEL@ALIAS or MODEL@VERSION.")],
    label: Annotated[str, typer.Argument(metavar="CLASS", help="Target class.")],
    more: Annotated[
        list[str] | None, typer.Option("--class", metavar="CLASS", help="Another class; may be repeated.")
    ] = None,
    row: RowOption = None,
    record: RecordOption = None,
    text: TextOption = None,
    image: ImageOption = None,
    file: FileOption = None,
    label_column: Annotated[
        str | None,
        typer.Option(
            "--label-column", help="Column of the file to ignore.", show_default="one of a usual name"
        ),
    ] = None,
    reading: Reading = UNSAID,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also show what each column adds to the score, or takes from it."),
    ] = False,
    explain_scores: Annotated[
        bool,
        typer.Option(
            "--explain-scores",
            help="Also show the parts of the score: the teacher's (gate), the rejection and its piece.",
        ),
    ] = False,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
) -> None:
    """Ask one student, or several: is this the target class?

    Give one of --row, --record, --text, --image and --file. Answers about a file are numbered by its lines,
    and their count ends the output on standard error, with how the file was read. Rows of records that cannot
    be answered are listed there, and the exit code is 3.

    Examples:

      stms query letters A --row 2,8,3,5,1,8,13,0,6,6,10,8,0,8,0,8 --explain

      stms query iris setosa --row sepal_length=5.1,sepal_width=3.5,petal_length=1.4,petal_width=0.2

      stms query adult '>50K' --record '{"age": 39, "occupation": "Sales", "hours-per-week": 40, …}'

      stms query mail spam --text 'You have won a prize. Call now!'

      stms query faces suspect --image face.jpg

      stms query letters@production A --class B --file rows.csv
    """
    given = {"--row": row, "--record": record, "--text": text, "--image": image or None, "--file": file}
    if sum(value is not None for value in given.values()) != 1:
        raise typer.BadParameter(f"give one of {', '.join(given)}", param_hint=" / ".join(given))
    said: dict[str, Any] = {"label_column": label_column, **reading.texts}
    options = ReadingOptions.parse(**said)
    body = _question(row, record, text, image)
    more_fields = {"explain": "columns" if explain else True} if explain or explain_scores else {}
    with connect(server, api_key) as client:
        table = None
        if file is not None:
            # The version that answers is the one whose columns those of the file are.
            model, known = _known(client, model)
            table = _read(file, options, known)
            _warn_of_absent(table, known)
        labels = [label, *(more or ())]
        if table is None:
            answer = _asked(client, model, labels, body | more_fields)
        else:
            answer, table = _asked_about_file(client, model, labels, table, more_fields)
    if not as_json and not explain_scores:
        _leave_out_parts(answer)
    is_single = file is None and not more and len(image or ()) <= 1
    _print(answer, is_single, as_json, file, table)
    if table is not None and table.faults:
        raise typer.Exit(SOME_LEFT_OUT)


def _question(row: str | None, record: str | None, text: str | None, images: Sequence[Path] | None) -> Json:
    """The body of a query of one row, record or text, or of pictures. Raises BadParameter."""
    if images:
        pictures = [*map(encoded, images)]
        return {"image": pictures[0]} if len(pictures) == 1 else {"images": pictures}
    if row is not None:
        return {"x": _parsed(row)}
    if record is not None:
        return {"record": _object(record)}
    return {"text": text}


def _asked_about_file(
    client: Client, model: str, labels: Sequence[str], table: FeatureRows, more: Json
) -> tuple[Json, FeatureRows]:
    """The answer about a file, and its rows without those that the service cannot answer."""
    answer = _asked(client, model, labels, table.body | more | {"faulty_rows": "report"})
    faults = [_of_file(fault, table) for fault in answer.pop("errors", ())]
    if not faults:
        return answer, table
    left_out = {fault.row for fault in faults}
    for entry in (*answer.get("classes", ()), answer):
        for name in ("results", "rows"):
            if name in entry:
                entry[name] = [one for row, one in enumerate(entry[name]) if row not in left_out]
    return answer, table.without(faults)


def _of_file(fault: Json, table: FeatureRows) -> InputFault:
    """A fault of a row of a query, whose message has the line of the file."""
    row, numbers = fault["row"], table.numbers
    place = f"row {row if numbers is None else numbers[row]} (counted from 0)"
    if table.lines is not None:
        place = f"line {table.lines[row]}"
    message = re.sub(rf"\b\w+, row {row} \(counted from 0\),?", place, fault["message"])
    return InputFault(fault["field"], fault["code"], message, row)


def _warn_of_absent(table: FeatureRows, known: Known) -> None:
    """Print on standard error which columns of records the file lacks, so that their values are missing."""
    names = table.names or ()
    for name in known.kinds or ():
        if name not in names and table.names is not None:
            near = near_name(name, table.ignored)
            hint = f" (is {near!r} meant?)" if near else ""
            text = f"The file has no column {name!r}{hint}: its values are taken as missing."
            error_console().print(f"[yellow]Note:[/] {escape(text)}")


def _asked(client: Client, model: str, labels: Sequence[str], body: Json) -> Json:
    """The answer about one class or several."""
    with client_errors():
        several = len(labels) > 1
        path = model_path(model) if several else class_path(model, labels[0])
        sent = body | {"classes": labels} if several else body
        call = post(f"{path}:query", sent, dict[str, Any])
    return client.do(call)


def _print(
    answer: Json, is_single: bool, as_json: bool, file: Path | None, table: FeatureRows | None
) -> None:
    """Print an answer. file, table: what was asked about, if it was a file."""
    by_class = [entry.get("results", [entry]) for entry in answer.get("classes", [answer])]
    for name, places in _places(table).items():
        for results in by_class:
            for place, decision in zip(places, results, strict=False):
                decision[name] = place
    if table is not None and table.faults:
        answer["left_out"] = [fault.message for fault in table.faults]
    if as_json:
        print_json(answer)
    elif is_single:
        _say_verdict(answer)
    else:
        names = [entry["class"] for entry in answer.get("classes", ())] or [None]
        _print_decisions(names, [_with_ranges(results, answer) for results in by_class])
    if table is not None and file is not None:
        _report(file, table, by_class)


def _places(table: FeatureRows | None) -> dict[str, Sequence[int]]:
    """The lines of the rows of a file, or their numbers where some were left out of one without lines."""
    if table is not None and table.lines is not None:
        return {"line": table.lines}
    return {"nr": [number + 1 for number in (table and table.numbers) or ()]}


def _leave_out_parts(answer: Json) -> None:
    """Take the parts of scores out of an answer, which has them beside the effects of columns."""
    for entry in answer.get("classes", [answer]):
        for decision in entry.get("results", [entry]):
            for name in ("gate", "rejection", "piece", "rival"):
                decision.pop(name, None)


def _say_verdict(answer: Json) -> None:
    """Print one decision on one line."""
    numbers = [f"{name} {shown_text(answer[name])}" for name in _PARTS if name in answer]
    verdict = "[bold green]yes[/]" if answer["match"] else "[bold]no[/]"
    say(f"{verdict} ({', '.join(numbers)}, {answer['model']} version {answer['version']})")
    if answer.get("missing"):
        say(escape(f"Missing, and estimated from the other columns: {', '.join(answer['missing'])}."))
    if answer.get("outside"):
        say(escape(f"Outside the range of the training rows: {_outside(answer)}."))
    if answer.get("unseen"):
        say(escape(f"No row of training had the value of: {', '.join(answer['unseen'])}."))
    if answer.get("cut"):
        say(escape(f"Only the beginning was read of: {', '.join(answer['cut'])}."))
    if "columns" in answer:
        Answer(answer, *effect_parts(answer)).print(as_json=False)
    for name, count in (answer.get("known_terms") or {}).items():
        say(escape(f"Words of {name!r:.80} that training had: {count}."))


def _with_ranges(results: Sequence[Json], answer: Json) -> list[Json]:
    """Decisions with what an answer says of their rows; of several classes it says that once a row."""
    rows = answer.get("rows", [answer])
    return [
        {name: row[name] for name in ("outside", "outside_count", *_NAMED) if name in row} | decision
        for decision, row in zip_longest(results, rows, fillvalue=dict[str, Any]())
    ]


def _outside(answer: Json) -> str:
    """The columns of a row that are outside the range of the training rows."""
    names: list[str | int] = answer["outside"]
    more = answer["outside_count"] - len(names)
    return ", ".join(map(str, names)) + (f" and {more} more" if more else "")


def _print_decisions(names: Sequence[str | None], by_class: Sequence[Sequence[Json]]) -> None:
    """Print decisions on several rows or classes as a table, ordered by row."""
    decisions = [
        {"nr": None if "line" in decision else number, "class": name, **decision}
        for number, of_row in enumerate(zip(*by_class, strict=True), 1)
        for name, decision in zip(names, of_row, strict=True)
    ]
    for decision in decisions:
        if "outside" in decision:
            decision["outside"] = _outside(decision) or None
        for name in _NAMED:
            decision[name] = ", ".join(decision.get(name) or ()) or None
    present = {name for decision in decisions for name, value in decision.items() if value is not None}
    names_shown = ("line", "nr", "class", "match", *_PARTS, *_NAMED, "outside")
    columns = [field(name) for name in names_shown if name in present]
    if "columns" in present:
        columns.append(("because of", effects_line))
    Table(columns, decisions, empty="No rows.").print()


def _report(file: Path, table: FeatureRows, by_class: Sequence[Sequence[Json]]) -> None:
    """Print on standard error how many rows were asked about, and how the file was read.

    Raises CommandFailed if there are not as many answers.
    """
    asked = table.n
    if any(len(results) != asked for results in by_class):
        counts = ", ".join(str(len(results)) for results in by_class)
        raise CommandFailed(f"{file} has {asked} rows, but the server sent {counts} answers.")
    lines = f" (lines {table.lines[0]} to {table.lines[-1]})" if table.lines else ""
    err = error_console()
    taken = "; ".join(
        f"{decision.name.replace('_', ' ')} {decision.value} ({decision.reason})"
        for decision in table.decisions
    )
    if taken:
        err.print(escape(f"Read with {taken}."))
    for name in table.ignored:
        err.print(escape(f"Column {name!r} of the file is not part of the question."))
    every = asked + len(table.faults)
    err.print(escape(f"{every} row{'' if every == 1 else 's'} of {file}{lines}, {asked} answered."))
    for fault in table.faults[:_SHOWN_FAULTS]:
        err.print(f"[yellow]Not answered:[/] {escape(fault.message)}")
    if len(table.faults) > _SHOWN_FAULTS:
        err.print(f"[yellow]Not answered:[/] {len(table.faults) - _SHOWN_FAULTS} more rows.")


def _known(client: Client, model: str) -> tuple[str, Known]:
    """The model with the number of its version, and what that knows of its columns."""
    name, _, version = model.partition("@")
    found = client.version(name, version or "latest")
    pinned, inputs = f"{name}@{found['version']}", found["inputs"]
    if found.get("encoder_digest") is None:
        return pinned, Known(inputs["columns"], inputs["label_column"])
    schema = client.record_schema(name, found["version"])
    kinds = {one: _spec(described) for one, described in schema["properties"].items()}
    return pinned, Known(tuple(kinds), kinds=kinds, required=frozenset(schema["required"]))


def _spec(described: Json) -> KindSpec:
    """How the cells of a column are read, given the property of a JSON Schema."""
    said = described.get(KIND_KEY)
    nulls = tuple(described.get(NULLS_KEY, ()))
    if said is not None:
        return replace(KindSpec.parse(said), nulls=nulls)
    types = described["type"]
    if nulls and "string" in types:
        return KindSpec(Kind.NUMBER if "number" in types else Kind.DATE, nulls=nulls)
    return KindSpec(_kind(types))


def _kind(types: str | Sequence[str]) -> Kind:
    """How the cells of a column are read, given the types of its values in a JSON Schema."""
    known = [types] if isinstance(types, str) else [one for one in types if one != "null"]
    return _KINDS[known[0]] if len(known) == 1 else Kind.CATEGORY


def _read(file: Path, options: ReadingOptions, known: Known) -> FeatureRows:
    # Loads Arrow, which takes a while.
    from app.ingest.rows import read_rows

    try:
        return read_rows(file, options, known)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}.") from error


def _parsed(row: str) -> list[float] | Json:
    """One example: numbers in order, numbers by name, or what JSON says."""
    if row.lstrip().startswith(("{", "[")):
        parsed: list[float] | Json = _json(row, "--row")
        return parsed
    cells = row.split(",")
    if not any("=" in cell for cell in cells):
        return [_number(cell, f"column {column} (counted from 0)") for column, cell in enumerate(cells)]
    values: Json = {}
    for cell in cells:
        name, equals, number = cell.rpartition("=")
        if not equals or not name.strip():
            raise _bad_row(f"{cell.strip()!r} is not NAME=NUMBER, as the others are")
        if name.strip() in values:
            raise _bad_row(f"{name.strip()!r} is there twice")
        values[name.strip()] = _number(number, name.strip())
    return values


def _object(record: str) -> Json:
    """A record in JSON. Raises BadParameter, also for a key that is there twice."""
    found = _json(record, "--record")
    if not isinstance(found, dict):
        example = '{"age": 39, "job": null}'
        raise typer.BadParameter(f"this is no object like {example}", param_hint="--record")
    return found


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"this is not JSON: {error}", param_hint=option) from error


def _once(pairs: Sequence[tuple[str, Any]]) -> Json:
    """An object of JSON. Raises ValueError for a key that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {double!r:.80} is there twice")
    return found


def _number(cell: str, where: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _bad_row(f"{where}: {cell.strip()!r} is not a finite number")
    return number


def _bad_row(text: str) -> typer.BadParameter:
    return typer.BadParameter(text, param_hint="--row")
