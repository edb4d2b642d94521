"""A server in this process over a fresh database, with a model of four classes."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.entities import ModelVersion
from app.domain.ports import JobQueue
from app.main import create_app
from app.settings import Settings
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from core.packed import PackedStudent, SigmoidCalibration
from tests.app.started import Client
from tests.system.published import linear_student, linear_teacher, publish

CLASSES = ("cat", "dog", "größe/1:x", "日本")
WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -1.0, -1.0]])


class IdleQueue(JobQueue):
    """Takes no jobs."""

    def enqueue(self, job_id: str, workflow_id: str) -> None:
        raise AssertionError("no test here submits a job")

    def cancel(self, workflow_id: str) -> None:
        raise AssertionError("no test here cancels a job")

    def ping(self) -> None:
        """Always there."""


def plain_client(settings: Settings) -> Client:
    """A started server; httpx would ask for compression by itself."""
    return Client(create_app(settings, queue=IdleQueue()), {"accept-encoding": "identity"})


@pytest.fixture
def make_client(tmp_path: Path, database_address: str) -> Iterator[Callable[..., Client]]:
    """Started servers over the fresh database; all are stopped after the test."""
    started: list[Client] = []

    def make(**changed: Any) -> Client:
        wanted = {"data_dir": tmp_path, "database_url": database_address, **changed}
        started.append(plain_client(Settings.model_validate(wanted)))
        return started[-1]

    yield make
    for client in started:
        client.close()


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    return make_client()


@pytest.fixture(scope="module")
def standing(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One server for all tests of a module that only ask, with version 1 of "pets", uncalibrated.

    What it says comes from memory: the database plays no part, so there is one only.
    """
    folder = tmp_path_factory.mktemp("standing")
    shutil.copy(_sqlite_template, folder / "stms.sqlite")
    settings = Settings(data_dir=folder)
    store = Store(open_engine(settings.app_database_url))
    _publish(store)
    store.dispose()
    client = plain_client(settings)
    yield client
    client.close()


@pytest.fixture
def publish_pets(store: Store) -> Callable[..., ModelVersion]:
    """Publish another version of "pets": the score of class k is x[k], of the last class −Σx, times sign."""

    return partial(_publish, store)


@pytest.fixture
def pets(publish_pets: Callable[..., ModelVersion]) -> ModelVersion:
    """Version 1 of "pets": uncalibrated."""
    return publish_pets()


@pytest.fixture
def calibrated(publish_pets: Callable[..., ModelVersion]) -> ModelVersion:
    """Version 1 of "pets" with p(s) = 1 / (1 + e^−2s), and S^y = 2 Σx + 1."""
    return publish_pets(
        calibration=SigmoidCalibration(2.0, 0.0), gate_coef=np.full(3, 2.0), gate_intercept=1.0
    )


def _publish(
    store: Store, *, sign: float = 1.0, alias: str | None = "latest", **changed: Any
) -> ModelVersion:
    students = {
        label: _changed(linear_student(label, sign * row, threshold=0.5), **changed)
        for label, row in zip(CLASSES, WEIGHTS, strict=True)
    }
    return publish(store, "pets", students, linear_teacher(CLASSES, sign * WEIGHTS), alias=alias)


def _changed(student: PackedStudent, **changed: Any) -> PackedStudent:
    of_form = {
        name: value for name, value in changed.items() if name in ("coef", "gate_coef", "gate_intercept")
    }
    others = {name: value for name, value in changed.items() if name not in of_form}
    return dataclasses.replace(student, form=dataclasses.replace(student.form, **of_form), **others)
