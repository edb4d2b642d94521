"""Terminal output: tables, JSON, times, progress bars and error messages."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

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
from rich.table import Table as RichTable

from app.domain.errors import ServiceError, SetupError
from app.domain.event_text import text
from app.domain.moments import NotAMoment, moment_of

Json: TypeAlias = dict[str, Any]
Column: TypeAlias = tuple[str, Callable[[Mapping[str, Any]], object]]

_PIPE_WIDTH = 400
_FLAG: Final = r"--[a-z-]+ (?:'[^']*'|[^\s()']+)"
_FIELD: Final = r"(?<![^\s(])[a-z_.]+="
_BOTH_FORMS: Final = re.compile(rf"{_FIELD}(?:(?!{_FIELD}).){{1,200}}? \(({_FLAG}(?: {_FLAG})*)\)")


def _moment_option(name: str, meaning: str) -> Any:
    """An option for a moment, which the command gets as seconds since the epoch."""

    def read(value: str) -> float:
        """Say how a moment without a time zone is taken. Raises BadParameter: the exit code is 2."""
        try:
            found = moment_of(value, time.time())
        except NotAMoment as error:
            raise typer.BadParameter(f"{value!r}: {error}.") from error
        if found.taken_as is not None:
            shown = found.taken_as.strftime("%Y-%m-%d %H:%M:%S %z (%Z)")
            error_console().print(escape(f"{name} {value} is taken as {shown}, the zone of this machine."))
        return found.seconds

    return typer.Option(name, parser=read, metavar="TIME", help=meaning)


Since = Annotated[
    float | None,
    _moment_option(
        "--since",
        "From this time on: 2026-01-31 (its midnight), 2026-01-31T09:00, or 30m, 2h, 7d before now. It is in "
        "the time zone of this machine, as times in tables, unless Z or an offset such as +09:00 follows.",
    ),
]
Until = Annotated[float | None, _moment_option("--until", "Before this time, in the forms of --since.")]
"""Seconds since the epoch."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print the server's JSON instead of a table.")]


class CommandFailed(Exception):
    """Ends a command with exit code 1. ``details`` are printed as further lines below the message."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.details = tuple(details)


def console() -> Console:
    """A console on the current standard output."""
    return Console(highlight=False, soft_wrap=True)


def error_console() -> Console:
    """A console on the current standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print one line of rich markup on standard output."""
    console().print(text)


def print_failure(failure: CommandFailed) -> None:
    """Print the error on standard error, with indented details below."""
    err = error_console()
    err.print(f"[bold red]Error:[/] {escape(cli_words(failure.message))}")
    for line in failure.details:
        err.print(f"  {escape(cli_words(line))}")


@contextmanager
def failures_printed() -> Iterator[None]:
    """Print expected errors as messages, and raise typer.Exit (1). Other exceptions are bugs and pass."""
    try:
        yield
    except CommandFailed as failure:
        print_failure(failure)
    except SetupError as error:
        print_failure(CommandFailed(str(error)))
    except ServiceError as error:
        more = [fault for fault in error.faults if fault.message not in error.message]
        print_failure(CommandFailed(error.message, [f"{one.field}: {one.message}" for one in more]))
    else:
        return
    raise typer.Exit(1)


def print_json(value: object) -> None:
    """Print indented JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class Table:
    """Is printed as one line per row, or as the text ``empty`` if there are no rows."""

    columns: Sequence[Column]
    rows: Iterable[Mapping[str, Any]]
    empty: str

    def print(self) -> None:
        """Print it."""
        table = RichTable(box=None, pad_edge=False, header_style="bold")
        for title, _ in self.columns:
            table.add_column(title, overflow="fold")
        for row in self.rows:
            table.add_row(*(escape(text(value(row))) for _, value in self.columns))
        if table.row_count:
            _print_wide(table)
        else:
            say(self.empty)


@dataclass(frozen=True, slots=True)
class Fields:
    """Names and values, printed as one pair per line."""

    values: Mapping[str, object]

    def print(self) -> None:
        """Print them."""
        table = RichTable(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in self.values.items():
            table.add_row(name, escape(text(value)))
        _print_wide(table)


Part: TypeAlias = str | Table | Fields
"""A line of rich markup, a table, or names with values."""


class Answer:
    """What a command found. document: printed as JSON with the option for it, which leaves the parts out.

    exit_code: of the command, once that is printed.
    """

    def __init__(self, document: object, *parts: Part, exit_code: int = 0) -> None:
        self._document, self._parts, self.exit_code = document, parts, exit_code

    def print(self, as_json: bool) -> None:
        """Print it."""
        if as_json:
            print_json(self._document)
            return
        for part in self._parts:
            if isinstance(part, str):
                say(part)
            else:
                part.print()


def listing(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column], empty: str) -> Answer:
    """All rows as they are for JSON, and as a `Table`."""
    listed = list(rows)
    return Answer(listed, Table(columns, listed, empty))


def field(name: str, title: str | None = None) -> Column:
    """A column with a row's value unchanged."""
    return title or name, lambda row: row.get(name)


def moment(name: str, title: str | None = None) -> Column:
    """A column with a row's time in the local time zone."""
    return title or name, lambda row: clock(row.get(name))


def _print_wide(table: RichTable) -> None:
    """Print a table in the width of the terminal; a file or pipe gets a wide one without line breaks."""
    terminal = Console(highlight=False)
    width = None if terminal.is_terminal else _PIPE_WIDTH
    Console(highlight=False, width=width).print(table)


@contextmanager
def upload_progress(file: Path) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error during an upload; yields a callback ``(bytes sent, bytes in total)``.

    Raises CommandFailed for an empty file.
    """
    file_size = file.stat().st_size
    if file_size == 0:
        raise CommandFailed(f"{file} is empty.")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=error_console(), transient=True) as progress:
        task = progress.add_task(f"Uploading {file.name}", total=file_size)

        def update(sent: int, total: int) -> None:
            description = f"Uploading {file.name}" if sent < total else "The server validates the file"
            progress.update(task, completed=sent, description=description)

        yield update


@contextmanager
def download_progress(file: Path) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error during a download; yields a callback ``(bytes, bytes in total)``."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=error_console(), transient=True) as progress:
        task = progress.add_task(f"Downloading {file.name}", total=None)
        yield lambda received, total: progress.update(task, completed=received, total=total or None)


def notes(warnings: Iterable[Mapping[str, Any] | str]) -> list[Part]:
    """A line for each warning of the server."""
    texts = [warning if isinstance(warning, str) else warning["message"] for warning in warnings]
    return [f"[yellow]Note:[/] {escape(one_line(cli_words(message)))}" for message in texts]


def cli_words(text: str) -> str:
    """A message with only the command line's form of each option that `reading_hint` wrote in both forms."""
    return _BOTH_FORMS.sub(r"\1", text)


def one_line(text: str) -> str:
    """The text with an escape in place of each character that could move or colour what a terminal shows."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def clock(moment: str | None) -> str:
    """An RFC 3339 time in the local time zone."""
    if moment is None:
        return "–"
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
