"""Jobs are admitted by turns, and no tenant or key takes all coordinators."""

from __future__ import annotations

from collections import Counter

import pytest

from app.domain.entities import WAITING, Caller, JobState
from app.domain.errors import Unavailable
from app.services.admission import admit_waiting_jobs, choose_jobs, regular_jobs
from app.store.unit_of_work import Store

A, A2, B, C = Caller("a", "1"), Caller("a", "2"), Caller("b", "1"), Caller("c", "1")


def waiting(*counts: tuple[Caller, int], priority: str = "normal") -> list[tuple[str, str, Caller]]:
    """Jobs of owners, those of the first owner being the oldest."""
    owners = [owner for owner, count in counts for _ in range(count)]
    return [(f"job_{number:04d}", priority, owner) for number, owner in enumerate(owners)]


def chosen(
    jobs: list[tuple[str, str, Caller]], admitted: dict[Caller, int], regular: int = 64
) -> list[Caller]:
    owners = {job_id: owner for job_id, _, owner in jobs}
    return [owners[job_id] for job_id in choose_jobs(jobs, admitted, regular)]


def test_a_key_has_a_quarter_and_a_tenant_half():
    assert Counter(chosen(waiting((A, 64), (A2, 64)), {})) == {A: 16, A2: 16}
    owners = [Caller("a", str(key)) for key in range(10)]
    assert len(chosen(waiting(*((owner, 64) for owner in owners)), {})) == 32


def test_others_start_however_many_jobs_a_tenant_has():
    assert chosen(waiting((A, 64), (B, 1)), {A: 16}) == [B]
    assert chosen(waiting((A, 1), (B, 1)), {A: 16, A2: 16}) == [B]


def test_tenants_take_turns_whatever_their_numbers_of_keys():
    many = [Caller("b", str(number)) for number in range(16)]
    jobs = waiting(*((owner, 1) for owner in many), (A, 16))
    assert [owner.tenant for owner in chosen(jobs, {})[:20]] == ["b", "a"] * 10


def test_a_key_without_jobs_does_not_wait_for_a_free_coordinator():
    full = {Caller(tenant, "1"): 16 for tenant in "abcd"}
    assert chosen(waiting((A, 1), (Caller("e", "1"), 5)), full) == [Caller("e", "1")]
    assert chosen(waiting((A2, 5)), full) == [A2]


def test_even_new_tenants_have_an_upper_limit():
    owners = [Caller(f"t{number}", "1") for number in range(300)]
    assert len(chosen(waiting(*((owner, 1) for owner in owners)), {})) == 256
    keys = [Caller("t", str(number)) for number in range(300)]
    assert len(chosen(waiting(*((owner, 1) for owner in keys)), {})) == 64


def test_the_last_coordinators_are_left_to_tenants_that_have_none():
    full = {Caller(f"t{number}", "1"): 1 for number in range(191)}
    assert chosen(waiting((Caller("t0", "2"), 2)), full) == [Caller("t0", "2")]
    assert chosen(waiting((Caller("t0", "2"), 1)), full | {Caller("t191", "1"): 1}) == []
    assert chosen(waiting((A, 1)), full | {Caller("t191", "1"): 1}) == [A]


def test_an_owner_with_jobs_waits_while_the_regular_coordinators_are_taken():
    full = {Caller(f"t{number}", "1"): 1 for number in range(63)}
    assert chosen(waiting((Caller("t0", "1"), 2)), full) == [Caller("t0", "1")]
    assert chosen(waiting((Caller("t0", "1"), 1)), full | {Caller("t63", "1"): 1}) == []


def test_keys_take_turns_and_high_priorities_go_first():
    assert chosen(waiting((A, 3), (B, 2)), {}) == [A, B, A, B, A]
    jobs = [*waiting((A, 2), priority="low"), ("job_9", "high", B), ("job_8", "normal", C)]
    assert chosen(jobs, {}) == [B, C, A, A]


@pytest.mark.parametrize(("slots", "expected"), [([], 64), ([1], 64), ([1, 1], 128), ([64], 256)])
def test_the_number_of_coordinators_grows_with_the_workers(slots: list[int], expected: int):
    assert regular_jobs(slots) == expected


class Queue:
    """Records what is put in; ``down`` makes it unreachable."""

    def __init__(self) -> None:
        self.enqueued: list[tuple[str, str]] = []
        self.down = False

    def enqueue(self, job_id: str, workflow: str) -> None:
        if self.down:
            raise Unavailable("The job queue cannot be reached.")
        self.enqueued.append((job_id, workflow))

    def cancel(self, workflow: str) -> None:
        raise AssertionError

    def ping(self) -> None:
        raise AssertionError


def test_jobs_are_admitted_when_others_end(store: Store, add_job):
    queue = Queue()
    with store.begin() as uow:
        for _ in range(15):
            add_job(uow, state=JobState.RUNNING, stage="students")
        added = [add_job(uow, stage=WAITING, attempt=2) for _ in range(3)]
    jobs = sorted(added, key=lambda job: job.id)
    admit_waiting_jobs(store, queue)
    assert queue.enqueued == [(jobs[0].id, f"{jobs[0].id}.2")]
    admit_waiting_jobs(store, queue)
    assert len(queue.enqueued) == 1
    queue.down = True
    with store.begin() as uow:
        uow.jobs.move(jobs[0].id, JobState.CANCELLED)
    admit_waiting_jobs(store, queue)
    with store.read() as uow:
        assert [uow.jobs.get(job.id).stage for job in jobs] == ["queued", "queued", WAITING]
