"""Databases of every release from 1.0.0 on give the same answers after an upgrade."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from app.main import create_app
from app.settings import Settings
from app.store.engine import open_engine
from app.store.migrate import _config, upgrade
from tests.app.started import Client
from tests.lanes import first_short
from tests.system.published import linear_student, linear_teacher

CLASSES = ("cat", "dog")
WEIGHTS = np.array([[1.0, 0.5], [-1.0, 2.0]])
JOB = "job_old"
REVISIONS = sorted(script.revision for script in ScriptDirectory.from_config(_config(None)).walk_revisions())


class OldDatabase:
    """Writes rows as a program of that time did: into the columns that there were."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._tables = sa.MetaData()
        self._tables.reflect(connection)

    def add(self, table: str, **values: Any) -> None:
        known = self._tables.tables[table]
        row = {name: value for name, value in values.items() if name in known.columns}
        self._connection.execute(sa.insert(known), row)

    def blob(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.add("blobs", digest=digest, size=len(data), created_at=1.0)
        self.add("blob_chunks", digest=digest, position=0, data=data)
        return digest


def fill(address: str) -> None:
    """A data set, its job with two students, version 1 of "pets" and its alias, a key, a worker."""
    engine = open_engine(address)
    with engine.begin() as connection:
        old = OldDatabase(connection)
        rows = old.blob(b"rows")
        teacher = old.blob(linear_teacher(CLASSES, WEIGHTS).to_bytes())
        old.add(
            "datasets", id="ds_old", digest="d" * 64, name="old", source_format="csv", size_bytes=4,
            blob_digest=rows, rows=4, test_rows=0, columns=2, class_count=2, summary={"rows": 4},
            created_at=1.0, created_by="me",
        )  # fmt: skip
        old.add("dataset_classes", dataset_id="ds_old", first=0, labels=list(CLASSES))
        old.add(
            "jobs", id=JOB, dataset_id="ds_old", model="pets", spec={}, state="succeeded", attempt=0,
            stage="finished", progress_done=3, progress_total=3, created_at=1.0, created_by="me",
            finished_at=2.0, provenance={}, teacher_digest=teacher, version=1, revision=5,
        )  # fmt: skip
        old.add("job_events", job_id=JOB, seq=1, at=1.0, type="job_queued", data={})
        for number, (label, weights) in enumerate(zip(CLASSES, WEIGHTS, strict=True)):
            old.add(
                "job_students", job_id=JOB, class_index=number, method="svm", label=label, state="succeeded",
                metrics={"f1": 0.5}, digest=old.blob(linear_student(label, weights).to_bytes()),
            )  # fmt: skip
        old.add(
            "model_versions", model="pets", version=1, job_id=JOB, dataset_digest="d" * 64, method="svm",
            classes=list(CLASSES), columns=2, teacher_digest=teacher, metrics={}, created_at=2.0,
            class_count=2,
        )  # fmt: skip
        old.add("aliases", model="pets", alias="latest", version=1, revision=3, updated_at=2.0)
        old.add(
            "api_keys", id="key_old", name="old", digest="0" * 64, scopes=["query"], models=[],
            created_at=1.0, revoked_at=2.0,
        )  # fmt: skip
        old.add("workers", executor_id="w", host="h", pid=1, started_at=1.0, beat_at=1.0)
        old.add("idempotency_keys", owner="me", key="k", body_digest="0" * 64, job_id=JOB, created_at=1.0)
    engine.dispose()


def test_upgrades_begin_with_the_first_release():
    assert REVISIONS[0] == "0028"


@pytest.mark.parametrize("revision", first_short(REVISIONS, 3))
def test_a_database_of_any_release_is_upgraded_with_its_data(
    empty_database_address: str, tmp_path: Path, revision: str, queue: Any, problem: Callable[..., Any]
):
    upgrade(empty_database_address, revision)
    fill(empty_database_address)
    upgrade(empty_database_address)
    settings = Settings.model_validate(
        {"data_dir": tmp_path, "database_url": empty_database_address, "require_keys": False}
    )
    client = Client(create_app(settings, queue=queue))
    try:
        for label, weights in zip(CLASSES, WEIGHTS, strict=True):
            answer = client.post(f"/v1/models/pets/classes/{label}:query", json={"x": [2.0, 3.0]}).json()
            assert answer["score"] == pytest.approx(float(weights @ [2.0, 3.0]))
        alias = client.get("/v1/models/pets/aliases/latest").json()
        assert (alias["version"], alias["revision"]) == (1, 3)
        assert client.get("/v1/models/pets/versions/1").json()["class_count"] == 2
        job = client.get(f"/v1/training-jobs/{JOB}").json()
        assert (job["state"], job["version"]) == ("succeeded", 1)
        students = client.get(f"/v1/training-jobs/{JOB}/students").json()["data"]
        assert [(row["label"], row["metrics"]["f1"]) for row in students] == [("cat", 0.5), ("dog", 0.5)]
        dataset = client.get("/v1/datasets/ds_old").json()
        assert (dataset["rows"], dataset["classes_truncated"]) == (4, False)
        assert (dataset["classes"], dataset["class_count"]) == (list(CLASSES), 2)
        [key] = client.get("/v1/keys").json()["data"]
        assert (key["id"], key["revoked_at"] is None) == ("key_old", False)
        # What a new program adds to the old rows works, too.
        problem(client.delete("/v1/models/pets/versions/1"), 409, "version_has_alias")
        assert client.put("/v1/models/pets/aliases/live", json={"version": 1}).status_code == 200
    finally:
        client.close()
