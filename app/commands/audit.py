"""`stms audit`: list audit records."""

from __future__ import annotations

import json
from itertools import islice
from typing import Annotated, Any

import typer
from rich.markup import escape

from app.commands.output import (
    JsonOption,
    Since,
    Table,
    Until,
    clock,
    field,
    moment,
    print_json,
    say,
)
from app.commands.remote import DEFAULT_SERVER, KeyOption, ServerOption, TenantOption, connect
from app.domain.event_text import text

_RECONNECT_SECONDS = 600.0
"""How long --follow tries again while the server does not answer."""


def audit(
    actor: Annotated[str | None, typer.Option(help="Id of an API key, or cli, system, unknown.")] = None,
    action: Annotated[str | None, typer.Option(help="For example dataset.delete or request.refused.")] = None,
    object_: Annotated[str | None, typer.Option("--object", help="Id of the changed object.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Largest number of records.")] = 100,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Print records oldest first, one a line (with --json as JSON), then each new one, until "
            "Ctrl-C. --limit and --until do not count.",
        ),
    ] = False,
    after: Annotated[
        str | None, typer.Option(help="Id of the last record of the output so far, to go on after it.")
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """List who changed what, and denied requests, newest first. Needs a key of scope admin.

    Examples:  stms audit --action alias.move --since 2026-01-31
               stms audit --follow --json --after aud_…
    """
    filters: dict[str, Any] = {
        "actor": actor,
        "action": action,
        "object": object_,
        "since": since,
        "after": after,
    }
    with connect(server, api_key, tenant) as client:
        if follow:
            for record in client.follow_audit(patience=_RECONNECT_SECONDS, **filters):
                _print_line(record, as_json)
            return
        records = list(islice(client.audit(**filters, until=until), limit))
    if as_json:
        print_json(records)
        return
    columns = [
        moment("at"),
        ("actor", _actor),
        *map(field, ("action", "object", "outcome", "address")),
        ("details", _details),
    ]
    Table(columns, records, empty="There are no matching records.").print()


def _print_line(record: Any, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
        return
    values = (text(record[name]) for name in ("id", "action", "object", "outcome", "address"))
    say(escape("  ".join([clock(record["at"]), _actor(record), *values, _details(record)])))


def _actor(record: Any) -> str:
    return f"{record['actor_name']} ({record['actor']})" if record["actor_name"] else str(record["actor"])


def _details(record: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in record["details"].items())
