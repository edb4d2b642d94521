"""Old rows and unreferenced blobs are deleted, and those in use stay, on both databases."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.entities import JobState, ModelVersion, StudentRow, StudentState
from app.domain.errors import Conflict, NotFound, Unavailable
from app.domain.evaluation import Evaluation
from app.services import retention
from app.services.keys import create_key
from app.services.models import delete_version
from app.services.retention import Cleaned, Cleaner, clean, delete_job, what_to_clean
from app.services.sessions import begin_session
from app.settings import Settings
from app.store.evaluation_tables import evaluations
from app.store.large_blobs import put_large
from app.store.repositories.audit import _new_id as audit_id
from app.store.tables import (
    audit_log,
    blobs,
    idempotency_keys,
    job_events,
    job_students,
    jobs,
    student_traces,
)
from app.store.unit_of_work import Store, UnitOfWork
from tests.refusals import refused_as

DAY = 86_400.0
SETTINGS = Settings(retain_jobs_days=30, retain_requests_days=7, retain_audit_days=10, retain_keys_days=20)
FOREVER = Settings(
    retain_jobs_days=0,
    retain_requests_days=0,
    retain_audit_days=0,
    retain_audit_records=0,
    retain_keys_days=0,
)


def count(store: Store, table: sa.Table) -> int:
    with store.read() as uow:
        return int(uow.connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def digests(store: Store) -> set[str]:
    with store.read() as uow:
        return set(uow.connection.execute(sa.select(blobs.c.digest)).scalars())


def ended(
    uow: UnitOfWork, add_job: Any, days: float, state: JobState = JobState.FAILED, **columns: Any
) -> str:
    """A job that ended so long ago, with a student, a trace, an event and an idempotency key."""
    job_id: str = add_job(uow, state=state, finished_at=time.time() - days * DAY, **columns).id
    packed, _ = uow.blobs.put([f"student of {job_id}".encode()])
    uow.students.save(StudentRow(job_id, 0, "a", "gsvm", StudentState.SUCCEEDED, digest=packed))
    uow.students.keep_trace(job_id, 0, "gsvm", b"trace")
    uow.events.append(job_id, "job_failed")
    uow.jobs.add_idempotency_key("me", f"key of {job_id}", "0" * 64, job_id)
    return job_id


def publish(
    uow: UnitOfWork,
    job_id: str | None,
    number: int = 1,
    model: str = "digits",
    teacher: str | None = None,
    class_table: str | None = None,
) -> ModelVersion:
    teacher = teacher or uow.blobs.put([f"teacher {model} {number}".encode()])[0]
    version = ModelVersion(model, number, job_id, "0" * 64, "gsvm", ("a", "b"), 2, teacher, {}, 1.0)
    version = replace(version, class_table=class_table)
    uow.models.publish(version)
    if job_id is not None:
        uow.jobs.change(job_id, version=number)
    return version


def age(store: Store, seconds: float) -> None:
    """Move the times of all blobs and idempotency keys ``seconds`` into the past."""
    with store.begin() as uow:
        uow.connection.execute(sa.update(blobs).values(created_at=blobs.c.created_at - seconds))
        old = sa.update(idempotency_keys).values(created_at=idempotency_keys.c.created_at - seconds)
        uow.connection.execute(old)


def test_old_jobs_without_a_version_are_deleted_with_all_their_rows(store: Store, add_job: Any):
    with store.begin() as uow:
        old = [ended(uow, add_job, 31, state) for state in JobState if state.ended]
        young = ended(uow, add_job, 29)
        running = ended(uow, add_job, 31, JobState.RUNNING)
        published = ended(uow, add_job, 31, JobState.SUCCEEDED)
        publish(uow, published)
    assert what_to_clean(store, SETTINGS).jobs == len(old)
    assert clean(store, SETTINGS).jobs == len(old)
    with store.read() as uow:
        assert set(uow.connection.execute(sa.select(jobs.c.id)).scalars()) == {young, running, published}
    for table in (job_students, student_traces, job_events, idempotency_keys):
        assert count(store, table) == 3, table.name
    assert clean(store, SETTINGS) == Cleaned()


def test_blobs_are_deleted_an_hour_after_their_last_reference(store: Store, add_job: Any, add_dataset: Any):
    with store.begin() as uow:
        old = ended(uow, add_job, 31)
        kept = {add_dataset(uow).blob_digest, publish(uow, ended(uow, add_job, 31)).teacher_digest}
        preparation, _ = uow.blobs.put([b"preparation"])
        uow.jobs.change(old, preparation_digest=preparation)
    assert clean(store, SETTINGS) == Cleaned(jobs=1), "their hour has only begun"
    assert what_to_clean(store, SETTINGS) == Cleaned()
    assert preparation in digests(store)
    age(store, 2 * retention.GRACE_SECONDS)
    assert what_to_clean(store, SETTINGS).blobs == 2
    found = clean(store, SETTINGS)
    assert (found.blobs, found.bytes) == (2, len(f"student of {old}") + len("preparation"))
    assert kept < digests(store)
    assert len(digests(store)) == 3, "with the student of the published job"
    assert clean(store, SETTINGS) == Cleaned()


def test_large_and_unfinished_blobs_are_collected_too(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retention, "_SMALL_BYTES", 10)
    monkeypatch.setattr(retention, "_PAGE", 2)
    monkeypatch.setattr(retention, "_BLOBS_AT_ONCE", 5)
    for name in (b"one", b"two"):
        put_large(store, hashlib.sha256(name).hexdigest(), 60, [name * 10, name * 10])
    with store.begin() as uow:
        for number in range(5):
            uow.blobs.put([b"%d" % number])
            uow.blobs.put([b"large %d" % number * 10])
    assert clean(store, SETTINGS).blobs == 0
    age(store, 2 * retention.GRACE_SECONDS)
    assert what_to_clean(store, SETTINGS).blobs == 12
    assert clean(store, SETTINGS).blobs == 12
    assert digests(store) == set()


def test_a_blob_that_is_referenced_during_collection_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch, add_dataset: Any
):
    with store.begin() as uow:
        unused, _ = uow.blobs.put([b"rows"])
    age(store, 2 * retention.GRACE_SECONDS)
    pages = retention._unused(store, time.time() - retention.GRACE_SECONDS)
    page = next(pages)
    with store.begin() as uow:
        uow.blobs.put([b"rows"])
        add_dataset(uow, blob_digest=unused)
    monkeypatch.setattr(retention, "_unused", lambda *_: iter([page]))
    assert clean(store, SETTINGS).blobs == 0
    with store.begin() as uow:
        uow.connection.execute(sa.update(blobs).values(created_at=1.0))
    assert clean(store, SETTINGS).blobs == 0, "the foreign key says so"
    assert unused in digests(store)


def test_idempotency_keys_and_audit_records_are_deleted_when_they_are_old(store: Store, add_job: Any):
    with store.begin() as uow:
        uow.jobs.add_idempotency_key("me", "a", "0" * 64, "job_a")
        uow.audit.append("key.create", "key_1")
    age(store, 8 * DAY)
    with store.begin() as uow:
        uow.jobs.add_idempotency_key("me", "b", "0" * 64, "job_b")
        old = time.time() - 11 * DAY
        # Ids of audit records sort by time.
        uow.connection.execute(sa.update(audit_log).values(at=old, id=audit_id(old)))
        uow.audit.append("key.create", "key_2")
    assert what_to_clean(store, SETTINGS) == clean(store, SETTINGS) == Cleaned(requests=1, audit=1)
    with store.read() as uow:
        assert uow.jobs.find_idempotency_key("me", "b") is not None
        assert uow.jobs.find_idempotency_key("me", "a") is None
    assert count(store, audit_log) == 1


def test_a_tenant_keeps_only_so_many_audit_records(store: Store):
    for tenant, number in (("loud", 25), ("quiet", 5)):
        with store.of_tenant(tenant).begin() as uow:
            for k in range(number):
                uow.audit.append("key.rotate", f"key_{k}")
    settings = Settings(retain_audit_records=10)
    assert what_to_clean(store, settings) == clean(store, settings) == Cleaned(audit=15)
    for tenant, kept in (("loud", range(15, 25)), ("quiet", range(5))):
        with store.of_tenant(tenant).read() as uow:
            records, _ = uow.audit.page(limit=99)
        assert [one.object for one in records[::-1]] == [f"key_{k}" for k in kept]


def test_keys_are_deleted_after_their_end_with_their_sessions(store: Store):
    made = {name: create_key(store, name, {"query"})[0] for name in ("in use", "revoked", "expired", "young")}
    ages = {"revoked": {"revoked_at": 21}, "expired": {"expires_at": 21}, "young": {"revoked_at": 19}}
    session, _ = begin_session(store, made["revoked"])
    with store.begin() as uow:
        for name, ended_days in ages.items():
            moments = {column: time.time() - days * DAY for column, days in ended_days.items()}
            uow.keys.change(made[name].id, **moments)
    last, _ = create_key(store, "last", {"query"})
    with store.begin() as uow:
        uow.keys.change(last.id, revoked_at=time.time() - 30 * DAY)
    assert what_to_clean(store, SETTINGS).keys == clean(store, SETTINGS).keys == 2
    with store.read() as uow:
        assert {key.name for key in uow.keys.all()} == {"in use", "young", "last"}, "the newest always stays"
        assert uow.sessions.find(session.id) is None
        recorded = [
            (one.action, one.details) for one in uow.audit.page(limit=99, object=made["revoked"].id)[0]
        ]
    assert recorded == [("key.create", {"name": "revoked", "scopes": ["query"], "models": 0})]


def test_the_row_of_a_key_stays_as_long_as_servers_know_it(store: Store):
    key, _ = create_key(store, "k", {"query"})
    create_key(store, "other", {"query"})
    with store.begin() as uow:
        uow.keys.change(key.id, revoked_at=time.time() - 1.5 * DAY)
    assert clean(store, Settings(retain_keys_days=0.1)).keys == 0


def test_zero_days_retain_everything(store: Store, add_job: Any):
    with store.begin() as uow:
        ended(uow, add_job, 10_000)
        uow.audit.append("key.create", "key_1")
    age(store, 1e9)
    assert what_to_clean(store, FOREVER) == clean(store, FOREVER) == Cleaned()


def test_concurrent_runs_do_not_disturb_each_other(store: Store, add_job: Any):
    with store.begin() as uow:
        for _ in range(20):
            ended(uow, add_job, 31)
    age(store, 2 * retention.GRACE_SECONDS)
    found: list[Cleaned] = []
    threads = [threading.Thread(target=lambda: found.append(clean(store, SETTINGS))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.jobs for each in found) == 20
    clean(store, SETTINGS)
    assert (count(store, jobs), digests(store)) == (0, set())


def test_an_ended_job_without_a_version_can_be_deleted(store: Store, add_job: Any):
    with store.begin() as uow:
        running, done = add_job(uow, state=JobState.RUNNING).id, ended(uow, add_job, 0)
        published = ended(uow, add_job, 0, JobState.SUCCEEDED)
        publish(uow, published)
    for job_id, code in ((running, "job_not_ended"), (published, "job_has_version")):
        with refused_as(Conflict, code):
            delete_job(store, job_id)
    delete_job(store, done)
    with pytest.raises(NotFound):
        delete_job(store, done)
    with store.read() as uow:
        assert uow.jobs.find_idempotency_key("me", f"key of {done}") is None
        records, _ = uow.audit.page(limit=10)
    assert [(record.action, record.object) for record in records] == [("job.delete", done)]
    delete_version(store, "digits", 1)
    delete_job(store, published)


def test_the_foreign_key_protects_a_job_that_is_published_meanwhile(
    store: Store, add_job: Any, monkeypatch: pytest.MonkeyPatch
):
    with store.begin() as uow:
        job_id = ended(uow, add_job, 31)
        publish(uow, job_id)
    monkeypatch.setattr("app.store.repositories.retention._is_expired", lambda _: sa.true())
    with store.begin() as uow:
        assert not uow.retention.delete_job(job_id)
        assert uow.jobs.get(job_id).version == 1


def test_the_number_of_a_deleted_version_is_not_reused(store: Store, add_job: Any):
    with store.begin() as uow:
        made = [ended(uow, add_job, 0, JobState.SUCCEEDED) for _ in range(2)]
        for number, job_id in enumerate(made, 1):
            publish(uow, job_id, number)
        publish(uow, None, 1, "faces")
        clock = uow.registry.revision()
    delete_version(store, "digits", 2)
    delete_version(store, "faces", 1)
    with store.begin() as uow:
        assert uow.registry.revision() == clock + 2
        assert uow.jobs.get(made[1]).version is None
        assert uow.models.next_version("digits") == 3
        assert uow.models.newest("faces") is None
    with pytest.raises(NotFound):
        delete_version(store, "digits", 2)


def test_what_a_version_and_a_job_alone_refer_to_is_deleted_with_them(store: Store, add_job: Any):
    with store.begin() as uow:
        table, shared, student = (uow.blobs.put([text])[0] for text in (b"table", b"shared", b"student"))
        job = ended(uow, add_job, 0, JobState.SUCCEEDED)
        uow.jobs.change(job, teacher_digest=shared)
        uow.students.save(StudentRow(job, 9, "other", "gsvm", StudentState.SUCCEEDED, digest=student))
        publish(uow, job, teacher=shared, class_table=table)
    delete_version(store, "digits", 1)
    assert not {table} & digests(store)
    assert {shared, student} <= digests(store), "the job has them"
    delete_job(store, job)
    assert not {shared, student} & digests(store)


def test_a_version_that_is_the_teacher_of_a_job_is_not_deleted(store: Store, add_job: Any):
    with store.begin() as uow:
        publish(uow, None, 1, "faces")
        job = add_job(uow, spec={"teacher": {"model": "faces@1"}})
    with refused_as(Conflict, "version_in_use"):
        delete_version(store, "faces", 1)
    with store.begin() as uow:
        uow.jobs.move(job.id, JobState.CANCELLED)
    delete_version(store, "faces", 1)


def test_cleaning_runs_in_the_background_one_run_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: Any
):
    begun, go_on, done = threading.Semaphore(0), threading.Semaphore(0), threading.Semaphore(0)
    errors = iter([Unavailable("The database is away."), RuntimeError("a bug"), None])

    def work(*_: Any) -> None:
        begun.release()
        assert go_on.acquire(timeout=120)
        done.release()
        error = next(errors)
        if error is not None:
            raise error

    monkeypatch.setattr(retention, "clean", work)
    cleaner = Cleaner(store, SETTINGS)
    for _ in range(3):
        deadline = time.monotonic() + 120
        while not begun.acquire(timeout=0.05):
            assert time.monotonic() < deadline
            cleaner()
        cleaner()
        assert not begun.acquire(timeout=0.1), "one is under way"
        go_on.release()
        assert done.acquire(timeout=120)
    assert "cleaning: The database is away." in caplog.text
    assert "a bug" in caplog.text


def test_a_map_stays_as_long_as_one_student_names_it(store: Store, add_job: Any):
    with store.begin() as uow:
        shared, _ = uow.blobs.put([b"map"])
        both = [ended(uow, add_job, 31) for _ in range(2)]
        named = sa.update(job_students).where(job_students.c.job_id.in_(both))
        uow.connection.execute(named.values(map_digest=shared))
    delete_job(store, both[0])
    age(store, 2 * retention.GRACE_SECONDS)
    clean(store, FOREVER)
    assert shared in digests(store)
    delete_job(store, both[1])
    age(store, 2 * retention.GRACE_SECONDS)
    clean(store, FOREVER)
    assert shared not in digests(store)


def test_old_evaluations_are_deleted_and_unfinished_ones_stay(store: Store):
    given: dict[str, Any] = {"version": "m@1", "baseline": None, "dataset_id": "ds_1", "part": "all"}
    given |= {"tolerance": 0.01, "alpha": 0.05, "unknown_classes": "drop", "state": JobState.QUEUED}
    given |= {"created_at": 1.0, "created_by": "me"}
    with store.begin() as uow:
        for name in ("ev_old", "ev_young", "ev_waiting"):
            uow.evaluations.add(Evaluation(id=name, **given))
        for name, days in (("ev_old", 31), ("ev_young", 29)):
            assert uow.evaluations.fail(name, "code", "message")
            at = sa.update(evaluations).where(evaluations.c.id == name)
            uow.connection.execute(at.values(finished_at=time.time() - days * DAY))
    assert what_to_clean(store, SETTINGS).evaluations == 1
    assert clean(store, FOREVER).evaluations == 0
    assert clean(store, SETTINGS).evaluations == 1
    with store.read() as uow:
        left = [one.id for one in uow.evaluations.page(limit=9)[0]]
    assert left == ["ev_young", "ev_waiting"]


def test_the_numbers_of_the_rows_of_a_job_count_and_go_with_it(store: Store, add_job: Any):
    content = b"eight by" * 1000
    with store.begin() as uow:
        before = uow.quotas.used(store.tenant).stored_bytes
        rows, _ = uow.blobs.put([content])
        job = add_job(uow, state=JobState.FAILED, finished_at=time.time(), rows_digest=rows)
        counted = uow.quotas.used(store.tenant).stored_bytes - before
    assert counted >= len(content)
    age(store, DAY)
    assert clean(store, SETTINGS).blobs == 0, "it is in use"
    delete_job(store, job.id)
    assert rows not in digests(store)
