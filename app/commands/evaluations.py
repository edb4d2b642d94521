"""`stms evaluations`: list, show, cancel and delete evaluations."""

from __future__ import annotations

from typing import Annotated

import typer

from app.commands.evaluate import report
from app.commands.methods import made
from app.commands.output import Answer, Fields, field, moment
from app.commands.remote import asks_server
from stms_client import Client

commands = typer.Typer(no_args_is_help=True)

EvaluationArgument = Annotated[
    str, typer.Argument(help="Id of the evaluation, from `stms evaluations list`.")
]
_ID = {"evaluation_id": EvaluationArgument}

commands.command("list")(
    made(
        Client.evaluations,
        example="stms evaluations list --version letters@5",
        columns=[
            *map(field, ("id", "version", "baseline", "dataset_id", "state", "rows_used", "verdict")),
            moment("created_at", "created"),
        ],
        empty="There are no evaluations. `stms evaluate` makes one.",
        limit=50,
    )
)


@commands.command()
@asks_server()
def show(client: Client, evaluation_id: EvaluationArgument) -> Answer:
    """Show one evaluation with the figures of its classes."""
    found = client.evaluation(evaluation_id)
    if found["state"] != "succeeded":
        names = ("id", "version", "baseline", "dataset_id", "state", "error_code", "error_message")
        return Answer(found, Fields({name: found.get(name) for name in names}))
    return Answer(found, *report(found))


commands.command("cancel")(
    made(Client.cancel_evaluation, says="Evaluation {evaluation_id} is cancelled.", options=_ID)
)
commands.command("delete")(
    made(Client.delete_evaluation, says="Evaluation {evaluation_id} is deleted.", options=_ID)
)
