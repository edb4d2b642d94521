"""Webhooks: which events a receiver gets, at which address, and when a delivery is tried again.

A delivery is one event for one webhook. Its row is stored by the transaction that makes the event true, and
`app.jobs.webhook_sender` sends it later, at least once.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import computed_field

from app.domain.document import OWN, Document, Time
from app.domain.entities import Json
from app.domain.errors import InputFault
from app.domain.names import is_display_name, is_model_name
from app.domain.origins import AllowedServers, Origin

Form: TypeAlias = Literal["cloudevents", "slack"]
DeliveryState: TypeAlias = Literal["waiting", "delivered", "dead"]

FORMS: Final = ("cloudevents", "slack")
JOB_EVENTS: Final = {
    f"job_{state}": f"job.{state}" for state in ("succeeded", "partially_succeeded", "failed", "cancelled")
}
"""Types of the events of jobs that end them, and what webhooks call them."""
EVENTS: Final = (
    *JOB_EVENTS.values(),
    "version.published",
    "alias.moved",
    "promise.broken",
    "evaluation.ended",
    "schedule.queued",
    "schedule.skipped",
    "schedule.evaluated",
    "schedule.stopped",
    "key.expiring",
    "quota.nearly_used",
)
"""Types of the events that a webhook can get."""
TEST_EVENT: Final = "webhook.test"

MAX_WEBHOOKS: Final = 50
"""Most webhooks of a tenant."""
MAX_MODELS: Final = 100
"""Most models that a webhook is limited to."""
MAX_URL: Final = 2000
"""Characters of an address."""
MAX_WAITING: Final = 5000
"""Waiting deliveries of a webhook; further ones are stored as dead."""
KEPT_ENDED: Final = 1000
"""Delivered and dead deliveries of a webhook that are kept, the newest ones."""
KEPT_DAYS: Final = 30
"""Days after which they are deleted."""
MAX_BODY: Final = 16 * 1024
"""Bytes of the body of a request."""
DELAYS: Final = (0.0, 5.0, 30.0, 300.0, 1800.0, 7200.0, 28800.0)
"""Seconds before each attempt, from the event or from the attempt before."""
MAX_ERROR: Final = 300
"""Characters of the error of an attempt that are kept."""
MAX_TEXT: Final = 1000
"""Characters of a text within an event, such as the message of an error."""
MAX_DEAD: Final = 20
"""Dead deliveries in a row after which a webhook is disabled."""

_URL: Final = re.compile(r"https?://[!-~]+")


@dataclass(frozen=True, slots=True)
class Webhook(Document):
    """A webhook without its secret.

    models: names of the models whose events it gets; empty for all. Events that belong to no model are not
    limited by them. disabled_reason: null while it is enabled; ``request``, ``gone`` (the receiver answered
    410) or ``dead`` (20 deliveries in a row). dead_in_row: dead deliveries since the last delivered one.
    """

    id: str
    name: str
    url: str
    events: tuple[str, ...]
    models: tuple[str, ...]
    form: Form
    created_at: Time
    created_by: str
    secret_check: Annotated[str, OWN]
    """Of the root secret from which its secret was made, see `webhook_message.check_of`."""
    disabled_reason: str | None = None
    dead_in_row: int = 0
    tenant: str = "default"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def enabled(self) -> bool:
        """Whether events are stored and sent for it."""
        return self.disabled_reason is None


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """Something that happened in a tenant. at: seconds since the epoch.

    id: the same for all webhooks and in every attempt. subject: id or name of what it happened to. model:
    that it belongs to, or None. data: what receivers get, links instead of contents.
    """

    id: str
    type: str
    tenant: str
    subject: str
    at: float
    data: Json
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Delivery(Document):
    """An event for a webhook. event_id: the header webhook-id. at: when it happened.

    attempts: that have ended. due_at: when the next one is due, or null. status: of the last answer, null
    without one. error: why the last attempt failed. ended_at: when it was delivered or given up (dead).
    """

    id: str
    webhook_id: Annotated[str, OWN]
    event_id: str
    type: str
    subject: str
    at: Time
    data: Json
    state: DeliveryState
    attempts: int = 0
    due_at: Time | None = None
    status: int | None = None
    error: str | None = None
    ended_at: Time | None = None
    tenant: Annotated[str, OWN] = "default"

    @property
    def event(self) -> WebhookEvent:
        """The event that it delivers."""
        return WebhookEvent(self.event_id, self.type, self.tenant, self.subject, self.at, self.data)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a webhook's requests go. path: with the query string."""

    origin: Origin
    path: str

    @classmethod
    def of(cls, url: str) -> Target:
        """From an address without user, password and fragment. Raises ValueError."""
        if len(url) > MAX_URL or not _URL.fullmatch(url):
            message = (
                f"The address must begin with https:// or http:// and have at most {MAX_URL} characters of"
            )
            raise ValueError(f"{message} ASCII.")
        if "#" in url or "\\" in url:
            raise ValueError("The address must have neither a fragment nor a backslash.")
        try:
            parts = urlsplit(url)
            origin = Origin.of(f"{parts.scheme}://{parts.netloc}")
        except ValueError:
            raise ValueError("The address must have a host, with or without a port, and no user.") from None
        return cls(origin, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attempt led to. status: of the answer, None without one. wait: seconds that it asked for."""

    status: int | None
    error: str | None = None
    wait: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the receiver has accepted the event."""
        return self.error is None and self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """Whether the receiver wants no further events."""
        return self.status == 410


def due_after(attempts: int, now: float, wait: float | None = None) -> float | None:
    """When the next attempt is due after so many that failed; None after the last one."""
    return now + max(DELAYS[attempts], wait or 0.0) if attempts < len(DELAYS) else None


def wants(events: Collection[str], models: Collection[str], event: WebhookEvent) -> bool:
    """Whether a webhook of these events and models gets an event."""
    return event.type in events and (not models or event.model is None or event.model in models)


def faults_of(
    name: str, url: str, events: Collection[str], models: Collection[str], form: str, allowed: AllowedServers
) -> list[InputFault]:
    """What is wrong with the fields of a webhook. allowed: origins of ``STMS_WEBHOOKS``."""
    faults = []
    if not is_display_name(name, 100):
        message = "The name of a webhook must have 1 to 100 printable characters."
        faults.append(InputFault("name", "bad_name", message))
    try:
        target = Target.of(url)
    except ValueError as error:
        faults.append(InputFault("url", "bad_url", str(error)))
    else:
        if not allowed.allow(target.origin):
            faults.append(InputFault("url", "webhook_not_allowed", not_allowed(target.origin)))
    if not events or not set(EVENTS).issuperset(events):
        message = f"Events must be one or more of {', '.join(EVENTS)}."
        faults.append(InputFault("events", "unknown_event", message))
    if form not in FORMS:
        faults.append(InputFault("form", "unknown_form", f"The form must be one of {', '.join(FORMS)}."))
    if len(models) > MAX_MODELS:
        faults.append(InputFault("models", "too_long", f"A webhook has at most {MAX_MODELS} models."))
        return faults
    return faults + [
        InputFault("models", "bad_name", f"{model!r:.120} is not the name of a model.")
        for model in models
        if not is_model_name(model)
    ]


def not_allowed(origin: Origin) -> str:
    """What to say of an origin that is not listed."""
    return (
        f"This installation does not allow webhooks to {origin}. An operator can list the address in"
        " STMS_WEBHOOKS."
    )
