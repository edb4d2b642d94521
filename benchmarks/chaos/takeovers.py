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

from benchmarks.chaos.house import House
from benchmarks.chaos.journal import Span, Spans

ORDERLY = "terminate_worker"
"""A worker that is asked to end gives its work back by itself."""
_LOOK_SECONDS = 0.1
_FRESH_SECONDS = 1.0
_QUERY = "SELECT workflow_uuid, executor_id FROM dbos.workflow_status WHERE status = 'PENDING'"
_NAMES = "SELECT pid, executor_id FROM workers"


@dataclass(slots=True)
class Case:
    """A fault that took a worker from its work. seconds: until all of it was given to others.

    outcome: taken_over, came_back or empty. began: journal's time. away: seconds without a
    database or any worker.
    """

    began: float
    kind: str
    worker: str
    executor: str
    held: frozenset[str]
    seconds: float | None = None
    away: float = 0.0
    outcome: str = ""
    back: bool = False


class Takeovers:
    """A thread that looks who has what, until `stop`."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._journal = house.journal
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._nobody = Spans(house.journal)
        self._nobody_since: Span | None = None
        self._holders: dict[str, str] = {}
        self._names: dict[int, str] = {}
        self._looked = float("-inf")
        self.cases: list[Case] = []
        self._thread = threading.Thread(target=self._run, name="takeovers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join()

    def begin(self, kind: str, worker: str, pid: int) -> Case | None:
        """A fault takes this process from its work now; None without work, or if one did before."""
        with self._lock:
            executor = self._names.get(pid)
            if executor is None or self._journal.now - self._looked > _FRESH_SECONDS:
                return None
            held = frozenset(unit for unit, holder in self._holders.items() if holder == executor)
            known = any(case.executor == executor and not case.outcome for case in self.cases)
            if not held or known:
                return None
            case = Case(self._journal.now, kind, worker, executor, held)
            self.cases.append(case)
            return case

    def came_back(self, case: Case | None) -> None:
        """The worker of this case goes on by itself."""
        if case is not None:
            with self._lock:
                case.back = True

    def seconds(self, *, orderly: bool = False) -> list[float]:
        """Of all cases in which the work went to others: of workers asked to end, or of all the rest."""
        with self._lock:
            return [
                case.seconds
                for case in self.cases
                if case.seconds is not None and (case.kind == ORDERLY) is orderly
            ]

    def never(self) -> list[Case]:
        """Cases that have had no end."""
        with self._lock:
            return [case for case in self.cases if not case.outcome]

    def _run(self) -> None:
        reader = _Reader(self._house.database)
        try:
            while not self._stopping.wait(_LOOK_SECONDS):
                self._count_those_who_could()
                found = reader.read()
                if found is not None:
                    self._judge(*found)
        finally:
            reader.close()

    def _count_those_who_could(self) -> None:
        now = self._journal.now
        hindered = self._house.away.touching(now, now) or not any(
            worker.pid in self._names and not worker.cut.touching(now, now) for worker in self._house.workers
        )
        if hindered and self._nobody_since is None:
            self._nobody_since = self._nobody.begin("nobody could")
        elif not hindered and self._nobody_since is not None:
            self._nobody.finish(self._nobody_since)
            self._nobody_since = None

    def _judge(self, holders: dict[str, str], names: dict[int, str]) -> None:
        now = self._journal.now
        with self._lock:
            self._holders, self._names, self._looked = holders, names, now
            for case in self.cases:
                if case.outcome:
                    continue
                own = {unit for unit in case.held if holders.get(unit) == case.executor}
                if not own:
                    case.outcome = "taken_over"
                    case.away = self._nobody.within(case.began, now)
                    case.seconds = now - case.began - case.away
                    took, units = round(case.seconds, 2), sorted(case.held)
                    self._journal.note(
                        "taken_over", worker=case.worker, kind=case.kind, seconds=took, units=units
                    )
                elif case.back:
                    case.outcome = "came_back"


class _Reader:
    """A connection that is made anew after each error."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def read(self) -> tuple[dict[str, str], dict[int, str]] | None:
        """Holders by unit and names by process; None when the database does not say."""
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
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
