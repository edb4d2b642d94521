"""The request to a receiver: its body, as a CloudEvent 1.0 or a Slack message, and its signed headers.

The headers are those of Standard Webhooks 1.0: ``webhook-id`` is the id of the event, and
``webhook-signature`` is ``v1,`` and the base64 of HMAC-SHA256 over ``id.timestamp.body``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Final

from app.domain.webhook import Form, WebhookEvent

PREFIX: Final = "whsec_"
_CHECK_CHARACTERS: Final = 16
_CONTENT_TYPES: Final = {
    "cloudevents": "application/cloudevents+json; charset=utf-8",
    "slack": "application/json; charset=utf-8",
}


def secret_of(root: bytes, webhook_id: str) -> bytes:
    """The secret of a webhook, 32 bytes, from the root secret of the installation."""
    return hmac.digest(root, f"webhook {webhook_id}".encode("ascii"), "sha256")


def check_of(root: bytes) -> str:
    """A text that differs for different root secrets, and from which none can be computed."""
    return hmac.digest(root, b"check", "sha256").hex()[:_CHECK_CHARACTERS]


def secret_text(secret: bytes) -> str:
    """The secret as receivers write it, ``whsec_…``."""
    return PREFIX + base64.b64encode(secret).decode("ascii")


def body_of(event: WebhookEvent, form: Form) -> bytes:
    """The body of a request, JSON in UTF-8, the same in every attempt."""
    message = {"text": _sentence(event)} if form == "slack" else _cloud_event(event)
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def headers_of(event_id: str, body: bytes, secret: bytes, now: float, form: Form) -> dict[str, str]:
    """The headers of a request that is sent at ``now``, seconds since the epoch."""
    timestamp = str(int(now))
    signed = hmac.new(secret, f"{event_id}.{timestamp}.".encode("ascii") + body, hashlib.sha256).digest()
    return {
        "Content-Type": _CONTENT_TYPES[form],
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": "v1," + base64.b64encode(signed).decode("ascii"),
    }


def _cloud_event(event: WebhookEvent) -> dict[str, object]:
    at = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds")
    return {
        "specversion": "1.0",
        "id": event.id,
        "source": f"urn:stms:{event.tenant}",
        "type": event.type,
        "subject": event.subject,
        "time": at.replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": event.data,
    }


def _sentence(event: WebhookEvent) -> str:
    """One line for people. In Slack, ``&``, ``<`` and ``>`` are markup."""
    parts = [f"{event.type}: {event.subject}"]
    model, error = event.data.get("model"), event.data.get("error")
    if model is not None and model not in event.subject:
        parts.append(f"model {model}")
    if "promise" in event.data:
        parts.append(f"class {event.data['class']}, {event.data['promise']}")
    if error is not None:
        parts.append(str(error["message"]))
    text = ", ".join(parts)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
