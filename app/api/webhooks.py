"""``/v1/webhooks``: receivers of events, for the administrators of a tenant."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import Field

from app.api.border import BorderRoute
from app.api.dependencies import Administrator, Context
from app.api.paging import After, Limit, Page, page_of
from app.api.schemas import Body, View
from app.domain.names import DISPLAY_NAME, MODEL_NAME
from app.domain.webhook import EVENTS, MAX_MODELS, MAX_URL, Delivery, Form, Webhook
from app.services import webhooks

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=BorderRoute)

WebhookId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
DeliveryId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]

# What is in `json_schema_extra` the service checks, so that all faults are in one answer.
_Name = Annotated[str, Field(max_length=100, json_schema_extra={"pattern": DISPLAY_NAME})]
_Url = Annotated[str, Field(max_length=MAX_URL, json_schema_extra={"pattern": "^https?://[!-~]+$"})]
_Events = Annotated[
    list[str],
    Field(max_length=len(EVENTS), json_schema_extra={"minItems": 1, "items": {"enum": [*EVENTS]}}),
]
_Models = Annotated[
    list[str],
    Field(max_length=MAX_MODELS, json_schema_extra={"items": {"type": "string", "pattern": MODEL_NAME}}),
]


class CreateWebhook(Body):
    """A webhook to create. url: its origin is one of STMS_WEBHOOKS.

    events: that it gets; by default all. models: of which models; empty for all. Events of no model are sent
    in any case. form: CloudEvents 1.0, or a message for Slack.
    """

    name: _Name
    url: _Url
    events: _Events = Field([*EVENTS])
    models: _Models = Field([])
    form: Form = "cloudevents"


class ChangeWebhook(Body):
    """Fields of a webhook to change; those that are left out or null stay. enabled: false stops it."""

    name: _Name | None = None
    url: _Url | None = None
    events: _Events | None = None
    models: _Models | None = None
    form: Form | None = None
    enabled: bool | None = None


class NewWebhookView(View):
    """A webhook that was created. secret: with which its requests are signed, shown only here."""

    secret: str
    details: Webhook


@router.post("", status_code=201)
def create_webhook(body: CreateWebhook, context: Context, caller: Administrator) -> NewWebhookView:
    """Create a webhook. Its secret is shown only in this response; for another one, make another webhook."""
    webhook, secret = webhooks.create_webhook(
        context.store_of(caller), context.settings, **body.model_dump(), created_by=caller.id
    )
    return NewWebhookView(secret=secret, details=webhook)


@router.get("")
def list_webhooks(
    request: Request,
    response: Response,
    context: Context,
    caller: Administrator,
    limit: Limit = 100,
    after: After = None,
) -> Page[Webhook]:
    """All webhooks, oldest first."""
    page, has_more = webhooks.list_webhooks(context.listed_store(request, caller), limit=limit, after=after)
    return page_of(request, response, page, has_more)


@router.get("/{webhook_id}")
def get_webhook(webhook_id: WebhookId, context: Context, caller: Administrator) -> Webhook:
    """One webhook."""
    return webhooks.get_webhook(context.store_of(caller), webhook_id)


@router.patch("/{webhook_id}")
def change_webhook(
    webhook_id: WebhookId, body: ChangeWebhook, context: Context, caller: Administrator
) -> Webhook:
    """Change a webhook. Its secret stays. What waited while it was disabled is sent when it is enabled."""
    given: dict[str, Any] = body.model_dump(exclude_none=True)
    store = context.store_of(caller)
    return webhooks.change_webhook(store, context.settings, webhook_id, **given)


@router.delete("/{webhook_id}", status_code=204)
def delete_webhook(webhook_id: WebhookId, context: Context, caller: Administrator) -> None:
    """Delete a webhook with its deliveries."""
    webhooks.delete_webhook(context.store_of(caller), webhook_id)


@router.post("/{webhook_id}:test", status_code=202)
def test_webhook(webhook_id: WebhookId, context: Context, caller: Administrator) -> Delivery:
    """Send the event ``webhook.test``. The deliveries say what the receiver answered."""
    return webhooks.test_webhook(context.store_of(caller), webhook_id)


@router.get("/{webhook_id}/deliveries")
def list_deliveries(
    webhook_id: WebhookId,
    request: Request,
    response: Response,
    context: Context,
    caller: Administrator,
    limit: Limit = 100,
    after: After = None,
) -> Page[Delivery]:
    """The deliveries of a webhook, newest first: those that wait, and the last 1000 others of 30 days."""
    store = context.store_of(caller)
    page, has_more = webhooks.list_deliveries(store, webhook_id, limit=limit, after=after)
    return page_of(request, response, page, has_more)


@router.post("/{webhook_id}/deliveries/{delivery_id}:repeat", status_code=202)
def repeat_delivery(
    webhook_id: WebhookId, delivery_id: DeliveryId, context: Context, caller: Administrator
) -> Delivery:
    """Send a delivery that has ended again, with the same event id."""
    return webhooks.repeat_delivery(context.store_of(caller), webhook_id, delivery_id)
