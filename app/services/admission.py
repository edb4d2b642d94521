"""Decides which stored jobs a worker may begin to coordinate, so that no tenant takes all coordinators.

A job waits in the database until it is admitted to the queue of jobs. Tenants take turns, and so do the keys
of one tenant: the next job is one of the tenant with the fewest admitted jobs, and of its key with the
fewest. A key may have a quarter of the coordinators and a tenant half of them, so that some are always free
for others. A key without any admitted job need not wait for a free coordinator: for such keys workers
coordinate more jobs than their regular number, because a coordinator is a waiting thread.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final

from app.domain.entities import WORKER_ALIVE_SECONDS, Caller, Priority, workflow_id
from app.domain.errors import Unavailable
from app.domain.ports import JobQueue
from app.store.unit_of_work import Store, UnitOfWork

logger = logging.getLogger(__name__)

COORDINATED_JOBS: Final = 64
"""Jobs that one worker coordinates regularly; more if it runs more than 16 units of work concurrently."""

MAX_COORDINATED_JOBS: Final = 4
"""The largest number is this multiple of the regular one."""

_LEVELS: Final = {Priority.HIGH.value: 0, Priority.NORMAL.value: 1, Priority.LOW.value: 2}


def admit_jobs(uow: UnitOfWork) -> Sequence[tuple[str, int]]:
    """Admit the waiting jobs for which there is room; returns (id, attempt) of each.

    The caller passes them to `enqueue_jobs` after its commit.
    """
    uow.admission.lock()
    waiting = uow.admission.waiting()
    if not waiting:
        return []
    slots = [worker.slots for worker in uow.workers.alive(WORKER_ALIVE_SECONDS)]
    chosen = choose_jobs(waiting, uow.admission.admitted(), regular_jobs(slots))
    return uow.admission.admit(chosen)


def enqueue_jobs(queue: JobQueue, admitted: Sequence[tuple[str, int]]) -> None:
    """Put admitted jobs into the queue. If it cannot be reached, a worker does that later."""
    for job_id, attempt in admitted:
        try:
            queue.enqueue(job_id, workflow_id(job_id, attempt))
        except Unavailable:
            logger.warning(
                "job %s: the queue cannot be reached; a worker will enqueue the stored job", job_id
            )


def admit_waiting_jobs(store: Store, queue: JobQueue) -> None:
    """Admit the waiting jobs for which there is room and enqueue them. store: of all tenants.

    Raises Unavailable.
    """
    with store.peek() as uow:
        if not uow.admission.any_waiting():
            return
    with store.begin() as uow:
        admitted = admit_jobs(uow)
    enqueue_jobs(queue, admitted)


def regular_jobs(slots: Sequence[int]) -> int:
    """Jobs that the workers coordinate regularly. slots: units that each worker runs concurrently."""
    return sum(max(COORDINATED_JOBS, 4 * each) for each in slots) or COORDINATED_JOBS


def choose_jobs(
    waiting: Sequence[tuple[str, str, Caller]], admitted: Mapping[Caller, int], regular: int
) -> list[str]:
    """Ids of the waiting jobs to admit.

    waiting: (id, priority, owner), oldest first. admitted: number of admitted jobs by owner. regular: number
    of jobs that all workers coordinate regularly.
    """
    of_key = Counter(admitted)
    of_tenant: Counter[str] = Counter()
    for owner, count in admitted.items():
        of_tenant[owner.tenant] += count
    queues: dict[tuple[int, Caller], deque[str]] = {}
    for job_id, priority, owner in waiting:
        queues.setdefault((_LEVELS[priority], owner), deque()).append(job_id)
    chosen: list[str] = []
    while open_queues := [
        (level, of_tenant[owner.tenant], of_key[owner], queue[0], owner)
        for (level, owner), queue in queues.items()
        if queue and _has_room(of_key[owner], of_tenant[owner.tenant], of_tenant.total(), regular)
    ]:
        level, _, _, job_id, owner = min(open_queues)
        queues[level, owner].popleft()
        chosen.append(job_id)
        of_key[owner] += 1
        of_tenant[owner.tenant] += 1
    return chosen


def _has_room(of_key: int, of_tenant: int, total: int, regular: int) -> bool:
    """Whether a key may have one more job. of_key, of_tenant, total: jobs that are admitted already."""
    if not of_tenant:
        return total < MAX_COORDINATED_JOBS * regular
    if not of_key:
        return of_tenant < regular and total < (MAX_COORDINATED_JOBS - 1) * regular
    return of_key < regular // 4 and of_tenant < regular // 2 and total < regular
