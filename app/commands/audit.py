"""`stms audit`: list audit records."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

import typer

from app.commands.output import JsonOption, Since, Until, field, moment, print_json, print_table
from app.commands.remote import DEFAULT_SERVER, KeyOption, ServerOption, TenantOption, connect


def audit(
    actor: Annotated[str | None, typer.Option(help="Id of an API key, or cli, system, unknown.")] = None,
    action: Annotated[str | None, typer.Option(help="For example dataset.delete or request.refused.")] = None,
    object_: Annotated[str | None, typer.Option("--object", help="Id of the changed object.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Largest number of records.")] = 100,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """List who changed what, and denied requests, newest first. Needs a key of scope admin.

    Example:  stms audit --action alias.move --since 2026-01-31
    """
    filters = {
        "actor": actor,
        "action": action,
        "object": object_,
        "since": since,
        "until": until,
    }
    with connect(server, api_key, tenant) as client:
        records = list(islice(client.pages("/v1/audit", **filters), limit))
    if as_json:
        print_json(records)
        return
    columns = [
        moment("at"),
        ("actor", _actor),
        *map(field, ("action", "object", "outcome", "address")),
        ("details", _details),
    ]
    print_table(columns, records, empty="There are no matching records.")


def _actor(record: Any) -> str:
    return f"{record['actor_name']} ({record['actor']})" if record["actor_name"] else str(record["actor"])


def _details(record: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in record["details"].items())
