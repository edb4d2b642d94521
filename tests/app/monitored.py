"""A model with a monitor, whose classes have known scores and probabilities, for tests."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from app.domain.entities import Json, ModelVersion
from app.domain.figures import HOUR
from app.domain.monitors import Monitor, MonitorSettings, Sample, Trials
from app.services.monitors import put_monitor
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.packed.calibration import SigmoidCalibration
from tests.system.published import linear_student, linear_teacher, publish

SIGMOID = SigmoidCalibration(2.0, -1.0)
MEASURED: Json = {
    "calibration": "sigmoid",
    "false_positives": {"budget": 0.01},
    "reliability": [
        {"count": 900, "probability": 0.02},
        {"count": 60, "probability": 0.5},
        {"count": 40, "probability": 0.95},
    ],
    "tp": 40,
    "fp": 10,
    "tn": 925,
    "fn": 25,
}
SAMPLING = Settings(query_samples="ids")


def publish_watched(store: Store, alias: str | None = "latest") -> ModelVersion:
    """A model of two columns: the scores of a and b are those, that of größe has no probability."""
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    labels = ("a", "b", "größe")
    students = {label: linear_student(label, row) for label, row in zip(labels, rows, strict=True)}
    for label in labels[:2]:
        students[label] = dataclasses.replace(students[label], calibration=SIGMOID)
    measured = {"a": MEASURED, "b": MEASURED}
    return publish(store, "pets", students, linear_teacher(labels, rows), alias=alias, measured=measured)


def watch(
    store: Store,
    files: BlobCache,
    classes: Mapping[str, Any] | None = None,
    *,
    revision: int | None = None,
    settings: Settings = SAMPLING,
    **more: Any,
) -> Monitor:
    """Give the alias latest a monitor; by default of class a without promises."""
    wanted = MonitorSettings.model_validate({"classes": classes or {"a": {}}, **more})
    return put_monitor(store, files, settings, "pets", "latest", wanted, revision, "tests")


def store_samples(
    store: Store, monitor: Monitor, answers: list[tuple[bool, float]], *, asked: int, yes: int, hour: int = 0
) -> list[str]:
    """Store samples of class a as a server process does; returns their ids. answers: (yes, q) of each.

    asked, yes: answers that they were chosen from. hour: how many hours ago.
    """
    now = time.time() - HOUR * hour
    at = int(now // HOUR)
    samples = [
        Sample(
            f"smp_{time.time_ns():020x}{number % 65536:04x}"[:28],
            monitor.id,
            monitor.run,
            monitor.tenant,
            "pets",
            1,
            "a",
            at,
            now,
            f"request-{time.time_ns()}-{number}",
            0,
            answer,
            1.0 if answer else -1.0,
            0.8 if answer else 0.1,
            q,
        )
        for number, (answer, q) in enumerate(answers)
    ]
    with store.begin() as uow:
        uow.monitors.add_samples(
            monitor.id, samples, [Trials(monitor.id, monitor.run, "a", asked, yes)], at, 0
        )
    return [sample.id for sample in samples]
