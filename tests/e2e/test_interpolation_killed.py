"""A worker killed in the middle of the tiles of an interpolating teacher; the next goes on from them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from core.solvers.kernel.tiled_cholesky import TILE
from tests.e2e.conftest import ENDED, JOB_SECONDS, Service, npz_bytes, running_service
from tests.e2e.test_kill_and_cancel import solvers
from tests.system.processes import is_alive, wait_for

pytestmark = pytest.mark.long

Json = dict[str, Any]

COLUMNS = 8
"""Of tiles. So many rows are the fewest of which finished columns are kept."""
ENDS = np.cumsum([4 * TILE**2 * (COLUMNS - column) + 32 for column in range(COLUMNS)]).tolist()
"""Size of the file of tiles after each column."""
HYPERPARAMETERS = {
    "features": {"kind": "nystroem", "n_components": 30},
    "teacher": {"method": "interpolation", "gamma": 1, "scaling": "zscore", "jitter": 0.01, "left_out": 0},
    "student": {"method": "gsvm", "C": 10},
    # All rows are learnt from: of fewer no columns of tiles are kept.
    "evaluation": {"test_fraction": None},
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running_service(tmp_path) as started:
        yield started


def tiles(service: Service) -> tuple[int, int] | None:
    """Inode and size of the file of tiles, or None."""
    with suppress(FileNotFoundError):
        for path in service.uploads.glob("*.tiles"):
            return path.stat().st_ino, path.stat().st_size
    return None


def finished(service: Service) -> int:
    """Columns of tiles in the file."""
    found = tiles(service)
    return 0 if found is None else int(np.searchsorted(ENDS, found[1], side="right"))


def upload(http: httpx.Client) -> str:
    """Rings in four columns of noise; gives the id of the data set."""
    rng = np.random.default_rng(0)
    codes, angles = np.arange(COLUMNS * TILE) % 2, rng.uniform(0.0, 2.0 * np.pi, COLUMNS * TILE)
    circle = (1.0 + codes)[:, None] * np.column_stack([np.cos(angles), np.sin(angles)])
    X = np.hstack([circle + 0.1 * rng.normal(size=circle.shape), rng.normal(size=(len(codes), 4))])
    content = npz_bytes(X=X.astype(np.float32), y=codes)
    response = http.post("/v1/datasets", content=content, params={"format": "npz"})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


def submit(http: httpx.Client, dataset_id: str) -> Json:
    body = {"dataset_id": dataset_id, "model": "rings", "hyperparameters": HYPERPARAMETERS}
    response = http.post("/v1/training-jobs", json=body)
    assert response.status_code == 202, response.text
    job: Json = response.json()
    return job


def students(http: httpx.Client, job: Json) -> tuple[str, list[Json]]:
    """Digest of the teacher, and the students without their times, of a job that is expected to succeed."""

    def ended() -> Json | None:
        found: Json = http.get(f"/v1/training-jobs/{job['id']}").json()
        return found if found["state"] in ENDED else None

    found = wait_for(ended, JOB_SECONDS)
    assert found["state"] == "succeeded", found["error"]
    rows = http.get(f"/v1/training-jobs/{job['id']}/students").json()["data"]
    return found["provenance"]["teacher_digest"], [row | {"seconds": None} for row in rows]


def living(admin: httpx.Client) -> int:
    """Process id of the worker."""
    (pid,) = [one["pid"] for one in admin.get("/v1/workers").json()["data"] if is_alive(one["pid"])]
    return int(pid)


def test_the_next_worker_goes_on_from_the_stored_tiles_to_the_same_students(service: Service):
    with service.client("train") as http, service.client("admin") as admin:
        dataset_id, worker = upload(http), living(admin)
        job = submit(http, dataset_id)
        wait_for(lambda: finished(service) >= 2)
        pids = solvers(worker)
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, pids)))
        kept, left = finished(service), tiles(service)
        assert left is not None
        assert 2 <= kept < COLUMNS
        seen, deadline = [left], time.monotonic() + JOB_SECONDS
        while (found := tiles(service)) is not None:
            assert time.monotonic() < deadline
            seen.append(found)
            time.sleep(0.005)
        # It is the same file, none of whose finished columns was factored again.
        assert {inode for inode, _ in seen} == {left[0]}
        assert min(size for _, size in seen) >= ENDS[kept - 1]
        # The last columns may be written, and the file deleted, between two looks.
        assert max(size for _, size in seen) >= ENDS[kept]
        interrupted = students(http, job)
        assert living(admin) != worker
        assert interrupted == students(http, submit(http, dataset_id))
        assert len(interrupted[1]) >= 2
