"""`stms keys`: API keys, made and revoked directly in the database."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from app.commands.database import open_store
from app.commands.options import DataOption
from app.commands.output import JsonOption, field, moment, print_json, print_table, say
from app.domain.entities import ApiKey

commands = typer.Typer(no_args_is_help=True)


@commands.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for, e.g. the program that uses it.")],
    scope: Annotated[
        list[str], typer.Option("--scope", help="admin, train or query; may be given more than once.")
    ] = ["query"],  # noqa: B006
    model: Annotated[
        list[str], typer.Option("--model", help="A query key may ask these models only; none: all models.")
    ] = [],  # noqa: B006
    data_dir: DataOption = None,
) -> None:
    """Make a key and print it, once: only its hash is stored.

    Example:  stms keys create camera --scope query --model faces
    """
    from app.services.keys import create_key

    with open_store(data_dir) as store:
        key, secret = create_key(store, name=name, scopes=frozenset(scope), models=frozenset(model))
    say(f"Key {key.id} ({', '.join(sorted(key.scopes))}). It is shown only now:")
    typer.echo(secret)


@commands.command("list")
def list_(data_dir: DataOption = None, as_json: JsonOption = False) -> None:
    """All keys, without their secrets."""
    from app.services.keys import list_keys

    with open_store(data_dir) as store:
        rows = [_shown(key) for key in list_keys(store)]
    if as_json:
        print_json(rows)
        return
    columns = [*map(field, ("id", "name", "scopes", "models")), *map(moment, ("created_at", "revoked_at"))]
    print_table(columns, rows, empty="There are no keys.")


@commands.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key, from `stms keys list`.")],
    data_dir: DataOption = None,
) -> None:
    """Make a key useless from now on."""
    from app.services.keys import revoke_key

    with open_store(data_dir) as store:
        revoke_key(store, key_id)
    say(f"Key {key_id} is revoked.")


def _shown(key: ApiKey) -> dict[str, object]:
    shown = asdict(key)
    del shown["digest"]
    for name in ("created_at", "revoked_at"):
        shown[name] = None if shown[name] is None else datetime.fromtimestamp(shown[name], UTC).isoformat()
    return shown | {"scopes": sorted(key.scopes), "models": sorted(key.models)}
