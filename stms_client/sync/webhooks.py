"""Generated from `stms_client/aio/webhooks.py` by ``make client``: do not edit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stms_client import calls
from stms_client.documents import Delivery, NewWebhook, Webhook
from stms_client.sync.connection import Connection


class Webhooks(Connection):
    """All of it needs a key of an administrator or operator."""

    def webhooks(self) -> Iterator[Webhook]:
        """All webhooks, without their secrets, oldest first."""
        return self._listed("/v1/webhooks", Webhook)

    def webhook(self, webhook_id: str) -> Webhook:
        """One webhook."""
        return self.do(calls.get(calls.webhook_path(webhook_id), Webhook))

    def create_webhook(
        self,
        name: str,
        url: str,
        *,
        events: Sequence[str] = ("job.succeeded", "job.partially_succeeded", "job.failed"),
        models: Sequence[str] = (),
        form: str = "cloudevents",
    ) -> NewWebhook:
        """Create a webhook. Its ``secret``, which verifies what it sends, is shown only here.

        models: whose events it gets; empty for all. form: "cloudevents" or "slack".
        """
        body = {"name": name, "url": url, "events": list(events), "models": list(models), "form": form}
        return self.do(calls.create_webhook(body))

    def change_webhook(
        self,
        webhook_id: str,
        *,
        name: str | None = None,
        url: str | None = None,
        events: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        form: str | None = None,
        enabled: bool | None = None,
    ) -> Webhook:
        """Change a webhook; what is None stays. Its secret stays, too."""
        body = {
            "name": name,
            "url": url,
            "events": None if events is None else list(events),
            "models": None if models is None else list(models),
            "form": form,
            "enabled": enabled,
        }
        return self.do(calls.change_webhook(webhook_id, body))

    def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries."""
        self.do(calls.delete(calls.webhook_path(webhook_id)))

    def test_webhook(self, webhook_id: str) -> Delivery:
        """Send the event webhook.test; `webhook_deliveries` shows what becomes of it."""
        return self.do(calls.act(f"{calls.webhook_path(webhook_id)}:test", Delivery))

    def webhook_deliveries(self, webhook_id: str) -> Iterator[Delivery]:
        """The deliveries of a webhook, newest first."""
        return self._listed(f"{calls.webhook_path(webhook_id)}/deliveries", Delivery)

    def repeat_delivery(self, webhook_id: str, delivery_id: str) -> Delivery:
        """Send a delivery that has ended again, with the same event id."""
        path = f"{calls.webhook_path(webhook_id)}/deliveries/{calls.segment(delivery_id)}:repeat"
        return self.do(calls.act(path, Delivery))
