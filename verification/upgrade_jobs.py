"""Jobs that `verification.upgrade` brings into every state, and what it reads of them afterwards."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import sqlalchemy as sa
from sklearn.datasets import load_digits

from app.store.engine import database_url
from stms_client import Client
from stms_client.arrays import Rows
from tests.system.deployment import Deployment
from tests.system.processes import command_line, wait_for
from verification.chaos.clients import ENDED, AcceptedJob

_SVM: Final = {"evaluation": {"baselines": ["svm"]}}
_TWO: Final = {"evaluation": {"baselines": ["gsvm0", "svm"]}}
_FOLDS: Final = {"threshold": {"rule": "f1", "folds": 3}, "student": {"C": 1e3}, "automatic": False} | _SVM
_GRID: Final = {"grid": {"C": [10, 100], "margins": [0.5, 1.0]}, "folds": 3}
_LARGE_GRID: Final = {"grid": {"C": [3, 10, 30, 100, 300], "margins": [0.25, 0.5, 1.0]}, "folds": 5}
_TREES: Final = {"teacher": {"method": "forest", "trees": 60}, "student": {"method": "trees"}}

WORKLOADS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "one": ("digits", {"tuning": _LARGE_GRID, "classes": ["3"]} | _TWO),
    "digits": ("digits", _FOLDS),
    "records": ("records", {}),
    "tuned": ("digits", {"tuning": _GRID}),
    "automatic": ("digits", {}),
    "trees": ("digits", _TREES | _SVM),
}
"""Data set and hyper-parameters by name. "one" has three students in one unit of work, not a short one."""

QUICK: Final = ("one", "digits", "records")

Key = tuple[str, str, str]
"""Of a student: job, label and method."""
Answers = dict[str, tuple[list[float], float]]
"""Scores and threshold by label."""

_JOB_SECONDS: Final = 300.0
_RUN_SECONDS: Final = 0.05
_PREPARE_SECONDS: Final = 0.2
"""How long solvers run at a time while none of their jobs has students to train."""
_STORE_SECONDS: Final = 0.2
"""Longer than a worker takes to store what its solver has sent."""
_MORE_THAN_ADMITTED: Final = 18
"""Of one key; a quarter of the 64 coordinators of a worker may be its jobs."""


class Tables:
    """Reads the tables of a service of any release, and those of its job engine."""

    def __init__(self, address: str) -> None:
        self._engine = sa.create_engine(database_url(address))
        self._is_embedded = address.startswith("sqlite")
        self._jobs = address.replace("stms.sqlite", "jobs.sqlite")

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Rows of a query, with values for its parameters."""
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(sa.text(query), values).mappings()]

    def job(self, job_id: str) -> dict[str, Any]:
        """All columns of a job."""
        [row] = self.rows("SELECT * FROM jobs WHERE id = :job", job=job_id)
        return row

    def has_ended(self, job_id: str) -> bool:
        """Whether the job has ended."""
        return self.job(job_id)["state"] in ENDED

    def trained(self, job_id: str) -> dict[Key, str]:
        """Digests of the students that are stored."""
        query = (
            "SELECT label, method, digest FROM job_students"
            " WHERE job_id = :job AND state = 'succeeded' AND method <> 'teacher'"
        )
        rows = self.rows(query, job=job_id)
        return {(job_id, row["label"], row["method"]): row["digest"] for row in rows}

    def stored_at(self) -> dict[Key, float]:
        """When each student was stored, in seconds since the epoch."""
        found = {}
        for row in self.rows("SELECT job_id, at, data FROM job_events WHERE type = 'student_finished'"):
            data = _parsed(row["data"])
            found[row["job_id"], data["label"], data["method"]] = float(row["at"])
        return found

    def solvers(self) -> dict[str, int]:
        """Process ids of living solvers by job, as the workers list them."""
        units = [unit for row in self.rows("SELECT units FROM workers") for unit in _parsed(row["units"])]
        pids = {unit["job_id"]: unit["solver_pid"] for unit in units if unit["solver_pid"]}
        return {job_id: pid for job_id, pid in pids.items() if "app.jobs.solver" in command_line(pid)}

    def jobs_of_traces(self) -> dict[str, str]:
        """Ids of jobs by the ids of the traces that their requests have begun."""
        rows = self.rows("SELECT id, traceparent FROM jobs WHERE traceparent IS NOT NULL")
        return {row["traceparent"].split("-")[1]: row["id"] for row in rows}

    def unfinished(self) -> list[str]:
        """Work that is still registered: units of jobs, and workflows of the engine."""
        units = [
            f"unit {row['number']} of {row['job_id']}, attempt {row['attempt']}"
            for row in self.rows("SELECT job_id, attempt, number FROM job_units")
        ]
        query = (
            "SELECT workflow_uuid, status FROM {} WHERE status NOT IN"
            " ('SUCCESS', 'ERROR', 'CANCELLED', 'MAX_RECOVERY_ATTEMPTS_EXCEEDED')"
        )
        if self._is_embedded:
            engine = Tables(self._jobs)
            try:
                workflows = engine.rows(query.format("workflow_status"))
            finally:
                engine.close()
        else:
            workflows = self.rows(query.format("dbos.workflow_status"))
        return [*units, *(f"workflow {row['workflow_uuid']} is {row['status']}" for row in workflows)]


def _parsed(value: Any) -> Any:
    """A column of JSON, which SQLite gives as a text."""
    return json.loads(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Reference:
    """The job of a workload that the older service has run to its end, and what its model answers."""

    job_id: str
    model: str
    labels: Sequence[str]
    rows: Rows
    answers: Answers

    def asked(self, client: Client, model: str = "") -> Answers:
        """Answers of its model, or of another one, to the same rows. Raises StmsError."""
        return answers(client, model or self.model, self.labels, self.rows)


def answers(client: Client, model: str, labels: Sequence[str], rows: Rows) -> Answers:
    """Scores and threshold of each class of a version. Raises StmsError."""
    found = {}
    for label in labels:
        decisions = client.query_rows(model, label, rows)
        found[label] = [float(score) for score in decisions.scores], decisions.threshold
    return found


class Jobs:
    """Jobs of a service, each owner with a key of its own, of which one unit of work runs at a time.

    accepted: by id, with the state in which each must end. references: by workload.
    """

    def __init__(self, service: Deployment, tables: Tables, workloads: Collection[str], folder: Path) -> None:
        self.tables = tables
        self.accepted: dict[str, AcceptedJob] = {}
        self.references: dict[str, Reference] = {}
        self._workloads = tuple(workloads)
        self._url, self._keys = service.url, {"first": service.first_key}
        self._data: dict[str, tuple[str, list[str], Rows]] = {}
        names = {WORKLOADS[name][0] for name in workloads}
        for name in sorted(names):
            file, rows = _FILES[name](folder)
            with self.client("first") as client:
                dataset = client.upload_dataset(file, name=name)
            self._data[name] = (dataset["id"], dataset["classes"], rows)

    def client(self, owner: str) -> Client:
        """A client with the key of an owner, which is made for a new one."""
        if owner not in self._keys:
            headers = {"Authorization": f"Bearer {self._keys['first']}"}
            body = {"name": owner, "scopes": ["train", "query"]}
            answer = httpx.post(f"{self._url}/v1/keys", json=body, headers=headers, trust_env=False)
            self._keys[owner] = answer.raise_for_status().json()["key"]
        return Client(self._url, self._keys[owner])

    def move_to(self, service: Deployment) -> None:
        """Use another server of the same service from now on."""
        self._url = service.url

    def submit(self, owner: str, workload: str, scenario: str, expected: str = "succeeded") -> str:
        """Submit a job; returns its id."""
        data, hyperparameters = WORKLOADS[workload]
        model = f"{scenario}-{workload}-{len(self.accepted)}"
        with self.client(owner) as client:
            job = client.submit_job(self._data[data][0], model, hyperparameters)
        self.accepted[job.id] = AcceptedJob(
            job.id, "default", model, workload, scenario, owner, expected_state=expected
        )
        return job.id

    def run_references(self) -> None:
        """Run a job of each workload to its end, and ask its model. Raises JobNotSucceeded."""
        submitted = {name: self.submit(f"reference-{name}", name, "reference") for name in self._workloads}
        for name, job_id in submitted.items():
            data, hyperparameters = WORKLOADS[name]
            with self.client(f"reference-{name}") as client:
                job = client.wait_for_job(job_id)
                model = f"{job.model}@{job.version}"
                labels, rows = hyperparameters.get("classes") or self._data[data][1], self._data[data][2]
                found = answers(client, model, labels, rows)
            self.references[name] = Reference(job_id, model, labels, rows, found)

    def end_badly(self) -> list[str]:
        """Jobs that have failed, failed in part, and been cancelled with a student; returns their ids."""
        failed = self.submit("failed", "one", "failed", "failed")
        self._kill_solvers(failed)
        partial_job = self.submit("partial", "one", "partial", "partially_succeeded")
        cancelled = self.submit("cancelled", "digits", "cancelled", "cancelled")
        self.hold([partial_job, cancelled], has_student=True)
        self._kill_solvers(partial_job)
        self.cancel(cancelled)
        wait_for(partial(self.tables.has_ended, cancelled))
        return [failed, partial_job, cancelled]

    def interrupt(self) -> str:
        """Jobs of all workloads with a part of their students, and one without a teacher, which is the last.

        Their solvers stand still. Returns the id of one that is to be cancelled while no worker runs.
        """
        running = [self.submit(f"running-{name}", name, "running") for name in self._workloads]
        to_cancel = self.submit("cancelling", "digits", "cancelling", "cancelled")
        self.hold([*running, to_cancel], has_student=True)
        preparing = self.submit("preparing", self._workloads[-1], "preparing")
        self.hold([preparing], has_student=False)
        return to_cancel

    def queue(self) -> list[str]:
        """Jobs that no worker has begun, more of them than are admitted.

        Returns the ids of those that are to be cancelled: all but one that is admitted and those that wait.
        """
        for name in self._workloads:
            self.submit(f"running-{name}", name, "queued")
        queued = [self.submit("queue", "one", "queued") for _ in range(_MORE_THAN_ADMITTED)]
        admitted = [job_id for job_id in queued if self.tables.job(job_id)["stage"] != "waiting"]
        return admitted[1:]

    def hold(self, job_ids: Sequence[str], *, has_student: bool) -> None:
        """Stop the solver of each job once it has one, or once a student of the job is stored.

        Raises RuntimeError if one ends before, and TimeoutError.
        """
        waiting = set(job_ids)
        deadline = time.monotonic() + _JOB_SECONDS
        while waiting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{waiting} did not get so far")
            pids = {job: pid for job, pid in self.tables.solvers().items() if job in waiting}
            # While a worker stores what has been sent, and this program looks, the solvers train nothing.
            # From their start: on a busy machine, one that runs freely may end between two looks.
            for pid in pids.values():
                _signal(pid, signal.SIGSTOP)
            time.sleep(_STORE_SECONDS if pids else 0.0)
            waiting -= {job for job in pids if not has_student or self.tables.trained(job)}
            ended = [job for job in job_ids if self.tables.has_ended(job)]
            if ended:
                raise RuntimeError(
                    f"ended before they could be held: {[self.accepted[job] for job in ended]}"
                )
            running = [pid for job, pid in pids.items() if job in waiting]
            are_preparing = pids and not any(self.tables.job(job)["preparation_digest"] for job in pids)
            for pid in running:
                _signal(pid, signal.SIGCONT)
            time.sleep(_PREPARE_SECONDS if are_preparing else _RUN_SECONDS)
            for pid in running:
                _signal(pid, signal.SIGSTOP)

    def cancel(self, job_id: str) -> None:
        """Cancel a job, which must end so."""
        job = self.accepted[job_id]
        job.expected_state = "cancelled"
        with self.client(job.key) as client:
            client.cancel_job(job_id)

    def retry(self, job_id: str) -> None:
        """Try a job again, which must then succeed."""
        job = self.accepted[job_id]
        job.expected_state = "succeeded"
        with self.client(job.key) as client:
            client.retry_job(job_id)

    def wait(self) -> None:
        """Wait until all jobs have ended, or a long time is over: the audit finds the others."""
        deadline = time.monotonic() + 2 * _JOB_SECONDS
        while any(not self.tables.has_ended(job_id) for job_id in self.accepted):
            if time.monotonic() > deadline:
                return
            time.sleep(0.5)

    def _kill_solvers(self, job_id: str) -> None:
        """Kill each solver of a job until the job has ended."""

        def has_ended() -> bool:
            pid = self.tables.solvers().get(job_id)
            if pid is not None:
                _signal(pid, signal.SIGKILL)
            return self.tables.has_ended(job_id)

        wait_for(has_ended)


def _signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a solver, unless it has just ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _digits(folder: Path) -> tuple[Path, Rows]:
    """700 rows of 64 columns and ten classes, as NumPy's file, and 30 rows to ask about."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:700], order[700:800]
    file = folder / "digits.npz"
    np.savez(file, X_train=X[train], y_train=y[train], X_test=X[test], y_test=y[test])
    return file, X[order[800:830]]


def _records(folder: Path) -> tuple[Path, Rows]:
    """600 rows of eight classes with gaps, categories and short texts, as CSV, and 30 rows to ask about."""
    random = np.random.default_rng(1)
    labels = random.integers(0, 8, 630)
    sizes = random.normal(2.0 * labels, 1.0)
    colours = np.array(["red", "green", "blue"])[(labels + (random.random(630) < 0.3)) % 3]
    words = np.array(["late delivery", "wrong price", "broken part"])[
        (labels + (random.random(630) < 0.4)) % 3
    ]
    notes = [
        f"{word} of order {number}" for word, number in zip(words, random.integers(0, 99, 630), strict=True)
    ]
    text = io.StringIO()
    text.write("size,colour,note,class\n")
    for place in range(600):
        size = "" if place % 17 == 0 else f"{sizes[place]:.4f}"
        text.write(f"{size},{colours[place]},{notes[place]},{'abcdefgh'[labels[place]]}\n")
    file = folder / "records.csv"
    file.write_text(text.getvalue(), encoding="utf-8")
    asked = {"size": sizes[600:].tolist(), "colour": colours[600:].tolist(), "note": notes[600:]}
    return file, asked


_FILES: Final[Mapping[str, Callable[[Path], tuple[Path, Rows]]]] = {"digits": _digits, "records": _records}
