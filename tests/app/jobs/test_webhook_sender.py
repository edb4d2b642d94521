"""The sender against receivers that answer, hang, or are where no request may go."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from app.domain.errors import Unavailable
from app.domain.figures import WORKER_FAILURES
from app.domain.origins import AllowedServers
from app.domain.webhook import Delivery, Outcome, Target
from app.domain.webhook_message import secret_of, secret_text
from app.jobs import webhook_sender
from app.jobs.webhook_sender import Signer, WebhookSender
from app.services import webhooks
from app.settings import Settings
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import wait_for
from tests.app.remote.test_addresses import EMBEDDED, METADATA, NEVER, PRIVATE
from tests.app.webhook_rows import ROOT, add_webhook, deliveries
from tests.receiver import Receiver, receiver


def sender(store: Store, *origins: str, **options: Any) -> WebhookSender:
    settings = Settings(webhooks=",".join(origins), webhook_secret=ROOT)
    return WebhookSender(store.of_all_tenants(), settings, **options)


def run(one: WebhookSender, until: Callable[[], object]) -> None:
    """Run the sender until something is true."""

    def step() -> object:
        one.run_once()
        return until()

    wait_for(step, 60)


def settle(one: WebhookSender) -> None:
    """Run the sender once, and until every request that it made is stored."""
    one.run_once()
    run(one, lambda: not one.running)


def add_test(store: Store, webhook_id: str) -> Delivery:
    return webhooks.test_webhook(store, webhook_id)


def only(store: Store, webhook_id: str) -> Delivery:
    [found] = deliveries(store, webhook_id)
    return found


@pytest.mark.parametrize("form", ["cloudevents", "slack"])
def test_a_delivery_is_sent_signed_and_once(sqlite_store: Store, form: str):
    with receiver() as found:
        webhook_id = add_webhook(sqlite_store, url=f"{found.url}/a?b=c", form=form)
        sent, one = add_test(sqlite_store, webhook_id), sender(sqlite_store, found.url)
        settle(one)
        settle(one)
    [(headers, body)] = found.requests
    assert headers["webhook-id"] == sent.event_id
    secret = secret_text(secret_of(ROOT.encode(), webhook_id))
    assert Verifier(secret).verify(body, headers) == found.events[0]
    assert "authorization" not in headers
    delivered = only(sqlite_store, webhook_id)
    assert (delivered.state, delivered.status, delivered.attempts) == ("delivered", 204, 1)


def test_attempts_are_repeated_when_the_clock_says_so(sqlite_store: Store):
    now = time.time() + 1.0
    with receiver(lambda number: 503 if number < 2 else 200) as found:
        webhook_id = add_webhook(sqlite_store, url=found.url)
        add_test(sqlite_store, webhook_id)
        one = sender(sqlite_store, found.url, clock=lambda: now)
        counts = []
        for seconds in (0.0, 4.0, 1.5, 29.0, 1.5, 1000.0):
            now += seconds
            settle(one)
            counts.append(len(found.requests))
    assert counts == [1, 1, 2, 2, 3, 3]
    assert len({headers["webhook-id"] for headers, _ in found.requests}) == 1
    stamps = [int(headers["webhook-timestamp"]) for headers, _ in found.requests]
    assert stamps[2] - stamps[0] in {35, 36}, "each attempt is signed with its own time"
    assert only(sqlite_store, webhook_id).state == "delivered"


def test_retry_after_is_respected(sqlite_store: Store):
    with receiver(lambda _number: 429) as found:
        found.extra["Retry-After"] = "60"
        webhook_id = add_webhook(sqlite_store, url=found.url)
        add_test(sqlite_store, webhook_id)
        settle(sender(sqlite_store, found.url, clock=(now := time.time() + 1.0).__float__))
    assert only(sqlite_store, webhook_id).due_at == now + 60.0


def test_a_worker_that_is_not_elected_sends_nothing(sqlite_store: Store):
    elected = False
    with receiver() as found:
        webhook_id = add_webhook(sqlite_store, url=found.url)
        add_test(sqlite_store, webhook_id)
        one = sender(sqlite_store, found.url, is_elected=lambda: elected)
        settle(one)
        assert found.requests == []
        elected = True
        settle(one)
    assert len(found.requests) == 1


@pytest.mark.long
def test_a_receiver_that_hangs_delays_nobody_else(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch):
    with receiver(held=True) as hanging, receiver() as quick:
        slow, other = (add_webhook(sqlite_store, url=one.url) for one in (hanging, quick))
        for _ in range(30):
            add_test(sqlite_store, slow)
        one = sender(sqlite_store, hanging.url, quick.url)
        run(one, lambda: len(hanging.requests) == 2)
        for _ in range(5):
            add_test(sqlite_store, other)
        run(one, lambda: len(quick.requests) == 5)
        assert len(hanging.requests) == 2, "at most two requests go to one target"
        hanging.hold.set()
        run(one, lambda: len(hanging.requests) == 30 and not one.running)
    assert {delivery.state for delivery in deliveries(sqlite_store, slow)} == {"delivered"}
    assert len({headers["webhook-id"] for headers, _ in hanging.requests}) == 30


@contextmanager
def many_origins(number: int) -> Iterator[tuple[Receiver, list[str], dict[str, Any]]]:
    """A receiver that holds its answers, under several origins; they, and options of a sender for them."""
    with receiver(held=True) as found:
        origins = [f"http://host-{place}:{found.port}" for place in range(number)]
        yield found, origins, {"resolve": lambda _host, _port: ["127.0.0.1"]}


def running(one: WebhookSender) -> Counter[str]:
    """The number of requests that a sender makes, by tenant."""
    return Counter(request.webhook.tenant for request in one._running.values())


def test_a_tenant_alone_has_half_of_the_places_and_beside_others_a_third(sqlite_store: Store):
    tenants = {name: sqlite_store.of_tenant(name) for name in "abcd"}
    with many_origins(6) as (found, origins, options):
        one = sender(sqlite_store, *origins, **options)

        def fill(name: str) -> None:
            for origin in origins:
                webhook_id = add_webhook(tenants[name], url=origin)
                for _ in range(3):
                    add_test(tenants[name], webhook_id)

        fill("a")
        one.run_once()
        assert running(one) == {"a": 8}
        fill("b")
        one.run_once()
        assert running(one) == {"a": 8, "b": 5}
        for name in "cd":
            fill(name)
        one.run_once()
        assert running(one) == {"a": 8, "b": 5, "c": 2, "d": 1}, "what is being sent is not ended"
        found.hold.set()
        run(one, lambda: len(found.requests) == 4 * 6 * 3 and not one.running)


def test_a_slow_tenant_takes_no_place_of_another_at_the_same_origin(sqlite_store: Store):
    """As two tenants with one gateway: one has very many events for a path that does not answer."""
    with receiver(held=True) as found:
        slow, other = sqlite_store.of_tenant("slow"), sqlite_store.of_tenant("other")
        for number in range(30):
            webhook_id = add_webhook(slow, url=f"{found.url}/slow?{number}")
            for _ in range(4):
                add_test(slow, webhook_id)
        one = sender(sqlite_store, found.url)
        run(one, lambda: len(found.requests) == 2)
        add_test(other, add_webhook(other, url=f"{found.url}/other"))
        one.run_once()
        assert running(one) == {"slow": 2, "other": 1}
        run(one, lambda: {event["source"] for event in found.events} == {"urn:stms:slow", "urn:stms:other"})
        assert len(found.requests) == 3


def test_very_many_tenants_and_the_webhooks_of_each_have_turns(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(webhook_sender, "MAX_REQUESTS", 2)
    names = [f"tenant-{number}" for number in range(5)]
    sent: list[tuple[str, str]] = []

    def answer(_signer: Signer, webhook: Any, _delivery: Delivery, _target: Target) -> Outcome:
        sent.append((webhook.tenant, webhook.id))
        return Outcome(204)

    monkeypatch.setattr(Signer, "send", answer)
    for name in names:
        tenant = sqlite_store.of_tenant(name)
        for webhook_id in [add_webhook(tenant) for _ in range(3)]:
            for _ in range(20):
                add_test(tenant, webhook_id)
    one = sender(sqlite_store, "https://hooks.example.com")
    run(one, lambda: len(sent) >= 30)
    first = sent[:30]
    assert set(Counter(name for name, _ in first).values()) == {6}
    assert set(Counter(webhook_id for _, webhook_id in first).values()) == {2}


@pytest.mark.parametrize("address", PRIVATE + NEVER + EMBEDDED + METADATA)
def test_a_host_that_only_an_asterisk_covers_is_not_reached_at_a_private_address(
    address: str, monkeypatch: pytest.MonkeyPatch
):
    refused = attempt("https://*.example.com", "https://a.example.com/", address, monkeypatch)
    assert "a.example.com" in refused
    assert address not in refused


@pytest.mark.parametrize("address", NEVER + EMBEDDED + METADATA)
def test_a_listed_host_is_not_reached_at_an_address_of_the_link(
    address: str, monkeypatch: pytest.MonkeyPatch
):
    assert address not in attempt("http://hooks:80", "http://hooks/", address, monkeypatch)


def attempt(allowed: str, url: str, address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of a delivery to a host that is at an address. Fails if a connection is tried."""
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("it was connected"))
    webhook = webhooks.Webhook("wh", "n", url, (), (), "slack", 0.0, "k", webhook_check())
    delivery = Delivery("del", "wh", "evt", "webhook.test", "wh", 0.0, {}, "waiting")
    signer = Signer(ROOT.encode(), AllowedServers.of(allowed), resolve=lambda _host, _port: [address])
    outcome = signer.send(webhook, delivery, Target.of(url))
    assert outcome.status is None
    return str(outcome.error)


def webhook_check() -> str:
    return webhook_sender.check_of(ROOT.encode())


def test_an_origin_that_was_taken_from_the_setting_is_refused_when_sending(sqlite_store: Store):
    with receiver() as found:
        webhook_id = add_webhook(sqlite_store, url=found.url)
        add_test(sqlite_store, webhook_id)
        settle(sender(sqlite_store, "https://hooks.example.com"))
    assert found.requests == []
    failed = only(sqlite_store, webhook_id)
    assert (failed.state, failed.attempts) == ("waiting", 1)
    assert "STMS_WEBHOOKS" in str(failed.error)


def test_redirects_are_not_followed(sqlite_store: Store):
    with receiver() as target, receiver(lambda _number: 307) as found:
        found.extra["Location"] = target.url
        webhook_id = add_webhook(sqlite_store, url=found.url)
        add_test(sqlite_store, webhook_id)
        settle(sender(sqlite_store, found.url, target.url))
    assert target.requests == []
    assert "redirects are not followed" in str(only(sqlite_store, webhook_id).error)


def test_another_root_secret_is_noticed(sqlite_store: Store):
    with receiver() as found:
        webhook_id = add_webhook(sqlite_store, url=found.url, secret_check="f" * 16)
        add_test(sqlite_store, webhook_id)
        settle(sender(sqlite_store, found.url))
    assert found.requests == []
    assert "STMS_WEBHOOK_SECRET" in str(only(sqlite_store, webhook_id).error)


def test_an_outcome_that_cannot_be_stored_is_kept_and_not_sent_again(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    stored = webhook_sender.record_outcome

    def fail(*_: object) -> None:
        raise Unavailable("The disk of the database is full.")

    with receiver() as found:
        webhook_id = add_webhook(sqlite_store, url=found.url)
        add_test(sqlite_store, webhook_id)
        one = sender(sqlite_store, found.url)
        monkeypatch.setattr(webhook_sender, "record_outcome", fail)
        run(one, lambda: one.periodic.failures["webhook outcomes"] >= 3)
        assert (len(found.requests), one.running) == (1, 1)
        monkeypatch.setattr(webhook_sender, "record_outcome", stored)
        settle(one)
    assert len(found.requests) == 1
    assert only(sqlite_store, webhook_id).state == "delivered"
    assert caplog.text.count("The disk of the database is full") == 1, "the first failure is logged"
    with sqlite_store.read() as uow:
        assert uow.tallies.all()[WORKER_FAILURES, "webhook outcomes"] >= 3


def test_each_part_fails_alone(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(webhook_sender, "announce_limits", fail)
    with receiver() as found:
        webhook_id = add_webhook(sqlite_store, url=found.url)
        add_test(sqlite_store, webhook_id)
        one = sender(sqlite_store, found.url)
        settle(one)
        assert {part for part, count in one.periodic.failures.items() if count} == {"webhook events"}
    assert only(sqlite_store, webhook_id).state == "delivered"


def test_a_fault_of_our_own_is_an_outcome_like_others(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(webhook_sender, "body_of", lambda *_: 1 / 0)
    webhook_id = add_webhook(sqlite_store)
    add_test(sqlite_store, webhook_id)
    settle(sender(sqlite_store, "https://hooks.example.com"))
    assert only(sqlite_store, webhook_id).error == "The request failed: ZeroDivisionError."


def test_without_a_root_secret_deliveries_wait(sqlite_store: Store, tmp_path: Path):
    webhook_id = add_webhook(sqlite_store)
    add_test(sqlite_store, webhook_id)
    settings = Settings(database_url="postgresql://nowhere/x", webhooks="https://hooks.example.com")
    one = WebhookSender(sqlite_store.of_all_tenants(), settings)
    one.run_once()
    assert one.periodic.failures["webhook requests"] == 1
    assert (only(sqlite_store, webhook_id).state, only(sqlite_store, webhook_id).attempts) == ("waiting", 0)


def test_the_thread_sends_and_ends(sqlite_store: Store):
    with receiver() as found:
        one = sender(sqlite_store, found.url)
        one.start()
        webhook_id = add_webhook(sqlite_store, url=found.url)
        add_test(sqlite_store, webhook_id)
        wait_for(lambda: only(sqlite_store, webhook_id).state == "delivered", 60)
        one.stop()
        assert one._thread is not None
        assert not one._thread.is_alive()


def sent_ids(found: Receiver) -> set[str]:
    return {headers["webhook-id"] for headers, _ in found.requests}


def test_two_workers_that_are_elected_at_once_store_one_outcome(store: Store):
    with receiver(held=True) as found:
        webhook_id = add_webhook(store, url=found.url)
        delivery = add_test(store, webhook_id)
        first, second = sender(store, found.url), sender(store, found.url)
        first.run_once()
        second.run_once()
        wait_for(lambda: len(found.requests) == 2, 60)
        found.hold.set()
        run(first, lambda: not first.running)
        run(second, lambda: not second.running)
    assert sent_ids(found) == {delivery.event_id}
    assert only(store, webhook_id).attempts == 1
