"""What is in the database in the end: every job, every student and every model, against what had to be."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa

from app.client import Client, StmsError
from app.store.engine import database_url
from benchmarks.chaos.customers import Accepted
from benchmarks.chaos.recipes import Reference, ask_all

TOLERANCE = 1e-12
_VERSIONS = {"succeeded": (1,), "partially_succeeded": (1,)}
"""How many a job in this state may have."""
_LASTS = frozenset({"job_succeeded", "job_partially_succeeded", "job_failed", "job_cancelled"})


@dataclass(slots=True)
class Findings:
    """What is wrong, in words: jobs lost, things that are there twice, models that are not whole.

    identical: students whose bytes are those of the undisturbed run; compared: all that were compared.
    """

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    identical: int = 0
    compared: int = 0
    blobs: int = 0


class Audit:
    """Reads the tables straight. references: undisturbed runs by recipe."""

    def __init__(
        self, address: str, accepted: Mapping[str, Accepted], references: Mapping[str, Reference]
    ) -> None:
        self._accepted, self._references = accepted, references
        self.found = Findings()
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

    def ask(self, client: Client) -> None:
        """Ask every published model all that the undisturbed one was asked."""
        for job in self._wanted("succeeded"):
            row = self._jobs[job.id]
            reference = self._references[job.recipe]
            version = self._versions.get(job.id)
            if row["state"] != "succeeded" or version is None:
                continue
            try:
                scores, thresholds = ask_all(client, job.model, version, reference.recipe)
            except StmsError as error:
                self.found.corrupt.append(f"{job.model}@{version} of {job.id} does not answer: {error}")
                continue
            for label, right in reference.scores.items():
                bound = TOLERANCE * np.maximum(1.0, np.abs(right))
                differs = np.abs(scores[label] - right) > bound
                cut = abs(thresholds[label] - reference.thresholds[label])
                if differs.any() or cut > TOLERANCE:
                    by = max(float(np.abs(scores[label] - right).max()), cut)
                    self.found.corrupt.append(f"{job.model}@{version}, class {label}: differs by {by:.3g}")

    def _read(self, connection: sa.Connection) -> None:
        def rows(query: str) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(sa.text(query)).mappings()]

        self._jobs = {row["id"]: row for row in rows("SELECT * FROM jobs")}
        self._students = rows(
            "SELECT job_id, class_index, method, label, state, digest, error FROM job_students"
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
                self.found.lost.append(f"{job.id} ({job.story}) is not there")
            elif row["state"] != job.wanted:
                reason = f"{row['error_code']}: {row['error_message']}" if row["error_code"] else row["stage"]
                self.found.lost.append(
                    f"{job.id} ({job.recipe}, {job.story}) is {row['state']}, not {job.wanted}; {reason}"
                )
        known = set(self._accepted) | {reference.job_id for reference in self._references.values()}
        for unknown in sorted(set(self._jobs) - known):
            self.found.duplicated.append(f"{unknown} ({self._jobs[unknown]['model']}) was accepted by nobody")

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
            ends[job] += kind in _LASTS
            ends[job] -= kind == "job_retried"
        for (job, index, method), times in told.items():
            if times > 1:
                self.found.duplicated.append(f"{job}: class {index}, {method} finished {times} times")
        self.found.duplicated += [
            f"{job}: {times} × {kind}" for (job, kind), times in once.items() if times > 1
        ]
        self.found.duplicated += [f"{job} ended {times} times" for job, times in ends.items() if times > 1]
        for job, seen in numbers.items():
            if seen != list(range(1, len(seen) + 1)):
                self.found.lost.append(f"{job}: its events are numbered {seen[:5]} … {seen[-3:]}")
        stored = {
            (row["job_id"], row["class_index"], row["method"])
            for row in self._students
            if row["state"] == "succeeded" and row["method"] != "teacher"
        }
        self.found.lost += [f"{pair} is stored and was not told" for pair in sorted(stored - set(told))]
        self.found.lost += [f"{pair} was told and is not stored" for pair in sorted(set(told) - stored)]

    def _check_versions(self) -> None:
        """Every succeeded job has one version, with the students of the undisturbed run, bytes compared."""
        digests: dict[str, dict[tuple[int, str], str]] = {}
        for row in self._students:
            digests.setdefault(row["job_id"], {})[row["class_index"], row["method"]] = row["digest"]
        for job in self._accepted.values():
            published = self._published[job.id]
            if job.id not in self._jobs:
                continue
            row = self._jobs[job.id]
            # A job that failed in part publishes what it has; one that was cancelled later keeps that.
            if published not in _VERSIONS.get(row["state"], (job.given_up > 0, 0)):
                self.found.corrupt.append(f"{job.id} is {row['state']} with {published} versions")
            if row["state"] != "succeeded":
                continue
            right = digests[self._references[job.recipe].job_id]
            mine = digests.get(job.id, {})
            if set(mine) != set(right):
                self.found.corrupt.append(f"{job.id} has {len(mine)} students, not {len(right)}")
            both = [pair for pair in right if pair in mine]
            self.found.compared += len(both)
            self.found.identical += sum(mine[pair] == right[pair] for pair in both)

    def _check_blobs(self, connection: sa.Connection) -> None:
        """Every blob that is there is what its name says, and every one that is needed is there."""
        names = connection.execute(sa.text("SELECT digest, size FROM blobs WHERE complete")).all()
        pieces = sa.text("SELECT data FROM blob_chunks WHERE digest = :digest ORDER BY position")
        whole = set()
        for digest, size in names:
            sha, length = hashlib.sha256(), 0
            for (piece,) in connection.execute(pieces, {"digest": digest}):
                sha.update(piece)
                length += len(piece)
            whole.add(digest)
            self.found.blobs += 1
            if sha.hexdigest() != digest or length != size:
                self.found.corrupt.append(
                    f"blob {digest}: {length} of {size} bytes, sha256 {sha.hexdigest()}"
                )
        needed = {row["digest"] for row in self._students if row["digest"]}
        self.found.corrupt += [f"blob {digest} of a student is missing" for digest in sorted(needed - whole)]

    def _wanted(self, state: str) -> list[Accepted]:
        return [job for job in self._accepted.values() if job.wanted == state and job.id in self._jobs]
