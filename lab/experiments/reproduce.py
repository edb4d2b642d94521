"""Repeat the paper's experiment and write the report: reproduction.md and .json, and figures.

    python -m lab.experiments.reproduce [--data FOLDER] [--grid paper|open|both] [--data-sets NAME,…]
                                        [--parts PART,…] [--splits N] [--work FOLDER] [--out FOLDER]
                                        [--threads N] [--seed N] [--report-only]

Parts: "protocol" tunes, trains and measures teachers and students. "probabilities" calibrates the gSVM
students of the open grid, from the protocol's results. "compact" is the curve of cost against F of compact
students on letter, satimage and mnist, with a teacher of its own on each.

Every record is stored as soon as it is made: the program can be stopped at any time and called again. The
report shows what is complete in the work folder, of both grids, and lists what is not. What it shows is also
stored beside it, in reproduction/results.jsonl, with its figures: a later report takes from there what its
work folder does not have. Data sets that are not in --data are passed over, unless they are asked for by
name.

    python -m lab.experiments.reproduce --data ../shared/data --grid open --data-sets vowel,satimage
    python -m lab.experiments.reproduce --data ../shared/data --parts compact,probabilities
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from app.commands.output import error_console
from core.errors import InvalidProblem
from lab.experiments.data import DataMissing
from lab.experiments.parts import PARTS, Request, Update, reproduce
from lab.experiments.plans import DATA_SETS, GRIDS, Effort
from lab.experiments.report.page import about, write_report
from lab.experiments.report.results import read, update
from lab.experiments.store import Store

PROGRAM = "python -m lab.experiments.reproduce"
Name = TypeVar("Name", bound=str)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 if a data set is missing or a file has no records, 2 for wrong usage."""
    given = _parser().parse_args(arguments)
    names = tuple(given.data_sets or DATA_SETS)
    grids = GRIDS if given.grid == "both" else (given.grid,)
    parts = tuple(part for part in PARTS if part in (given.parts or PARTS))
    request = Request(names, grids, parts, given.splits, skip_missing=given.data_sets is None)
    effort = Effort(given.seed, given.threads)
    command = shlex.join([*PROGRAM.split(), *(sys.argv[1:] if arguments is None else arguments)])
    try:
        records = Store(given.work / "records.jsonl")
        kept = Store(given.out / "reproduction" / "results.jsonl")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        if not given.report_only:
            _make_records(request, given.data, records, effort, command)
    except (DataMissing, InvalidProblem) as error:
        print(error, file=sys.stderr)
        return 1
    _write_report(records, kept, effort, command, given.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = os.environ.get("STMS_DATA")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(folder) if folder else None,
        help="folder of the data sets, NAME.npz each; by default $STMS_DATA",
    )
    parser.add_argument("--grid", choices=(*GRIDS, "both"), default="both", help="by default both")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the report [%(default)s]")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("reproduction"),
        help="folder of results, from which a stopped run goes on [%(default)s]",
    )
    parser.add_argument("--data-sets", type=_names(DATA_SETS), help="with commas between; by default all")
    parser.add_argument("--parts", type=_names(PARTS), help="with commas between; by default all")
    parser.add_argument("--splits", type=_at_least_one, help="at most so many splits of a data set")
    parser.add_argument(
        "--threads", type=_at_least_one, default=2, help="fits at the same time [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything random [%(default)s]")
    parser.add_argument(
        "--report-only", action="store_true", help="write the report of stored results; run nothing"
    )
    return parser


def _names(choices: Sequence[Name]) -> Callable[[str], tuple[Name, ...]]:
    """Reads a list with commas. Raises ArgumentTypeError, which ends with exit code 2."""

    def names(text: str) -> tuple[Name, ...]:
        asked = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
        unknown = [name for name in asked if name not in choices]
        if unknown or not asked:
            message = f"there is no {', '.join(unknown) or repr(text)}; there are {', '.join(choices)}"
            raise argparse.ArgumentTypeError(message)
        return tuple(name for name in choices if name in asked)

    return names


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _make_records(request: Request, data: Path | None, records: Store, effort: Effort, command: str) -> None:
    """Everything that is missing of the request. Raises DataMissing, InvalidProblem."""
    if data is None:
        raise DataMissing("The folder of the data sets is not known: give --data FOLDER or set STMS_DATA.")
    console = error_console()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    records.remember(command)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("records", total=None)

        def listen(heard: Update) -> None:
            progress.update(task, completed=heard.done, total=heard.total or None)
            _print(heard)

        reproduce(request, data, records, effort, listen)


def _write_report(records: Store, kept: Store, effort: Effort, command: str, out: Path) -> None:
    update(kept, records, effort)
    for earlier in records.commands():
        kept.remember(earlier)
    results = read(kept, effort)
    for path in write_report(results, about(results, effort, command, kept.commands()), out):
        print(f"Written: {path}")


def _print(heard: Update) -> None:
    """One line for each record that was made, and for each message."""
    if heard.new:
        where = f"{heard.run.data_set} {heard.run.grid} split {heard.run.split}"
        error_console().print(f"{heard.done}/{heard.total}  {where}  {heard.note or heard.name}")


if __name__ == "__main__":
    sys.exit(main())
