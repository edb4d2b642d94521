"""The audit log in the database: added with the change, read in pages, forgotten when it is old."""

from __future__ import annotations

import contextlib

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from app.domain.audit_context import Actor, AuditContext, audit_context, current_context
from app.store.migrate import _config, downgrade, upgrade
from app.store.tables import api_keys, audit_log
from app.store.unit_of_work import Store

ONE = Actor("key_1", "camera", "train")


def test_a_record_is_there_with_the_change_or_not_at_all(store: Store):
    with audit_context(AuditContext(ONE, "r-1", "192.0.2.1")) as context:
        with store.begin() as uow:
            uow.audit.append("dataset.delete", "ds_1", details={"digest": "abc"})
            assert context.recorded == 0
        assert context.recorded == 1
        with contextlib.suppress(RuntimeError), store.begin() as uow:
            uow.audit.append("dataset.delete", "ds_2")
            raise RuntimeError("rolled back")
        assert context.recorded == 1
    with store.read() as uow:
        [record], has_more = uow.audit.page(limit=10)
    assert not has_more
    assert (record.actor, record.actor_name, record.scope) == ("key_1", "camera", "train")
    assert (record.action, record.object, record.outcome) == ("dataset.delete", "ds_1", "done")
    assert (record.request_id, record.address, record.details) == ("r-1", "192.0.2.1", {"digest": "abc"})


def test_what_nobody_asked_for_is_done_by_the_service(store: Store):
    assert current_context().actor.id == "system"
    with store.begin() as uow:
        uow.audit.append("model.publish", "m@1")
    with store.read() as uow:
        [record], _ = uow.audit.page(limit=1)
    assert (record.actor, record.request_id, record.address) == ("system", None, None)


def test_pages_and_filters(store: Store):
    with store.begin() as uow:
        for number in range(10):
            context = AuditContext(ONE if number % 2 else Actor("cli", "op"))
            uow.audit.append(f"a.{number % 3}", f"o{number}", context=context)
    with store.read() as uow:
        everything, has_more = uow.audit.page(limit=100)
        assert (len(everything), has_more) == (10, False)
        assert [record.id for record in everything] == sorted((r.id for r in everything), reverse=True)
        first, has_more = uow.audit.page(limit=4)
        assert (list(first), has_more) == (list(everything[:4]), True)
        second, _ = uow.audit.page(limit=4, after=first[-1].id)
        assert list(second) == list(everything[4:8])
        found, _ = uow.audit.page(limit=100, actor="key_1", action="a.0")
        assert {record.object for record in found} == {"o3", "o9"}
        assert len(uow.audit.page(limit=9, object="o5")[0]) == 1
        middle = everything[5].at
        since, _ = uow.audit.page(limit=100, since=middle)
        until, _ = uow.audit.page(limit=100, until=middle)
        assert len(since) + len(until) == 10
        assert min(record.at for record in since) >= middle > max((r.at for r in until), default=0.0)


def test_texts_fit_whatever_they_are(store: Store):
    nasty = "x\0y\ud800 stms_key_" + "0" * 24 + "_" + "S" * 43
    with store.begin() as uow:
        context = AuditContext(Actor("a" * 300, nasty, "s" * 99), "r" * 300, "f" * 100)
        uow.audit.append(
            "b" * 300, nasty * 50, outcome="c" * 300, details={"name": nasty, "n": 1}, context=context
        )
    with store.read() as uow:
        [record], _ = uow.audit.page(limit=1)
    assert [len(text) for text in (record.actor, record.action, record.object, record.outcome)] == [
        100,
        60,
        500,
        64,
    ]
    assert "S" * 8 not in repr(record)


def test_old_records_are_forgotten_a_good_deal_at_a_time(store: Store):
    with store.begin() as uow:
        for number in range(10):
            row = {
                "actor": "a",
                "actor_name": "",
                "scope": "",
                "action": "x",
                "object": "o",
                "outcome": "done",
            }
            row |= {"id": f"aud_{number * 10**6:014x}", "at": float(number), "details": {}}
            uow.connection.execute(sa.insert(audit_log), row)
    with store.begin() as uow:
        assert uow.audit.delete_before(7.0, limit=4) == 4
        assert uow.audit.delete_before(7.0, limit=4) == 3
        assert uow.audit.delete_before(7.0) == 0
        assert [record.at for record in uow.audit.page(limit=10)[0]] == [9.0, 8.0, 7.0]


def test_keys_survive_the_way_to_the_audit_log_and_back(database_address: str, store: Store):
    with store.begin() as uow:
        row = {"id": "key_1", "name": "old", "digest": "0" * 64, "scopes": ["admin"], "models": []}
        uow.connection.execute(sa.insert(api_keys), row | {"created_at": 1.0, "rate_limit": 5.0})
        uow.audit.append("key.create", "key_1")
    store.dispose()
    downgrade(database_address, "0005")
    upgrade(database_address)
    with store.read() as uow:
        [key] = uow.keys.all()
        assert (key.name, key.rate_limit, key.expires_at) == ("old", None, None)
        assert key.scopes == {"admin", "operator"}
    with store.of_all_tenants().read() as uow:
        [record], _ = uow.audit.page(limit=10)
    newest = ScriptDirectory.from_config(_config(None)).get_current_head()
    assert (record.action, record.object, record.details) == ("database.upgrade", newest, {"from": "0005"})
    assert record.tenant == ""


def test_ranges_of_time_are_ranges_of_ids(store: Store):
    """Neither a filter nor the hourly clean-up reads the whole log: there is no index on the time."""
    with store.begin() as uow:
        for number in range(5):
            uow.audit.append("a", f"o{number}")
    with store.read() as uow:
        times = [record.at for record in uow.audit.page(limit=9)[0]][::-1]
        for at in times:
            assert [r.at for r in uow.audit.page(limit=9, since=at)[0]][::-1] == [t for t in times if t >= at]
            assert [r.at for r in uow.audit.page(limit=9, until=at)[0]][::-1] == [t for t in times if t < at]
        assert len(uow.audit.page(limit=9, since=-1e300, until=1e300)[0]) == 5
    statements: list[str] = []
    sa.event.listen(store.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with store.begin() as uow:
        uow.audit.page(limit=9, since=times[1], until=times[3])
        assert uow.audit.delete_before(times[2]) == sum(t < times[2] for t in times)
    assert sum("audit_log.id <" in text for text in statements) == 2


def test_a_page_of_records_is_bounded_in_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.paging.PAGE_BYTES", 5000)
    with store.begin() as uow:
        for number in range(12):
            uow.audit.append("job.cancel", "x" * 600, details={"number": number, "text": "y" * 10_000})
    numbers, after, has_more = [], None, True
    with store.read() as uow:
        while has_more:
            page, has_more = uow.audit.page(limit=1000, after=after)
            assert 1 <= len(page) <= 4
            assert {len(record.details["text"]) for record in page} == {500}
            numbers, after = [*numbers, *(record.details["number"] for record in page)], page[-1].id
    assert numbers == [*range(11, -1, -1)]
