"""`stms jobs labels`, `correct` and `suspects`: labels that a job found, or found suspect, and their
corrections.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from app.commands.output import Answer, CommandFailed, field, listing
from app.commands.remote import JobArgument, asks_server
from stms_client import Client

_COLUMNS = ("row", "label", "certainty")
_PROBABILITIES = ("probability_of_label", "probability_of_suggested")
_SUSPECT_COLUMNS = ("row", "label", "suggested", *_PROBABILITIES, "part")
_SUSPECT_FILE = ("row", "of", "suggested", "label", "keep", *_PROBABILITIES, "part", "x")


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
    _write(output, rows, _COLUMNS)
    return Answer(rows, f"{len(rows)} labels are in {output}.")


@asks_server()
def suspects(
    client: Client,
    job_id: JobArgument,
    label: Annotated[str | None, typer.Option("--class", help="Only rows with this label.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Number of rows; 0: all.")] = 20,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write them to this CSV file, for --corrections.")
    ] = None,
    corrections: Annotated[
        Path | None,
        typer.Option(
            "--corrections",
            exists=True,
            dir_okay=False,
            help="Send back this CSV file with the columns row, label, and keep: the right label of each row,"
            " or yes in keep where the label that the row has is right. A row with neither is left out.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the corrected data set.")] = None,
) -> Answer:
    """Show the rows whose labels a job found suspect, the most suspect first; send them back corrected."""
    if corrections is not None:
        labels, keep = _decisions(corrections)
        dataset = client.correct_suspects(job_id, labels, keep=keep, name=name)
        text = (
            f"{len(labels)} labels are corrected and {len(keep)} confirmed in data set {dataset['id']}:"
            f" stms train {dataset['id']} --model NAME"
        )
        return Answer(dataset, text)
    rows = list(islice(client.job_suspects(job_id, label=label), limit or None))
    if output is None:
        return listing(rows, [*map(field, _SUSPECT_COLUMNS)], empty="No row is suspect.")
    # Who opens the file fills in label or keep.
    blank = {"label": "", "keep": ""}
    listed = [{**row, "of": row["label"], "x": json.dumps(row["x"]), **blank} for row in rows]
    _write(output, listed, _SUSPECT_FILE)
    return Answer(
        rows, f"{len(rows)} rows are in {output}: fill in label or keep, then --corrections {output}."
    )


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
        rename=dict(new_name(one) for one in rename or ()),
        keep="given" if given else "all",
        name=name,
    )
    text = f"The corrected labels are data set {dataset['id']}: stms train {dataset['id']} --model NAME"
    return Answer(dataset, text)


def _write(output: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    with output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _decisions(file: Path) -> tuple[dict[int, str], list[int]]:
    """New labels by row, and the rows that keep theirs."""
    labels: dict[int, str] = {}
    keep: list[int] = []
    with file.open(newline="", encoding="utf-8") as lines:
        try:
            for one in csv.DictReader(lines):
                row, label, keeps = int(one["row"]), one["label"], one.get("keep")
                if label:
                    labels[row] = label
                elif keeps:
                    keep.append(row)
        except (KeyError, TypeError, ValueError) as error:
            raise CommandFailed(f"{file} needs the columns row, a whole number, and label.") from error
    if not labels and not keep:
        raise CommandFailed(f"No row of {file} has a label, or yes in keep: there is nothing to send.")
    return labels, keep


def _corrections(file: Path) -> dict[int, str | None]:
    with file.open(newline="", encoding="utf-8") as lines:
        try:
            return {int(one["row"]): one["label"] or None for one in csv.DictReader(lines)}
        except (KeyError, TypeError, ValueError) as error:
            raise CommandFailed(f"{file} needs the columns row, a whole number, and label.") from error


def new_name(text: str) -> tuple[str, str]:
    """A class and its new name, written OLD=NEW."""
    old, sign, new = text.partition("=")
    if not (old and sign and new):
        raise typer.BadParameter(f"{text!r} is not OLD=NEW", param_hint="OLD=NEW")
    return old, new
