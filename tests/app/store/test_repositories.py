from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app.domain.entities import ApiKey, JobState, ModelVersion, StudentRow, StudentState, Worker
from app.domain.errors import Conflict, NotFound, PreconditionFailed
from app.store.repositories.workers import PeerSummary
from app.store.unit_of_work import Store, UnitOfWork
from tests.refusals import refused_as


def version_of(uow: UnitOfWork, job_id: str, number: int, model: str = "digits") -> ModelVersion:
    teacher, _ = uow.blobs.put([b"teacher"])
    version = ModelVersion(model, number, job_id, "0" * 64, "gsvm", ("0", "1"), 64, teacher, {"f1": 0.5}, 1.0)
    uow.models.publish(version)
    return version


def student(job_id: str, index: int, **columns: Any) -> StudentRow:
    values: dict[str, Any] = {"label": str(index), "method": "gsvm", "state": StudentState.SUCCEEDED}
    return StudentRow(job_id=job_id, class_index=index, **values | columns)


# Data sets


def test_a_data_set_comes_back_as_it_was(store: Store, add_dataset: Any) -> None:
    with store.begin() as uow:
        dataset = add_dataset(uow)
    with store.read() as uow:
        assert uow.datasets.get(dataset.id) == dataset
        assert uow.datasets.by_digest(dataset.digest) == dataset
        assert uow.datasets.by_digest("f" * 64) is None
        assert uow.datasets.classes(dataset.id) == ("Käse", "犬")


def test_a_second_data_set_of_the_same_digest_is_not_added(store: Store, add_dataset: Any) -> None:
    with store.begin() as uow:
        dataset = add_dataset(uow)
        assert not uow.datasets.add(dataclasses.replace(dataset, id="ds_other"), ("Käse", "犬"))
        with pytest.raises(NotFound):
            uow.datasets.get("ds_other")


def test_pages_of_data_sets_go_from_new_to_old_without_gaps(store: Store, add_dataset: Any) -> None:
    with store.begin() as uow:
        made = [add_dataset(uow, id=f"ds_{number}").id for number in range(5)]
    with store.read() as uow:
        first, more = uow.datasets.page(limit=3)
        rest, last = uow.datasets.page(limit=3, after=first[-1].id)
    assert [dataset.id for dataset in [*first, *rest]] == made[::-1]
    assert (more, last) == (True, False)


def test_a_held_data_set_is_not_deleted_until_the_holder_is_done(store: Store, add_dataset: Any) -> None:
    with store.begin() as uow:
        dataset = add_dataset(uow)
    order: list[str] = []

    def delete() -> None:
        with store.begin() as uow:
            uow.datasets.lock(dataset.id, exclusive=True)
            order.append("deleted")
            uow.datasets.delete(dataset.id)

    with store.begin() as uow:
        assert uow.datasets.lock(dataset.id) == dataset
        thread = threading.Thread(target=delete)
        thread.start()
        thread.join(0.3)
        order.append("held")
    thread.join()
    assert order == ["held", "deleted"]
    with store.begin() as uow, pytest.raises(NotFound):
        uow.datasets.lock(dataset.id)


# Jobs


def test_a_job_comes_back_as_it_was(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        job = add_job(uow, provenance={"numpy": "2"})
    with store.read() as uow:
        assert uow.jobs.get(job.id) == job
        with pytest.raises(NotFound):
            uow.jobs.get("job_none")


def test_every_change_of_a_job_counts_its_revision(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        job = add_job(uow)
        assert uow.jobs.change(job.id, stage="teacher").revision == 1
        advanced = uow.jobs.advance(job.id, 2)
        moved = uow.jobs.move(job.id, JobState.RUNNING)
    assert (advanced.progress_done, advanced.revision) == (2, 2)
    assert (moved.state, moved.revision) == (JobState.RUNNING, 3)
    assert moved.started_at is not None


def test_a_job_moves_only_where_its_state_leads(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        job = add_job(uow)
        with pytest.raises(Conflict, match="is queued; it cannot become succeeded"):
            uow.jobs.move(job.id, JobState.SUCCEEDED)
        uow.jobs.move(job.id, JobState.RUNNING)
        ended = uow.jobs.move(job.id, JobState.FAILED, error_code="solver", error_message="broke")
        assert ended.finished_at is not None
        assert uow.jobs.move(job.id, JobState.QUEUED, attempt=1).workflow_id == f"{job.id}.1"
        with pytest.raises(NotFound):
            uow.jobs.move("job_none", JobState.RUNNING)


def test_jobs_are_paged_and_counted_by_state(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        made = [add_job(uow, id=f"job_{number}").id for number in range(4)]
        uow.jobs.move(made[1], JobState.RUNNING)
        counts = uow.jobs.count_by_state()
        assert list(counts) == list(JobState)
        assert (counts[JobState.QUEUED], counts[JobState.RUNNING], counts[JobState.FAILED]) == (3, 1, 0)
        page, more = uow.jobs.page(limit=2, states=[JobState.QUEUED])
        assert [job.id for job in page] == [made[3], made[2]]
        assert more
        page, more = uow.jobs.page(limit=2, after=page[-1].id, states=[JobState.QUEUED])
        assert [job.id for job in page] == [made[0]]
        assert not more


def test_a_data_set_is_in_use_while_a_job_trains_or_tests_on_it(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        trains = add_job(uow, dataset_id="ds_a")
        add_job(uow, dataset_id="ds_b", spec={"evaluation": {"dataset_id": "ds_c"}})
        assert [uow.jobs.unfinished_for_dataset(f"ds_{name}") for name in "abcd"] == [True, True, True, False]
        uow.jobs.move(trains.id, JobState.CANCELLED)
        assert not uow.jobs.unfinished_for_dataset("ds_a")


def test_an_idempotency_key_belongs_to_one_job_of_one_owner(store: Store) -> None:
    with store.begin() as uow:
        uow.jobs.add_idempotency_key("ann", "k", "d" * 64, "job_1")
        uow.jobs.add_idempotency_key("bob", "k", "e" * 64, "job_2")
        assert uow.jobs.find_idempotency_key("ann", "k") == ("d" * 64, "job_1")
        assert uow.jobs.find_idempotency_key("ann", "other") is None
    with pytest.raises(IntegrityError), store.begin() as uow:
        uow.jobs.add_idempotency_key("ann", "k", "d" * 64, "job_3")


# Students


def test_a_succeeded_student_is_never_replaced(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        job = add_job(uow)
        assert uow.students.save(student(job.id, 0, state=StudentState.FAILED, error="broke"))
        assert uow.students.save(student(job.id, 0, objective=1.5, metrics={"auc": None}))
        assert not uow.students.save(student(job.id, 0, objective=9.0))
        (row,) = uow.students.of_job(job.id)
    assert (row.objective, row.error, row.metrics) == (1.5, None, {"auc": None})


def test_pages_of_students_never_cut_a_class_in_two(store: Store, add_job: Any) -> None:
    methods = ("gsvm", "svm", "teacher")
    with store.begin() as uow:
        job = add_job(uow)
        for index in (0, 2, 5, 7):
            for method in methods:
                uow.students.save(student(job.id, index, method=method))
    with store.read() as uow:
        first, more = uow.students.page(job.id, limit=3)
        assert [(row.class_index, row.method) for row in first] == [
            (k, m) for k in (0, 2, 5) for m in methods
        ]
        assert more
        rest, more = uow.students.page(job.id, limit=3, after=5, method="svm")
        assert [(row.class_index, row.method) for row in rest] == [(7, "svm")]
        assert not more
        assert len(uow.students.of_job(job.id)) == 12


def test_only_a_succeeded_student_is_served(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        job = add_job(uow)
        uow.students.save(student(job.id, 0, label="Käse"))
        uow.students.save(student(job.id, 1, state=StudentState.FAILED))
        assert uow.students.finished(job.id, [StudentState.SUCCEEDED]) == {(0, "gsvm")}
        assert uow.students.count_succeeded(job.id, excluding="teacher") == 1
        assert uow.students.count_succeeded(job.id, excluding="gsvm") == 0
        served = uow.students.served(job.id, "Käse", "gsvm")
        assert served is not None
        assert served.class_index == 0
        assert uow.students.served(job.id, "1", "gsvm") is None


# Events


def test_events_are_numbered_within_their_job(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        one, two = add_job(uow), add_job(uow)
        assert [uow.events.append(one.id, "a", {"x": 1}).seq, uow.events.append(two.id, "b").seq] == [1, 1]
        last = uow.events.append(one.id, "c")
        assert uow.events.after(one.id, 1, limit=10) == [last]
        assert [event.type for event in uow.events.after(one.id, 0, limit=1)] == ["a"]


def test_concurrent_workers_number_events_without_gap_or_deadlock(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        job = add_job(uow)
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for turn in range(5):
                with store.begin() as uow:
                    uow.students.save(student(job.id, 10 * index + turn))
                    uow.events.append(job.id, "student_finished")
                    uow.jobs.advance(job.id)
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with store.read() as uow:
        assert [event.seq for event in uow.events.after(job.id, 0, limit=100)] == list(range(1, 21))
        assert uow.jobs.get(job.id).progress_done == 20


# Models


def test_versions_count_from_one_within_a_model(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        assert uow.models.next_version("digits") == 1
        job = add_job(uow)
        version = version_of(uow, job.id, 1)
        assert uow.models.next_version("digits") == 2
        assert uow.models.next_version("other") == 1
        assert uow.models.of_job(job.id) == version
        assert uow.models.of_job("job_none") is None
        assert uow.models.version("digits", 1) == version
        for ask in (
            lambda: uow.models.version("digits", 2),
            lambda: uow.models.versions("none", limit=100)[0],
        ):
            with pytest.raises(NotFound):
                ask()


def test_models_are_listed_in_order_of_name(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        for model, number in (("b", 1), ("a", 1), ("a", 2), ("c", 1)):
            version_of(uow, add_job(uow, model=model).id, number, model)
        uow.models.point("a", "latest", 2)
        assert uow.models.numbers(limit=9, among=["a", "none"]) == [("a", 1), ("a", 2)]
        page, more = uow.models.summaries(limit=2)
        assert [(item.name, item.versions, item.latest_version, len(item.aliases)) for item in page] == [
            ("a", 2, 2, 1),
            ("b", 1, 1, 0),
        ]
        assert more
        assert [item.name for item in uow.models.summaries(limit=2, after=("default", "b"))[0]] == ["c"]


def test_an_alias_moves_only_from_the_state_that_was_read(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        for number in (1, 2):
            version_of(uow, add_job(uow).id, number)
        clock = uow.registry.revision()
        made = uow.models.point("digits", "live", 1, expected_revision=0)
        assert (made.version, made.revision) == (1, 1)
        for stale in (0, 2):
            with pytest.raises(PreconditionFailed):
                uow.models.point("digits", "live", 2, expected_revision=stale)
        assert uow.models.point("digits", "live", 2, expected_revision=1).revision == 2
        assert uow.models.point("digits", "live", 1).version == 1
        assert uow.models.aliases_of("digits") == [uow.models.alias("digits", "live")]
        assert uow.registry.revision() == clock + 3
        with pytest.raises(NotFound):
            uow.models.alias("digits", "none")


def test_an_alias_of_a_version_that_does_not_exist_is_refused(store: Store) -> None:
    with pytest.raises(NotFound), store.begin() as uow:
        uow.models.point("digits", "live", 7)


def test_numbers_of_deleted_versions_and_aliases_are_not_given_again(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        for number in (1, 2, 3):
            version_of(uow, add_job(uow).id, number)
        uow.models.point("digits", "live", 1)
        uow.models.point("digits", "live", 2)
        with pytest.raises(PreconditionFailed):
            uow.models.delete_alias("digits", "live", expected_revision=1)
        uow.models.delete_alias("digits", "live", expected_revision=2)
        assert uow.models.point("digits", "live", 2).revision == 3
        for number in (3, 1):
            assert uow.models.delete("digits", number).version == number
        assert uow.models.newest("digits") == 2
        assert uow.models.next_version("digits") == 4
        with refused_as(Conflict, "version_has_alias", match="Alias 'live' points to version 2"):
            uow.models.delete("digits", 2)
        with pytest.raises(NotFound):
            uow.models.delete("digits", 3)


def test_two_publishers_never_take_the_same_number(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        jobs = [add_job(uow).id for _ in range(6)]

    def publish(job_id: str) -> None:
        with store.begin() as uow:
            version_of(uow, job_id, uow.models.next_version("digits"))

    threads = [threading.Thread(target=publish, args=(job_id,)) for job_id in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as uow:
        assert [version.version for version in uow.models.versions("digits", limit=100)[0]] == [
            6,
            5,
            4,
            3,
            2,
            1,
        ]


# Keys and workers


def test_keys_are_kept_hashed_and_revoked_once(store: Store) -> None:
    key = ApiKey("key_1", "camera", "a" * 64, frozenset({"query"}), frozenset({"faces"}), 1.0)
    with store.begin() as uow:
        uow.keys.add(key)
        assert uow.keys.all() == [key]
        first = uow.keys.revoke("key_1")
        assert first.revoked_at is not None
        assert uow.keys.revoke("key_1") == first
        assert uow.registry.revision() == 2
        with pytest.raises(NotFound):
            uow.keys.revoke("key_2")


def test_a_worker_beats_and_is_forgotten(store: Store) -> None:
    with store.begin() as uow:
        uow.workers.beat(Worker("w1", "host", 1, 1.0, 1.0))
        uow.workers.beat(Worker("w1", "host", 2, 1.0, 2.5))
        assert uow.workers.all() == [Worker("w1", "host", 2, 1.0, 2.5)]
        uow.workers.forget("w1")
        assert uow.workers.all() == []


def test_unfinished_jobs_are_found_by_their_index(store: Store) -> None:
    """Both databases use a partial index only if the statement's text implies its condition."""
    from app.store.tables import is_unfinished, jobs

    query = sa.select(jobs.c.id).where(is_unfinished).order_by(jobs.c.id.desc()).limit(10)
    text = str(query.compile(store.engine, compile_kwargs={"render_postcompile": True}))
    assert "'queued', 'running', 'cancelling'" in text
    assert [state.value for state in JobState if not state.ended] == ["queued", "running", "cancelling"]
    if store.engine.dialect.name == "sqlite":
        with store.engine.connect() as connection:
            # SQLite rejects a statement for which the index cannot be used.
            text = text.replace("FROM jobs", "FROM jobs INDEXED BY ix_jobs_unfinished")
            assert connection.exec_driver_sql(text, (10, 0)[: text.count("?")]).all() == []


def test_a_heartbeat_elects_the_first_live_worker(store: Store) -> None:
    workers = {name: Worker(name, "host", 1, 1.0, time.time()) for name in "abc"}

    def renew(name: str) -> PeerSummary | None:
        with store.single() as uow:
            return uow.workers.renew(workers[name], late=2.0, dead=4.0)

    with store.begin() as uow:
        for worker in workers.values():
            uow.workers.beat(worker)
    assert [renew(name).is_first for name in "abc"] == [True, False, False]
    with store.begin() as uow:
        uow.workers.beat(Worker("a", "host", 1, 1.0, uow.workers.clock() - 3.0))
    assert renew("b") == PeerSummary(late=1, lost=0, is_first=False)
    with store.begin() as uow:
        uow.workers.beat(Worker("a", "host", 1, 1.0, uow.workers.clock() - 5.0))
    assert renew("b") == PeerSummary(late=1, lost=0, is_first=True)
    with store.begin() as uow:
        uow.workers.mark_lost("a")
    assert renew("a") is None
    assert renew("b") == PeerSummary(late=0, lost=1, is_first=True)
    assert renew("c") == PeerSummary(late=0, lost=1, is_first=False)


def test_the_clock_of_the_database_decides_which_workers_are_alive(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.begin() as uow:
        uow.workers.beat(Worker("fast", "host", 1, 1.0, time.time() + 3600))
        uow.workers.beat(Worker("silent", "host", 1, 1.0, time.time() - 3600))
        fast = Worker("fast", "host", 1, 1.0, time.time() + 3600)
        assert uow.workers.renew(fast, late=2.0, dead=4.0) == PeerSummary(late=1, lost=0, is_first=True)
        now = uow.workers.clock()
        assert [worker.executor_id for worker in uow.workers.alive(15.0)] == ["fast"]
        assert abs(uow.workers.all()[0].beat_at - now) < 60, "a worker's own clock is not stored"
    if store.engine.dialect.name == "postgresql":
        # This process's clock is wrong by an hour.
        monkeypatch.setattr(time, "time", lambda: now - 3600)
        with store.begin() as uow:
            assert abs(uow.workers.clock() - now) < 60
            assert [worker.executor_id for worker in uow.workers.alive(15.0)] == ["fast"]


def test_students_are_counted_by_a_metric_in_bins_of_equal_width(store: Store, add_job: Any) -> None:
    with store.begin() as uow:
        job = add_job(uow)
        for index, f1 in enumerate([0.0, 0.3, 0.99, 1.0, None]):
            metrics = {} if f1 is None else {"f1": f1}
            uow.students.save(
                StudentRow(job.id, index, str(index), "svm", StudentState.SUCCEEDED, metrics=metrics)
            )
        assert uow.students.histogram(job.id, "svm", "f1", 4) == [1, 1, 0, 2], "1 is in the last bin"


def test_a_job_takes_its_students_and_events_with_it(store: Store, add_job: Any) -> None:
    from app.store.tables import jobs

    with store.begin() as uow:
        job = add_job(uow)
        uow.students.save(student(job.id, 0))
        uow.events.append(job.id, "a")
        uow.connection.execute(sa.delete(jobs))
        assert uow.students.of_job(job.id) == []
        assert uow.events.after(job.id, 0, limit=1) == []


def test_a_page_of_versions_is_bounded_in_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.paging.PAGE_BYTES", 60_000)
    classes = tuple(f"{number:03d} " + "x" * 246 for number in range(100))
    with store.begin() as uow:
        teacher, _ = uow.blobs.put([b"teacher"])
        for number in range(1, 6):
            version = ModelVersion("many", number, None, "0" * 64, "gsvm", classes, 64, teacher, {}, 1.0)
            uow.models.publish(version)
    numbers, before, has_more = [], None, True
    with store.read() as uow:
        while has_more:
            page, has_more = uow.models.versions("many", limit=1000, before=before)
            assert 1 <= len(page) <= 2
            numbers, before = [*numbers, *(version.version for version in page)], page[-1].version
        assert uow.models.versions("many", limit=1000, before=1) == ([], False)
    assert numbers == [5, 4, 3, 2, 1]
