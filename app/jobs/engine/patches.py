"""All uses of private parts of DBOS, verified with dbos 3.4.0 and pinned to ``dbos>=3.4,<3.5``.

Each function names the private attribute, why it is needed and what would happen without it. Decision 02
lists them. When the pin is raised, check every one of them and run tests/app/jobs with PostgreSQL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from dbos import DBOS, _utils

from app.jobs.engine.config import APPLICATION_VERSION, BUSY_POLL_SECONDS, JOB_QUEUE, POLL_SECONDS
from app.store.db_errors import translate_errors

_LIMITS_CACHE_SECONDS: Final = 60.0


def skip_unused_background_work(engine: DBOS) -> None:
    """Save the statements of DBOS's background threads that do nothing here; call it after ``DBOS.launch()``.

    Private names: ``DBOS._sys_db`` with ``background_job_lock``, ``list_schedules`` and ``list_queues``, all
    replaced. There are neither delayed workflows nor deadlines, which the lock guards, nor schedules. The
    queues are registered before the launch, so their list is cached for a minute. Without the patch every
    idle worker sends nine statements a second.
    """
    database: Any = engine._sys_db
    read_queues: Callable[..., Any] = database.list_queues
    cached: list[tuple[float, Any]] = []

    @contextmanager
    def background_job_lock(_name: str) -> Iterator[bool]:
        yield False

    def list_queues(**options: Any) -> Any:
        now = time.monotonic()
        if not cached or now - cached[0][0] > _LIMITS_CACHE_SECONDS:
            cached[:] = [(now, read_queues(**options))]
        return cached[0][1]

    database.background_job_lock = background_job_lock
    database.list_queues = list_queues
    database.list_schedules = lambda **_options: []


def poll_queues_cheaply(
    engine: DBOS, is_busy: Callable[[], bool], wait_for_work: Callable[[str], None] = lambda _queue: None
) -> None:
    """Make DBOS's queue polling cheap; call it after ``DBOS.launch()``. is_busy: whether a unit runs here.

    wait_for_work: called with the name of a queue that was empty; may return when it is not, or at any time.

    Private names: ``DBOS._sys_db`` with ``get_queue`` and ``start_queued_workflows``, which are replaced, its
    ``tables.workflow_status``, and ``Queue._polling_interval_sec``. Queue limits are cached for a minute,
    and one SELECT outside a transaction skips the claim when the queue is empty. The job queue is polled less
    often while a unit runs. Without the patch an idle worker takes 8.5 % of a core instead of 4 %.
    """
    database: Any = engine._sys_db
    read_queue: Callable[..., Any] = database.get_queue
    claim: Callable[..., Any] = database.start_queued_workflows
    table = database.tables.workflow_status
    is_enqueued = (table.c.queue_name == sa.bindparam("queue"), table.c.status == "ENQUEUED")
    any_enqueued = sa.select(sa.literal(1)).where(*is_enqueued).limit(1)
    cached: dict[str, tuple[float, Any]] = {}
    empty: set[str] = set()

    def get_queue(name: str, **options: Any) -> Any:
        now = time.monotonic()
        if name not in cached or now - cached[name][0] > _LIMITS_CACHE_SECONDS:
            cached[name] = (now, read_queue(name, **options))
        queue = cached[name][1]
        if queue is not None and name == JOB_QUEUE:
            queue._polling_interval_sec = BUSY_POLL_SECONDS if is_busy() else POLL_SECONDS
        return queue

    def start_queued_workflows(queue: Any, *arguments: Any, **options: Any) -> Any:
        if queue.name in empty:
            wait_for_work(queue.name)
        with database.engine.connect() as connection:
            # A single SELECT needs no transaction, whose BEGIN and END cost as much as the query itself.
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            row = connection.execute(any_enqueued, {"queue": queue.name}).first()
        if row is None:
            empty.add(queue.name)
            return [], None
        empty.discard(queue.name)
        return claim(queue, *arguments, **options)

    database.get_queue = get_queue
    database.start_queued_workflows = start_queued_workflows


def unstarted_workflows(engine: DBOS, executor_id: str) -> set[str]:
    """Workflows that DBOS's database lists as running in this process, and that do not run here.

    Private names: ``DBOS._sys_db.get_pending_workflows`` and ``DBOS._active_workflows_set``. Without them,
    work whose claim was committed while the connection broke would wait until this worker ends.
    """
    with translate_errors():
        pending = engine._sys_db.get_pending_workflows(executor_id, APPLICATION_VERSION)
    return {workflow.workflow_id for workflow in pending} - set(engine._active_workflows_set.activeList())


def requeue_workflow(engine: DBOS, executor_id: str, workflow_id: str) -> None:
    """Queue a workflow again that is listed as running in this process.

    Private names: ``DBOS._sys_db.reenqueue_for_recovery`` and ``_utils.INTERNAL_QUEUE_NAME``, as for
    `unstarted_workflows`.
    """
    with translate_errors():
        engine._sys_db.reenqueue_for_recovery(workflow_id, [executor_id], _utils.INTERNAL_QUEUE_NAME)


def recover_workflows(executor_id: str) -> list[str]:
    """Queue the unfinished workflows of a dead worker again; returns their workflow ids.

    Private name: ``DBOS._recover_pending_workflows``. DBOS gives each workflow to one executor only. Without
    it, work would resume only when a worker with the dead worker's name starts again.
    """
    return [handle.get_workflow_id() for handle in DBOS._recover_pending_workflows([executor_id])]
