"""A job's rows scored by a server: batches, their order, what is stored, and what is not asked for again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from app.domain.entities import Job
from app.domain.origins import AllowedServers
from app.domain.remote_teacher import RemoteScores
from app.jobs.solver.remote_scores import RemoteScorer
from app.remote.errors import RemoteFailed
from app.store.unit_of_work import Store
from core.data.dataset import LabelledData
from tests.model_server import ModelServer, metadata, model_server
from tests.refusals import refused_as

X = np.random.default_rng(0).normal(size=(23, 4))
WEIGHTS = np.random.default_rng(1).normal(size=(3, 4))
DATA = LabelledData.from_arrays(X, np.resize(["a", "b", "c"], 23))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server(lambda rows: rows @ WEIGHTS.T, metadata(4, 3)) as running:
        yield running


class Solver:
    """A solver's view of a job: it sends batches, of which the worker stores as many as ``keeps``."""

    def __init__(
        self, store: Store, job: Job, server: ModelServer, keeps: int = 1000, **options: Any
    ) -> None:
        self.store, self.job, self.keeps = store, job, keeps
        self.sent: list[tuple[int, int]] = []
        self.reports: list[dict[str, Any]] = []
        teacher = RemoteScores(**{"url": server.url, "model": "m", "batch": 5, "retries": 0} | options)
        allowed = AllowedServers.of(server.url)
        self.scorer = RemoteScorer(teacher, store, job.id, allowed, "secret", self.send, self.reports.append)

    def send(self, header: dict[str, Any], data: bytes) -> None:
        if len(self.sent) == self.keeps:
            raise ConnectionAbortedError("killed")
        self.sent.append((header["part"], header["first"]))
        with self.store.begin() as uow:
            uow.remote_scores.save(self.job.id, header["part"], header["first"], data)


@pytest.fixture
def job(sqlite_store: Store, add_job: Callable[..., Job]) -> Job:
    with sqlite_store.begin() as uow:
        return add_job(uow)


def test_all_rows_are_scored_in_batches_and_reported(sqlite_store, job, server):
    solver = Solver(sqlite_store, job, server)
    scored = solver.scorer.with_scores(DATA, 0)
    assert np.array_equal(scored.teacher_scores, np.vstack([rows @ WEIGHTS.T for rows in server.asked]))
    assert np.allclose(scored.teacher_scores, X @ WEIGHTS.T, rtol=1e-12)
    assert [len(rows) for rows in server.asked] == [5, 5, 5, 5, 3]
    assert solver.sent == [(0, first) for first in (0, 5, 10, 15, 20)]
    assert [report["done"] for report in solver.reports] == [0, 5, 10, 15, 20, 23]
    assert {(report["stage"], report["total"]) for report in solver.reports} == {("remote_scores", 23)}
    assert {head["Authorization"] for head in server.headers} == {"Bearer secret"}


def test_stored_batches_are_not_asked_for_again(sqlite_store, job, server):
    with pytest.raises(ConnectionAbortedError):
        Solver(sqlite_store, job, server, keeps=2).scorer.with_scores(DATA, 0)
    assert server.rows == 15
    server.asked.clear()
    again = Solver(sqlite_store, job, server)
    scored = again.scorer.with_scores(DATA, 0)
    assert again.sent == [(0, 10), (0, 15), (0, 20)]
    assert server.rows == 13
    assert again.reports[0]["done"] == 10
    assert np.allclose(scored.teacher_scores, X @ WEIGHTS.T, rtol=1e-12)
    server.asked.clear()
    whole = Solver(sqlite_store, job, server).scorer.with_scores(DATA, 0)
    assert np.array_equal(whole.teacher_scores, scored.teacher_scores)
    assert server.asked == []


def test_parts_are_stored_apart(sqlite_store, job, server):
    solver = Solver(sqlite_store, job, server)
    solver.scorer.with_scores(DATA, 0)
    other = solver.scorer.with_scores(DATA.take(np.arange(7)), 1)
    assert solver.sent[-2:] == [(1, 0), (1, 5)]
    assert np.allclose(other.teacher_scores, X[:7] @ WEIGHTS.T, rtol=1e-12)


def test_columns_are_put_into_the_order_of_the_classes(sqlite_store, job, server):
    server.metadata = metadata(4, 5)
    server.score = lambda rows: np.hstack([np.full((len(rows), 2), 9.0), rows @ WEIGHTS[::-1].T])
    solver = Solver(sqlite_store, job, server, columns=("x", "y", "c", "b", "a"))
    assert np.allclose(solver.scorer.with_scores(DATA, 0).teacher_scores, X @ WEIGHTS.T, rtol=1e-12)


def test_sparse_rows_are_sent_as_dense_ones(sqlite_store, job, server):
    sparse = LabelledData.from_arrays(
        sp.csr_matrix(np.where(X > 0.0, X, 0.0)), np.resize(["a", "b", "c"], 23)
    )
    scored = Solver(sqlite_store, job, server).scorer.with_scores(sparse, 0)
    assert np.allclose(scored.teacher_scores, np.where(X > 0.0, X, 0.0) @ WEIGHTS.T, rtol=1e-12)


def test_what_is_not_allowed_is_refused_without_a_connection(sqlite_store, job, server):
    solver = Solver(sqlite_store, job, server, url="http://127.0.0.1:9")
    with refused_as(RemoteFailed, "remote_not_allowed"):
        solver.scorer.with_scores(DATA, 0)
    assert server.paths == []


def test_the_name_is_resolved_once_and_its_addresses_are_checked(sqlite_store, job, server):
    url = server.url.replace("127.0.0.1", "triton.invalid")
    solver = Solver(sqlite_store, job, server, url=url)
    found, asked = ["127.0.0.1"], []

    def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return found

    scorer = dataclasses.replace(solver.scorer, allowed=AllowedServers.of(url), resolve=resolve)
    server.canned = [(503, {"Connection": "close"}, b"")]
    scorer = dataclasses.replace(scorer, teacher=dataclasses.replace(scorer.teacher, retries=1))
    assert np.allclose(scorer.with_scores(DATA, 0).teacher_scores, X @ WEIGHTS.T, rtol=1e-12)
    assert asked == [("triton.invalid", server.port)]
    found[:] = ["169.254.169.254"]
    with refused_as(RemoteFailed, "remote_address"):
        scorer.with_scores(DATA, 1)


def test_a_stored_batch_of_another_size_is_asked_for_again(sqlite_store, job, server):
    with sqlite_store.begin() as uow:
        uow.remote_scores.save(job.id, 0, 5, b"short")
        uow.remote_scores.save(job.id, 0, 999, b"beyond")
    solver = Solver(sqlite_store, job, server)
    assert np.allclose(solver.scorer.with_scores(DATA, 0).teacher_scores, X @ WEIGHTS.T, rtol=1e-12)
    server.asked.clear()
    solver.scorer.with_scores(DATA, 0)
    assert server.asked == []
