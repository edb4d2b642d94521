"""`stms webhooks`: make, change, test and delete webhooks of a running server, and show their deliveries."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from app.commands.output import Answer, CommandFailed, Json, field, listing, moment, say
from app.commands.remote import RemoteServer, asks_server, segment
from app.domain.webhook import EVENTS, FORMS

commands = typer.Typer(no_args_is_help=True)

WebhookArgument = Annotated[str, typer.Argument(help="Id of the webhook, from `stms webhooks list`.")]
EventOption = Annotated[
    list[str], typer.Option("--event", help=f"{', '.join(EVENTS)}; may be repeated.", show_default="all")
]
ModelOption = Annotated[
    list[str], typer.Option("--model", help="Only events of this model; may be repeated.", show_default="all")
]
_PATIENCE: Final = 15.0


@commands.command()
@asks_server()
def create(
    client: RemoteServer,
    name: Annotated[str, typer.Argument(help="What the webhook is for.")],
    url: Annotated[str, typer.Argument(help="Address of the receiver; STMS_WEBHOOKS must list its origin.")],
    event: EventOption = [],  # noqa: B006
    model: ModelOption = [],  # noqa: B006
    form: Annotated[str, typer.Option("--form", help=" or ".join(FORMS) + ".")] = FORMS[0],
) -> None:
    """Create a webhook and print its secret once.

    Example:  stms webhooks create builds https://hooks.example.com/stms --event job.failed
    """
    body = {"name": name, "url": url, "events": event or list(EVENTS), "models": model, "form": form}
    made = client.post("/v1/webhooks", body)
    say(f"Webhook {made['details']['id']}. Its secret is shown only once:")
    typer.echo(made["secret"])


@commands.command("list")
@asks_server()
def list_(client: RemoteServer) -> Answer:
    """List webhooks, without their secrets."""
    columns = [
        *map(field, ("id", "name", "url", "events", "models", "form")),
        ("state", lambda row: "enabled" if row["enabled"] else f"disabled: {row['disabled_reason']}"),
        moment("created_at"),
    ]
    return listing(client.pages("/v1/webhooks"), columns, empty="There are no webhooks.")


@commands.command()
@asks_server()
def change(
    client: RemoteServer,
    webhook_id: WebhookArgument,
    name: Annotated[str | None, typer.Option("--name")] = None,
    url: Annotated[str | None, typer.Option("--url")] = None,
    event: EventOption = [],  # noqa: B006
    model: ModelOption = [],  # noqa: B006
    form: Annotated[str | None, typer.Option("--form")] = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable")] = None,
) -> str:
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
    client.patch(f"/v1/webhooks/{segment(webhook_id)}", body)
    return f"Webhook {webhook_id} is changed."


@commands.command()
@asks_server()
def delete(
    client: RemoteServer,
    webhook_id: WebhookArgument,
) -> str:
    """Delete a webhook with its deliveries."""
    client.delete(f"/v1/webhooks/{segment(webhook_id)}")
    return f"Webhook {webhook_id} is deleted."


@commands.command("test")
@asks_server()
def send_test(
    client: RemoteServer,
    webhook_id: WebhookArgument,
) -> str:
    """Send the event webhook.test, and wait for the first attempt."""
    path = f"/v1/webhooks/{segment(webhook_id)}"
    sent = _attempted(client, path, client.post(f"{path}:test"))
    if sent["state"] != "delivered":
        raise CommandFailed(f"The receiver did not accept the event: {sent['error'] or 'no attempt yet'}")
    return f"The receiver accepted the event with status {sent['status']}."


@commands.command()
@asks_server()
def deliveries(
    client: RemoteServer,
    webhook_id: WebhookArgument,
) -> Answer:
    """List what was and will be sent to a webhook, newest first."""
    columns = [
        *map(field, ("id", "type", "subject", "state", "attempts", "status", "error")),
        *map(moment, ("at", "due_at", "ended_at")),
    ]
    return listing(
        client.pages(f"/v1/webhooks/{segment(webhook_id)}/deliveries"), columns, empty="Nothing was sent."
    )


@commands.command()
@asks_server()
def repeat(
    client: RemoteServer,
    webhook_id: WebhookArgument,
    delivery_id: Annotated[str, typer.Argument(help="Id from `stms webhooks deliveries`.")],
) -> str:
    """Send a delivery that has ended again, with the same event id."""
    path = f"/v1/webhooks/{segment(webhook_id)}/deliveries/{segment(delivery_id)}"
    client.post(f"{path}:repeat")
    return f"Delivery {delivery_id} is sent again."


def _attempted(client: RemoteServer, path: str, delivery: Json) -> Json:
    """The delivery after its first attempt, or after 15 s."""
    until = time.monotonic() + _PATIENCE
    while not delivery["attempts"] and time.monotonic() < until:
        time.sleep(0.3)
        listed = client.get(f"{path}/deliveries?limit=100")["data"]
        delivery = next((one for one in listed if one["id"] == delivery["id"]), delivery)
    return delivery
