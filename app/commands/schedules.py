"""`stms schedules`: train a model again by itself, by time, after new rows or on an alarm."""

from __future__ import annotations

from typing import Annotated

import typer

from app.commands.methods import made
from app.commands.models import ModelArgument
from app.commands.output import Answer
from app.commands.remote import asks_server
from stms_client import Client

commands = typer.Typer(no_args_is_help=True)


@commands.command("set")
@asks_server()
def set_(
    client: Client,
    model: ModelArgument,
    base: Annotated[str, typer.Option("--from", help="Alias whose version is trained again.")] = "latest",
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="A data set of the series whose newest revision is trained on.",
            show_default="that of the version",
        ),
    ] = None,
    every: Annotated[str | None, typer.Option("--every", help="daily or weekly.")] = None,
    new_rows: Annotated[
        int | None, typer.Option("--new-rows", min=1, help="When the newest revision has so many rows more.")
    ] = None,
    alarm: Annotated[bool, typer.Option("--alarm", help="When a monitor has given an alarm.")] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Train the students of changed classes alone.")
    ] = False,
    promote: Annotated[
        str | None,
        typer.Option("--promote", help="Alias that moves to the new version if its gate lets it pass."),
    ] = None,
    stop_after_failures: Annotated[
        int, typer.Option("--stop-after-failures", min=1, help="Failed jobs in a row after which it stops.")
    ] = 3,
) -> Answer:
    """Train a model again by itself. No alias moves, unless --promote names one that has a gate.

    Example:  stms schedules set letters --from production --every weekly --new-rows 500
    """
    schedule = client.put_schedule(
        model,
        base=base,
        dataset_id=dataset,
        every=every,
        new_rows=new_rows,
        alarm=alarm,
        classes="changed" if changed else "all",
        alias=promote,
        promote="never" if promote is None else "if_gate_passes",
        stop_after_failures=stop_after_failures,
    )
    return Answer(schedule, f"Model {model} is trained again by itself from now on.")


commands.command("show")(made(Client.schedule, example="stms schedules show letters"))
commands.command("delete")(
    made(Client.delete_schedule, says="The schedule of {model} is deleted; a job that it has begun goes on.")
)
