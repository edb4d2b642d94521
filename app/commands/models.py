"""`stms models`: published models, their versions and aliases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.commands.http import DEFAULT_SERVER, KeyOption, ServerOption, connect, segment
from app.commands.output import JsonOption, field, moment, percent, print_json, print_table, say

commands = typer.Typer(no_args_is_help=True)

ModelArgument = Annotated[str, typer.Argument(help="Name of the model.")]


@commands.command("list")
def list_(
    as_json: JsonOption = False, server: ServerOption = DEFAULT_SERVER, api_key: KeyOption = None
) -> None:
    """All models."""
    with connect(server, api_key) as client:
        models = list(client.pages("/v1/models"))
    if as_json:
        print_json(models)
        return
    print_table(
        [
            ("model", lambda model: model["name"]),
            ("newest version", lambda model: model["latest_version"]),
            ("aliases", lambda model: _aliases(model.get("aliases", []))),
        ],
        models,
        empty="There are no models. Train one with `stms train DATASET --model NAME`.",
    )


@commands.command()
def show(
    model: ModelArgument,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
) -> None:
    """One model: its versions and where its aliases point."""
    with connect(server, api_key) as client:
        shown = client.get(f"/v1/models/{segment(model)}")
    if as_json:
        print_json(shown)
        return
    say(f"aliases: {_aliases(shown['aliases']) or '–'}")
    print_table(
        [
            field("version"),
            field("method", "students"),
            ("classes", lambda row: len(row["classes"])),
            field("columns"),
            ("mean F %", lambda row: percent(_mean_f1(row))),
            field("job_id", "job"),
            moment("created_at", "created"),
        ],
        shown["versions"],
        empty="The model has no version.",
    )


@commands.command()
def alias(
    model: ModelArgument,
    name: Annotated[str, typer.Argument(help="Name of the alias, e.g. production.")],
    version: Annotated[
        int, typer.Argument(min=1, help="Version it shall point to; an older one rolls back.")
    ],
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
) -> None:
    """Point an alias at a version; queries for MODEL@ALIAS follow at once.

    Example:  stms models alias letters production 3
    """
    with connect(server, api_key) as client:
        known = {item["alias"]: item for item in client.get(f"/v1/models/{segment(model)}")["aliases"]}
        expected = {"If-Match": f'"{known[name]["revision"]}"'} if name in known else {"If-None-Match": "*"}
        path = f"/v1/models/{segment(model)}/aliases/{segment(name)}"
        client.request("PUT", path, json={"version": version}, headers=expected)
    say(f"{model}@{name} is version {version} now.")


def _mean_f1(version: Mapping[str, Any]) -> float | None:
    means = version["metrics"].get("means", {}).get(version["method"], {})
    value: float | None = means.get("f1")
    return value


def _aliases(aliases: list[dict[str, object]]) -> str:
    return ", ".join(f"{alias['alias']} → {alias['version']}" for alias in aliases)
