"""`stms feedback`: say of answers whether they were right."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.commands.output import Answer, CommandFailed, Table, field
from app.commands.remote import asks_server
from stms_client import Client

commands = typer.Typer(no_args_is_help=True)

SamplesArgument = Annotated[list[str], typer.Argument(help="Ids of samples, smp_….")]
_AT_ONCE: Final = 1000
_WORDS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_COLUMNS: Final = ("sample", "request_id", "row", "label", "model", "answer", "correct", "truth")


@commands.command()
@asks_server()
def right(client: Client, samples: SamplesArgument) -> Answer:
    """Say that answers were right.

    Example:  stms feedback right smp_0667f1c2a9b3d4e5f6a7b8c9
    """
    return _given(client, [{"sample": sample, "correct": True} for sample in samples])


@commands.command()
@asks_server()
def wrong(client: Client, samples: SamplesArgument) -> Answer:
    """Say that answers were wrong.

    Example:  stms feedback wrong smp_0667f1c2a9b3d4e5f6a7b8c9
    """
    return _given(client, [{"sample": sample, "correct": False} for sample in samples])


@commands.command()
@asks_server()
def truth(
    client: Client,
    sample: Annotated[str, typer.Argument(help="Id of a sample, smp_….")],
    label: Annotated[str, typer.Argument(help="The class that the row is of.")],
) -> Answer:
    """Say of which class the row of a sample is, which answers all its sampled classes.

    Example:  stms feedback truth smp_0667f1c2a9b3d4e5f6a7b8c9 B
    """
    return _given(client, [{"sample": sample, "truth": label}])


@commands.command("import")
@asks_server()
def import_(
    client: Client,
    file: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            readable=True,
            help=f"CSV with a head; columns: {', '.join(_COLUMNS)}.",
        ),
    ],
) -> Answer:
    """Give the feedback in a CSV file: the same feedback again changes nothing.

    A row names a sample, or a request_id with a label (the class that was asked) and perhaps a row, and says
    in correct (true, false) or truth (a class) what is so.

    Example:  stms feedback import answers.csv
    """
    accepted, replaced, refused = 0, 0, list[dict[str, Any]]()
    with file.open(newline="", encoding="utf-8-sig") as stream:
        rows = enumerate(csv.DictReader(stream), 2)
        while some := list(islice(rows, _AT_ONCE)):
            answer = client.give_feedback([_item(line, row) for line, row in some])
            accepted += answer["accepted"]
            replaced += answer["replaced"]
            pairs = zip(some, answer["results"], strict=True)
            refused += ({"line": line, **result} for (line, _), result in pairs if result["id"] is None)
    document = {"accepted": accepted, "replaced": replaced, "refused": refused}
    return _answer(document, accepted, replaced, refused)


def _item(line: int, row: Mapping[str | None, Any]) -> dict[str, Any]:
    """The item of a row of the file. Raises CommandFailed."""
    unknown = [name for name in row if name not in _COLUMNS]
    if unknown:
        raise CommandFailed(f"The file has the column {unknown[0]!r}; known are {', '.join(_COLUMNS)}.")
    item: dict[str, Any] = {str(name): value for name, value in row.items() if value}
    for name in ("answer", "correct"):
        if name in item:
            word = str(item[name]).strip().lower()
            if word not in _WORDS:
                raise CommandFailed(f"Line {line}: {name} is {item[name]!r}, not true or false.")
            item[name] = _WORDS[word]
    if "row" in item:
        if not str(item["row"]).isdigit():
            raise CommandFailed(f"Line {line}: row is {item['row']!r}, not a number.")
        item["row"] = int(item["row"])
    return item


def _given(client: Client, items: Sequence[Mapping[str, Any]]) -> Answer:
    document = client.give_feedback(items)
    refused = list(_refused(items, document["results"]))
    return _answer(document, document["accepted"], document["replaced"], refused)


def _refused(items: Sequence[Mapping[str, Any]], results: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for item, result in zip(items, results, strict=True):
        if result["id"] is None:
            yield {"line": item["sample"], **result}


def _answer(document: Any, accepted: int, replaced: int, refused: Sequence[Mapping[str, Any]]) -> Answer:
    text = f"{accepted} accepted, {replaced} of them in place of earlier ones, {len(refused)} refused."
    table = Table([field("line", "of"), field("code"), field("message")], refused, empty="")
    return Answer(document, text, *([table] if refused else []))
