"""Compares every job, student, model and blob in the database with the result it must have."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa

from app.store.engine import database_url
from stms_client import Client, StmsError
from verification.chaos.clients import AcceptedJob
from verification.chaos.workloads import Reference, query_all

TOLERANCE = 1e-12
_VERSIONS = {"succeeded": (1,), "partially_succeeded": (1,)}
"""Allowed numbers of published versions, by the state of the job."""
_FINAL_EVENTS = frozenset({"job_succeeded", "job_partially_succeeded", "job_failed", "job_cancelled"})


@dataclass(slots=True)
class Findings:
    """Lost jobs and data, duplicates and damage, one message each.

    identical: number of students bit-identical to those of the reference run, out of ``compared``.
    blobs: number of blobs whose digests were checked.
    """

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    identical: int = 0
    compared: int = 0
    blobs: int = 0


class Audit:
    """Reads and checks the tables. references: ids of the jobs of fault-free runs, by workload."""

    def __init__(
        self, address: str, accepted: Mapping[str, AcceptedJob], references: Mapping[str, str]
    ) -> None:
        self._accepted, self._references = accepted, references
        self.findings = Findings()
        engine = sa.create_engine(database_url(address))
        try:
            with engine.connect() as connection:
                self._read(connection)
                self._check_blobs(connection)
        finally:
            engine.dispose()
        self._check_jobs()
        self._check_students()
        self._check_versions()

    def ask(self, client: Client, references: Mapping[str, Reference]) -> None:
        """Query every published model on all rows of its reference, and compare scores and thresholds.

        references: the fault-free runs, by name of the workload.
        """
        for job in self._expected("succeeded"):
            row = self._jobs[job.id]
            reference = references[job.workload]
            version = self._versions.get(job.id)
            if row["state"] != "succeeded" or version is None:
                continue
            try:
                scores, thresholds = query_all(client, job.model, version, reference.workload)
            except StmsError as error:
                self.findings.corrupt.append(f"{job.model}@{version} of {job.id} does not answer: {error}")
                continue
            for label, right in reference.scores.items():
                bound = TOLERANCE * np.maximum(1.0, np.abs(right))
                differs = np.abs(scores[label] - right) > bound
                threshold_error = abs(thresholds[label] - reference.thresholds[label])
                if differs.any() or threshold_error > TOLERANCE:
                    by = max(float(np.abs(scores[label] - right).max()), threshold_error)
                    self.findings.corrupt.append(f"{job.model}@{version}, class {label}: differs by {by:.3g}")

    def _read(self, connection: sa.Connection) -> None:
        def rows(query: str) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(sa.text(query)).mappings()]

        self._jobs = {row["id"]: row for row in rows("SELECT * FROM jobs")}
        self._students = rows(
            "SELECT job_id, class_index, method, label, state, digest, map_digest, error FROM job_students"
        )
        self._events = rows("SELECT job_id, seq, type, data FROM job_events ORDER BY job_id, seq")
        versions = rows("SELECT model, version, job_id FROM model_versions")
        self._versions = {row["job_id"]: int(row["version"]) for row in versions if row["job_id"]}
        self._published = Counter(row["job_id"] for row in versions)
        for event in self._events:
            if isinstance(event["data"], str):
                event["data"] = json.loads(event["data"])

    def _check_jobs(self) -> None:
        for job in self._accepted.values():
            row = self._jobs.get(job.id)
            if row is None:
                self.findings.lost.append(f"{job.id} ({job.scenario}) is missing")
            elif row["state"] != job.expected_state:
                reason = f"{row['error_code']}: {row['error_message']}" if row["error_code"] else row["stage"]
                self.findings.lost.append(
                    f"{job.id} ({job.workload}, {job.scenario}) is {row['state']},"
                    f" not {job.expected_state}; {reason}"
                )
        known = set(self._accepted) | set(self._references.values())
        for unknown in sorted(set(self._jobs) - known):
            self.findings.duplicated.append(
                f"{unknown} ({self._jobs[unknown]['model']}) was accepted for no client"
            )

    def _check_students(self) -> None:
        told: Counter[tuple[str, int, str]] = Counter()
        once: Counter[tuple[str, str]] = Counter()
        numbers: dict[str, list[int]] = {}
        ends: Counter[str] = Counter()
        for event in self._events:
            job, kind = event["job_id"], event["type"]
            numbers.setdefault(job, []).append(event["seq"])
            if kind == "student_finished":
                told[job, event["data"]["class_index"], event["data"]["method"]] += 1
            elif kind in {"teacher_finished", "version_published", "job_succeeded"}:
                once[job, kind] += 1
            ends[job] += kind in _FINAL_EVENTS
            ends[job] -= kind == "job_retried"
        for (job, index, method), times in told.items():
            if times > 1:
                self.findings.duplicated.append(f"{job}: class {index}, {method} finished {times} times")
        self.findings.duplicated += [
            f"{job}: {times} × {kind}" for (job, kind), times in once.items() if times > 1
        ]
        self.findings.duplicated += [f"{job} ended {times} times" for job, times in ends.items() if times > 1]
        for job, seen in numbers.items():
            if seen != list(range(1, len(seen) + 1)):
                self.findings.lost.append(f"{job}: its events are numbered {seen[:5]} … {seen[-3:]}")
        stored = {
            (row["job_id"], row["class_index"], row["method"])
            for row in self._students
            if row["state"] == "succeeded" and row["method"] != "teacher"
        }
        self.findings.lost += [f"{pair} is stored but has no event" for pair in sorted(stored - set(told))]
        self.findings.lost += [
            f"{pair} has an event but is not stored" for pair in sorted(set(told) - stored)
        ]

    def _check_versions(self) -> None:
        """Check that every succeeded job has one version and the same students as its reference."""
        digests: dict[str, dict[tuple[int, str], str]] = {}
        for row in self._students:
            digests.setdefault(row["job_id"], {})[row["class_index"], row["method"]] = row["digest"]
        for job in self._accepted.values():
            published = self._published[job.id]
            if job.id not in self._jobs:
                continue
            row = self._jobs[job.id]
            # A partially failed job publishes its finished students and keeps them if it is cancelled later.
            if published not in _VERSIONS.get(row["state"], (job.solver_retries > 0, 0)):
                self.findings.corrupt.append(f"{job.id} is {row['state']} with {published} versions")
            if row["state"] != "succeeded":
                continue
            right = digests[self._references[job.workload]]
            mine = digests.get(job.id, {})
            if set(mine) != set(right):
                self.findings.corrupt.append(f"{job.id} has {len(mine)} students, not {len(right)}")
            both = [pair for pair in right if pair in mine]
            self.findings.compared += len(both)
            self.findings.identical += sum(mine[pair] == right[pair] for pair in both)

    def _check_blobs(self, connection: sa.Connection) -> None:
        """Check the SHA-256 of every complete blob, and that every student's blob exists."""
        names = connection.execute(sa.text("SELECT digest, size FROM blobs WHERE complete")).all()
        pieces = sa.text("SELECT data FROM blob_chunks WHERE digest = :digest ORDER BY position")
        whole = set()
        for digest, size in names:
            sha, length = hashlib.sha256(), 0
            for (piece,) in connection.execute(pieces, {"digest": digest}):
                sha.update(piece)
                length += len(piece)
            whole.add(digest)
            self.findings.blobs += 1
            if sha.hexdigest() != digest or length != size:
                self.findings.corrupt.append(
                    f"blob {digest}: {length} of {size} bytes, sha256 {sha.hexdigest()}"
                )
        needed = {row[name] for row in self._students for name in ("digest", "map_digest") if row[name]}
        self.findings.corrupt += [
            f"blob {digest} of a student is missing" for digest in sorted(needed - whole)
        ]

    def _expected(self, state: str) -> list[AcceptedJob]:
        return [
            job for job in self._accepted.values() if job.expected_state == state and job.id in self._jobs
        ]
