"""The background writer of the audit log, also while the database fails."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from app.auth import audit_writer as module
from app.auth.audit_writer import AuditWriter, DenialCounts, request_line, write_denials
from app.auth.authenticator import Authenticator
from app.domain.audit_context import Actor, AuditContext
from app.domain.errors import Unavailable
from app.services.audit import list_records
from app.services.keys import all_keys, create_key
from app.settings import Settings
from app.store.unit_of_work import Store


def scope(text: str | None = None, client: str = "192.0.2.1", path: str = "/v1/keys") -> dict[str, Any]:
    headers = [] if text is None else [(b"x-api-key", text.encode())]
    return {"method": "GET", "raw_path": path.encode(), "headers": headers, "client": (client, 1)}


@pytest.fixture
def authenticator(sqlite_store: Store) -> Authenticator:
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    return authenticator


def test_denials_become_one_row_for_each_caller_and_address(sqlite_store: Store):
    key, text = create_key(sqlite_store, "camera", {"query"})
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    audit_writer = AuditWriter(sqlite_store, authenticator)
    for _ in range(100):
        audit_writer.record_denial(scope("nonsense"), "invalid_key", "r-1")
    audit_writer.record_denial(scope(), "key_required", "r-2")
    audit_writer.record_denial(scope(text), "scope_required", "r-3")
    audit_writer.record_denial(scope(client="192.0.2.2", path=f"/x/{text}"), "key_required", "r-4")
    asyncio.run(audit_writer.write())
    rows, _ = list_records(sqlite_store.of_all_tenants(), limit=10, action="request.refused")
    found = {(row.actor, row.address): row for row in rows}
    assert len(rows) == len(found) == 3
    many = found["unknown", "192.0.2.1"]
    assert (many.object, many.outcome, many.request_id) == ("GET /v1/keys", "invalid_key", "r-1")
    assert many.details == {"count": 101, "codes": {"invalid_key": 100, "key_required": 1}}
    known = found[key.id, "192.0.2.1"]
    assert (known.actor_name, known.scope) == ("camera", "query")
    assert text not in repr(rows)
    assert found["unknown", "192.0.2.2"].object == f"GET /x/stms_{key.id}_***"


def test_the_number_of_rows_is_bounded_for_any_number_of_addresses(sqlite_store: Store):
    denials = DenialCounts()
    for number in range(1000):
        denials.add(AuditContext(address=f"192.0.2.{number}"), "GET /", f"code_{number}")
    for number in range(100):
        denials.add(AuditContext(address="192.0.2.0"), "GET /", f"code_{number}")
    write_denials(sqlite_store, denials.take())
    assert denials.take() == {}
    rows, has_more = list_records(sqlite_store.of_all_tenants(), limit=1000)
    assert (len(rows), has_more) == (129, False)
    assert sum(row.details["count"] for row in rows) == 1100
    assert max(len(row.details["codes"]) for row in rows) <= 17


def test_a_flood_of_one_tenant_or_of_unknown_callers_hides_no_denial_of_another(sqlite_store: Store):
    def by(number: int, tenant: str) -> AuditContext:
        return AuditContext(Actor(f"key_{tenant}{number}", "k", "query", tenant), address="192.0.2.1")

    denials = DenialCounts()
    for number in range(300):
        denials.add(by(number, "b"), "GET /", "scope_required")
    for number in range(300):
        denials.add(AuditContext(address=f"192.0.2.{number}"), "GET /", "key_required")
    taken = denials.take()
    denials.put_back(taken)
    denials.add(by(1, "a"), "GET /mine", "scope_required")
    write_denials(sqlite_store.of_all_tenants(), denials.take())

    def rows(tenant: str) -> list[tuple[str, int]]:
        found = list_records(sqlite_store.of_tenant(tenant), limit=1000)[0]
        return sorted((row.actor, row.details["count"]) for row in found)

    assert sum(count for _, count in rows("b")) == 300
    assert len(rows("b")) == 129
    assert ("unknown", 300 - 128) in rows("b")
    # The half of a tenant and that of unknown callers fill all places: a third shares a row of its own.
    assert rows("a") == [("unknown", 1)]


def test_a_flood_of_one_tenant_leaves_rows_of_their_own_to_others(sqlite_store: Store):
    denials = DenialCounts()
    for tenant, number in (("b", 300), ("a", 3)):
        for place in range(number):
            actor = Actor(f"key_{tenant}{place}", "k", "query", tenant)
            denials.add(AuditContext(actor, address="192.0.2.1"), "GET /", "scope_required")
    write_denials(sqlite_store.of_all_tenants(), denials.take())
    rows, _ = list_records(sqlite_store.of_tenant("a"), limit=1000)
    assert {row.actor for row in rows} == {"key_a0", "key_a1", "key_a2"}


async def test_failed_writes_are_repeated_with_the_next_one(sqlite_store: Store, monkeypatch, caplog):
    key, text = create_key(sqlite_store, "camera", {"query"})
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    audit_writer = AuditWriter(sqlite_store, authenticator)

    def away() -> Any:
        raise Unavailable("The database cannot be used just now.")

    audit_writer.record_denial(scope("nonsense"), "invalid_key", "r-1")
    authenticator.identify(dict(scope(text)["headers"]))
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_store, "begin", away)
        await audit_writer.write(everything=True)
        audit_writer.record_denial(scope("nonsense"), "invalid_key", "r-2")
        pending = audit_writer.write(everything=True)
        audit_writer.record_denial(scope("nonsense"), "key_required", "r-2")
        await pending
        audit_writer.record_action(scope(text), "r-3", key, "student.load", "pets")
    await audit_writer.write(everything=True)
    [row], _ = list_records(sqlite_store.of_all_tenants(), limit=10, action="request.refused")
    assert row.details == {"count": 3, "codes": {"invalid_key": 2, "key_required": 1}}
    [listed] = all_keys(sqlite_store)
    assert listed.last_used_at is not None
    assert caplog.text.count("cannot be written at the moment") == 1
    assert "student.load of pets is not in the audit log" in caplog.text


async def test_the_background_task_writes_periodically_and_when_it_stops(sqlite_store: Store, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS", 0.05)
    monkeypatch.setattr(module, "USAGE_SECONDS", 0.1)
    key, text = create_key(sqlite_store, "camera", {"query"})
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    audit_writer = AuditWriter(sqlite_store, authenticator)
    audit_writer.start()
    authenticator.identify(dict(scope(text)["headers"]))
    audit_writer.record_denial(scope(), "key_required", "r-1")
    while all_keys(sqlite_store)[0].last_used_at is None:
        await asyncio.sleep(0.02)
    assert len(list_records(sqlite_store.of_all_tenants(), limit=10, action="request.refused")[0]) == 1
    audit_writer.record_denial(scope(), "key_required", "r-2")
    await audit_writer.stop()
    assert len(list_records(sqlite_store.of_all_tenants(), limit=10, action="request.refused")[0]) == 2
    # Stopping a writer that was never started must return, too.
    await AuditWriter(sqlite_store, authenticator).stop()
    [listed] = all_keys(sqlite_store)
    assert listed.id == key.id
    assert time.time() - (listed.last_used_at or 0) < 60


def test_a_long_path_is_cut():
    assert len(request_line(scope(path="/" + "a" * 5000))) == len("GET ") + 400


def test_restored_counts_are_added_to_newer_ones():
    denials = DenialCounts()
    denials.add(AuditContext(address="a"), "GET /", "one", 2)
    taken = denials.take()
    denials.add(AuditContext(address="a"), "GET /", "one", 3)
    denials.add(AuditContext(address="b"), "GET /", "two")
    denials.put_back(taken)
    counts = {address: dict(seen.codes) for (_, address, _), seen in denials.take().items()}
    assert counts == {"a": {"one": 5}, "b": {"two": 1}}


async def test_a_hanging_database_does_not_delay_the_stop(sqlite_store: Store, monkeypatch, caplog):
    monkeypatch.setattr(module, "_STOP_SECONDS", 0.1)
    let_go = threading.Event()
    monkeypatch.setattr(module, "write_denials", lambda *_: let_go.wait(30))
    audit_writer = AuditWriter(sqlite_store, Authenticator(Settings(require_keys=True)))
    audit_writer.record_denial(scope("nonsense", "192.0.2.1"), "invalid_key", "r-1")
    await audit_writer.stop()
    let_go.set()
    assert "could not be written in time" in caplog.text


def test_the_addresses_of_one_network_share_a_row(sqlite_store: Store, authenticator: Authenticator):
    """One site has 2^64 addresses; a row for each filled the log with millions of rows a day."""
    audit_writer = AuditWriter(sqlite_store.of_all_tenants(), authenticator)
    for number in range(300):
        audit_writer.record_denial(scope("nonsense", f"2001:db8:0:1::{number:x}"), "invalid_key", "r-1")
    audit_writer.record_denial(scope("nonsense", "2001:db8:0:2::7"), "invalid_key", "r-2")
    asyncio.run(audit_writer.write(everything=True))
    with sqlite_store.of_all_tenants().read() as uow:
        rows = uow.audit.page(limit=10)[0]
    assert {(row.address, row.details["count"]) for row in rows} == {
        ("2001:db8:0:1::", 300),
        ("2001:db8:0:2::7", 1),
    }
