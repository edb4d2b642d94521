"""Webhooks: receivers of events, and what was sent to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from stms_client import calls
from stms_client.aio.connection import Connection
from stms_client.documents import Delivery, NewWebhook, Webhook


class Webhooks(Connection):
    """All of it needs a key of an administrator or operator."""

    def webhooks(self) -> AsyncIterator[Webhook]:
        """All webhooks, without their secrets, oldest first."""
        return self._listed("/v1/webhooks", Webhook)

    async def webhook(self, webhook_id: str) -> Webhook:
        """One webhook."""
        return await self.do(calls.get(calls.webhook_path(webhook_id), Webhook))

    async def create_webhook(
        self,
        name: str,
        url: str,
        *,
        events: Sequence[str] | None = None,
        models: Sequence[str] = (),
        form: str = "cloudevents",
    ) -> NewWebhook:
        """Create a webhook. Its ``secret``, which verifies what it sends, is shown only here.

        name: what it is for. url: address of the receiver, whose origin the service allows. events: that it
        gets; all by default. models: whose events it gets; empty for all. form: "cloudevents" or "slack".
        """
        body = {"name": name, "url": url, "models": list(models), "form": form}
        if events is not None:
            body["events"] = list(events)
        return await self.do(calls.post("/v1/webhooks", body, NewWebhook, repeatable=False))

    async def change_webhook(
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
        path = calls.webhook_path(webhook_id)
        return await self.do(calls.patch(path, calls.without_none(body), Webhook))

    async def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries."""
        await self.do(calls.delete(calls.webhook_path(webhook_id)))

    async def test_webhook(self, webhook_id: str) -> Delivery:
        """Send the event webhook.test; `webhook_deliveries` shows what becomes of it."""
        return await self.do(calls.act(f"{calls.webhook_path(webhook_id)}:test", Delivery))

    def webhook_deliveries(self, webhook_id: str) -> AsyncIterator[Delivery]:
        """What was and will be sent to a webhook, newest first."""
        return self._listed(f"{calls.webhook_path(webhook_id)}/deliveries", Delivery)

    async def repeat_delivery(self, webhook_id: str, delivery_id: str) -> Delivery:
        """Send a delivery that has ended again, with the same event id.

        delivery_id: from the list of deliveries.
        """
        path = f"{calls.webhook_path(webhook_id)}/deliveries/{calls.segment(delivery_id)}:repeat"
        return await self.do(calls.act(path, Delivery))
