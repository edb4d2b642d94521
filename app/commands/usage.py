"""`stms usage`: show what tenants use of their quotas, and set quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.commands.output import Answer, CommandFailed, field, listing
from app.commands.remote import asks_server
from stms_client import Client

Quota = Annotated[int | None, typer.Option(min=0, help="Set this quota; needs --tenant.")]


@asks_server(tenant=False)
def usage(
    client: Client,
    tenant: Annotated[str | None, typer.Option(help="This tenant, for operators.")] = None,
    stored_bytes: Quota = None,
    datasets: Quota = None,
    versions: Quota = None,
    unfinished_jobs: Quota = None,
    keys: Quota = None,
    defaults: Annotated[bool, typer.Option("--defaults", help="Reset all quotas of the tenant.")] = False,
) -> Answer:
    """Show use and quotas of the key's tenant; an operator sees all tenants, and may set quotas.

    Example:  stms usage --tenant acme --stored-bytes 50000000000 --datasets 200
    """
    quotas = {
        "stored_bytes": stored_bytes,
        "datasets": datasets,
        "versions": versions,
        "unfinished_jobs": unfinished_jobs,
        "keys": keys,
    }
    changed = {name: quota for name, quota in quotas.items() if quota is not None}
    if (changed or defaults) and tenant is None:
        raise CommandFailed("Name the tenant whose quotas to set: --tenant NAME.")
    if tenant is not None and (changed or defaults):
        client.set_quotas(tenant, (dict.fromkeys(quotas) if defaults else {}) | changed)
    columns = [field("tenant"), *((name.replace("_", " "), _amount(name)) for name in quotas)]
    return listing(client.usage(tenant), columns, empty="There is no tenant.")


def _amount(name: str) -> Any:
    def show(row: Mapping[str, Any]) -> str:
        return f"{row[name]['used']:,} of {row[name]['allowed']:,}"

    return show
