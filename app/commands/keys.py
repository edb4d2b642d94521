"""`stms keys`: create, rotate, list and revoke API keys in the database, and make the text of a first key."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from app.commands.database import open_store
from app.commands.options import DataOption, read_settings
from app.commands.output import CommandFailed, JsonOption, Table, field, moment, print_json, say
from app.domain.entities import ApiKey
from app.domain.names import DEFAULT_TENANT

commands = typer.Typer(no_args_is_help=True)

KeyArgument = Annotated[str, typer.Argument(help="Id of the key, from `stms keys list`.")]
_TIMES = {"created_at", "revoked_at", "expires_at", "previous_until", "rotated_at", "last_used_at"}
_MOST = 10_000


@commands.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for, e.g. the program that uses it.")],
    scope: Annotated[
        list[str],
        typer.Option("--scope", help="operator, admin, train, download or query; may be repeated."),
    ] = ["query"],  # noqa: B006
    model: Annotated[
        list[str],
        typer.Option("--model", help="Restrict a query key to a model; may be repeated."),
    ] = [],  # noqa: B006
    tenant: Annotated[
        str,
        typer.Option("--tenant", help="Customer or team that the key belongs to; a new name makes one."),
    ] = DEFAULT_TENANT,
    expires_in_days: Annotated[
        float | None, typer.Option("--expires-in-days", help="Lifetime of the key.", show_default="unlimited")
    ] = None,
    rate_limit: Annotated[
        float | None,
        typer.Option(
            "--rate-limit", help="Requests per second; 0: unlimited.", show_default="STMS_RATE_LIMIT"
        ),
    ] = None,
    rate_burst: Annotated[
        int | None,
        typer.Option("--rate-burst", help="Requests in a burst.", show_default="those of one second"),
    ] = None,
    samples: Annotated[
        bool,
        typer.Option("--samples/--no-samples", help="Whether monitors may choose its answers, see the docs."),
    ] = True,
    offline: Annotated[
        Path | None,
        typer.Option(
            "--offline", help="Append the key to this file, for STMS_KEYS_FILE, instead of storing it."
        ),
    ] = None,
    data_dir: DataOption = None,
) -> None:
    """Create a key and print it once: the database stores only its hash.

    Example:  stms keys create camera --scope query --model faces --expires-in-days 90
    """
    from app.services.keys import check_key, create_key, make_key

    options: dict[str, Any] = {
        "name": name,
        "scopes": frozenset(scope),
        "models": frozenset(model),
        "expires_at": None if expires_in_days is None else time.time() + 86400 * expires_in_days,
        "rate_limit": rate_limit,
        "rate_burst": rate_burst,
        "samples": "allowed" if samples else "never",
    }
    if offline is None:
        with open_store(data_dir) as store:
            key, secret = create_key(store.of_tenant(tenant), **options)
    else:
        key, secret = make_key(**options, tenant=tenant)
        check_key(key)
        _append(key, offline)
    scopes = ", ".join(sorted(key.scopes))
    say(f"Key {key.id} of tenant {key.tenant} ({scopes}). Its secret is shown only once:")
    typer.echo(secret)


def _append(key: ApiKey, path: Path) -> None:
    """Append a key to a file of keys. Raises CommandFailed."""
    from app.services.keys_file import line_of

    if key.tenant != DEFAULT_TENANT or not {"query", "download"}.issuperset(key.scopes):
        raise CommandFailed(
            "A key in a file has the scopes query and download, or one of them, and no tenant."
        )
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line_of(key))
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror or error}") from error


@commands.command()
def rotate(
    key_id: KeyArgument,
    overlap: Annotated[
        float, typer.Option("--overlap", help="Seconds for which the old secret stays valid.")
    ] = 0.0,
    data_dir: DataOption = None,
) -> None:
    """Replace the secret of a key and print the new one once. The old one stays valid during the overlap.

    Example:  stms keys rotate key_0195… --overlap 3600
    """
    from app.services.first_key import FILE_NAME, FIRST_KEY_ID, replace_first_key
    from app.services.keys import rotate_key

    with open_store(data_dir) as store:
        key, secret = rotate_key(store.of_all_tenants(), key_id, overlap)
    if key.id == FIRST_KEY_ID and replace_first_key(read_settings(data_dir=data_dir).data_dir, secret):
        say(f"The file {FILE_NAME} has the new secret.")
    say(f"Key {key.id} has a new secret, which is shown only once:")
    typer.echo(secret)


@commands.command("new-text")
def new_text() -> None:
    """Print the text of a first key, for the file of STMS_FIRST_KEY_FILE. It is stored nowhere.

    Example:  (umask 077; stms keys new-text > first.key)
    """
    from app.services.first_key import FIRST_KEY_ID
    from app.services.keys import new_text as text_of

    typer.echo(text_of(FIRST_KEY_ID))


@commands.command("list")
def list_(data_dir: DataOption = None, as_json: JsonOption = False) -> None:
    """List the keys of all tenants, without their secrets."""
    from app.services.keys import all_keys

    with open_store(data_dir) as store:
        rows = [_shown(key) for key in all_keys(store)]
    if as_json:
        print_json(rows)
        return
    columns = [
        *map(field, ("id", "name", "tenant", "scopes", "models", "rate_limit")),
        *map(moment, ("created_at", "last_used_at", "expires_at", "revoked_at")),
    ]
    Table(columns, rows, empty="There are no keys.").print()


@commands.command()
def revoke(
    key_id: KeyArgument,
    data_dir: DataOption = None,
) -> None:
    """Revoke a key."""
    from app.services.keys import revoke_key

    with open_store(data_dir) as store:
        revoke_key(store.of_all_tenants(), key_id)
    say(f"Key {key_id} is revoked.")


@commands.command("revoke-tokens")
def revoke_tokens(
    issuer: Annotated[str, typer.Argument(help="Issuer of the tokens, as in STMS_TOKEN_ISSUERS.")],
    sub: Annotated[str | None, typer.Option("--sub", help="Subject whose tokens are revoked.")] = None,
    jti: Annotated[str | None, typer.Option("--jti", help="Id of the one token that is revoked.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="For the list and the audit log.")] = "",
    data_dir: DataOption = None,
) -> None:
    """Revoke a token, or all tokens that were issued to a subject until now.

    Example:  stms keys revoke-tokens https://login.example.com --sub robot-7 --reason "found in a log"
    """
    from app.services import token_revocations

    issuers = read_settings(data_dir=data_dir).token_issuers
    tenant = next((one.tenant for one in issuers if one.issuer == issuer), DEFAULT_TENANT)
    with open_store(data_dir) as store:
        made = token_revocations.revoke_tokens(
            store.of_tenant(tenant), issuers, issuer, sub=sub, jti=jti, reason=reason
        )
    say(f"Tokens are revoked ({made.id}).")


@commands.command("revoked-tokens")
def revoked_tokens(data_dir: DataOption = None, as_json: JsonOption = False) -> None:
    """List the revocations of tokens that could be valid otherwise, of all tenants."""
    from app.services.token_revocations import list_revocations

    with open_store(data_dir) as store:
        found, _ = list_revocations(store.of_all_tenants(), limit=_MOST)
    rows = [_dated(asdict(one)) for one in found]
    if as_json:
        print_json(rows)
        return
    columns = [*map(field, ("id", "tenant", "issuer", "sub", "jti", "reason")), moment("created_at")]
    Table(columns, rows, empty="No tokens are revoked.").print()


@commands.command("revoke-all")
def revoke_all(data_dir: DataOption = None) -> None:
    """Revoke the keys of all tenants, and make a new first key in admin.key of the data folder."""
    from app.services.first_key import replace_all_keys

    with open_store(data_dir) as store:
        path = replace_all_keys(store, read_settings(data_dir=data_dir).data_dir)
    say(f"All keys are revoked; a new first key is in {path}.")


def _shown(key: ApiKey) -> dict[str, object]:
    shown = _dated(asdict(key))
    del shown["digest"], shown["previous_digest"]
    return shown | {"scopes": sorted(key.scopes), "models": sorted(key.models)}


def _dated(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its times as RFC 3339."""
    for name in row.keys() & _TIMES:
        row[name] = None if row[name] is None else datetime.fromtimestamp(row[name], UTC).isoformat()
    return row
