"""The audit log in the database: added with the change, read in pages, forgotten when it is old."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from app.domain.audit_context import Actor, AuditContext, audit_context, current_context
from app.settings import Settings
from app.store.engine import open_database, open_engine
from app.store.tables import audit_log
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


@pytest.fixture
def postgres_store(postgres_address: str) -> Iterator[Store]:
    opened = Store(open_engine(postgres_address))
    yield opened
    opened.dispose()


def objects_after(store: Store, after: str | None) -> list[tuple[str, str]]:
    """(id, object) of the records after an id, oldest first, page by page."""
    found: list[tuple[str, str]] = []
    while True:
        with store.read() as uow:
            page, has_more = uow.audit.page(limit=3, after=after, oldest_first=True)
        found += [(record.id, record.object) for record in page]
        if not has_more:
            return found
        after = page[-1].id


def append(store: Store, object_: str) -> None:
    with store.begin() as uow:
        uow.audit.append("x", object_)


def test_the_oldest_come_first_and_what_is_added_follows(store: Store):
    for number in range(7):
        append(store, f"o{number}")
    found = objects_after(store, None)
    assert [name for _, name in found] == [f"o{number}" for number in range(7)]
    assert objects_after(store, found[-1][0]) == []
    append(store, "new")
    assert [name for _, name in objects_after(store, found[-1][0])] == ["new"]
    with store.read() as uow:
        page, _ = uow.audit.page(limit=9, oldest_first=True, object="o3", since=1.0)
        assert [record.object for record in page] == ["o3"]


def test_no_record_is_overtaken_by_one_that_is_committed_earlier(postgres_store: Store):
    append(postgres_store, "before")
    time.sleep(1.1)  # What is open is known by its second.
    with postgres_store.begin() as slow:
        slow.audit.append("x", "slow")
        append(postgres_store, "quick")
        assert [name for _, name in objects_after(postgres_store, None)] == ["before"]
    assert [name for _, name in objects_after(postgres_store, None)] == ["before", "slow", "quick"]
    with contextlib.suppress(RuntimeError), postgres_store.begin() as uow:
        uow.audit.append("x", "lost")
        raise RuntimeError("rolled back")
    append(postgres_store, "last")
    assert [name for _, name in objects_after(postgres_store, None)] == ["before", "slow", "quick", "last"]


@pytest.mark.long
def test_who_follows_while_many_write_gets_every_record_once_and_in_order(postgres_store: Store):
    def write(number: int) -> None:
        pauses = random.Random(number)
        for count in range(20):
            with postgres_store.begin() as uow:
                uow.audit.append("x", f"{number}-{count}")
                time.sleep(pauses.choice((0.0, 0.001, 0.02)))
                uow.audit.append("y", f"{number}-{count}")

    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for writer in writers:
        writer.start()
    found: list[tuple[str, str]] = []
    while True:
        were_alive = any(writer.is_alive() for writer in writers)
        found += objects_after(postgres_store, found[-1][0] if found else None)
        if not were_alive:
            break
    for writer in writers:
        writer.join()
    assert [id_ for id_, _ in found] == sorted(id_ for id_, _ in found)
    assert sorted(name for _, name in found) == sorted(
        f"{number}-{count}" for number in range(6) for count in range(20) for _ in "xy"
    )


def test_an_id_is_the_largest_also_after_the_clock_was_set_back(store: Store):
    with store.begin() as uow:
        row = {"actor": "a", "actor_name": "", "scope": "", "action": "x", "object": "o", "outcome": "done"}
        later = time.time() + 0.5
        row |= {"id": f"aud_{int(later * 1e6):014x}ffffffffff", "at": later, "details": {}}
        uow.connection.execute(sa.insert(audit_log), row)
    append(store, "next")
    with store.read() as uow:
        newest, *_ = uow.audit.page(limit=9)[0]
    assert newest.object == "next"
    assert newest.id > row["id"]
    assert later < newest.at < later + 0.001


def test_committed_records_are_lines_with_their_ids(database_address: str, capsys):
    store = Store(open_database(Settings(database_url=database_address, audit_log="stderr"), "test"))
    with audit_context(AuditContext(ONE, "r-1", "192.0.2.1")), store.begin() as uow:
        uow.audit.append("dataset.delete", "ds_1", details={"note": "two\nlines"})
        uow.audit.append("dataset.delete", "ds_2")
    with contextlib.suppress(RuntimeError), store.begin() as uow:
        uow.audit.append("dataset.delete", "ds_3")
        raise RuntimeError("rolled back")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    with store.read() as uow:
        records, _ = uow.audit.page(limit=9, oldest_first=True)
    store.dispose()
    assert [line["id"] for line in lines] == [record.id for record in records]
    assert [line["object"] for line in lines] == ["ds_1", "ds_2"]
    assert lines[0]["logger"] == "stms.audit"
    assert (lines[0]["actor"], lines[0]["request_id"], lines[0]["address"]) == ("key_1", "r-1", "192.0.2.1")
    assert lines[0]["details"] == {"note": "two\nlines"}


def test_no_lines_are_written_by_default(database_address: str, capsys):
    store = Store(open_database(Settings(database_url=database_address), "test"))
    append(store, "o")
    store.dispose()
    assert capsys.readouterr().err == ""


KILLED_BEFORE_THE_THIRD_LINE = """
import os, signal, sys
from app.settings import Settings
from app.store.engine import open_database, open_engine
from app.store.repositories import audit
from app.store.unit_of_work import Store

write, written = audit.write_lines, []

def write_or_die(records):
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    written.append(1)
    write(records)

audit.write_lines = write_or_die
store = Store(open_database(Settings(), "test"))
for number in range(9):
    with store.begin() as uow:
        uow.audit.append("x", f"o{number}")
"""


@pytest.mark.long
def test_what_a_killed_process_committed_without_a_line_is_found_by_following(database_address: str):
    store = Store(open_database(Settings(database_url=database_address), "test"))
    done = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_THE_THIRD_LINE],
        env={"STMS_DATABASE_URL": database_address, "STMS_AUDIT_LOG": "stderr"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["object"] for line in lines] == ["o0", "o1"]
    deadline = time.monotonic() + 30
    while not (rest := objects_after(store, lines[-1]["id"])):
        assert time.monotonic() < deadline, "the lock of the dead session ends with it"
        time.sleep(0.05)
    store.dispose()
    assert [name for _, name in rest] == ["o2"], "and nothing twice"
