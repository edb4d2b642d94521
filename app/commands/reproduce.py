"""`stms reproduce`: the paper's experiment, and a report."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.commands.output import CommandFailed, error_console, say

if TYPE_CHECKING:
    from experiments.reproduce import Update

Choice = Literal["paper", "open", "both"]


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
    splits: Annotated[
        int | None, typer.Option("--splits", min=1, help="At most so many splits of a data set.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, max=4096, help="Fits at the same time.")] = 2,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of everything random.")] = 0,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Fetch sets of the paper that are missing in --data from OpenML.")
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Write the report of what is already in the work folder.")
    ] = False,
) -> None:
    """Do the paper's experiment again and write the report: reproduction.md, .json and .html.

    Results are kept record by record, so the command can be stopped at any time and called again. The report
    shows all complete data sets of the work folder, of both grids.

    Examples:

      stms reproduce --data ../shared/data --grid open --data-sets vowel,satimage

      stms reproduce --data ../shared/data --grid paper --work /var/tmp/reproduction
    """
    if find_spec("matplotlib") is None:
        raise CommandFailed("The report needs matplotlib.", ["Install it with: pip install 'stms[reports]'"])
    # Solvers are loaded here and not with the command line: other commands need none of them.
    from core.errors import InvalidProblem
    from experiments.data import DataMissing, data_folder
    from experiments.openml import fetch_missing
    from experiments.plans import DATA_SETS, GRIDS
    from experiments.protocol import Effort
    from experiments.report import Facts, write_report
    from experiments.reproduce import reproduce as run
    from experiments.results import ResultStore
    from experiments.summary import summarise

    names = _names(data_sets, DATA_SETS)
    store, effort = ResultStore(work), Effort(seed, threads)
    if not report_only:
        grids = GRIDS if grid == "both" else (grid,)
        try:
            if fetch and data is None:
                raise DataMissing("Where shall the data sets go? Give --data FOLDER.")
            if fetch and data is not None:
                fetch_missing(names, data)
            run(names, grids, data_folder(data), store, effort, _print, splits)
        except (DataMissing, InvalidProblem) as error:
            raise CommandFailed(str(error)) from error
    command = shlex.join(["stms", *sys.argv[1:]])
    facts = Facts(command, seed, effort.resampling.replicates)
    for path in write_report(summarise(store, DATA_SETS), facts, out):
        say(f"Written: {path}")


def _names(given: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """The data sets asked for. Raises BadParameter, which ends with exit code 2."""
    if given is None:
        return known
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise typer.BadParameter(
            f"unknown data set {', '.join(unknown) or repr(given)}; there are {', '.join(known)}",
            param_hint="--data-sets",
        )
    return names


def _print(update: Update) -> None:
    """One line for each record that was made, and for what was found on the way."""
    if not update.new:
        return
    where = f"{update.run.data_set} {update.run.grid} split {update.run.split}"
    what = update.note or update.name
    error_console().print(f"{update.done}/{update.total}  {where}  {what}{_finish(update.seconds_left)}")


def _finish(seconds_left: float | None) -> str:
    if seconds_left is None:
        return ""
    finish = datetime.now().astimezone() + timedelta(seconds=seconds_left)
    return f"  · {seconds_left / 60:.0f} min left, until {finish:%H:%M}"
