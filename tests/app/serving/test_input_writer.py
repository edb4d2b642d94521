"""Counts of inputs in the database: added up by processes, kept for a while, deleted with their version."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from app.domain.entities import ModelVersion
from app.domain.errors import Unavailable
from app.domain.figures import HOUR, KEPT_INPUTS_DAYS, UNUSUAL, InputRow
from app.processes.metrics import Metrics
from app.processes.periodic import PeriodicWork
from app.services.models import delete_version, input_rows
from app.services.quotas import has_bytes, set_quotas
from app.services.retention import Cleaned, clean, what_to_clean
from app.serving import tally_writer
from app.serving.columns.reading import Records
from app.serving.columns.tally import WIDTH, InputTallies, Taken
from app.serving.tally_writer import InputWriter
from app.settings import Settings
from app.store.engine import open_engine
from app.store.live_tables import input_counts
from app.store.repositories.inputs import total
from app.store.row_bytes import row_size
from app.store.unit_of_work import Store
from core.data.column_kinds import infer_schema
from core.data.table import NumberCells, Table
from core.encoding.fit import fit_encoder
from core.encoding.profile import fit_profile
from core.packed.input_profile import MOST_COLUMNS
from tests.app.serving.written_records import RECORD, encoder, people
from tests.system.published import linear_student, linear_teacher, publish


def published(store: Store, model: str = "people") -> ModelVersion:
    rows = np.ones((2, encoder().layout.columns))
    students = {label: linear_student(label, row) for label, row in zip("ab", rows, strict=True)}
    profile = fit_profile(people(), encoder())
    return publish(
        store, model, students, linear_teacher("ab", rows), encoder=encoder(), profile=profile, alias=None
    )


class Process:
    """What a server process has for counting."""

    def __init__(self, store: Store, version: ModelVersion) -> None:
        self.tallies, self.metrics = InputTallies(), Metrics()
        self.writer = InputWriter(store, self.tallies, self.metrics)
        profile = fit_profile(people(), encoder())
        self.records = Records(encoder(), None, lambda rows: self.tallies.make(version, profile, rows))
        self._names = [column.name for column in self.records.rows.columns]

    def count(self, times: int, **changes: Any) -> None:
        record = RECORD | changes
        self.records.tally.add([[record[name]] * times for name in self._names])


def rows_of(store: Store, version: ModelVersion) -> list[InputRow]:
    return [*input_rows(store, version, 24)]


def unusual(row: InputRow, name: str) -> list[int]:
    numbers = struct.unpack(f"<{len(row.counts) // 4}I", row.counts)
    place = encoder().names.index(name) * WIDTH
    return [*numbers[place : place + len(UNUSUAL)]]


def test_processes_add_up_in_one_row(database_address: str, store: Store):
    version = published(store)
    stores = [Store(open_engine(database_address)) for _ in range(2)]
    processes = [Process(own, version) for own in stores]

    def work(process: Process) -> None:
        for _ in range(20):
            process.count(64, age=None)
            process.count(1, job="pilot")
            process.writer.write()

    threads = [threading.Thread(target=work, args=[process]) for process in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = rows_of(store, version)
    assert len(rows) <= 2, "one an hour"
    assert sum(row.records for row in rows) == 2 * 20 * 65
    assert sum(row.sampled for row in rows) == 2 * (20 * 65 // 64)
    assert [sum(unusual(row, "age")[0] for row in rows), sum(unusual(row, "job")[1] for row in rows)] == [
        2 * 20 * 64,
        2 * 20,
    ]
    for own in stores:
        own.dispose()


def test_hours_and_versions_have_rows_of_their_own(store: Store, monkeypatch: pytest.MonkeyPatch):
    first, second = published(store), published(store)
    hour = int(time.time() // HOUR)
    for version, times in ((first, 1), (second, 2)):
        process = Process(store, version)
        for back in (3, 1):
            monkeypatch.setattr(tally_writer.time, "time", lambda back=back: (hour - back) * HOUR)
            process.count(times)
            process.writer.write()
    monkeypatch.undo()
    assert [(row.hour - hour, row.records) for row in rows_of(store, second)] == [(-3, 2), (-1, 2)]
    assert [row.records for row in input_rows(store, first, 2)] == [1]
    assert [row.records for row in input_rows(store.of_tenant("other"), first, 24)] == [1, 1], (
        "by its version"
    )


def test_a_writer_without_its_database_keeps_its_counts(store: Store, monkeypatch: pytest.MonkeyPatch):
    process = Process(store, published(store))
    process.count(3, age=-1e6)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "begin", _unavailable)
        for _ in range(2):
            with pytest.raises(Unavailable):
                process.writer.write()
    process.count(2)
    process.writer.write()
    [row] = rows_of(store, published_version(store))
    assert (row.records, unusual(row, "age")) == (5, [0, 0, 3, 0])
    process.writer.write()
    assert [row.records for row in rows_of(store, published_version(store))] == [5]


def test_waiting_counts_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tally_writer, "_MOST_WAITING", 2)
    process = Process(store, published(store))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "begin", _unavailable)
        for times in (1, 10, 100):
            process.count(times)
            with pytest.raises(Unavailable):
                process.writer.write()
    process.writer.write()
    assert sum(row.records for row in rows_of(store, published_version(store))) == 110


class Tenants:
    """A process that has counted records of versions, each (tenant, model)."""

    def __init__(self, store: Store, has_room: Callable[[str], bool] = lambda _tenant: True) -> None:
        self.store = store
        self.counted: list[tuple[str, str]] = []
        tallies = SimpleNamespace(take=self._take)
        self.writer = InputWriter(store, tallies, Metrics(), has_room=has_room)  # type: ignore[arg-type]

    def count(self, *versions: tuple[str, str]) -> None:
        for tenant, model in versions:
            with self.store.of_tenant(tenant).read() as uow:
                is_new = uow.models.newest(model) is None
            if is_new:
                published(self.store.of_tenant(tenant), model)
        self.counted += versions

    def written(self) -> list[tuple[str, str, int]]:
        names = (input_counts.c.tenant, input_counts.c.model, input_counts.c.records)
        with self.store.read() as uow:
            return [tuple(row) for row in uow.connection.execute(sa.select(*names).order_by(*names))]

    def _take(self) -> Iterator[tuple[ModelVersion, Taken]]:
        while self.counted:
            tenant, model = self.counted.pop(0)
            version = ModelVersion(model, 1, None, "", "svm", ("a",), 2, "", {}, 0.0, tenant=tenant)
            yield version, Taken(1, 0, bytes(4), {})


def test_all_versions_of_a_minute_are_written_while_the_database_works(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tally_writer, "_MOST_WAITING", 2)
    process = Tenants(store)
    process.count(("a", "m"), *(("b", f"m{number}") for number in range(6)))
    process.writer.write()
    assert process.written() == [("a", "m", 1), *(("b", f"m{number}", 1) for number in range(6))]


def test_rows_are_given_up_of_the_tenant_with_the_most_after_writing_has_failed(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(tally_writer, "_MOST_WAITING", 4)
    process = Tenants(store)
    process.count(("a", "m"), ("b", "m0"), ("c", "m"), *(("b", f"m{number}") for number in range(1, 6)))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "begin", _unavailable)
        with pytest.raises(Unavailable):
            process.writer.write()
    assert "given up: 4 rows" in caplog.text
    process.writer.write()
    assert process.written() == [("a", "m", 1), ("b", "m4", 1), ("b", "m5", 1), ("c", "m", 1)]
    assert caplog.text.count("given up") == 1


def test_a_tenant_whose_rows_cannot_be_written_does_not_keep_others_waiting(store: Store):
    def has_room(tenant: str) -> bool:
        if tenant == "b":
            raise Unavailable("What b uses takes too long to add up.")
        return True

    process = Tenants(store, has_room)
    for _ in range(3):
        process.count(("b", "m"), ("a", "m"), ("b", "other"), ("c", "m"))
        with pytest.raises(Unavailable):
            process.writer.write()
    assert process.written() == [("a", "m", 2), ("c", "m", 2)], "those of the minutes before"


def test_a_tenant_without_room_is_not_counted(store: Store):
    settings = Settings(quota_stored_bytes=10**9)
    asked: list[str] = []

    def has_room(tenant: str) -> bool:
        asked.append(tenant)
        return has_bytes(store, settings, tenant)

    process = Tenants(store, has_room)
    for allowed in (1, None):
        process.count(("a", "m"), ("b", "m"), ("b", "other"))
        set_quotas(store, settings, "b", {"stored_bytes": allowed})
        process.writer.write()
        assert asked == ["a", "b"]
        asked.clear()
    assert process.written() == [("a", "m", 2), ("b", "m", 1), ("b", "other", 1)]


def test_rows_count_in_the_quota_of_their_tenant_as_long_as_they_are_there(store: Store):
    def used(tenant: str) -> int:
        with store.read() as uow:
            return uow.quotas.used(tenant).stored_bytes

    process = Tenants(store)
    process.count(("a", "m"), ("a", "other"), ("b", "m"))
    before = {tenant: used(tenant) for tenant in "ab"}
    process.writer.write()
    process.count(("a", "m"))
    process.writer.write()
    with store.begin() as uow:
        query = sa.select(input_counts.c.tenant, row_size(input_counts))
        sizes = Counter[str]()
        for tenant, size in uow.connection.execute(query):
            sizes[tenant] += size
        assert {tenant: used(tenant) - before[tenant] for tenant in "ab"} == sizes
        for hour in (1, 2):
            uow.inputs.add("a", "m", 1, InputRow(hour, 1, 0, bytes(1000)))
    assert used("a") - before["a"] == sizes["a"] + 2 * (200 + 1000)
    with store.begin() as uow:
        assert uow.inputs.delete_before(2) == 1
    assert used("a") - before["a"] == sizes["a"] + 200 + 1000
    with store.begin() as uow:
        assert uow.inputs.delete_before(9**9) == 4
    assert {tenant: used(tenant) for tenant in "ab"} == before
    process.count(("a", "m"))
    full = used("a")
    process.writer.write()
    assert used("a") > full
    delete_version(store.of_tenant("a"), "m", 1)
    assert used("a") < full


def _unavailable(_store: Store) -> Any:
    raise Unavailable("The database is away.")


def published_version(store: Store) -> ModelVersion:
    with store.read() as uow:
        return uow.models.version("people", 1)


def test_counts_go_with_their_version(store: Store):
    version = published(store)
    process = Process(store, version)
    process.count(1)
    process.writer.write()
    process.count(1)
    delete_version(store, "people", 1)
    process.writer.write()
    assert rows_of(store, version) == []


def test_counts_are_kept_for_90_days(store: Store):
    version = published(store)
    hour = int(time.time() // HOUR)
    old, young = hour - 24 * KEPT_INPUTS_DAYS - 2, hour - 24 * KEPT_INPUTS_DAYS + 2
    with store.begin() as uow:
        for at in (old, young, hour):
            uow.inputs.add("default", "people", 1, InputRow(at, 1, 0, bytes(4)))
    assert KEPT_INPUTS_DAYS == 90
    assert what_to_clean(store, Settings()).inputs == 1
    assert clean(store, Settings()) == Cleaned(inputs=1)
    assert [row.hour for row in input_rows(store, version, 24 * KEPT_INPUTS_DAYS + 9)] == [young, hour]


def test_the_metrics_have_all_columns_together(store: Store):
    process = Process(store, published(store))
    process.count(2, age=None, job="pilot", hours=1e6)
    process.count(1, since="1999-01-01")
    process.count(5)
    process.writer.write()
    process.count(1, job=None)
    process.writer.write()
    text = process.metrics.render().decode()
    lines = {line for line in text.splitlines() if line.startswith("stms_input_unusual_total")}
    assert lines == {
        f'stms_input_unusual_total{{model="people",kind="{kind}"}} {number}.0'
        for kind, number in (("gap", 3), ("unseen", 2), ("outside", 3))
    }
    assert "# TYPE stms_input_unusual counter" in process.metrics.render(open_metrics=True).decode()


def test_a_row_is_small(store: Store):
    """Of a version of very many columns, each of which has been asked with everything."""
    names = tuple(f"c{k}" for k in range(2 * MOST_COLUMNS))
    rng = np.random.default_rng(0)
    table = Table(names, tuple(NumberCells(rng.normal(size=50)) for _ in names))
    known = fit_encoder(table, infer_schema(table))
    tallies = InputTallies()
    version, profile = published(store), fit_profile(table, known)
    tally = Records(known, None, lambda rows: tallies.make(version, profile, rows)).tally
    tally.add([rng.normal(scale=9, size=640).tolist() for _ in names])
    InputWriter(store, tallies, Metrics()).write()
    [row] = rows_of(store, version)
    assert (row.records, row.sampled) == (640, 10)
    assert len(row.counts) <= 8192


def test_counts_do_not_overflow():
    most = struct.pack("<2I", 2**32 - 1, 2**31)
    assert total([most, struct.pack("<2I", 5, 7)]) == struct.pack("<2I", 2**32 - 1, 2**31 + 7)


async def test_the_task_writes_every_minute_and_at_its_end(store: Store):
    version = published(store)
    process = Process(store, version)
    periodic = PeriodicWork(["inputs"])
    writer = InputWriter(store, process.tallies, process.metrics, periodic, seconds=0.01)
    writer.start()
    process.count(1)
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(rows_of, store, version):
            await asyncio.sleep(0.01)
    await writer.stop()
    writer = InputWriter(store, process.tallies, process.metrics, periodic)
    writer.start()
    process.count(7)
    await writer.stop()
    assert periodic.failures == {"inputs": 0}
    assert sum(row.records for row in rows_of(store, version)) == 8


def test_no_row_is_left_of_a_deleted_model(store: Store):
    published(store)
    with store.begin() as uow:
        uow.inputs.add("default", "people", 1, InputRow(1, 1, 0, bytes(4)))
        uow.inputs.add("default", "nobody", 1, InputRow(1, 1, 0, bytes(4)))
        found = uow.connection.execute(sa.select(input_counts.c.model)).scalars().all()
    assert found == ["people"]
