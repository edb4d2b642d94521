"""Rows count in the quota of their tenant, exactly as long as they are there, on both databases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from app.domain.entities import JobState, ModelVersion, StudentRow, StudentState
from app.services import models
from app.services.retention import delete_job
from app.settings import Settings
from app.store import paging
from app.store.repositories import models as repository
from app.store.row_bytes import row_size
from app.store.tables import (
    alias_moves,
    idempotency_keys,
    job_events,
    job_students,
    jobs,
    model_versions,
    retired_numbers,
    student_curves,
    student_traces,
)
from app.store.unit_of_work import Store, UnitOfWork

LABEL = "日本語の札" * 8


def used(store: Store) -> int:
    with store.read() as uow:
        return uow.quotas.used(store.tenant).stored_bytes


def rows_of_job(uow: UnitOfWork, job_id: str) -> int:
    """Bytes of all rows of a job, measured now."""
    tables = (job_students, student_curves, student_traces, job_events, idempotency_keys)
    parts = [sa.select(sa.func.sum(row_size(table))).where(table.c.job_id == job_id) for table in tables]
    parts.append(sa.select(row_size(jobs)).where(jobs.c.id == job_id))
    return sum(int(uow.connection.execute(part).scalar() or 0) for part in parts)


def counted(uow: UnitOfWork, job_id: str) -> int:
    query = sa.select(jobs.c.row_bytes).where(jobs.c.id == job_id)
    return int(uow.connection.execute(query).scalar_one())


def fill(uow: UnitOfWork, job_id: str, state: StudentState, text: str) -> None:
    """Students, traces, curves and events of a job, those of a second call in place of the first."""
    students = [
        StudentRow(job_id, number, f"{LABEL}{number}", "svm", state, metrics={"note": text}, error=text)
        for number in range(300)
    ]
    uow.students.save_all(students)
    uow.students.keep_trace(job_id, 0, "svm", text.encode())
    uow.students.keep_curves([((number, "svm"), text.encode()) for number in range(3)], job_id)
    uow.events.append_all(job_id, [("a", {"text": text}), ("b", {})])


def version_of(uow: UnitOfWork, job_id: str | None, model: str, number: int = 1) -> ModelVersion:
    teacher, _ = uow.blobs.put([b"teacher"])
    labels = (LABEL, "b")
    return ModelVersion(model, number, job_id, "0" * 64, "svm", labels, 2, teacher, {"f1": 1.0}, 1.0)


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    """The statements that are executed in the block."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(store.engine, "before_cursor_execute", note)


def test_a_job_counts_its_rows_as_they_are_whatever_was_changed_or_replaced(store: Store, add_job: Any):
    with store.begin() as uow:
        job_id = add_job(uow).id
        assert counted(uow, job_id) == rows_of_job(uow, job_id) > 200
        fill(uow, job_id, StudentState.FAILED, LABEL)
        assert counted(uow, job_id) == rows_of_job(uow, job_id) > 300 * 4 * len(LABEL)
        uow.jobs.move(job_id, JobState.RUNNING, provenance={"a": LABEL})
        uow.jobs.move(job_id, JobState.FAILED, error_code="x", error_message=LABEL)
        uow.students.reset_failures(job_id)
        assert counted(uow, job_id) == rows_of_job(uow, job_id)
        fill(uow, job_id, StudentState.SUCCEEDED, 5 * LABEL)
        fill(uow, job_id, StudentState.SUCCEEDED, "too late")
        uow.jobs.add_idempotency_key("me", "k" * 255, "0" * 64, job_id)
        uow.jobs.change(job_id, provenance={}, stage="students")
        uow.jobs.advance(job_id)
        assert counted(uow, job_id) == rows_of_job(uow, job_id)


def test_what_is_used_up_and_deleted_frees_exactly_what_it_counted(store: Store, add_job: Any):
    with store.begin() as uow:
        uow.blobs.put([b"teacher"])
    before = used(store)
    with store.begin() as uow:
        job_id = add_job(uow, model="m", state=JobState.SUCCEEDED, finished_at=1.0).id
        fill(uow, job_id, StudentState.SUCCEEDED, LABEL)
        uow.models.publish(version_of(uow, job_id, "m"))
        uow.jobs.change(job_id, version=1)
    full = used(store)
    assert full > before + 300 * 4 * len(LABEL)
    alias = models.point_alias(store, Settings(), "m", "live", 1)
    assert used(store) == full + 2 * repository.ALIAS_BYTES, "an alias and its move"
    assert used(store.of_tenant("rival")) == 0
    models.delete_alias(store, "m", "live", alias.revision)
    models.delete_version(store, "m", 1)
    delete_job(store, job_id)
    assert used(store) == before


def test_pages_are_bounded_in_bytes(store: Store, add_job: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paging, "PAGE_BYTES", 5000)
    with store.begin() as uow:
        ids = [add_job(uow, spec={"classes": ["x" * 2000]}).id for _ in range(4)]
        ids.append(add_job(uow, spec={"classes": ["x" * 9000]}).id)
        job_id = ids[0]
        uow.events.append_all(job_id, [("a", {"x": "x" * 2000})] * 4)
        for method in ("svm", "gsvm"):
            uow.students.save_all(
                [StudentRow(job_id, number, "x" * 400, method, StudentState.FAILED) for number in range(9)]
            )
        for number in range(1, 5):
            version = version_of(uow, None, "m", number)
            uow.models.publish(version)
            uow.models.publish(version_of(uow, None, f"m{number}"))
            for alias in range(8):
                uow.models.point(f"m{number}", f"a{alias}", 1)
        assert uow.connection.execute(sa.select(model_versions.c.row_bytes)).scalars().all() == [
            size for (size,) in uow.connection.execute(sa.select(row_size(model_versions)))
        ]
        uow.connection.execute(sa.update(model_versions).values(row_bytes=2000))
    with store.read() as uow:
        pages, after, more = [], None, True
        while more:
            page, more = uow.jobs.page(limit=1000, after=after)
            pages.append([job.id for job in page])
            after = page[-1].id
        assert pages == [ids[4:], ids[3:1:-1], ids[1::-1]], "one that is too long has a page of its own"
        events, more = uow.events.page(job_id, 0, limit=1000)
        assert ([event.seq for event in events], more) == ([1, 2], True)
        students, more = uow.students.page(job_id, limit=1000)
        assert ([(row.class_index, row.method) for row in students], more) == (
            [(number, method) for number in range(4) for method in ("gsvm", "svm")],
            True,
        )
        versions, more = uow.models.versions("m", limit=1000)
        assert ([version.version for version in versions], more) == ([4, 3], True)
        summaries, more = uow.models.summaries(limit=1000)
        assert ([(one.name, len(one.aliases)) for one in summaries], more) == ([("m", 0), ("m1", 8)], True)


def test_what_is_read_all_the_time_reads_no_specification(store: Store, add_job: Any):
    with store.begin() as uow:
        job_id = add_job(uow).id
    with statements(store) as seen, store.begin() as uow:
        uow.admission.waiting()
        uow.admission.admitted()
        [job] = uow.admission.admitted_jobs(limit=9)
        uow.jobs.status(job_id, lock=True)
        uow.jobs.unfinished_for_dataset("ds")
        uow.jobs.unfinished_with_teacher("head@1")
        uow.quotas.used("default")
    assert job.workflow_id == f"{job_id}.0"
    assert seen
    assert not [statement for statement in seen if re.search(r"\bspec\b|\bprovenance\b", statement)]


def test_the_moves_of_a_model_are_bounded_and_end_with_it(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(repository, "KEPT_MOVES", 3)
    monkeypatch.setattr(repository, "KEPT_NAMES", 2)
    with store.begin() as uow:
        for model in ("a", "b", "c", "kept"):
            uow.models.publish(version_of(uow, None, model))
        for number in range(5):
            uow.models.point("kept", f"alias{number}", 1)
            uow.models.point("a", "live", 1)
        moves = sa.select(alias_moves.c.alias).where(alias_moves.c.model == "kept").order_by(alias_moves.c.id)
        assert list(uow.connection.execute(moves).scalars()) == ["alias2", "alias3", "alias4"]
        last = uow.models.alias("a", "live").revision
        uow.models.delete_alias("a", "live", expected_revision=last)
        assert uow.models.moves("a", "live", limit=9)[0][0].version is None
        for model in ("a", "b", "c"):
            uow.models.delete(model, 1)
        assert uow.models.moves("a", "live", limit=9) == ([], False)
        names = uow.connection.execute(sa.select(retired_numbers.c.model)).scalars().all()
        assert names == [""], "the numbers of very many names are kept as their highest"
        assert [uow.models.next_number(model) for model in ("a", "new", "kept")] == [2, 2, 2]
        uow.models.publish(version_of(uow, None, "a", 2))
        assert uow.models.point("a", "live", 2).revision == last + 1
