"""`stms models`: list, import and delete model versions, and manage aliases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from app.commands.methods import made
from app.commands.output import (
    Answer,
    CommandFailed,
    Table,
    field,
    moment,
    notes,
    upload_progress,
)
from app.commands.remote import AllowSchemaChange, asks_server
from app.commands.retrain import retrain
from app.domain.shown_figures import share
from stms_client import Client
from stms_client.documents import ChosenThreshold, Interval, LiveRate, PromiseEvidence

commands = typer.Typer(no_args_is_help=True)


ModelArgument = Annotated[str, typer.Argument(help="Name of the model.")]


class Kind(StrEnum):
    """What an imported file contains: a teacher's head, or finished linear students."""

    head = "head"
    students = "students"


def _aliases(aliases: Sequence[Mapping[str, object]]) -> str:
    return ", ".join(f"{alias['alias']} → {alias['version']}" for alias in aliases)


commands.command("list")(
    made(
        Client.models,
        columns=[
            field("name", "model"),
            field("latest_version", "newest version"),
            ("aliases", lambda model: _aliases(model.get("aliases", []))),
        ],
        empty="There are no models. Train one with `stms train DATASET --model NAME`.",
    )
)


@commands.command()
@asks_server()
def show(client: Client, model: ModelArgument) -> Answer:
    """Show one model: its versions and aliases."""
    shown = client.model(model)
    table = Table(
        [
            field("version"),
            field("method", "students"),
            field("class_count", "classes"),
            field("columns"),
            ("mean F", lambda row: share(_mean_f1(row))),
            field("job_id", "job"),
            moment("created_at", "created"),
        ],
        shown["versions"],
        empty="The model has no versions.",
    )
    more = [f"These are the {len(shown['versions'])} newest versions."] if shown["has_more"] else []
    return Answer(shown, f"aliases: {_aliases(shown['aliases']) or '–'}", table, *more)


@commands.command("import")
@asks_server()
def import_(
    client: Client,
    file: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, readable=True, help="The head: safetensors or .npz."),
    ],
    model: Annotated[str, typer.Option("--model", help="Model that gets the new version.")],
    kind: Annotated[
        Kind, typer.Option("--kind", help="head: weights of a teacher; students: finished linear students.")
    ] = Kind.head,
    alias: Annotated[
        str, typer.Option("--alias", help="Alias to move to the new version; '' for none.")
    ] = "latest",
    rivals: Annotated[
        int,
        typer.Option(
            "--rivals",
            min=0,
            help="A class of a head must also score higher than so many of its nearest rivals.",
        ),
    ] = 0,
    row_norm: Annotated[
        float | None,
        typer.Option(
            "--row-norm", help="Length of a typical row; a head without thresholds gets one from it."
        ),
    ] = None,
    allow_schema_change: AllowSchemaChange = False,
) -> Answer:
    """Import a linear head: `weights` (classes × columns), `labels`, and optionally `bias` and `threshold`.

    Examples:

      stms models import arcface.safetensors --model faces

      stms models import arcface.safetensors --model faces --rivals 8 --row-norm 1
    """
    with upload_progress(file) as progress:
        version = client.import_head(
            file,
            model,
            kind=kind.value,
            alias=alias,
            rivals=rivals,
            row_norm=row_norm,
            allow_schema_change=allow_schema_change,
            progress=progress,
        )
    return Answer(version, *published(version, alias, "head"), *notes(version["warnings"]))


@commands.command()
@asks_server()
def answers(
    client: Client,
    model: ModelArgument,
    version: Annotated[str, typer.Option("--version", help="Number of a version, or an alias.")] = "latest",
    label: Annotated[str | None, typer.Option("--class", help="Only this class.")] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=90, help="Whole days to look back.")] = 7,
) -> Answer:
    """Count what queries have been answered by class, and show what follows if the probabilities hold.

    The last three columns are not measured: feedback measures them.

    Example:  stms models answers letters --class A --days 30
    """
    counted = client.answers(model, version, label=label, days=days)
    table = Table(
        [
            field("label", "class"),
            field("asked"),
            field("yes"),
            ("expected of the class", lambda row: f"{row['expected']:.1f}"),
            ("precision?", _if_probabilities_hold("precision")),
            ("recall?", _if_probabilities_hold("recall")),
            ("wrong yes?", _if_probabilities_hold("false_positive_rate")),
        ],
        counted["classes"],
        empty="No calibrated class of this version was asked in these days.",
    )
    note = "With a question mark: if the probabilities still hold, which nobody has measured."
    return Answer(counted, table, *([note] if counted["classes"] else []))


@commands.command()
@asks_server()
def performance(
    client: Client,
    reference: Annotated[str, typer.Argument(help="Model, or model@alias; by default of the alias latest.")],
    label: Annotated[str | None, typer.Option("--class", help="Only this class.")] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=365, help="Whole days to look back.")] = 28,
) -> Answer:
    """Show how often an alias was right in production, by feedback on samples, and whether promises hold.

    Example:  stms models performance letters@production --class A
    """
    model, _, alias = reference.partition("@")
    found = client.performance(model, alias or "latest", label=label, days=days)
    table = Table(
        [
            field("label", "class"),
            field("asked"),
            field("yes"),
            ("labelled", lambda row: str(row["labelled_yes"] + row["labelled_no"])),
            ("precision", lambda row: _between(row["precision"])),
            ("recall", lambda row: _between(row["recall"])),
            ("wrong yes", lambda row: _between(row["false_positive_rate"])),
            ("evidence", lambda row: _evidence(row["evidence"])),
            ("promise", lambda row: "BROKEN" if row["broken"] else ("kept" if row["evidence"] else "none")),
        ],
        found["classes"],
        empty="No class of this monitor was asked yet.",
    )
    return Answer(found, table)


def _between(rate: LiveRate) -> str:
    """A rate with its interval, in per cent."""
    interval = rate["interval"]
    if interval is None:
        return f"? ({rate['rows']} labels)"
    low, high = (100.0 * interval[name] for name in ("low", "high"))
    return f"{100.0 * interval['estimate']:.1f} ({low:.1f} to {high:.1f}) %"


def _evidence(evidence: Sequence[PromiseEvidence]) -> str:
    """The evidence that is nearest to its alarm."""
    if not evidence:
        return ""
    most = max(evidence, key=lambda one: one["evidence"] / one["alarm_at"])
    return f"{most['evidence']:.3g} of {most['alarm_at']:.3g}"


def _if_probabilities_hold(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: share((row["if_probabilities_hold"] or {}).get(name))


commands.command("thresholds")(
    made(
        Client.thresholds,
        example="stms models thresholds letters A",
        columns=[
            field("version"),
            field("threshold"),
            field("rule"),
            moment("created_at", "published"),
            field("created_by", "by"),
            ("aliases", lambda row: ", ".join(row["aliases"])),
        ],
        empty="No version has a trained student of this class.",
        limit=100,
    )
)


commands.command("classes")(
    made(
        Client.classes,
        example="stms models classes faces --after 999 --limit 20",
        columns=[field("id", "number"), field("label")],
        empty="There are no more classes.",
        limit=100,
    )
)


ThresholdOption = Annotated[
    list[str],
    typer.Option("--threshold", metavar="CLASS=NUMBER", help="Threshold of a class; may be repeated."),
]
MaxFalseYesOption = Annotated[
    list[str],
    typer.Option(
        "--max-false-yes",
        metavar="CLASS=SHARE",
        help="The class gets a threshold that is expected to say yes to at most this share of the rows of"
        " other classes, 1% or 0.01; may be repeated. CLASS is * for all others, also below.",
    ),
]
RecallOption = Annotated[
    list[str],
    typer.Option(
        "--recall",
        metavar="CLASS=SHARE",
        help="The highest threshold that is expected to say yes to this share of the rows of the class.",
    ),
]
CostOption = Annotated[
    list[str],
    typer.Option(
        "--cost",
        metavar="CLASS=MISSED:FALSE",
        help="The cheapest threshold where a missed row of the class and a false yes cost so much.",
    ),
]
CapacityOption = Annotated[
    list[str],
    typer.Option(
        "--capacity",
        metavar="CLASS=YES:QUERIES",
        help="The lowest threshold that says yes so often a day at most, of so many queries.",
    ),
]
ShareOption = Annotated[
    list[str],
    typer.Option(
        "--share",
        metavar="CLASS=SHARE",
        help="Of the class among the rows of queries; as in the test part if it is not given.",
    ),
]
ConfidenceOption = Annotated[
    str | None,
    typer.Option(
        "--confidence",
        metavar="SHARE",
        help="Rates and recalls hold for this student with this probability, and not only on average.",
    ),
]


@commands.command()
@asks_server()
def publish(
    client: Client,
    model: ModelArgument,
    threshold: ThresholdOption = [],  # noqa: B006
    max_false_yes: MaxFalseYesOption = [],  # noqa: B006
    recall: RecallOption = [],  # noqa: B006
    cost: CostOption = [],  # noqa: B006
    capacity: CapacityOption = [],  # noqa: B006
    share: ShareOption = [],  # noqa: B006
    confidence: ConfidenceOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the rules choose, and publish nothing.")
    ] = False,
    base: Annotated[str, typer.Option("--base", help="Number of a version, or an alias.")] = "latest",
) -> Answer:
    """Publish a version with other thresholds as a new version, without training. No alias is moved.

    `stms jobs curve` lists what a student would answer at other thresholds.

    Examples:

      stms models publish letters --threshold A=0.25 --threshold B=-0.1

      stms models publish letters --max-false-yes "*=1%" --confidence 95% --dry-run

      stms models publish letters --cost A=20:1 --share A=0.2%
    """
    choose = _rules(max_false_yes, recall, cost, capacity, share, confidence)
    if dry_run and (threshold or not choose):
        raise CommandFailed(
            "--dry-run shows what rules choose: give --max-false-yes, --recall, --cost or --capacity."
        )
    if not (threshold or choose):
        raise CommandFailed("Give --threshold CLASS=NUMBER, --max-false-yes, --recall, --cost or --capacity.")
    # What is published was chosen at the same version, also where the alias moves in between.
    expected = client.choose_thresholds(model, choose, base=base) if choose else None
    lines = [] if expected is None else [*map(_expected, expected["classes"])]
    if dry_run:
        return Answer(expected, *lines)
    base = base if expected is None else str(expected["base"])
    version = client.publish_thresholds(model, dict(map(_threshold, threshold)), choose=choose, base=base)
    number = version["version"]
    text = f"{escape(model)} version {number} is published; `stms models alias` points an alias to it."
    return Answer(version, text, *lines)


def published(version: Mapping[str, Any], alias: str, source: str) -> list[str]:
    """Lines about a version that was imported. alias: that was to move. source: what it was imported from."""
    classes, columns = version["class_count"], version["columns"]
    ready = (
        f"{version['model']} version {version['version']}: {classes} class{'' if classes == 1 else 'es'} on "
        f"{columns} column{'' if columns == 1 else 's'}, ready for queries."
    )
    if not alias or version["alias"] is not None:
        return [ready]
    stays = (
        f"The alias {alias} stays where it is: the {source} is not new, the alias was moved meanwhile, or it"
        " has a gate."
    )
    return [stays, ready]


def _threshold(text: str) -> tuple[str, float]:
    """A class and its threshold. Raises CommandFailed for anything but CLASS=NUMBER."""
    label, sign, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        sign = ""
    if not sign or not label:
        raise CommandFailed(f"{text!r} is not of the form CLASS=NUMBER.")
    return label, value


def _rate(text: str) -> tuple[str, float]:
    """A class and a share, which may be per cent. Raises CommandFailed for anything else."""
    label, value = _threshold(text.removesuffix("%"))
    return label, value / 100 if text.endswith("%") else value


def _rules(
    rates: Sequence[str],
    recalls: Sequence[str],
    costs: Sequence[str],
    capacities: Sequence[str],
    shares: Sequence[str],
    confidence: str | None,
) -> dict[str, dict[str, Any]]:
    """The rules of classes, as the service takes them. Raises CommandFailed for what is not of their form."""
    choose: dict[str, dict[str, Any]] = {}
    for name, given, read in (
        ("max_false_positive_rate", rates, _rate),
        ("recall", recalls, _rate),
        ("cost", costs, _costs),
        ("capacity", capacities, _capacity),
    ):
        for label, value in map(read, given):
            choose.setdefault(label, {})[name] = value
    for label, value in map(_rate, shares):
        choose.setdefault(label, {})["share"] = value
    for rule in choose.values():
        if confidence is not None and not {"cost", "capacity"} & set(rule):
            rule["confidence"] = _rate(f"confidence={confidence}")[1]
    return choose


def _costs(text: str) -> tuple[str, dict[str, float]]:
    label, missed, false = _two_numbers(text)
    return label, {"missed_yes": missed, "false_yes": false}


def _capacity(text: str) -> tuple[str, dict[str, float]]:
    label, yes, queries = _two_numbers(text)
    return label, {"yes_per_day": int(yes), "queries_per_day": queries}


def _two_numbers(text: str) -> tuple[str, float, float]:
    """A class and two numbers. Raises CommandFailed for another form."""
    label, _, numbers = text.rpartition("=")
    try:
        first, second = map(float, numbers.split(":"))
    except ValueError:
        label = ""
    if not label:
        raise CommandFailed(f"{text!r} is not a class and two numbers, such as A=20:1.")
    return label, first, second


def _expected(chosen: ChosenThreshold) -> str:
    """A sentence about a threshold that a rule has chosen."""
    recall, wrong = (_percent(chosen[name]) for name in ("recall", "false_positive_rate"))
    figures = [f"recall {recall}", f"wrong yes {wrong} of other rows"]
    if chosen["precision"] is not None:
        figures.append(f"precision {100 * chosen['precision']:.3g} %")
    cost = chosen["cost_per_1000"]
    if cost is not None:
        figures.append(f"1000 queries cost {cost['estimate']:.3g} ({cost['low']:.3g} to {cost['high']:.3g})")
    was = f"threshold {chosen['threshold']:.6g} in place of {chosen['was']:.6g}"
    return f"Class {escape(chosen['label'])}: {was}; {', '.join(figures)}."


def _percent(interval: Interval) -> str:
    estimate, low, high = (100 * interval[name] for name in ("estimate", "low", "high"))
    return f"{estimate:.3g} % ({low:.3g} to {high:.3g})"


_VERSION: Final = {"version": Annotated[int, typer.Argument(min=1, help="Number of the version.")]}
commands.command()(retrain)
commands.command("alias")(
    made(
        Client.point_alias,
        about="""Point an alias to a version; queries for MODEL@ALIAS then use it. An older one is a rollback.

        A version that refuses questions which the present one answers is refused, with what it refuses.
        """,
        example="stms models alias letters production 4 --allow-schema-change",
        says="{model}@{alias} now points to version {version}.",
        options=_VERSION,
    )
)
commands.command("history")(
    made(
        Client.alias_history,
        columns=[moment("at"), field("previous", "from"), field("version", "to"), field("actor_name", "by")],
        empty="The alias has never been moved.",
        limit=50,
    )
)
commands.command("unalias")(made(Client.delete_alias, says="Alias {model}@{alias} is deleted."))
commands.command("delete")(
    made(
        Client.delete_version,
        about="Delete a version. Its number is never reused; its job and data set are kept.",
        says="Version {version} of {model} is deleted.",
        options=_VERSION,
    )
)


def _mean_f1(version: Mapping[str, Any]) -> float | None:
    means = version["metrics"].get("means", {}).get(version["method"], {})
    value: float | None = means.get("f1")
    return value
