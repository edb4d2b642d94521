"""`stms query`: query students of a model."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from app.commands.output import Json, JsonOption, field, print_json, print_table, say
from app.commands.remote import DEFAULT_SERVER, KeyOption, ServerOption, connect, segment
from app.domain.event_text import text

_PARTS = ("score", "threshold", "probability", "gate", "rejection", "piece", "rival")


def query(
    model: Annotated[str, typer.Argument(help="MODEL, or MODEL@ALIAS or MODEL@VERSION.")],
    label: Annotated[str, typer.Argument(metavar="CLASS", help="Target class.")],
    more: Annotated[
        list[str] | None, typer.Option("--class", metavar="CLASS", help="Another class; may be repeated.")
    ] = None,
    row: Annotated[str | None, typer.Option("--row", help="One example: comma-separated numbers.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            exists=True,
            dir_okay=False,
            help="Examples without labels, one per row: CSV, or a table of numbers as .npy.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also show the teacher's gate score, the rejection and its piece."),
    ] = False,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
) -> None:
    """Ask one student, or several: is this the target class?

    Examples:

      stms query letters A --row 2,8,3,5,1,8,13,0,6,6,10,8,0,8,0,8 --explain

      stms query letters@production A --class B --file rows.csv
    """
    if (row is None) == (file is None):
        raise typer.BadParameter("give one of --row and --file", param_hint="--row / --file")
    body: Json = {"x": _numbers(row.split(","), "--row")} if row is not None else {"rows": _read_rows(file)}
    if explain:
        body["explain"] = True
    path = f"/v1/models/{segment(model)}"
    with connect(server, api_key) as client:
        if more:
            answer = client.post(f"{path}:query", body | {"classes": [label, *more]})
        else:
            answer = client.post(f"{path}/classes/{segment(label)}:query", body)
    if as_json:
        print_json(answer)
    elif row is not None and not more:
        _say_verdict(answer)
    else:
        _print_decisions(answer)


def _say_verdict(answer: Json) -> None:
    """Print one decision on one line."""
    numbers = [f"{name} {text(answer[name])}" for name in _PARTS if name in answer]
    verdict = "[bold green]yes[/]" if answer["match"] else "[bold]no[/]"
    say(f"{verdict} ({', '.join(numbers)}, {answer['model']} version {answer['version']})")


def _print_decisions(answer: Json) -> None:
    """Print decisions on several rows or classes as a table, ordered by row."""
    by_class = [entry.get("results", [entry]) for entry in answer.get("classes", [answer])]
    names = [entry["class"] for entry in answer.get("classes", ())] or [None]
    decisions = [
        {"nr": number, "class": name, **decision}
        for number, of_row in enumerate(zip(*by_class, strict=True), 1)
        for name, decision in zip(names, of_row, strict=True)
    ]
    present = {name for decision in decisions for name, value in decision.items() if value is not None}
    columns = [field(name) for name in ("nr", "class", "match", *_PARTS) if name in present]
    print_table(columns, decisions, empty="No rows.")


def _read_rows(file: Path | None) -> list[list[float]]:
    """Rows of numbers; a header line is skipped."""
    if file is None:
        return []
    if file.suffix == ".npy":
        return _read_table(file)
    with file.open(newline="", encoding="utf-8") as stream:
        lines = [line for line in csv.reader(stream) if line]
    if lines and not _is_number(lines[0][0]):
        lines = lines[1:]
    return [_numbers(line, f"{file}, example {number}") for number, line in enumerate(lines, 1)]


def _read_table(file: Path) -> list[list[float]]:
    import numpy as np

    try:
        table = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}", param_hint="--file") from error
    if table.ndim != 2 or table.dtype.kind not in "biuf":
        raise typer.BadParameter(f"{file} is not a table of numbers", param_hint="--file")
    rows: list[list[float]] = table.astype(float).tolist()
    return rows


def _numbers(cells: list[str], place: str) -> list[float]:
    for column, cell in enumerate(cells):
        if not _is_number(cell):
            raise typer.BadParameter(f"column {column}: {cell!r} is not a number", param_hint=place)
    return [float(cell) for cell in cells]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
