"""All uses of private parts of DBOS, verified with dbos 3.4.0 and pinned to ``dbos>=3.4,<3.5``.

No private part is replaced. Each function names the private attribute and what would happen without it;
decision 02 lists them. When the pin is raised, check each of them and run tests/app/jobs with PostgreSQL.
"""

from __future__ import annotations

import threading

from dbos import DBOS, DBOSClient, Queue, _queue


def end_unused_threads(engine: DBOS) -> None:
    """End DBOS's threads for delayed workflows, deadlines, schedules, and its own queues.

    The service uses none of these, but every idle worker would send six statements a second for them.

    Private name: ``DBOS._background_jobs_stop_event``, which DBOS sets when it is destroyed.
    """
    engine._background_jobs_stop_event.set()
    for event in engine.background_thread_stop_events:
        event.set()


def poll_queue(engine: DBOS, queue: Queue, stopping: threading.Event) -> None:
    """Claim workflows from the queue and start them until the event is set.

    DBOS calls ``stopping.wait`` with its interval in seconds before each poll; it returns True to stop.

    Private name: ``dbos._queue.queue_worker_thread``, which DBOS itself runs in a thread for each queue that
    it listens to. That thread would also poll an empty queue.
    """
    _queue.queue_worker_thread(stopping, engine, queue)


def running_here(engine: DBOS) -> set[str]:
    """Ids of the workflows that run in this process, or will as soon as their thread has started.

    Private name: ``DBOS._active_workflows_set``. Without it, work would wait until this worker ends if its
    claim was committed while the connection broke.
    """
    return set(engine._active_workflows_set.activeList())


def requeue_workflow(client: DBOSClient, executor_id: str, workflow_id: str, queue: str) -> bool:
    """Queue a workflow again if it is listed as running in this worker; returns whether it was.

    It returns to its own queue; ``queue`` is for workflows that were started without one.

    Private name: ``DBOSClient._sys_db`` with ``reenqueue_for_recovery``. DBOS gives each workflow to one
    executor only. Without it, the work of a dead executor would resume only when a worker of its name starts.
    """
    return client._sys_db.reenqueue_for_recovery(workflow_id, [executor_id], queue)
