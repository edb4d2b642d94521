"""Measures how long the work of a killed, stopped or disconnected worker stays assigned to it.

The owner of each work unit is read from DBOS's table ten times a second, over a connection that only faults
of the database itself can break. The time runs from the fault until the worker owns none of its units any
more. Time without a database, or without any worker that is up (a starting one is not), is subtracted,
because no takeover is possible then. A worker that returns before its work was taken over is not counted.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import psycopg

from verification.chaos.event_log import Interval, Intervals
from verification.chaos.service import FaultyService

ORDERLY = "terminate_worker"
"""A worker that receives SIGTERM returns its work itself."""
_POLL_SECONDS = 0.1
_FRESH_SECONDS = 1.0
_QUERY = "SELECT workflow_uuid, executor_id FROM dbos.workflow_status WHERE status = 'PENDING'"
_NAMES = "SELECT pid, executor_id FROM workers"


@dataclass(slots=True)
class Case:
    """A fault that interrupted a worker. began: time in the event log, seconds. held: its work units then.

    seconds: time until others owned all its units. excluded: seconds without a database or any worker.
    outcome: taken_over, came_back, or empty while open. back: whether the worker runs again.
    """

    began: float
    kind: str
    worker: str
    executor: str
    held: frozenset[str]
    seconds: float | None = None
    excluded: float = 0.0
    outcome: str = ""
    back: bool = False


class Takeovers:
    """A thread that polls the owners of all work units until `stop`."""

    def __init__(self, deployment: FaultyService) -> None:
        self._deployment = deployment
        self._event_log = deployment.event_log
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._unavailable = Intervals(deployment.event_log)
        self._unavailable_since: Interval | None = None
        self._holders: dict[str, str] = {}
        self._names: dict[int, str] = {}
        self._looked = float("-inf")
        self.cases: list[Case] = []
        self._thread = threading.Thread(target=self._run, name="takeovers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop polling."""
        self._stopping.set()
        self._thread.join()

    def begin(self, kind: str, worker: str, pid: int) -> Case | None:
        """Record a fault that interrupts this process now.

        Returns None if the process owns no work or is interrupted already.
        """
        with self._lock:
            executor = self._names.get(pid)
            if executor is None or self._event_log.now - self._looked > _FRESH_SECONDS:
                return None
            held = frozenset(unit for unit, holder in self._holders.items() if holder == executor)
            known = any(case.executor == executor and not case.outcome for case in self.cases)
            if not held or known:
                return None
            case = Case(self._event_log.now, kind, worker, executor, held)
            self.cases.append(case)
            return case

    def came_back(self, case: Case | None) -> None:
        """Record that the worker of this case runs again."""
        if case is not None:
            with self._lock:
                case.back = True

    def seconds(self, *, orderly: bool = False) -> list[float]:
        """Times of all takeovers: after a SIGTERM if ``orderly``, otherwise after all other faults."""
        with self._lock:
            return [
                case.seconds
                for case in self.cases
                if case.seconds is not None and (case.kind == ORDERLY) is orderly
            ]

    def never(self) -> list[Case]:
        """Cases without an outcome."""
        with self._lock:
            return [case for case in self.cases if not case.outcome]

    def _run(self) -> None:
        reader = _Reader(self._deployment.database)
        try:
            while not self._stopping.wait(_POLL_SECONDS):
                self._track_availability()
                found = reader.read()
                if found is not None:
                    self._update_cases(*found)
        finally:
            reader.close()

    def _track_availability(self) -> None:
        now = self._event_log.now
        hindered = self._deployment.outages.overlapping(now, now) or not any(
            worker.pid in self._names and not worker.disconnected.overlapping(now, now)
            for worker in self._deployment.workers
        )
        if hindered and self._unavailable_since is None:
            self._unavailable_since = self._unavailable.begin("no database or no worker")
        elif not hindered and self._unavailable_since is not None:
            self._unavailable.finish(self._unavailable_since)
            self._unavailable_since = None

    def _update_cases(self, holders: dict[str, str], names: dict[int, str]) -> None:
        now = self._event_log.now
        with self._lock:
            self._holders, self._names, self._looked = holders, names, now
            for case in self.cases:
                if case.outcome:
                    continue
                own = {unit for unit in case.held if holders.get(unit) == case.executor}
                if not own:
                    case.outcome = "taken_over"
                    case.excluded = self._unavailable.seconds_within(case.began, now)
                    case.seconds = now - case.began - case.excluded
                    took, units = round(case.seconds, 2), sorted(case.held)
                    self._event_log.record(
                        "taken_over", worker=case.worker, kind=case.kind, seconds=took, units=units
                    )
                elif case.back:
                    case.outcome = "came_back"


class _Reader:
    """Reads from the database, and reconnects after an error."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def read(self) -> tuple[dict[str, str], dict[int, str]] | None:
        """Executor ids by work unit and by process id; None if the database does not answer."""
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._address, autocommit=True, connect_timeout=2)
            holders = self._connection.execute(_QUERY).fetchall()
            names = self._connection.execute(_NAMES).fetchall()
        except psycopg.Error:
            self.close()
            return None
        named = {int(str(pid)): str(name) for pid, name in names}
        return {str(unit): str(name) for unit, name in holders}, named

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
