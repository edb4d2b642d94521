"""`stms shadows`: another version that answers a share of an alias's queries, unseen."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.commands.methods import made
from app.commands.models import ModelArgument
from app.commands.monitors import AliasOption
from app.commands.output import Answer, Table, field
from app.commands.remote import asks_server
from stms_client import Client

commands = typer.Typer(no_args_is_help=True)


@commands.command("set")
@asks_server()
def set_(
    client: Client,
    model: ModelArgument,
    version: Annotated[int, typer.Argument(help="Number of the version that answers as well.")],
    alias: AliasOption = "latest",
    share: Annotated[float, typer.Option("--share", help="Share of the answers.")] = 0.1,
    days: Annotated[float, typer.Option("--days", help="Days until it ends by itself.")] = 7.0,
) -> str:
    """Let another version answer a share of the queries to an alias as well; nobody sees its answers.

    Example:  stms shadows set letters 5 --alias production --share 0.2
    """
    shadow = client.put_shadow(model, alias, version, share=share, days=days)
    return f"Version {version} answers a share of {share:g} of {model}@{alias} until {shadow['until']}."


@commands.command("show")
@asks_server()
def show(client: Client, model: ModelArgument, alias: AliasOption = "latest") -> Answer:
    """How often the shadow of an alias gave the same answers, and how much traffic it got.

    Example:  stms shadows show letters --alias production
    """
    found = client.shadow(model, alias)
    empty = (
        f"Version {found['shadow']['version']} has answered nothing beside version {found['present']}"
        f" ({found['failed']} failed, {found['dropped']} dropped)."
    )
    columns = [
        field("label", "class"),
        field("asked"),
        ("equal", _agreement),
        field("only_present", "only present yes"),
        field("only_candidate", "only candidate yes"),
    ]
    return Answer(found, Table(columns, found["classes"], empty))


def _agreement(row: Any) -> str:
    equal = row["agreement"]
    return "–" if equal is None else f"{equal['estimate']:.4f} ({equal['low']:.4f} to {equal['high']:.4f})"


commands.command("delete")(
    made(Client.delete_shadow, says="The shadow of {model}@{alias} and its counts are deleted.")
)
