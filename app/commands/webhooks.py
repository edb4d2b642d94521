"""`stms webhooks`: make, change, test and delete webhooks of a running server, and show their deliveries."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from app.commands.output import CommandFailed, Json, JsonOption, field, moment, print_json, print_table, say
from app.commands.remote import (
    DEFAULT_SERVER,
    KeyOption,
    RemoteServer,
    ServerOption,
    TenantOption,
    connect,
    segment,
)
from app.domain.webhook import EVENTS, FORMS

commands = typer.Typer(no_args_is_help=True)

WebhookArgument = Annotated[str, typer.Argument(help="Id of the webhook, from `stms webhooks list`.")]
EventOption = Annotated[
    list[str], typer.Option("--event", help=f"{', '.join(EVENTS)}; may be repeated. [default: all]")
]
ModelOption = Annotated[
    list[str], typer.Option("--model", help="Only events of this model; may be repeated. [default: all]")
]
_PATIENCE: Final = 15.0


@commands.command()
def create(
    name: Annotated[str, typer.Argument(help="What the webhook is for.")],
    url: Annotated[str, typer.Argument(help="Address of the receiver; STMS_WEBHOOKS must list its origin.")],
    event: EventOption = [],  # noqa: B006
    model: ModelOption = [],  # noqa: B006
    form: Annotated[str, typer.Option("--form", help=" or ".join(FORMS) + ".")] = FORMS[0],
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """Create a webhook and print its secret once.

    Example:  stms webhooks create builds https://hooks.example.com/stms --event job.failed
    """
    body = {"name": name, "url": url, "events": event or list(EVENTS), "models": model, "form": form}
    with connect(server, api_key, tenant) as client:
        made = client.post("/v1/webhooks", body)
    say(f"Webhook {made['details']['id']}. Its secret is shown only once:")
    typer.echo(made["secret"])


@commands.command("list")
def list_(
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """List webhooks, without their secrets."""
    with connect(server, api_key, tenant) as client:
        rows = list(client.pages("/v1/webhooks"))
    if as_json:
        print_json(rows)
        return
    columns = [
        *map(field, ("id", "name", "url", "events", "models", "form")),
        ("state", lambda row: "enabled" if row["enabled"] else f"disabled: {row['disabled_reason']}"),
        moment("created_at"),
    ]
    print_table(columns, rows, empty="There are no webhooks.")


@commands.command()
def change(
    webhook_id: WebhookArgument,
    name: Annotated[str | None, typer.Option("--name")] = None,
    url: Annotated[str | None, typer.Option("--url")] = None,
    event: EventOption = [],  # noqa: B006
    model: ModelOption = [],  # noqa: B006
    form: Annotated[str | None, typer.Option("--form")] = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable")] = None,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """Change, enable or disable a webhook. What is not named stays, and so does the secret.

    Example:  stms webhooks change wh_0195… --enable
    """
    body = {
        "name": name,
        "url": url,
        "events": event or None,
        "models": model or None,
        "form": form,
        "enabled": enabled,
    }
    with connect(server, api_key, tenant) as client:
        client.patch(f"/v1/webhooks/{segment(webhook_id)}", body)
    say(f"Webhook {webhook_id} is changed.")


@commands.command()
def delete(
    webhook_id: WebhookArgument,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """Delete a webhook with its deliveries."""
    with connect(server, api_key, tenant) as client:
        client.delete(f"/v1/webhooks/{segment(webhook_id)}")
    say(f"Webhook {webhook_id} is deleted.")


@commands.command("test")
def send_test(
    webhook_id: WebhookArgument,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """Send the event webhook.test, and wait for the first attempt."""
    path = f"/v1/webhooks/{segment(webhook_id)}"
    with connect(server, api_key, tenant) as client:
        sent = _attempted(client, path, client.post(f"{path}:test"))
    if sent["state"] != "delivered":
        raise CommandFailed(f"The receiver did not accept the event: {sent['error'] or 'no attempt yet'}")
    say(f"The receiver accepted the event with status {sent['status']}.")


@commands.command()
def deliveries(
    webhook_id: WebhookArgument,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """List what was and will be sent to a webhook, newest first."""
    with connect(server, api_key, tenant) as client:
        rows = list(client.pages(f"/v1/webhooks/{segment(webhook_id)}/deliveries"))
    if as_json:
        print_json(rows)
        return
    columns = [
        *map(field, ("id", "type", "subject", "state", "attempts", "status", "error")),
        *map(moment, ("at", "due_at", "ended_at")),
    ]
    print_table(columns, rows, empty="Nothing was sent.")


@commands.command()
def repeat(
    webhook_id: WebhookArgument,
    delivery_id: Annotated[str, typer.Argument(help="Id from `stms webhooks deliveries`.")],
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """Send a delivery that has ended again, with the same event id."""
    path = f"/v1/webhooks/{segment(webhook_id)}/deliveries/{segment(delivery_id)}"
    with connect(server, api_key, tenant) as client:
        client.post(f"{path}:repeat")
    say(f"Delivery {delivery_id} is sent again.")


def _attempted(client: RemoteServer, path: str, delivery: Json) -> Json:
    """The delivery after its first attempt, or after 15 s."""
    until = time.monotonic() + _PATIENCE
    while not delivery["attempts"] and time.monotonic() < until:
        time.sleep(0.3)
        listed = client.get(f"{path}/deliveries?limit=100")["data"]
        delivery = next((one for one in listed if one["id"] == delivery["id"]), delivery)
    return delivery
