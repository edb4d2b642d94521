"""The way of a row from its upload to the stored student, counted in files of app/."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import csv_bytes
from tests.system.deployment import QUICK_SOLVERS, Deployment
from tests.trace_processes import Trace, tracing

MAX_FILES = 86
PASSED_BY_EVERY_REQUEST = (
    "app/server/",
    "app/gate/",
    "app/http/",
    "app/auth/",
    "app/serving/",
    "app/services/keys.py",
    "app/api/app.py",
    "app/api/middleware.py",
    "app/api/dependencies.py",
    "app/api/encoded_route.py",
    "app/main.py",
    "app/query_parts.py",
    "app/processes/metrics.py",
    "app/processes/scoreboard.py",
    "app/tracing.py",
    "app/web/dashboard.py",
)
"""Between the socket and the endpoint: the trace of a query counts these."""

PASSED_BY_EVERY_TRANSACTION = (
    "app/store/engine.py",
    "app/store/dialect.py",
    "app/store/db_errors.py",
    "app/store/unit_of_work.py",
    "app/store/bodies.py",
)
HEARTBEATS = ("app/store/repositories/servers.py",)
"""Written in the background, whatever is asked."""
VOCABULARY = ("app/domain/", "app/api/schemas.py", "app/settings.py", "app/logs.py")
"""Types, errors and settings, which the steps of the way have in common."""


@pytest.mark.long
def test_a_row_passes_few_files_from_upload_to_student(tmp_path: Path, iris: tuple[Any, Any]):
    """Commit 20ce477 passed 79 files with what the lists above leave out, and 46 without, counted by hand.

    Of the 76, one refuses files that are no data, five are the process that reads uploaded files and its fair
    queue, four read CSV files of all layouts, four check quotas and admit jobs by turns, two hold the columns
    and what is said of them, four more have lines of files, rows that are left out, and profiles that queries
    are compared with, and the rest beyond 46 recover work, wake workers, measure memory, count ended jobs,
    trace units, and find rows and measure them by tenant.
    """
    trace = tracing(tmp_path / "trace")
    train_one_job(trace, tmp_path, csv_bytes(*iris))
    everything = sorted(trace.functions())
    shared = PASSED_BY_EVERY_REQUEST + PASSED_BY_EVERY_TRANSACTION + HEARTBEATS + VOCABULARY
    passed = [file for file in everything if not file.startswith(shared)]
    for part in ("api/uploads", "ingest/validate", "jobs/workflow/steps", "jobs/solver/job_data"):
        assert f"app/{part}.py" in passed, "a process was not traced"
    message = f"{len(passed)} files between upload and student, {len(everything)} with shared ones: {passed}"
    assert len(passed) <= MAX_FILES, message


def train_one_job(trace: Trace, folder: Path, rows: bytes) -> None:
    """Upload rows and train on them, with API, worker and solver in processes of their own, on SQLite."""
    settings = QUICK_SOLVERS | {"STMS_REQUIRE_KEYS": "false"} | trace.environment
    with (
        Deployment(folder, serve=True, settings=settings) as service,
        service.client() as http,
        trace.recording(),
    ):
        dataset = http.post("/v1/datasets", content=rows, params={"format": "csv"}).json()
        body = {"dataset_id": dataset["id"], "model": "flowers"}
        job = http.post("/v1/training-jobs", json=body).json()
        assert wait_until_ended(folder, job["id"]) == "succeeded"


def wait_until_ended(folder: Path, job_id: str) -> str:
    """The job's final state, read from the database: the API's answers are no part of the way."""
    address = f"file:{folder / 'data' / 'stms.sqlite'}?mode=ro"
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:
        with closing(sqlite3.connect(address, uri=True, timeout=30)) as connection:
            (state,) = connection.execute("SELECT state FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if state not in {"queued", "running"}:
            return str(state)
        time.sleep(0.2)
    pytest.fail("the job did not end")
