"""`stms reproduce`: the paper's experiment, and a report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from app.commands.output import CommandFailed, error_console, say
from app.domain.installation import require_training

if TYPE_CHECKING:
    from experiments.plans import Effort
    from experiments.reproduce import Request, Update
    from experiments.store import Store

Choice = Literal["paper", "open", "both"]
Name = TypeVar("Name", bound=str)


def reproduce(
    data: Annotated[
        Path | None,
        typer.Option("--data", envvar="STMS_DATA", help="Folder of the data sets, NAME.npz each."),
    ] = None,
    grid: Annotated[
        Choice, typer.Option("--grid", help="The paper's grid, the open grid, or both.")
    ] = "both",
    out: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("docs"),
    work: Annotated[
        Path, typer.Option("--work", help="Folder of results; a stopped run goes on from there.")
    ] = Path("reproduction"),
    data_sets: Annotated[
        str | None, typer.Option("--data-sets", help="Names with commas between them; by default all.")
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            "--parts",
            help="Which of protocol, probabilities and compact, with commas between; by default all.",
        ),
    ] = None,
    splits: Annotated[
        int | None, typer.Option("--splits", min=1, help="At most so many splits of a data set.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, max=4096, help="Fits at the same time.")] = 2,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of everything random.")] = 0,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Write the report of stored results; run nothing.")
    ] = False,
) -> None:
    """Repeat the paper's experiment and write the report: reproduction.md and .json, and figures.

    Parts: "protocol" tunes, trains and measures teachers and students.
    "probabilities" calibrates the gSVM students of the open grid, from the
    protocol's results. "compact" is the curve of cost against F of compact
    students on letter, satimage and mnist, with a teacher of its own on each.

    Every record is stored as soon as it is made: the command can be stopped
    at any time and called again. The report shows what is complete in the
    work folder, of both grids, and lists what is not. What it shows is also
    stored beside it, in reproduction/results.jsonl, with its figures: a later
    report takes from there what its work folder does not have. Data sets that are not in
    --data are passed over, unless they are asked for by name.

    Examples:

      stms reproduce --data ../shared/data --grid open --data-sets vowel,satimage

      stms reproduce --data ../shared/data --grid paper --work /var/tmp/reproduction

      stms reproduce --data ../shared/data --parts compact,probabilities
    """
    require_training()
    if find_spec("matplotlib") is None:
        raise CommandFailed("The report needs matplotlib.", ["Install it with: pip install 'stms[reports]'"])
    # Solvers are imported here and not with the command line: other commands need none of them.
    from experiments.plans import DATA_SETS, GRIDS, Effort
    from experiments.reproduce import PARTS, Request
    from experiments.store import Store

    names = _names(data_sets, DATA_SETS, "--data-sets")
    chosen = tuple(part for part in PARTS if part in _names(parts, PARTS, "--parts"))
    request = Request(
        names, GRIDS if grid == "both" else (grid,), chosen, splits, skip_missing=data_sets is None
    )
    effort = Effort(seed, threads)
    command = shlex.join(["stms", *sys.argv[1:]])
    try:
        records, kept = Store(work / "records.jsonl"), Store(out / "reproduction" / "results.jsonl")
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if not report_only:
        _make_records(request, data, records, effort, command)
    _write_report(records, kept, effort, command, out)


def _make_records(request: Request, data: Path | None, records: Store, effort: Effort, command: str) -> None:
    """Everything that is missing of the request. Raises CommandFailed."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    from core.errors import InvalidProblem
    from experiments.data import DataMissing
    from experiments.reproduce import reproduce as run

    if data is None:
        raise CommandFailed("The folder of the data sets is not known: give --data FOLDER or set STMS_DATA.")
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    try:
        records.remember(command)
        with Progress(*columns, console=error_console(), disable=not error_console().is_terminal) as progress:
            task = progress.add_task("records", total=None)

            def listen(update: Update) -> None:
                progress.update(task, completed=update.done, total=update.total or None)
                _print(update)

            run(request, data, records, effort, listen)
    except (DataMissing, InvalidProblem) as error:
        raise CommandFailed(str(error)) from error


def _write_report(records: Store, kept: Store, effort: Effort, command: str, out: Path) -> None:
    from experiments.report.page import about, write_report
    from experiments.report.results import read, update

    update(kept, records, effort)
    for earlier in records.commands():
        kept.remember(earlier)
    results = read(kept, effort)
    for path in write_report(results, about(results, effort, command, kept.commands()), out):
        say(f"Written: {path}")


def _names(given: str | None, known: Sequence[Name], option: str) -> tuple[Name, ...]:
    """What was asked for, by default all. Raises BadParameter, which ends with exit code 2."""
    if given is None:
        return tuple(known)
    asked = dict.fromkeys(name.strip() for name in given.split(",") if name.strip())
    unknown = [name for name in asked if name not in known]
    if unknown or not asked:
        raise typer.BadParameter(
            f"there is no {', '.join(unknown) or repr(given)}; there are {', '.join(known)}",
            param_hint=option,
        )
    return tuple(name for name in known if name in asked)


def _print(update: Update) -> None:
    """One line for each record that was made, and for each message."""
    if update.new:
        where = f"{update.run.data_set} {update.run.grid} split {update.run.split}"
        error_console().print(f"{update.done}/{update.total}  {where}  {update.note or update.name}")
