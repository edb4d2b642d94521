"""The solver process from within: real data, real training, its answers read back."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris

from app.domain.entities import Dataset
from app.domain.errors import NotFound
from app.domain.spec import TrainingSpec
from app.jobs import lifeline
from app.jobs.frames import Frame, read_frame, write_frame
from app.jobs.recipe import config_of, load_parts
from app.jobs.solver_child import Answers, failure, serve
from app.services.datasets import register_dataset
from app.settings import Settings
from app.store.unit_of_work import Store
from core.errors import Fault, InvalidProblem
from core.packed import PackedStudent, PackedTeacher
from core.pipeline import train
from core.types import Progress


def register(store: Store, folder: Path, name: str, **arrays: Any) -> Dataset:
    file = folder / f"{name}.npz"
    np.savez(file, **arrays)
    return register_dataset(store, file, created_by="me", limits=Settings())[0]


@pytest.fixture
def iris(sqlite_store: Store, tmp_path: Path) -> Dataset:
    X, y = load_iris(return_X_y=True)
    return register(
        sqlite_store,
        tmp_path,
        "iris",
        X_train=X[::2],
        y_train=y[::2],
        X_test=X[1::2],
        y_test=y[1::2],
    )


@pytest.fixture
def conversation(sqlite_store: Store, sqlite_address: str, iris: Dataset):
    """Says commands to a solver and gives back its answers, progress left out unless asked for."""

    def talk(
        *commands: dict[str, Any], spec: dict[str, Any] | None = None, progress: bool = False
    ) -> list[Frame]:
        said, answered = io.BytesIO(), io.BytesIO()
        order = {
            "type": "open",
            "database_url": sqlite_address,
            "dataset_id": iris.id,
            "spec": spec or {},
            "threads": 2,
            "log_level": "INFO",
        }
        for command in (order, *commands):
            write_frame(said, command)
        said.seek(0)
        serve(said, Answers(answered))
        answered.seek(0)
        return [frame for frame in frames(answered) if progress or frame.type != "progress"]

    return talk


def frames(stream: io.BytesIO) -> Iterator[Frame]:
    while (frame := read_frame(stream)) is not None:
        yield frame


def student(answers: list[Frame]) -> dict[tuple[int, str], Frame]:
    return {
        (frame.header["class_index"], frame.header["method"]): frame
        for frame in answers
        if frame.type == "student"
    }


SPEC = {
    "features": {"kind": "nystroem", "n_components": 30},
    "student": {"C": 1e3},
    "evaluation": {"baselines": ["svm"]},
    "seed": 3,
}
PREPARE = {"type": "prepare", "targets": [0, 2]}
TRAIN = {"type": "train", "pairs": [[0, "gsvm"], [2, "gsvm"], [2, "svm"]]}


def test_what_is_trained_in_pieces_equals_what_core_trains_at_once(conversation, sqlite_store, iris):
    spec = TrainingSpec.model_validate(SPEC)
    data, test = load_parts(sqlite_store, iris.id, spec)
    whole = train(data, config_of(spec), test=test, n_threads=1)

    opened, prepared, *answers = conversation(PREPARE, TRAIN, spec=SPEC)
    assert opened.header["threads"] == 2
    assert PackedTeacher.from_bytes(prepared.blobs[1]).digest == whole.teacher.digest
    students = student(answers)
    assert set(students) == {(0, "gsvm"), (2, "gsvm"), (2, "svm")}
    by_pair = {(one.target, one.method): one for one in whole.trained}
    for pair, frame in students.items():
        assert frame.blobs[0] == by_pair[pair].packed.to_bytes()
        assert frame.header["objective"] == by_pair[pair].summary.objective
        assert frame.header["status"] == "converged"
    measured = {(one.label, one.method): one.metrics for one in whole.evaluation.results}
    assert students[2, "svm"].header["metrics"]["f1"] == measured["2", "svm"].f1
    assert {row["label"]: row["metrics"]["f1"] for row in prepared.header["metrics"]} == {
        label: measured[label, "teacher"].f1 for label in ("0", "2")
    }
    assert [frame.type for frame in answers].count("started") == 3
    assert answers[-1].type == "trained"


def test_another_process_trains_the_same_students_from_a_stored_preparation(conversation, sqlite_store):
    first = conversation(PREPARE, TRAIN, spec=SPEC)
    with sqlite_store.begin() as uow:
        digest, _ = uow.blobs.put([first[1].blobs[0]])
    restore = {"type": "restore", "preparation_digest": digest}
    second = conversation(restore, TRAIN, spec=SPEC)
    assert second[1].type == "restored"
    before, after = student(first), student(second)
    assert {pair: frame.blobs for pair, frame in before.items()} == {
        pair: frame.blobs for pair, frame in after.items()
    }
    assert PackedStudent.from_bytes(after[2, "gsvm"].blobs[0]).label == "2"
    # the preparation belongs to its hyper-parameters
    other = conversation(restore, spec=SPEC | {"seed": 4})
    assert (other[1].type, other[1].header["code"]) == ("failed", "other_config")


def test_the_stages_are_told(conversation):
    answers = conversation(PREPARE, spec=SPEC, progress=True)
    stages = [frame.header["stage"] for frame in answers if frame.type == "progress"]
    assert list(dict.fromkeys(stages)) == ["data", "features", "teacher", "scores"]


def test_without_a_test_part_nothing_is_measured(conversation, sqlite_store, tmp_path, iris):
    X, y = load_iris(return_X_y=True)
    plain = register(sqlite_store, tmp_path, "plain", X=X, y=y)
    opened, prepared, *answers = conversation(
        {"type": "open", **_order(sqlite_store, plain)}, PREPARE, TRAIN, spec=SPEC
    )[1:]
    assert opened.type == "opened"
    assert prepared.header["metrics"] == []
    assert student(answers)[0, "gsvm"].header["metrics"] == {}


def _order(store: Store, dataset: Dataset) -> dict[str, Any]:
    return {
        "database_url": store.engine.url.render_as_string(hide_password=False),
        "dataset_id": dataset.id,
        "spec": SPEC,
        "threads": 1,
        "log_level": "INFO",
    }


def test_one_class_that_cannot_be_trained_is_told_and_the_others_go_on(conversation):
    answers = conversation(PREPARE, {"type": "train", "pairs": [[7, "gsvm"], [1, "gsvm"]]}, spec=SPEC)
    assert [frame.type for frame in answers if frame.type == "failed"] == ["failed"]
    answers = conversation(PREPARE, {"type": "train", "pairs": [[0, "nosuch"], [1, "gsvm"]]}, spec=SPEC)
    failed = [frame.header for frame in answers if frame.type == "student_failed"]
    assert [(row["class_index"], row["code"]) for row in failed] == [(0, "internal_error")]
    assert set(student(answers)) == {(1, "gsvm")}


def test_commands_out_of_turn_are_answered(conversation, sqlite_address):
    answers = conversation(TRAIN)
    assert answers[-1].type == "failed"
    said, answered = io.BytesIO(), io.BytesIO()
    write_frame(said, PREPARE)
    said.seek(0)
    serve(said, Answers(answered))
    answered.seek(0)
    assert [frame.type for frame in frames(answered)] == ["failed"]


def test_data_that_are_gone_are_told(conversation, sqlite_store, iris):
    order = {"type": "open", **_order(sqlite_store, iris), "dataset_id": "ds_0"}
    failed = conversation(order, PREPARE)[-1]
    assert (failed.type, failed.header["code"]) == ("failed", "dataset_not_found")


def test_errors_are_described_for_users(caplog):
    invalid = InvalidProblem(Fault("X", "not_finite", "Row 3 is not finite."), Fault("y", "b", "And y."))
    assert failure(invalid) == {"code": "not_finite", "message": "Row 3 is not finite.; And y."}
    assert failure(NotFound("Gone.", code="gone")) == {"code": "gone", "message": "Gone."}
    assert failure(MemoryError())["code"] == "out_of_memory"
    unexpected = failure(ZeroDivisionError("secret"))
    assert unexpected["code"] == "internal_error"
    assert "ZeroDivisionError" in unexpected["message"]
    assert "secret" not in unexpected["message"]
    assert "secret" in caplog.text


def test_progress_is_thinned_out_and_its_gap_relative():
    stream = io.BytesIO()
    answers = Answers(stream)
    for done in range(100):
        answers.progress(Progress("teacher", done, 100, objective=50.0, gap=5.0))
    answers.progress(Progress("scores", 1, 1))
    stream.seek(0)
    told = [frame.header for frame in frames(stream)]
    assert len(told) < 10
    assert told[0]["gap"] == pytest.approx(0.1)
    assert (told[-1]["stage"], told[-1]["gap"]) == ("scores", None)


def test_a_share_of_the_rows_is_held_out_and_stays_the_same(sqlite_store, iris):
    spec = TrainingSpec.model_validate({"evaluation": {"test_fraction": 0.2}, "seed": 1})
    train_part, test_part = load_parts(sqlite_store, iris.id, spec)
    again, _ = load_parts(sqlite_store, iris.id, spec)
    assert (train_part.n, test_part.n) == (60, 15)
    assert test_part.class_counts.tolist() == [5, 5, 5]
    assert np.array_equal(train_part.X, again.X)
    together = np.concatenate([train_part.X, test_part.X])
    whole, _ = load_parts(sqlite_store, iris.id, TrainingSpec())
    assert np.array_equal(np.sort(together, axis=0), np.sort(whole.X, axis=0))


def test_rows_that_cannot_be_split_are_refused(sqlite_store, iris):
    spec = TrainingSpec.model_validate({"evaluation": {"test_fraction": 0.01}})
    with pytest.raises(InvalidProblem) as refused:
        load_parts(sqlite_store, iris.id, spec)
    assert refused.value.faults[0].field == "evaluation.test_fraction"


def test_another_data_set_is_coded_with_the_classes_of_training(sqlite_store, iris, tmp_path):
    X, y = load_iris(return_X_y=True)
    other = register(sqlite_store, tmp_path, "other", X=X[y > 0], y=y[y > 0])
    spec = TrainingSpec.model_validate({"evaluation": {"dataset_id": other.id}})
    _, test = load_parts(sqlite_store, iris.id, spec)
    assert test.classes == ("0", "1", "2")
    assert test.class_counts.tolist() == [0, 50, 50]


def test_the_process_keeps_its_pipe_clean_and_ends_with_it():
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "app.jobs.solver_child", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, _ = process.communicate(b"", timeout=60)
    assert (process.returncode, out) == (0, b"")


def test_a_process_of_another_parent_ends_at_once():
    process = subprocess.run(
        [sys.executable, "-P", "-m", "app.jobs.solver_child", "1"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 1


def test_the_lifeline_watches_its_parent(monkeypatch):
    ended = []
    looks = iter([os.getppid(), os.getppid(), -1])

    class Ended(Exception):
        pass

    def leave(status: int) -> None:
        ended.append(status)
        raise Ended

    monkeypatch.setattr(lifeline.os, "_exit", leave)
    monkeypatch.setattr(lifeline.os, "getppid", lambda: next(looks))
    monkeypatch.setattr(lifeline.time, "sleep", lambda _seconds: None)
    parent = os.getppid()
    with pytest.raises(Ended):
        lifeline._watch(parent)
    assert ended == [1]
