"""Evaluations run by a real worker on DBOS, with the fake solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.domain.entities import JobState, ModelVersion
from app.domain.evaluation import Evaluation
from app.services.evaluations import cancel_evaluation, create_evaluation, get_evaluation
from app.store.repositories.units import Units
from core.data.row_identity import identity_bytes
from tests.app.jobs.conftest import CLASSES, FakeSolver, Service, is_alive, wait_for
from tests.system.published import publish_linear


@pytest.fixture
def published(service: Service) -> ModelVersion:
    seen = identity_bytes(np.empty(0, dtype=np.uint64))
    return publish_linear(service.store, "m", np.ones((6, 4)), CLASSES, seen=seen)


def ask(service: Service, **changed: Any) -> Evaluation:
    given = {"version": "m@1", "dataset_id": service.dataset.id, "created_by": "me"}
    return create_evaluation(service.store, service.queue, service.settings, **given | changed)


def ended(service: Service, evaluation: Evaluation) -> Evaluation:
    wait_for(lambda: get_evaluation(service.store, evaluation.id).state.ended)
    return get_evaluation(service.store, evaluation.id)


def test_a_worker_computes_an_evaluation_and_stores_its_result(
    service: Service, solver: FakeSolver, published: ModelVersion
):
    waiting = ask(service)
    assert (waiting.version, waiting.state) == ("m@1", JobState.QUEUED)
    with service.store.read() as uow:
        assert Units(uow.connection).counts() == (1, 0)
    with service.worker(solver):
        found = ended(service, waiting)
        # One after the other, by processes of their own.
        again = ended(service, ask(service))
    assert (found.state, again.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert (found.rows_used, found.rows_left_out) == (90, {"trained_on": 10})
    assert (found.progress_done, found.progress_total) == (6, 6)
    assert list(found.classes) == [{"class": "c0", "n": 15}]
    assert found.started_at is not None
    assert found.finished_at is not None
    assert found.started_at <= found.finished_at
    assert solver.done() == ["start", "evaluate", "start", "evaluate"]
    assert not any(map(is_alive, solver.pids()))


def test_what_cannot_be_evaluated_fails_with_the_words_of_the_solver(
    service: Service, solver: FakeSolver, published: ModelVersion
):
    solver.plan(fail_evaluate=["no_common_rows", "3 rows are left."])
    with service.worker(solver):
        found = ended(service, ask(service))
    assert found.state is JobState.FAILED
    assert (found.error_code, found.error_message) == ("no_common_rows", "3 rows are left.")
    assert (found.rows_used, found.classes) == (None, ())


def test_a_solver_that_dies_is_replaced_once(service: Service, solver: FakeSolver, published: ModelVersion):
    solver.plan(die={"evaluate": 1})
    with service.worker(solver):
        assert ended(service, ask(service)).state is JobState.SUCCEEDED
        solver.plan(die={"evaluate": 9})
        found = ended(service, ask(service))
    assert (found.state, found.error_code) == (JobState.FAILED, "solver_died")


def test_a_cancelled_evaluation_ends_its_solver(
    service: Service, solver: FakeSolver, published: ModelVersion
):
    solver.plan(evaluate_seconds=300)
    with service.worker(solver):
        evaluation = ask(service)
        wait_for(lambda: "evaluate" in solver.done())
        assert get_evaluation(service.store, evaluation.id).state is JobState.RUNNING
        cancelled = cancel_evaluation(service.store, service.queue, evaluation.id)
        assert cancelled.state is JobState.CANCELLED
        wait_for(lambda: not any(map(is_alive, solver.pids())))
        solver.plan()
        assert ended(service, ask(service)).state is JobState.SUCCEEDED
    assert get_evaluation(service.store, evaluation.id).state is JobState.CANCELLED


def test_an_evaluation_goes_on_after_a_restart_of_the_worker(
    service: Service, solver: FakeSolver, published: ModelVersion
):
    solver.plan(evaluate_seconds=300)
    evaluation = ask(service)
    with service.worker(solver):
        wait_for(lambda: "evaluate" in solver.done())
    assert get_evaluation(service.store, evaluation.id).state is JobState.RUNNING
    solver.plan()
    with service.worker(solver):
        assert ended(service, evaluation).state is JobState.SUCCEEDED
    with service.store.read() as uow:
        starts = uow.connection.exec_driver_sql("SELECT starts FROM evaluations").scalar()
    assert starts == 1, "a start that ended in good order is not counted"


def test_an_evaluation_that_ends_its_workers_is_given_up(
    service: Service, solver: FakeSolver, published: ModelVersion
):
    evaluation = ask(service)
    with service.store.begin() as uow:
        for _ in range(4):
            uow.evaluations.begin(evaluation.id)
    with service.worker(solver):
        found = ended(service, evaluation)
    assert (found.state, found.error_code) == (JobState.FAILED, "too_many_restarts")
    assert "evaluate" not in solver.done()


def test_a_stored_evaluation_that_was_never_queued_is_queued(
    service: Service, solver: FakeSolver, published: ModelVersion, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(service.queue, "enqueue_evaluation", lambda *_: None)
        evaluation = ask(service)
    with service.worker(solver):
        assert ended(service, evaluation).state is JobState.SUCCEEDED
