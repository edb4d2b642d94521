"""`stms jobs labels` and `stms jobs correct`: labels that a job found, and their corrections."""

from __future__ import annotations

import csv
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from app.commands.output import Answer, CommandFailed, field, listing
from app.commands.remote import JobArgument, asks_server
from stms_client import Client

_COLUMNS = ("row", "label", "certainty")


@asks_server()
def labels(
    client: Client,
    job_id: JobArgument,
    certainty: Annotated[bool, typer.Option("--uncertain", help="The least certain rows first.")] = False,
    label: Annotated[str | None, typer.Option("--label", help="Only rows with this label.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Number of rows; 0: all.")] = 20,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write them to this CSV file, for `stms jobs correct`.")
    ] = None,
) -> Answer:
    """Show the labels that a job found for the rows of its data set."""
    order = "certainty" if certainty else "row"
    rows = list(islice(client.job_labels(job_id, order=order, label=label), limit or None))
    if output is None:
        return listing(rows, [*map(field, _COLUMNS)], empty="No row has this label.")
    with output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return Answer(rows, f"{len(rows)} labels are in {output}.")


@asks_server()
def correct(
    client: Client,
    job_id: JobArgument,
    file: Annotated[
        Path | None,
        typer.Argument(
            exists=True, dir_okay=False, help="CSV with the columns row and label; a blank label removes it."
        ),
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="A new name of a class.")
    ] = None,
    given: Annotated[
        bool,
        typer.Option(
            "--given", help="Keep only labels of the data set and the file, to label the rest again."
        ),
    ] = False,
    name: Annotated[str | None, typer.Option("--name", help="Name of the data set.")] = None,
) -> Answer:
    """Send the labels of a job back, corrected, as a data set to train on."""
    dataset = client.correct_labels(
        job_id,
        {} if file is None else _corrections(file),
        rename=dict(map(_renamed, rename or ())),
        keep="given" if given else "all",
        name=name,
    )
    text = f"The corrected labels are data set {dataset['id']}: stms train {dataset['id']} --model NAME"
    return Answer(dataset, text)


def _corrections(file: Path) -> dict[int, str | None]:
    with file.open(newline="", encoding="utf-8") as lines:
        try:
            return {int(one["row"]): one["label"] or None for one in csv.DictReader(lines)}
        except (KeyError, TypeError, ValueError) as error:
            raise CommandFailed(f"{file} needs the columns row, a whole number, and label.") from error


def _renamed(text: str) -> tuple[str, str]:
    old, sign, new = text.partition("=")
    if not (old and sign and new):
        raise typer.BadParameter(f"{text!r} is not OLD=NEW", param_hint="--rename")
    return old, new
