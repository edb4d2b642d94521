"""`stms aliases`: the gates of aliases."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from app.commands.evaluate import Alpha, Tolerance
from app.commands.methods import made
from app.commands.models import ModelArgument
from app.commands.output import Answer, CommandFailed, Fields
from app.commands.remote import asks_server
from stms_client import Client

commands = typer.Typer(no_args_is_help=True)


class GateRule(StrEnum):
    """What an evaluation must say."""

    not_worse = "not_worse"
    no_class_worse = "no_class_worse"


AliasArgument = Annotated[str, typer.Argument(help="Name of the alias, such as production.")]


@commands.command()
@asks_server()
def gate(
    client: Client,
    model: ModelArgument,
    alias: AliasArgument,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Id of the data set on which versions are evaluated.")
    ] = None,
    rule: Annotated[
        GateRule,
        typer.Option("--rule", help="Every class is proved not worse, or no class is proved worse."),
    ] = GateRule.not_worse,
    tolerance: Tolerance = 0.01,
    alpha: Alpha = 0.05,
    least_rows: Annotated[
        int, typer.Option("--least-rows", min=50, help="Rows that the evaluation must have used.")
    ] = 50,
) -> Answer:
    """Let an alias move only to versions not worse than its present one; without --dataset, show its gate.

    Examples:

      stms aliases gate letters production --dataset ds_01 --rule no_class_worse

      stms evaluate letters@5 --dataset ds_01 --baseline letters@production

      stms models alias letters production 5
    """
    if dataset is None:
        if (rule, tolerance, alpha, least_rows) != (GateRule.not_worse, 0.01, 0.05, 50):
            raise CommandFailed(
                "Give --dataset ID: a gate needs the data set on which versions are evaluated."
            )
        found = client.gate(model, alias)
    else:
        found = client.set_gate(
            model, alias, dataset, rule=rule.value, tolerance=tolerance, alpha=alpha, least_rows=least_rows
        )
    return Answer(found, Fields({**found}))


commands.command("ungate")(made(Client.delete_gate, says="Alias {model}@{alias} has no gate any more."))
