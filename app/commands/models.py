"""`stms models`: list, import and delete model versions, and manage aliases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from app.domain.shown_figures import share
from stms_client import Client

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


commands.command("classes")(
    made(
        Client.classes,
        example="stms models classes faces --after 999 --limit 20",
        columns=[field("id", "number"), field("label")],
        empty="There are no more classes.",
        limit=100,
    )
)


@commands.command()
@asks_server()
def publish(
    client: Client,
    model: ModelArgument,
    threshold: Annotated[
        list[str],
        typer.Option("--threshold", metavar="CLASS=NUMBER", help="Threshold of a class; may be repeated."),
    ] = [],  # noqa: B006
    max_false_yes: Annotated[
        list[str],
        typer.Option(
            "--max-false-yes",
            metavar="CLASS=SHARE",
            help="The class gets the lowest threshold that says yes to at most this share of the test rows of"
            " other classes, 1% or 0.01; may be repeated.",
        ),
    ] = [],  # noqa: B006
    base: Annotated[str, typer.Option("--base", help="Number of a version, or an alias.")] = "latest",
) -> Answer:
    """Publish a version with other thresholds as a new version, without training. No alias is moved.

    `stms jobs curve` lists what a student would answer at other thresholds.

    Examples:

      stms models publish letters --threshold A=0.25 --threshold B=-0.1

      stms models publish letters --max-false-yes A=1%
    """
    if not (threshold or max_false_yes):
        raise CommandFailed("Give a --threshold CLASS=NUMBER or a --max-false-yes CLASS=SHARE.")
    thresholds, rates = dict(map(_threshold, threshold)), dict(map(_rate, max_false_yes))
    version = client.publish_thresholds(model, thresholds, max_false_positive_rates=rates, base=base)
    number = version["version"]
    text = f"{escape(model)} version {number} is published; `stms models alias` points an alias to it."
    record = client.job(str(version["job_id"]))["provenance"]["thresholds"] if rates else {}
    chosen = [f"Class {escape(label)}: threshold {record[label]:.6g}." for label in rates]
    return Answer(version, text, *chosen)


def published(version: Mapping[str, Any], alias: str, source: str) -> list[str]:
    """Lines about a version that was imported. alias: that was to move. source: what it was imported from."""
    classes, columns = version["class_count"], version["columns"]
    ready = (
        f"{version['model']} version {version['version']}: {classes} class{'' if classes == 1 else 'es'} on "
        f"{columns} column{'' if columns == 1 else 's'}, ready for queries."
    )
    if not alias or version["alias"] is not None:
        return [ready]
    stays = f"The alias {alias} stays where it is: the {source} is not new, or the alias was moved meanwhile."
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


_VERSION: Final = {"version": Annotated[int, typer.Argument(min=1, help="Number of the version.")]}
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
