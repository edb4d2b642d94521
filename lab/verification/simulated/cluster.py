"""The simulated cluster: workers with the service's own code, a client, faults, and what must always hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

from app.domain.entities import WAITING, Dataset, Job, JobState, Worker
from app.domain.errors import Conflict, ServiceError, Unavailable
from app.domain.training_spec import TrainingSpec
from app.jobs.engine.client import DbosQueue
from app.jobs.errors import JobStopped, WorkerStopping, WorkflowOver
from app.jobs.heartbeat import RETRIES_PER_INTERVAL, Heartbeat
from app.jobs.reconciler import Reconciler
from app.jobs.solver.messages import StudentResult
from app.jobs.takeover import Takeover, UnstartedWork
from app.jobs.workflow import steps
from app.jobs.workflow.finish import finish_job, total_students
from app.jobs.workflow.running_job import CancellationCheck, JobPlan
from app.store.unit_of_work import Store
from lab.verification.simulated.bugs import HeartbeatTakingOverOnce, ReconcilerWithoutEnd
from lab.verification.simulated.database import Database, Transaction
from lab.verification.simulated.engine import SimulatedEngine, WorkflowCancelled
from lab.verification.simulated.store import SimulatedStore
from lab.verification.simulated.world import Process, World

INTERVAL: Final = 1.0
TIMEOUT: Final = 4.0
TAKEOVER_SECONDS: Final = 7.0
"""Within this time after the last fault, no workflow may be left with a dead worker."""
_END_SECONDS: Final = 60.0
_UNITS: Final = 3
_POLL_SECONDS: Final = 0.5
_SWITCH_SECONDS: Final = 0.05
_SPEC: Final = TrainingSpec(publish=False)
_DATASET: Final = Dataset(
    id="ds",
    digest="",
    name="",
    source_format="csv",
    size_bytes=0,
    blob_digest="",
    rows=9,
    test_rows=0,
    columns=1,
    class_count=3,
    summary={},
    created_at=0.0,
    created_by="client",
)
_PLAN: Final = JobPlan(_SPEC, _DATASET, range(_UNITS), tuple("abc"))
_METHOD: Final = _SPEC.served_method
_ROW: Final = {
    "objective": 1.0,
    "gap": 0.0,
    "iterations": 1,
    "seconds": 1.0,
    "status": "converged",
    "threshold": 0.0,
    "metrics": {},
}


class Violation(Exception):
    """Something that must always hold did not."""


class _Stopping:
    """`threading.Event` of a simulated worker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        self._world.sleep(seconds)
        return self._is_set


class SimulatedWorker:
    """A worker process. Its heartbeat, reconciler, takeovers and steps are those of the service."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        world = cluster.world
        self._cluster = cluster
        self._world = world
        self.process = Process(name, drift=1.0 + 0.002 * (world.random.random() - 0.5))
        self.stopping: Any = _Stopping(world)
        self._engine = cluster.engine
        self._store = cast("Store", cluster.store)
        queue = cast("DbosQueue", self._engine)
        clock = world.clock_of(self.process)
        takeover = Takeover(self._store, queue, name)
        beats = HeartbeatTakingOverOnce if "takeover_once" in cluster.bugs else Heartbeat
        self.heartbeat = beats(
            self._store,
            Worker(name, name, 1, started_at=0.0, beat_at=0.0),
            interval=INTERVAL,
            timeout=TIMEOUT,
            units=tuple,
            take_over=takeover.take_over,
            on_lost=self._end_as_lost,
            clock=clock,
        )
        kind = ReconcilerWithoutEnd if "cancel_without_end" in cluster.bugs else Reconciler
        self._reconciler = kind(
            self._store,
            queue,
            takeover.recover_orphans,
            is_elected=lambda: self.heartbeat.is_elected,
            clock=clock,
            check_own_work=UnstartedWork(queue, name, lambda: self._running).check,
        )
        self._running: set[str] = set()
        self._is_checking = False
        world.spawn(self.process, self._start, delay=world.random.random())

    @property
    def is_over(self) -> bool:
        return self.process.crashed or self.stopping.is_set()

    def _start(self) -> None:
        world = self._world
        if not self._try(self.heartbeat.beat):
            # As in the service: a worker that cannot register ends, and is started again under another name.
            self.stopping.set()
            world.sleep(INTERVAL)
            self._cluster.replace(self)
            return
        for work in (self._reconcile, self._take_work, self._send_heartbeats):
            world.spawn(self.process, work)

    def _send_heartbeats(self) -> None:
        seconds = INTERVAL
        while not self.stopping.is_set():
            self._world.sleep(seconds)
            is_stored = self._try(self.heartbeat.beat)
            seconds = INTERVAL if is_stored else INTERVAL / RETRIES_PER_INTERVAL
            if is_stored:
                self._world.spawn(self.process, self._check_peers, delay=_SWITCH_SECONDS)

    def _check_peers(self) -> None:
        """Look at the peers in a thread of its own; heartbeats go on while it waits."""
        if not self._is_checking:
            self._is_checking = True
            self._try(self.heartbeat.check_peers)
            self._is_checking = False

    def _reconcile(self) -> None:
        while not self.stopping.is_set():
            self._world.sleep(INTERVAL)
            self._try(self._reconciler.run_once)

    @staticmethod
    def _try(work: Callable[[], None]) -> bool:
        try:
            work()
        except ServiceError:
            return False
        return True

    def _end_as_lost(self) -> None:
        self._world.note(f"{self.process.name} finds that it was marked as lost, and stops")
        self.stopping.set()
        self._cluster.replace(self)

    def _take_work(self) -> None:
        while not self.stopping.is_set():
            self._world.sleep(_POLL_SECONDS)
            try:
                taken = self._engine.claim(self.process.name)
            except Unavailable:
                continue
            if taken is not None:
                self._world.note(f"{self.process.name} takes {taken[0]}")
                self._world.spawn(self.process, self._run, *taken)

    def _run(self, workflow_id: str, owner: int) -> None:
        self._running.add(workflow_id)
        try:
            self._execute(workflow_id, owner)
        finally:
            self._running.discard(workflow_id)

    def _execute(self, workflow_id: str, owner: int) -> None:
        job_id, attempt, *number = workflow_id.split(".")
        run = self._run_unit if number else self._run_job
        try:
            run((workflow_id, owner), (job_id, int(attempt)), *map(int, number))
        except (WorkerStopping, WorkflowOver):
            return
        while not self.stopping.is_set() and not self._try(partial(self._engine.end, workflow_id, owner)):
            self._world.sleep(_POLL_SECONDS)

    def _run_job(self, workflow: tuple[str, int], attempt: tuple[str, int]) -> None:
        check = self._check(attempt)
        run = self._engine.run_step
        try:
            run(workflow, 0, self.stopping.is_set, steps.begin_job, attempt, self.process.name)
            waiting = {f"{workflow[0]}.{number}" for number in range(1, _UNITS + 1)}
            for unit in sorted(waiting):
                check.retry_while_unavailable(partial(self._engine.enqueue, attempt[0], unit))
            while waiting:
                check.pause(_POLL_SECONDS)
                check.check_now()
                states = check.retry_while_unavailable(partial(self._engine.states, sorted(waiting)))
                waiting -= {unit for unit, state in states.items() if state.ended}
            totals = total_students(self._store, check, attempt, _PLAN)
            run(workflow, 1, self.stopping.is_set, finish_job, attempt, _PLAN, totals, None)
        except (JobStopped, WorkflowCancelled):
            with suppress(ServiceError), self._store.begin() as uow:
                steps.settle_cancelled(uow, *attempt)

    def _run_unit(self, workflow: tuple[str, int], attempt: tuple[str, int], number: int) -> None:
        check = self._check(attempt)
        try:
            check.check_now()
            check.pause(0.3 + 2.0 * self._world.random.random())
            result = StudentResult((number - 1, _METHOD), "abc"[number - 1], _ROW, b"packed")
            run = self._engine.run_step
            run(workflow, 0, self.stopping.is_set, steps.store_students, attempt, [result])
        except (JobStopped, WorkflowCancelled):
            return

    def _check(self, attempt: tuple[str, int]) -> CancellationCheck:
        clock = self._world.clock_of(self.process)
        return CancellationCheck(self._store, self.stopping, *attempt, clock=clock)


class Cluster:
    """Three workers, a database, a client with two jobs, and the checks. bugs: names of planted bugs."""

    def __init__(self, world: World, bugs: Collection[str] = ()) -> None:
        self.world = world
        self.bugs = frozenset(bugs)
        self.database = Database(world)
        self.store = SimulatedStore(self.database, self.bugs)
        self.engine = SimulatedEngine(world, self.database, self.store)
        self.database.on_commit = self._check_commit
        self.after_commit: Callable[[Process], None] = lambda _process: None
        self.finished_submitting = False
        self._beats: dict[str, float] = {}
        self._names = 0
        self.workers = [self._worker() for _ in range(3)]
        world.spawn(Process("client"), self._submit)

    def replace(self, worker: SimulatedWorker) -> None:
        """Start another worker in place of one that has ended."""
        self.workers.remove(worker)
        self.workers.append(self._worker())

    def crash(self, worker: SimulatedWorker) -> None:
        worker.process.crashed = True
        self.database.disconnect(worker.process)
        self.replace(worker)

    def jobs(self) -> list[Job]:
        return list(self.database.committed["jobs"].values())

    def is_done(self) -> bool:
        return self.finished_submitting and all(job.state.ended for job in self.jobs())

    def left_behind(self) -> list[str]:
        """Workflows that wait for a worker that has ended."""
        alive = {worker.process.name for worker in self.workers if not worker.is_over}
        return [
            key
            for key, row in self.database.committed["workflows"].items()
            if row.status == "PENDING" and row.executor not in alive
        ]

    def check_end(self) -> None:
        """What must hold when the faults have been over for a while. Raises Violation."""
        for job in self.jobs():
            if not job.state.ended:
                raise Violation(f"{job.id} never ends: it is {job.state}, attempt {job.attempt}")
        students = Counter(
            (event.job_id, event.data["class_index"])
            for event in self.database.committed["events"].values()
            if event.type == "student_finished"
        )
        for key, count in students.items():
            if count > 1:
                raise Violation(f"student {key} was stored {count} times")
        for job in self.jobs():
            stored = sum(job_id == job.id for job_id, _ in students)
            if job.state is JobState.SUCCEEDED and stored != _UNITS:
                raise Violation(f"{job.id} succeeded with {stored} of {_UNITS} students")

    def _worker(self) -> SimulatedWorker:
        self._names += 1
        return SimulatedWorker(self, f"w{self._names}")

    def _submit(self) -> None:
        """Submit two jobs; cancel and retry some."""
        world, random = self.world, self.world.random
        for number in range(2):
            world.sleep(4.0 * random.random())
            job = Job(
                f"job{number}",
                dataset_id="ds",
                model="m",
                spec={},
                state=JobState.QUEUED,
                attempt=0,
                stage=random.choice([WAITING, "queued"]),
                progress_done=0,
                progress_total=_UNITS + 1,
                created_at=0.0,
                created_by="client",
            )
            self._insist(partial(self._add, job))
            if random.random() < 0.5:
                world.sleep(10.0 * random.random())
                self._insist(partial(self._cancel, job.id))
                if random.random() < 0.7:
                    world.sleep(6.0 * random.random())
                    self._insist(partial(self._retry, job.id))
        self.finished_submitting = True

    def _insist(self, call: Callable[[], None]) -> None:
        for _ in range(100):
            try:
                call()
            except Unavailable:
                self.world.sleep(0.5)
            else:
                return

    def _add(self, job: Job) -> None:
        with self.store.begin() as uow:
            if uow.database.get(uow.transaction, "jobs", job.id) is None:
                uow.jobs.add(job)
        self.world.note(f"the client submits {job.id}")
        # A waiting job is admitted by the reconciler. Of the others some API processes die before they reach
        # the queue.
        if job.stage != WAITING and self.world.random.random() < 0.8:
            self.engine.enqueue(job.id, job.workflow_id)

    def _cancel(self, job_id: str) -> None:
        with self.store.begin() as uow:
            if not uow.jobs.lock(job_id).state.ended:
                uow.jobs.move(job_id, JobState.CANCELLING)
        self.world.note(f"the client cancels {job_id}")

    def _retry(self, job_id: str) -> None:
        try:
            with self.store.begin() as uow:
                job = uow.jobs.lock(job_id)
                job = uow.jobs.move(job_id, JobState.QUEUED, attempt=job.attempt + 1, stage="queued")
        except Conflict:
            return
        self.world.note(f"the client retries {job_id}: attempt {job.attempt}")
        self.engine.enqueue(job_id, job.workflow_id)

    def _check_commit(self, transaction: Transaction) -> None:
        """What must hold at every commit. Raises Violation."""
        for (table, key), row in transaction.writes.items():
            if table == "workers":
                self._check_worker(key, row)
            elif table == "students":
                self._check_student(transaction, key)
        self.after_commit(transaction.process)

    def _check_worker(self, name: str, row: Worker | None) -> None:
        before: Worker | None = self.database.committed["workers"].get(name)
        if row is None or before is None:
            self._beats[name] = self.world.now
        elif before.lost_at is not None and row.beat_at != before.beat_at:
            raise Violation(f"{name} was marked as lost, and goes on")
        elif before.lost_at is None and row.lost_at is not None:
            silence = self.world.now - self._beats[name]
            self.world.note(f"{name} is marked as lost after {silence:.2f} s")
            # Half of the timeout may have passed, by the database's clock, before the observer looked.
            if silence < 0.99 * TIMEOUT / 2:
                raise Violation(f"{name} was marked as lost {silence:.2f} s after a heartbeat")
        else:
            self._beats[name] = self.world.now

    def _check_student(self, transaction: Transaction, key: Any) -> None:
        job: Job = self.database.get(transaction, "jobs", key[0])
        if transaction.attempt is None:
            return
        if job.attempt != transaction.attempt[1] or job.state is not JobState.RUNNING:
            raise Violation(
                f"a student of attempt {transaction.attempt[1]} was stored while {job.id} is {job.state}, "
                f"attempt {job.attempt}"
            )
