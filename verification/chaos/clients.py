"""Clients that submit training jobs and follow them to their end while faults are injected.

Each client runs one scenario after the other. A job is submitted once; submitted several times because the
first answers were lost; cancelled; or cancelled and retried. Each call picks a server at random and is
repeated until one answers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from stms_client import (
    Client,
    Conflict,
    Problem,
    Retry,
    ServerFault,
    StmsError,
    TooBusy,
    Unavailable,
    Unreachable,
)
from verification.chaos.event_log import EventLog
from verification.chaos.service import FaultyService
from verification.chaos.workloads import Workload

T = TypeVar("T")

SCENARIOS = ("plain", "plain", "plain", "answer_lost", "answer_lost", "cancelled", "cancelled_and_retried")
ENDED = frozenset({"succeeded", "partially_succeeded", "failed", "cancelled"})
_POLL_SECONDS = 0.4
_CALL_SECONDS = 8.0
_MAX_RETRIES = 5


class RunOver(Exception):
    """The run ended before the scenario did."""


@dataclass(slots=True)
class AcceptedJob:
    """A job that the service accepted. expected_state: the state in which it must end.

    solver_retries: how often the client retried it after it failed because its solvers were killed.
    """

    id: str
    tenant: str
    model: str
    workload: str
    scenario: str
    key: str
    expected_state: str = "succeeded"
    solver_retries: int = 0
    cancelled: bool = False
    retried: bool = False


class ClientPool:
    """Runs ``number`` clients in threads.

    accepted: jobs by id. refused: problems with which submissions were rejected. duplicated: pairs of jobs
    created with one Idempotency-Key. faults: counts of 5xx and malformed answers. retries: counts of errors
    after which a call was repeated. progress_count: increases whenever a job advances.
    """

    def __init__(
        self, deployment: FaultyService, workloads: Sequence[Workload], *, number: int, seed: int
    ) -> None:
        self._deployment, self._workloads = deployment, list(workloads)
        self._event_log: EventLog = deployment.event_log
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._job_limit = sys.maxsize
        self._stopped = threading.Event()
        self.accepted: dict[str, AcceptedJob] = {}
        self.duplicated: list[str] = []
        self.refused: list[str] = []
        self.faults: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.submissions = 0
        self.progress_count = 0
        self._seed = seed
        self._threads = [
            threading.Thread(target=self._serve, args=(index,), daemon=True) for index in range(number)
        ]
        for thread in self._threads:
            thread.start()

    def stop_after(self, jobs: int) -> None:
        """Start no further job once this many have been accepted."""
        self._job_limit = jobs

    def abort(self) -> None:
        """Stop all clients, even those that wait for a job."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(_CALL_SECONDS + 5)

    @property
    def active(self) -> int:
        """Number of clients that still run a scenario."""
        return sum(thread.is_alive() for thread in self._threads)

    def _serve(self, index: int) -> None:
        rng = random.Random(self._seed * 1000 + index)
        tenants = sorted(self._deployment.keys)
        tenant = tenants[index % len(tenants)]
        # Each thread has its own connections. `Client` must not retry, since every answer is counted here.
        clients = [
            Client(api.url, self._deployment.keys[tenant], timeout=_CALL_SECONDS, retry=Retry(attempts=1))
            for api in self._deployment.apis
        ]
        try:
            while len(self.accepted) < self._job_limit:
                Scenario(self, clients, tenant, next(self._numbers), rng).run()
        except RunOver:
            return
        finally:
            for client in clients:
                client.close()

    def accept(self, job: AcceptedJob) -> None:
        """Record a job that the service accepted."""
        with self._lock:
            self.accepted[job.id] = job
        self._event_log.record(
            "accepted", job=job.id, model=job.model, scenario=job.scenario, tenant=job.tenant
        )

    def count(self, fault: str) -> None:
        """Count an answer that no client should get."""
        with self._lock:
            self.faults[fault] += 1
        self._event_log.record("server_fault", fault=fault)

    def count_retry(self, error: StmsError) -> None:
        """Count a temporary error, after which the call is repeated."""
        with self._lock:
            self.retries[type(error).__name__] += 1

    def pause(self, seconds: float) -> None:
        """Wait. Raises RunOver when the run is over."""
        if self._stopped.wait(seconds):
            raise RunOver

    @property
    def deployment(self) -> FaultyService:
        """The deployment under test."""
        return self._deployment

    def workload(self, rng: random.Random) -> Workload:
        """A random workload."""
        return rng.choice(self._workloads)


class Scenario:
    """Follows one job from its submission to its end."""

    def __init__(
        self, pool: ClientPool, clients: list[Client], tenant: str, number: int, rng: random.Random
    ) -> None:
        self._pool, self._clients, self._rng = pool, clients, rng
        self._event_log = pool.deployment.event_log
        workload = pool.workload(rng)
        self._workload = workload
        self._seen: tuple[Any, ...] = ()
        self._job = AcceptedJob(
            "", tenant, f"{workload.name}-{number}", workload.name, rng.choice(SCENARIOS), f"{rng.random()}"
        )

    def run(self) -> None:
        """Run the scenario to its end. Raises RunOver if the run ends first."""
        job = self._job
        if not self._submit():
            return
        if job.scenario.startswith("cancelled"):
            self._cancel()
        if job.scenario == "cancelled_and_retried" and job.cancelled:
            self._until_ended()
            self._retry()
        document = self._until_ended()
        while job.solver_retries < _MAX_RETRIES and self._solvers_were_killed(document):
            job.solver_retries += 1
            self._retry()
            document = self._until_ended()
        self._event_log.record(
            "ended_for_client", job=job.id, state=document["state"], error=document.get("error")
        )
        if job.scenario == "answer_lost":
            self._send_again()

    def _submit(self) -> bool:
        """Submit the job until a server answers. Returns False if it was rejected."""
        if self._job.scenario == "answer_lost":
            for _ in range(self._rng.randint(1, 3)):
                self._send_and_hang_up()
        try:
            document = self._call(self._sending())
        except Problem as problem:
            self._pool.refused.append(str(problem))
            self._event_log.record("refused", model=self._job.model, problem=str(problem))
            return False
        self._job.id = str(document["id"])
        self._pool.accept(self._job)
        return True

    def _sending(self) -> Callable[[Client], dict[str, Any]]:
        job, workload = self._job, self._workload
        self._pool.submissions += 1
        return lambda client: client.submit_job(
            workload.dataset_id, job.model, workload.hyperparameters, idempotency_key=job.key
        )

    def _send_again(self) -> None:
        document = self._call(self._sending())
        if document["id"] != self._job.id:
            self._pool.duplicated.append(f"{self._job.id} and {document['id']}")

    def _send_and_hang_up(self) -> None:
        """Send the whole request, and close the connection without reading the answer."""
        job, workload = self._job, self._workload
        content = json.dumps(
            {
                "dataset_id": workload.dataset_id,
                "model": job.model,
                "hyperparameters": workload.hyperparameters,
            },
            separators=(",", ":"),
        ).encode()
        address = urlsplit(self._rng.choice(self._clients).address)
        lines = [
            "POST /v1/training-jobs HTTP/1.1",
            f"Host: {address.netloc}",
            f"Authorization: Bearer {self._pool.deployment.keys[job.tenant]}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
            f"Idempotency-Key: {job.key}",
        ]
        self._pool.submissions += 1
        with contextlib.suppress(OSError):
            where = (str(address.hostname), int(address.port or 80))
            with socket.create_connection(where, timeout=2) as connection:
                connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
                time.sleep(self._rng.uniform(0, 0.05))

    def _cancel(self) -> None:
        """Cancel the job once a random share of its units is done."""
        units = self._rng.uniform(0.0, 0.8)
        while True:
            document = self._call(lambda client: client.job(self._job.id))
            self._track_progress(document)
            progress = document["progress"]
            if document["state"] in ENDED or progress["done"] >= units * progress["total"]:
                break
            self._pool.pause(_POLL_SECONDS)
        try:
            self._call(lambda client: client.cancel_job(self._job.id))
        except Conflict:
            # The job has ended, or an earlier call whose answer was lost has cancelled it.
            state = self._call(lambda client: client.job(self._job.id))["state"]
            if state != "cancelled":
                return
        self._job.cancelled = True
        self._job.expected_state = "cancelled"
        self._event_log.record("cancelled", job=self._job.id)

    def _retry(self) -> None:
        """Retry the job, whose last attempt has ended."""
        try:
            self._call(lambda client: client.retry_job(self._job.id))
        except Conflict as conflict:
            # An earlier call, whose answer was lost, has queued the job already.
            if conflict.code != "job_not_retriable":
                raise
        self._job.retried = True
        self._job.expected_state = "succeeded"
        self._event_log.record("retried", job=self._job.id)

    def _until_ended(self) -> dict[str, Any]:
        while True:
            document = self._call(lambda client: client.job(self._job.id))
            self._track_progress(document)
            if document["state"] in ENDED:
                return document
            self._pool.pause(_POLL_SECONDS)

    def _track_progress(self, document: dict[str, Any]) -> None:
        seen = (document["state"], document["stage"], document["progress"]["done"])
        if seen != self._seen:
            self._seen = seen
            self._pool.progress_count += 1

    def _solvers_were_killed(self, document: dict[str, Any]) -> bool:
        """Whether the job failed because its solvers, alone or with their workers, died repeatedly."""
        if document["state"] not in {"failed", "partially_succeeded"}:
            return False
        error = document.get("error") or {}
        message = error.get("message", "").lower()
        died = error.get("code") in {"solver_died", "too_many_restarts"}
        return died or "solver" in message or "workers ended" in message

    def _call(self, ask: Callable[[Client], T]) -> T:
        """Repeat the call until a server answers. Raises Problem, and RunOver when the run ends."""
        wait = 0.1
        while True:
            client = self._rng.choice(self._clients)
            try:
                return ask(client)
            except (Unreachable, Unavailable, TooBusy) as error:
                self._pool.count_retry(error)
            except ServerFault as fault:
                self._pool.count(f"{fault.status} {fault.code}")
            except Problem:
                raise
            except StmsError as error:
                self._pool.count(repr(error))
            self._pool.pause(self._rng.uniform(0.5, 1.0) * wait)
            wait = min(2 * wait, 2.0)
