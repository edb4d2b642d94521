"""What the terminal shows: tables, JSON, times, and errors as sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

Json: TypeAlias = dict[str, Any]
Column: TypeAlias = tuple[str, Callable[[Mapping[str, Any]], object]]

_PIPE_WIDTH = 400

JsonOption = Annotated[bool, typer.Option("--json", help="Print the server's JSON instead of a table.")]


class CommandFailed(Exception):
    """A command ends with exit code 1. The message is for people; ``details`` are further lines."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.details = tuple(details)


def console() -> Console:
    """Standard output, as it is now."""
    return Console(highlight=False, soft_wrap=True)


def error_console() -> Console:
    """Standard error, as it is now."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One line of rich markup on standard output."""
    console().print(text)


def print_failure(failure: CommandFailed) -> None:
    """The error on standard error, its details indented below."""
    err = error_console()
    err.print(f"[bold red]Error:[/] {escape(failure.message)}")
    for line in failure.details:
        err.print(f"  {escape(line)}")


def print_json(value: object) -> None:
    """Indented JSON, for programs."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], *, empty: str) -> None:
    """One line a row; ``empty`` when there is none."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, _ in columns:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(escape(text(value(row))) for _, value in columns))
    if table.row_count:
        _print_wide(table)
    else:
        say(empty)


def field(name: str, title: str | None = None) -> Column:
    """The column of a row's item as it is."""
    return title or name, lambda row: row.get(name)


def moment(name: str, title: str | None = None) -> Column:
    """The column of a row's time."""
    return title or name, lambda row: clock(row.get(name))


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values below each other."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, escape(text(value)))
    _print_wide(table)


def _print_wide(table: Table) -> None:
    """A table as wide as the terminal; for a file or a pipe as wide as it needs to be."""
    terminal = Console(highlight=False)
    width = None if terminal.is_terminal else _PIPE_WIDTH
    Console(highlight=False, width=width).print(table)


def text(value: object) -> str:
    """A cell: numbers with four significant digits, nothing as a dash."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(text(item) for item in value) or "–"
    return str(value)


@contextmanager
def upload_progress(file: Path) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while a file is sent; what is given is told the bytes sent, and all of them.

    Raises CommandFailed for an empty file.
    """
    size_of_it = file.stat().st_size
    if size_of_it == 0:
        raise CommandFailed(f"{file} is empty.")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=error_console(), transient=True) as progress:
        task = progress.add_task(f"Uploading {file.name}", total=size_of_it)

        def told(sent: int, total: int) -> None:
            description = f"Uploading {file.name}" if sent < total else "The server checks it"
            progress.update(task, completed=sent, description=description)

        yield told


def percent(value: float | None) -> str:
    """A share as a percentage with two decimals."""
    return "–" if value is None else f"{100 * value:.2f}"


def clock(moment: str | None) -> str:
    """An RFC 3339 time of the server in the local zone."""
    if moment is None:
        return "–"
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def size(n_bytes: int) -> str:
    """Bytes for people."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
