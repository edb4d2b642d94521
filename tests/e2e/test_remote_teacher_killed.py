"""A worker that is killed or cancelled while a remote teacher scores, and MLServer itself as the teacher."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.entities import JobState
from app.services.training import cancel_job
from app.settings import Settings
from tests.e2e.test_kill_and_cancel import House, open_house, solvers
from tests.model_server import ModelServer, metadata, model_server
from tests.system.environments import NotInstallable, Offline, environment
from tests.system.mlserver import FIT, REQUIREMENTS, serve_mlserver
from tests.system.processes import is_alive, wait_for

pytestmark = pytest.mark.long

SPEC = {
    "features": {"kind": "nystroem", "n_components": 100},
    "student": {"C": 1e3},
    "threshold": {},
    "evaluation": {},
}
WEIGHTS = np.random.default_rng(0).normal(size=(10, 64))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server(lambda rows: rows @ WEIGHTS.T, metadata(64, 10), seconds=0.1) as started:
        yield started


@pytest.fixture
def house(server: ModelServer, tmp_path: Path, sqlite_address: str, monkeypatch: Any) -> Iterator[House]:
    monkeypatch.setenv("STMS_REMOTE_TEACHERS", server.url)
    settings = Settings.model_validate({"data_dir": tmp_path, "database_url": sqlite_address})
    with open_house(settings) as opened:
        yield opened


def remote(server: ModelServer, **options: Any) -> dict[str, Any]:
    return {"method": "remote", "url": server.url, "model": "m", "batch": 20} | options


def test_a_killed_worker_asks_again_only_for_what_was_not_stored(house: House, server: ModelServer):
    with house.worker() as worker:
        job = house.submit(**SPEC | {"teacher": remote(server)})
        wait_for(lambda: len(server.asked) >= 10)
        (solver,) = solvers(worker.pid)
        worker.kill()
        wait_for(lambda: not is_alive(solver))
    with house.store.read() as uow:
        stored = [first for first, _ in uow.remote_scores.of_part(job.id, 0)]
    # The server may still compute what the solver had asked for.
    time.sleep(1.0)
    assert 8 <= len(stored) <= len(server.asked)
    server.asked.clear()
    with house.worker():
        wait_for(lambda: house.state(job).ended)
    assert house.state(job) is JobState.SUCCEEDED
    assert server.rows == 1000 - 20 * len(stored)
    with house.store.read() as uow:
        assert list(uow.remote_scores.of_part(job.id, 0)) == []


def test_a_cancelled_job_stops_asking(house: House, server: ModelServer):
    with house.worker() as worker:
        job = house.submit(**SPEC | {"teacher": remote(server)})
        wait_for(lambda: len(server.asked) >= 3)
        (solver,) = solvers(worker.pid)
        cancel_job(house.store, house.queue, job.id)
        wait_for(lambda: not is_alive(solver))
        wait_for(lambda: house.state(job) is JobState.CANCELLED)
    assert len(server.asked) < 40


def test_a_server_that_is_away_is_waited_for_and_the_events_say_so(house: House, server: ModelServer):
    server.canned = [(503, {}, b"")] * 3
    with house.worker():
        job = house.submit(**SPEC | {"teacher": remote(server, batch=500)})
        wait_for(lambda: house.state(job).ended)
    assert house.state(job) is JobState.SUCCEEDED
    waits = [event.get("waiting") for event in house.events(job, "stage_progress")]
    assert any(text is not None and "503" in text for text in waits)


@contextmanager
def mlserver(folder: Path) -> Iterator[str]:
    """MLServer with a model of ``rows.npz``, whose scores go to ``scores.npz``; yields its origin."""
    try:
        home = environment(REQUIREMENTS)
    except (Offline, NotInstallable) as error:
        pytest.skip(str(error))
    subprocess.run([home / "bin" / "python", "-c", FIT], cwd=folder, check=True, capture_output=True)
    with serve_mlserver(home, folder, None) as origin:
        yield origin


def test_students_of_mlserver_are_those_of_the_matrix(tmp_path: Path, sqlite_address: str, monkeypatch: Any):
    settings = Settings.model_validate({"data_dir": tmp_path, "database_url": sqlite_address})
    folder = tmp_path / "mlserver"
    folder.mkdir()
    with open_house(settings) as house:
        with np.load(tmp_path / "rows.npz") as file:
            rows = dict(file)
        asked_for = np.vstack([rows["X_train"], rows["X_test"]])
        np.savez(folder / "rows.npz", X=rows["X_train"], y=rows["y_train"], asked=asked_for)
        with mlserver(folder) as origin:
            monkeypatch.setenv("STMS_REMOTE_TEACHERS", origin)
            house.settings = settings.model_copy(update={"remote_teachers": origin})
            with house.worker():
                teacher = {"method": "remote", "url": origin, "model": "peer", "output_name": "predict_proba"}
                asked = house.submit(**SPEC | {"teacher": teacher | {"batch": 100}})
                wait_for(lambda: house.state(asked).ended)
                assert house.state(asked) is JobState.SUCCEEDED
                with np.load(folder / "scores.npz") as file:
                    parts = np.split(file["asked"], [len(rows["y_train"])])
                rows |= dict(zip(("teacher_scores_train", "teacher_scores_test"), parts, strict=True))
                house.dataset_id = house.register(rows)
                given = house.submit(**SPEC | {"teacher": {"method": "scores"}})
                wait_for(lambda: house.state(given).ended)
                assert house.state(given) is JobState.SUCCEEDED
        with house.store.read() as uow:
            first, second = (uow.students.of_job(job.id, method="gsvm") for job in (asked, given))
            teachers = [uow.students.of_job(job.id, method="teacher") for job in (asked, given)]
    assert len(first) == len(second) == 10
    for one, other in zip(first, second, strict=True):
        assert one.objective == pytest.approx(other.objective, rel=1e-12)
        assert one.metrics["f1"] == other.metrics["f1"]
    for one, other in zip(*teachers, strict=True):
        assert one.metrics == other.metrics
