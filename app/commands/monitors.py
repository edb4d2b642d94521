"""`stms monitors`: what aliases promise in production, and which of their answers people are asked about."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.commands.methods import made
from app.commands.models import ModelArgument
from app.commands.output import Answer, field, moment
from app.commands.remote import asks_server
from stms_client import Client

commands = typer.Typer(no_args_is_help=True)

AliasOption = Annotated[str, typer.Option("--alias", help="Name of the alias.")]


@commands.command("set")
@asks_server()
def set_(
    client: Client,
    model: ModelArgument,
    alias: AliasOption = "latest",
    labels: Annotated[
        list[str] | None,
        typer.Option("--class", help="Only this class; may be repeated.", show_default="all"),
    ] = None,
    max_fpr: Annotated[
        str | None,
        typer.Option("--max-fpr", help="Largest share of other rows that get a yes, or `promised`."),
    ] = None,
    min_precision: Annotated[
        float | None, typer.Option("--min-precision", help="Least share of right ones among yes answers.")
    ] = None,
    min_recall: Annotated[
        float | None, typer.Option("--min-recall", help="Least share of the class that gets a yes.")
    ] = None,
    yes: Annotated[float, typer.Option("--yes", help="Share of yes answers to ask about.")] = 0.5,
    floor: Annotated[float, typer.Option("--floor", help="Least share of no answers to ask about.")] = 0.01,
    per_day: Annotated[int, typer.Option("--per-day", help="Answers to ask about a day.")] = 200,
    uniform: Annotated[
        bool, typer.Option("--uniform", help="Ask about all no answers alike: without probabilities.")
    ] = False,
    retain_days: Annotated[int, typer.Option("--retain-days", help="Days to keep samples.")] = 30,
    rows: Annotated[
        bool, typer.Option("--rows", help="Keep the rows of samples, too (STMS_QUERY_SAMPLES=rows).")
    ] = False,
    rollback: Annotated[
        bool,
        typer.Option("--rollback", help="On an alarm go back to the version before, if no person moved it."),
    ] = False,
) -> Answer:
    """Choose answers of an alias that people are asked about, and name what it promises.

    The server needs STMS_QUERY_SAMPLES=ids, or rows. Setting another monitor begins anew.

    Example:  stms monitors set letters --alias production --max-fpr promised --min-precision 0.9
    """
    rate = max_fpr if max_fpr in (None, "promised") else _number(max_fpr)
    wanted = {"max_false_positive_rate": rate, "min_precision": min_precision, "min_recall": min_recall}
    promises = {name: value for name, value in wanted.items() if value is not None}
    ask: dict[str, Any] = {"yes": yes, "floor": floor, "per_day": per_day}
    if uniform:
        ask["no"] = "uniform"
    monitor = client.put_monitor(
        model,
        alias,
        classes=dict.fromkeys(labels or ["*"], promises),
        ask=ask,
        retain_days=retain_days,
        store="rows" if rows else None,
        on_alarm="rollback" if rollback else None,
    )
    return Answer(monitor, f"Answers of {model}@{alias} are sampled from now on.")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter("give a number, or `promised`", param_hint="--max-fpr") from None


commands.command("show")(made(Client.monitor, example="stms monitors show letters --alias production"))
commands.command("delete")(
    made(Client.delete_monitor, says="The monitor of {model}@{alias} and its samples are deleted.")
)
commands.command("samples")(
    made(
        Client.samples,
        example="stms monitors samples letters --alias production",
        columns=[
            field("id"),
            field("label", "class"),
            ("answer", lambda row: "yes" if row["answer"] else "no"),
            field("score"),
            field("probability"),
            field("request_id", "request"),
            field("row"),
            moment("at"),
        ],
        empty="No answer waits for somebody who says whether it was right.",
        limit=100,
    )
)
commands.command("acknowledge")(
    made(
        Client.acknowledge_alarms,
        example='stms monitors acknowledge letters --note "new scanner, retrained"',
        says="{answer[alarms]} alarms are acknowledged.",
        options={
            "labels": Annotated[
                list[str] | None,
                typer.Option("--class", help="Only of this class; may be repeated.", show_default="all"),
            ]
        },
    )
)
