"""`stms query`: is this the target class?"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from app.commands.http import DEFAULT_SERVER, KeyOption, ServerOption, connect, segment
from app.commands.output import JsonOption, field, print_json, print_table, say, text


def query(
    model: Annotated[str, typer.Argument(help="Model; MODEL@ALIAS or MODEL@VERSION for a certain one.")],
    label: Annotated[str, typer.Argument(metavar="CLASS", help="The class that is asked for.")],
    row: Annotated[
        str | None, typer.Option("--row", help="One example: its numbers, with commas between.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", exists=True, dir_okay=False, help="CSV of examples, one a line, without the class."
        ),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
) -> None:
    """Ask one student: is this the target class?

    Examples:

      stms query letters A --row 2,8,3,5,1,8,13,0,6,6,10,8,0,8,0,8

      stms query letters@production A --file rows.csv
    """
    if (row is None) == (file is None):
        raise typer.BadParameter("give one of --row and --file", param_hint="--row / --file")
    body = {"x": _numbers(row.split(","), "--row")} if row is not None else {"rows": _read_rows(file)}
    with connect(server, api_key) as client:
        answer = client.post(f"/v1/models/{segment(model)}/classes/{segment(label)}:query", body)
    if as_json:
        print_json(answer)
    elif row is not None:
        say(
            f"{'[bold green]yes[/]' if answer['match'] else '[bold]no[/]'}"
            f" (score {text(answer['score'])}, threshold {text(answer['threshold'])},"
            f" {answer['model']} version {answer['version']})"
        )
    else:
        results = [{"nr": number, **result} for number, result in enumerate(answer["results"], 1)]
        names = ("nr", "match", "score", "threshold")
        print_table([*map(field, names)], results, empty="No rows.")


def _read_rows(file: Path | None) -> list[list[float]]:
    """Rows of numbers; a first line of names is skipped."""
    if file is None:
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        lines = [line for line in csv.reader(stream) if line]
    if lines and not _is_number(lines[0][0]):
        lines = lines[1:]
    return [_numbers(line, f"{file}, example {number}") for number, line in enumerate(lines, 1)]


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
