"""Servers with keys, people who have signed in to the dashboard, and things for the pages to show."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from app.domain.curves import pack
from app.domain.entities import (
    Job,
    JobState,
    ModelVersion,
    StudentRow,
    StudentState,
    Worker,
    new_id,
)
from app.domain.evaluation import Evaluation
from app.domain.figures import ServerRow
from app.ingest.dataset_format import encode
from app.services.keys import create_key
from app.store.tables import model_versions
from app.store.unit_of_work import Store
from core.data.dataset import LabelledData
from core.data.description import describe
from core.monitoring.comparison import PairedCounts, compare_classes
from tests.app.api.conftest import make_client, make_settings, publish_pets, queue
from tests.app.students import change_student

__all__ = ["make_client", "make_settings", "queue"]

SAME_ORIGIN = {"sec-fetch-site": "same-origin"}
HOSTILE = "<script>alert('x')</script>\"'&{{7*7}}\u202eright to left " + "w" * 300


FIGURES = {
    "queries": 10, "rows": 10, "failed_queries": 0, "requests": 4, "errors": 0, "queries_per_second": 5.0,
    "errors_per_second": 0.0, "latency": {"p50": 0.001, "p95": 0.002, "p99": None},
    "history": [[1.0, 0.0, 0.0, None, 0.0, None], [3.0, 5.0, 0.0, 0.002, 0.5, 0.001]],
    "processes": 2, "target_processes": 2, "refused": 3, "refused_per_second": 0.5,
    "unanswered": {"429": 3.0},
    "buckets": [0.0] * 8 + [10.0] + [0.0] * 16,
    "models": [{
        "model": HOSTILE[:90], "queries_per_second": 5.0, "refused_per_second": 0.5, "history": [0.0, 5.0],
        "latency": {"p50": 0.001, "p95": 0.002, "p99": None}, "buckets": [0.0] * 8 + [10.0] + [0.0] * 16,
    }],
}  # fmt: skip
"""What a server process reports."""


@dataclass
class Person:
    """A caller with a session: sends requests as a browser on a page of the server does."""

    client: Any
    cookie: str = ""

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(path, headers={"cookie": self.cookie} | headers)

    def post(self, path: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        sent = {"cookie": self.cookie} | (SAME_ORIGIN if headers is None else headers)
        return self.client.post(path, headers=sent, data=fields)


class Page(HTMLParser):
    """What a page holds: its elements, links and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, tag: str, attribute: str) -> list[str]:
        return [known[attribute] or "" for name, known in self.elements if name == tag and attribute in known]


@pytest.fixture
def client(make_client: Any) -> Any:
    """A server that requires keys, on SQLite."""
    return make_client(require_keys=True)


@pytest.fixture
def database_address(sqlite_address: str) -> str:
    """Pages add no SQL of their own: one database is enough."""
    return sqlite_address


@pytest.fixture
def sign_in(client: Any, store: Store) -> Callable[..., Person]:
    """``sign_in("train")``: a person with a new key of this scope."""

    def enter(*scopes: str, tenant: str = "default", **options: Any) -> Person:
        text = create_key(store.of_tenant(tenant), "Ada", set(scopes), **options)[1]
        client.refresh()
        answer = client.post("/ui/sign-in", headers=SAME_ORIGIN, data={"key": text, "next": "/ui/"})
        assert answer.status_code == 303, answer.text
        client.forget_cookies()
        return Person(client, answer.headers["set-cookie"].partition(";")[0])

    return enter


def query_headers(client: Any, store: Store, scope: str = "query") -> dict[str, str]:
    """What a program with a new key sends."""
    text = create_key(store, "program", {scope})[1]
    client.refresh()
    return {"authorization": f"Bearer {text}"}


def give_data_set(store: Store, digest: str) -> None:
    """Let every version have been trained on the data set with a digest."""
    with store.begin() as uow:
        uow.connection.execute(model_versions.update().values(dataset_digest=digest))


def measure(store: Store, version: ModelVersion, scores: dict[str, float]) -> None:
    """Give the students of a version metrics, F by class, and curves."""
    with store.begin() as uow:
        for label, score in scores.items():
            number = version.classes.index(label)
            metrics = {"f1": score, "auc": score, "accuracy": score, "brier": 1.0 - score}
            change_student(uow, str(version.job_id), number, version.method, metrics=metrics, threshold=0.1)
            curve = {"positives": 4, "negatives": 6, "thresholds": [0.5, 0.1], "tp": [1, 3], "fp": [0, 1]}
            uow.students.keep_curves([((number, version.method), pack(curve))], str(version.job_id))


def packed_trace(points: list[dict[str, Any]], **chosen: Any) -> bytes:
    """The trace of a search as it is stored."""
    return zlib.compress(json.dumps({"chosen": chosen, "points": points}).encode())


GRID = [
    {
        "C": C,
        "margin": margin,
        "folds": 4,
        "score": 0.1 * a + 0.01 * b,
        "standard_error": 0.02,
        "gap": 0,
        "seconds": 1,
    }
    for a, C in enumerate((1.0, 10.0, 100.0))
    for b, margin in enumerate((0.0, 1.0))
]


SHARE = {"estimate": 0.5, "low": 0.4, "high": 0.6, "method": "wilson", "level": 0.95}
MEASURES = {"f1": 0.5, "auc": None, "precision": SHARE, "recall": None, "false_positive_rate": SHARE}


def add_evaluation(store: Store, dataset_id: str, **changed: Any) -> str:
    """An evaluation of pets@2 against pets@1 with a class that is worse; returns its id."""
    given: dict[str, Any] = {
        "id": new_id("ev"),
        "version": "pets@2",
        "baseline": "pets@1",
        "dataset_id": dataset_id,
        "part": "all",
        "tolerance": 0.01,
        "alpha": 0.05,
        "unknown_classes": "drop",
        "state": JobState.RUNNING,
        "created_at": time.time(),
        "created_by": "tests",
    }
    evaluation = Evaluation(**given | changed)
    worse = PairedCounts(200, 90, 2), PairedCounts(900, 1, 0)
    [compared] = compare_classes([worse])
    entry = {"class": HOSTILE, "n": 200, **MEASURES, "baseline": MEASURES, "comparison": compared.as_dict()}
    result = {
        "rows_used": 1100,
        "rows_left_out": {"trained_on": 7},
        "warnings": [{"code": "seen_rows_unknown", "message": HOSTILE}],
        "verdict": "worse",
    }
    with store.begin() as uow:
        uow.evaluations.add(evaluation)
        uow.evaluations.succeed(evaluation.id, result, {"classes": [entry], "not_compared": [HOSTILE]})
    return evaluation.id


@dataclass
class Things:
    """What there is to show."""

    job: Job
    dataset_id: str
    key_id: str
    evaluation_id: str


@pytest.fixture
def things(store: Store, add_job: Any, add_dataset: Any) -> Things:
    """Jobs in every state, one with hostile classes, a data set, models, keys, a worker and audit records."""
    measure(store, publish_pets(store), {"cat": 0.9, "dog": 0.8, "größe/1:x": 0.5})
    measure(store, publish_pets(store, alias="production", sign=-1.0), {"cat": 0.7, "dog": 0.95, "日本": 0.5})
    key, _ = create_key(store, HOSTILE[:60].replace("\u202e", ""), {"query"}, ["pets"])
    with store.begin() as uow:
        table = np.arange(90.0).reshape(30, 3)
        data = LabelledData.from_arrays(table, ["a", *["b"] * 8, "a"] * 3, list("abc"))
        data = replace(data, classes=(HOSTILE, "b"), feature_names=(HOSTILE, "b", "c"))
        dataset = add_dataset(
            uow,
            name=HOSTILE[:200],
            blob_digest=uow.blobs.put(encode(data, None))[0],
            rows=30,
            columns=3,
            classes=(HOSTILE, "b"),
            summary=describe(data)
            | {"warnings": [{"code": "x", "message": HOSTILE}], "label_column": HOSTILE},
        )
        job = add_job(
            uow,
            dataset_id=dataset.id,
            created_at=time.time(),
            provenance={
                "warnings": [{"label": HOSTILE, "class_index": 0, "message": HOSTILE, "code": "x"}],
                "features": {"reason": HOSTILE},
            },
        )
        for state in JobState:
            add_job(
                uow,
                state=state,
                created_at=time.time(),
                error_code="internal_error" if state is JobState.FAILED else None,
                error_message=HOSTILE if state is JobState.FAILED else None,
            )
        metrics = {
            "f1": 0.75, "auc": 0.9, "accuracy": 0.8, "tp": 3, "fp": 1, "tn": 5, "fn": 1, "reason": None,
            "brier": 0.1, "base_brier": 0.2, "calibration_error": 0.05, "classes_evaluated": 1.0,
            "reliability": [
                {"low": 0.0, "high": 0.1, "count": 6, "probability": 0.05, "observed": 0.1},
                {"low": 0.9, "high": 1.0, "count": 4, "probability": 0.95, "observed": 0.8},
            ],
        }  # fmt: skip
        good = StudentRow(
            job.id, 0, HOSTILE, "svm", StudentState.SUCCEEDED, 1.5, 1e-5, 20, 0.3, "optimal", 0.1, metrics,
            chosen={"C": 1.0, "score": 0.5},
        )  # fmt: skip
        uow.students.save(good)
        uow.students.save(StudentRow(job.id, 1, "b", "svm", StudentState.FAILED, error=HOSTILE))
        uow.students.save(StudentRow(job.id, 0, HOSTILE, "teacher", StudentState.SUCCEEDED, metrics=metrics))
        curve = {"positives": 4, "negatives": 6, "thresholds": [0.5, 0.1], "tp": [1, 3], "fp": [0, 1]}
        uow.students.keep_curves([((0, "svm"), pack(curve))], job.id)
        uow.students.keep_trace(job.id, 0, "svm", packed_trace(GRID, C=100.0, margin=1.0, score=0.21))
        uow.events.append(job.id, "student_failed", {"label": HOSTILE, "method": "svm", "message": HOSTILE})
        uow.events.append(job.id, "something_new", {})
        uow.audit.append("dataset.create", dataset.id, details={"name": HOSTILE})
        unit = {"job_id": job.id, "kind": "chunk", "classes": 3, "unit": 1, "solver_pid": 11}
        units = (unit | {"since": time.time()},)
        uow.workers.beat(Worker("worker-1", HOSTILE[:200], 7, time.time(), time.time(), 2, 1, units))
        uow.servers.beat(ServerRow("server-1", HOSTILE[:200], 9, "1.0", time.time(), 0.0, dict(FIGURES)))
        uow.workers.beat(Worker("worker-2", "old", 8, 1.0, 1.0))
    return Things(job, dataset.id, key.id, add_evaluation(store, dataset.id))
