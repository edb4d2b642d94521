"""`stms review`: the samples that people should look at next, and what they say of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from app.commands.models import ModelArgument
from app.commands.monitors import AliasOption
from app.commands.output import Answer, say
from app.commands.remote import asks_server
from stms_client import Client

_SHOWN: Final = 400
_SAYS: Final = {"y": "yes", "n": "no", "s": "skip", "q": "quit"}


@asks_server()
def review(
    client: Client,
    model: ModelArgument,
    alias: AliasOption = "latest",
    label: Annotated[str | None, typer.Option("--class", help="Only this class.", show_default="all")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="Most samples.")] = 20,
    dataset: Annotated[
        bool, typer.Option("--dataset", help="Make a data set of all reviewed rows at the end.")
    ] = False,
    append_to: Annotated[
        str | None,
        typer.Option("--append-to", help="Id of a data set that the rows are appended to, as a revision."),
    ] = None,
) -> Answer:
    """Look at samples, those whose labels make the rates exact soonest first, and say yes or no of each.

    In a terminal one key answers: y (it is of the class), n (it is not), s (skip), q (stop). Elsewhere the
    samples are only listed; `stms feedback` says what they are.

    Example:  stms review letters --alias production --class A --append-to ds_01a2
    """
    found = client.review(model, alias, label=label, limit=limit)
    said = 0
    if sys.stdin.isatty():
        for number, item in enumerate(found["items"], 1):
            key = _asked(item, f"{number} of {len(found['items'])}")
            if key == "q":
                break
            client.give_feedback([_feedback(item["sample"], key)])
            said += key != "s"
    else:
        for item in found["items"]:
            sample = item["sample"]
            say(
                f"{sample['id']}  {escape(sample['label'])}  {'yes' if sample['answer'] else 'no'}"
                f"  {_row(item)}"
            )
    document: dict[str, Any] = {"waiting": found["waiting"], "said": said}
    text = f"{said} said, {found['waiting'] - said} samples wait."
    if dataset or append_to is not None:
        made = client.review_dataset(model, alias)
        known = made["dataset"]["id"]
        if append_to is not None:
            known = client.revise_dataset(append_to, append=known)["id"]
        document["dataset_id"] = known
        text += f" Data set {known}."
    return Answer(document, text)


def _asked(item: Mapping[str, Any], place: str) -> str:
    """The key that somebody presses."""
    sample = item["sample"]
    say(f"[bold]{place}[/]  Is it {escape(sample['label'])}?  {_row(item)}")
    while True:
        typer.echo("  y yes, n no, s skip, q quit: ", nl=False)
        key = typer.getchar().lower()
        typer.echo(_SAYS.get(key, "?"))
        if key in _SAYS:
            return key


def _row(item: Mapping[str, Any]) -> str:
    row = item["row"]
    text = f"request {item['sample']['request_id']}, row {item['sample']['row']}" if row is None else str(row)
    return escape(text[:_SHOWN] + ("…" if len(text) > _SHOWN else ""))


def _feedback(sample: Mapping[str, Any], key: str) -> dict[str, Any]:
    if key == "s":
        return {"sample": sample["id"], "skip": True}
    return {"sample": sample["id"], "correct": sample["answer"] == (key == "y")}
