"""`stms webhooks`: receivers of events, and what was sent to them."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from app.commands.methods import made
from app.commands.output import CommandFailed, field, moment
from app.commands.remote import asks_server
from app.domain.webhook import EVENTS
from stms_client import Client

commands = typer.Typer(no_args_is_help=True)
_PATIENCE: Final = 15.0
"""Seconds to wait for the first attempt of a test."""
_PAUSE: Final = 0.3
_EVENTS: Final = {
    "events": Annotated[
        list[str], typer.Option("--event", help=f"{', '.join(EVENTS)}; may be repeated.", show_default="all")
    ],
    "models": Annotated[
        list[str],
        typer.Option("--model", help="Only events of this model; may be repeated.", show_default="all"),
    ],
}

commands.command("create")(
    made(
        Client.create_webhook,
        example="stms webhooks create builds https://hooks.example.com/stms --event job.failed",
        says="Webhook {answer[details][id]}. Its secret is shown only once:\n{answer[secret]}",
        options=_EVENTS,
    )
)
commands.command("list")(
    made(
        Client.webhooks,
        columns=[
            *map(field, ("id", "name", "url", "events", "models", "form")),
            ("state", lambda row: "enabled" if row["enabled"] else f"disabled: {row['disabled_reason']}"),
            moment("created_at"),
        ],
        empty="There are no webhooks.",
    )
)
commands.command("change")(
    made(
        Client.change_webhook,
        example="stms webhooks change wh_0195… --enable",
        says="Webhook {webhook_id} is changed.",
        options=_EVENTS | {"enabled": Annotated[bool | None, typer.Option("--enable/--disable")]},
    )
)
commands.command("delete")(made(Client.delete_webhook, says="Webhook {webhook_id} is deleted."))
commands.command("deliveries")(
    made(
        Client.webhook_deliveries,
        columns=[
            *map(field, ("id", "type", "subject", "state", "attempts", "status", "error")),
            *map(moment, ("at", "due_at", "ended_at")),
        ],
        empty="Nothing was sent.",
    )
)
commands.command("repeat")(made(Client.repeat_delivery, says="Delivery {delivery_id} is sent again."))


@commands.command("test")
@asks_server()
def send_test(
    client: Client,
    webhook_id: Annotated[str, typer.Argument(help="Id of the webhook, from `stms webhooks list`.")],
) -> str:
    """Send the event webhook.test, and wait for the first attempt."""
    sent, until = client.test_webhook(webhook_id), time.monotonic() + _PATIENCE
    while not sent["attempts"] and time.monotonic() < until:
        time.sleep(_PAUSE)
        deliveries = client.webhook_deliveries(webhook_id)
        sent = next((one for one in deliveries if one["id"] == sent["id"]), sent)
    if sent["state"] != "delivered":
        raise CommandFailed(f"The receiver did not accept the event: {sent['error'] or 'no attempt yet'}")
    return f"The receiver accepted the event with status {sent['status']}."
