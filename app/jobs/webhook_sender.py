"""Sends the deliveries of webhooks from the elected worker.

One thread reads the due deliveries and stores their outcomes. Each request has its own thread, and few run at
a time. Tenants take turns, and the webhooks of a tenant take turns: a receiver that never answers blocks two
threads until its time is over, and delays no other tenant and no other origin. An outcome that cannot be
stored is kept until it can, and its delivery is not sent again meanwhile. If a worker dies in between, the
next one sends its deliveries again: receivers recognise them by their ids.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from app.domain.figures import WORKER_FAILURES, WORKER_PARTS
from app.domain.origins import AllowedServers
from app.domain.webhook import Delivery, Outcome, Target, Webhook, not_allowed
from app.domain.webhook_message import body_of, check_of, headers_of, secret_of
from app.processes.periodic import PeriodicWork, until_beat
from app.remote.addresses import Resolve, addresses_of
from app.remote.connection import RemoteConnection
from app.remote.errors import RemoteFailed, RemoteUnavailable
from app.services.webhooks import announce_limits, record_outcome, root_secret
from app.settings import Settings
from app.store.unit_of_work import Store, UnitOfWork

logger = logging.getLogger(__name__)

MAX_REQUESTS: Final = 16
"""Largest number of requests at a time."""
MAX_OF_TENANT: Final = 8
"""Largest number of requests of one tenant."""
MAX_BESIDE_OTHERS: Final = MAX_REQUESTS // 3
"""Largest number of requests of one tenant while deliveries of others are due."""
MAX_OF_ORIGIN: Final = 2
"""Largest number of requests of one tenant to one scheme, host and port."""
REQUEST_SECONDS: Final = 10.0
"""Longest time of a request."""
_POLL_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 2.0
"""Interval at which a sender without any delivery looks for one."""
_LIMITS_SECONDS: Final = 600.0
_JOIN_SECONDS: Final = 5.0
_OUTCOMES, _REQUESTS, _EVENTS, _COUNTS = WORKER_PARTS


@dataclass(slots=True)
class _Request:
    """A delivery that is being sent, or whose outcome must still be stored. at: when the attempt ended."""

    webhook: Webhook
    delivery: Delivery
    target: Target
    outcome: Outcome | None = None
    at: float = 0.0


@dataclass(slots=True)
class Signer:
    """Signs and sends one delivery. root: the root secret. resolve: by default the system's resolver."""

    root: bytes
    allowed: AllowedServers
    clock: Callable[[], float] = time.time
    resolve: Resolve | None = None
    seconds: float = REQUEST_SECONDS

    def send(self, webhook: Webhook, delivery: Delivery, target: Target) -> Outcome:
        """Make one request and return what the receiver answered, or why it did not."""
        if webhook.secret_check != check_of(self.root):
            return Outcome(None, "The webhook was made with another STMS_WEBHOOK_SECRET. Make a new one.")
        if not self.allowed.allow(target.origin):
            return Outcome(None, not_allowed(target.origin))
        body = body_of(delivery.event, webhook.form)
        secret = secret_of(self.root, webhook.id)
        headers = headers_of(delivery.event_id, body, secret, self.clock(), webhook.form)
        try:
            addresses = addresses_of(target.origin, self.allowed, self.resolve)
            connection = RemoteConnection(target.origin, addresses, self.seconds)
            answer = connection.request("POST", target.path, body, None, headers)
        except (RemoteFailed, RemoteUnavailable) as error:
            return Outcome(None, str(error))
        refused = (
            None if 200 <= answer.status < 300 else f"The receiver answered with status {answer.status}."
        )
        return Outcome(answer.status, refused, answer.wait)


@dataclass(slots=True)
class WebhookSender:
    """A thread that sends what is due while this worker is elected.

    Two workers that are elected for a moment may send a delivery twice; only one outcome is stored. clock:
    seconds since the epoch.
    """

    store: Store
    settings: Settings
    is_elected: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.time
    resolve: Resolve | None = None
    periodic: PeriodicWork = field(default_factory=lambda: PeriodicWork(WORKER_PARTS))
    _running: dict[str, _Request] = field(default_factory=dict, init=False)
    # The tenant, and the webhook of each tenant, whose delivery was sent last; the next one has the
    # next turn.
    _last_tenant: str = field(default="", init=False)
    _last_webhooks: dict[str, str] = field(default_factory=dict, init=False)
    _counted: Counter[str] = field(default_factory=Counter, init=False)
    _announced_at: float = field(default=float("-inf"), init=False)
    _seconds: float = field(default=_POLL_SECONDS, init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _wake: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="webhooks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. It does not wait for running requests; they are sent again."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def run_once(self) -> None:
        """Store outcomes and, if this worker is elected, send due deliveries. Raises nothing."""
        self._store_outcomes()
        self.periodic.run(_COUNTS, self._count_failures)
        if not self.is_elected():
            return
        self.periodic.run(_REQUESTS, self._send_due)
        if self.clock() - self._announced_at >= _LIMITS_SECONDS:
            self._announced_at = self.clock()
            self.periodic.run(_EVENTS, lambda: announce_limits(self.store, self.settings, self.clock()))

    @property
    def running(self) -> int:
        """Number of requests that are running, or whose outcomes must still be stored."""
        return len(self._running)

    def _store_outcomes(self) -> None:
        """Store the outcome of each request that has ended."""
        for request in list(self._running.values()):
            if request.outcome is None:
                continue
            record = partial(record_outcome, self.store, request.delivery, request.outcome, request.at)
            if self.periodic.run(_OUTCOMES, record):
                del self._running[request.delivery.id]

    def _count_failures(self) -> None:
        """Store how often the periodic work has failed since the last call."""
        new = Counter(self.periodic.failures) - self._counted
        if new:
            with self.store.begin() as uow:
                for part, number in new.items():
                    uow.tallies.add(WORKER_FAILURES, part, number)
            self._counted += new

    def _send_due(self) -> None:
        now = self.clock()
        with self.store.peek() as uow:
            first = uow.webhooks.first_due()
        self._seconds = _IDLE_SECONDS if first is None else _POLL_SECONDS
        if first is None or first > now:
            return
        with self.store.read() as uow:
            allowed = AllowedServers.of(self.settings.webhooks)
            signer = Signer(root_secret(self.settings), allowed, self.clock, self.resolve)
            # A tenant without free requests has one running, so this number of tenants includes
            # the next in turn.
            tenants = uow.webhooks.tenants_due(now, after=self._last_tenant, limit=MAX_REQUESTS)
            most = MAX_OF_TENANT if len(tenants) == 1 else MAX_BESIDE_OTHERS
            due = {tenant: self._due_of(uow, tenant, now) for tenant in tenants}
            while due and len(self._running) < MAX_REQUESTS:
                running = Counter(request.webhook.tenant for request in self._running.values())
                # Among the tenants with the fewest running requests, the first in turn.
                tenant = min(due, key=running.__getitem__)
                request = next(due[tenant], None) if running[tenant] < most else None
                if request is None:
                    del due[tenant]
                else:
                    self._begin(request, signer)

    def _due_of(self, uow: UnitOfWork, tenant: str, now: float) -> Iterator[_Request]:
        """Deliveries of a tenant that may be sent; its webhooks take turns.

        Each begins before the next is read.
        """
        last = self._last_webhooks.get(tenant, "")
        webhooks = uow.webhooks.of_tenant(tenant).with_due(now)
        turns = sorted(webhooks, key=lambda webhook: (webhook.id <= last, webhook.id))
        waiting = deque((webhook, Target.of(webhook.url)) for webhook in turns)
        while waiting:
            webhook, target = waiting.popleft()
            if self._number_running(tenant, target) < MAX_OF_ORIGIN:
                for delivery in uow.webhooks.due_of(webhook.id, now, limit=1, but=self._running):
                    yield _Request(webhook, delivery, target)
                    waiting.append((webhook, target))

    def _number_running(self, tenant: str, target: Target) -> int:
        """Number of running requests of a tenant to an origin."""
        return sum(
            request.webhook.tenant == tenant and request.target.origin == target.origin
            for request in self._running.values()
        )

    def _begin(self, request: _Request, signer: Signer) -> None:
        work = threading.Thread(target=self._send, args=(request, signer), name="webhook", daemon=True)
        work.start()
        self._running[request.delivery.id] = request
        self._last_tenant = request.webhook.tenant
        self._last_webhooks[request.webhook.tenant] = request.webhook.id

    def _send(self, request: _Request, signer: Signer) -> None:
        try:
            outcome = signer.send(request.webhook, request.delivery, request.target)
        except Exception as error:
            logger.exception("delivery %s could not be sent", request.delivery.id)
            outcome = Outcome(None, f"The request failed: {type(error).__name__}.")
        request.at = self.clock()
        request.outcome = outcome
        self._wake.set()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            self.run_once()
            self._wake.wait(until_beat(self._seconds))
