"""What requests are counted for, whichever way they ask, and what the event loop leaves to threads."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.serving import loop_time
from app.serving.columns import explanations, table_rows
from app.serving.loop_time import SLOW_SECONDS, LoopTime, timed
from app.serving.query import predict
from core.packed import LinearForm, PackedStudent, PackedTeacher, RbfBasis
from core.packed.contributions import Baseline, explanation_work
from core.packed.work import row_work, students_work
from tests.app.started import Client
from tests.reference.trees import random_trees
from tests.system.published import linear_student, linear_teacher, publish

Ask = Callable[[Client, list[list[float]]], Any]
COLUMNS, CLASSES = 4, ("a", "b")
ROWS = [[1.0, 0.5, -2.0, 0.0], [0.0, 1.0, 1.5, -1.0], [2.0, 2.0, 0.0, 1.0]]
MAPS = {
    "kernel": RbfBasis(np.zeros(COLUMNS), np.ones(COLUMNS), np.eye(40, COLUMNS)),
    "trees": random_trees(1, trees=30, columns=COLUMNS, sums=5),
}


def student_of(kind: str, label: str) -> PackedStudent:
    packed = MAPS[kind]
    p = packed.n_basis
    return PackedStudent(packed, LinearForm(np.ones(p), 0.0, np.zeros(p), 0.0), 0.0, label)


@pytest.fixture(params=sorted(MAPS))
def kind(request: pytest.FixtureRequest, store: Any) -> str:
    """The map of a published model ``m``."""
    packed = MAPS[request.param]
    coef = np.ones((len(CLASSES), packed.n_basis))
    teacher = PackedTeacher(packed, coef, np.zeros(len(CLASSES)), CLASSES)
    students = {label: student_of(request.param, label) for label in CLASSES}
    publish(store, "m", students, teacher, inputs={"means": [0.0] * COLUMNS})
    return str(request.param)


def rows_in_json(client: Client, rows: list[list[float]], **more: Any) -> Any:
    return client.post("/v1/models/m/classes/a:query", json={"rows": rows, **more})


def rows_in_a_tensor(client: Client, rows: list[list[float]]) -> Any:
    headers = {"content-type": "application/octet-stream", "x-tensor-dtype": "float64"}
    headers["x-tensor-shape"] = f"{len(rows)},{COLUMNS}"
    return client.post("/v1/models/m/classes/a:query", content=np.array(rows).tobytes(), headers=headers)


def two_classes(client: Client, rows: list[list[float]]) -> Any:
    return client.post("/v1/models/m:query", json={"rows": rows, "classes": list(CLASSES)})


def prediction(client: Client, rows: list[list[float]]) -> Any:
    return client.post("/v1/models/m:predict", json={"rows": rows})


def inference(client: Client, rows: list[list[float]], *outputs: str) -> Any:
    tensor = {"name": "x", "datatype": "FP64", "shape": [len(rows), COLUMNS], "data": np.ravel(rows).tolist()}
    wanted = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
    return client.post("/v2/models/m:a/infer", json={"inputs": [tensor], **wanted})


def explained_inference(client: Client, rows: list[list[float]]) -> Any:
    return inference(client, rows, "score", "gate")


WAYS: dict[str, tuple[Ask, Callable[[str], int]]] = {
    "rows": (rows_in_json, lambda kind: students_work([student_of(kind, "a")])),
    "tensor": (rows_in_a_tensor, lambda kind: students_work([student_of(kind, "a")])),
    "classes": (two_classes, lambda kind: students_work([student_of(kind, label) for label in CLASSES])),
    "predict": (prediction, lambda kind: row_work(MAPS[kind], len(CLASSES))),
    "inference": (inference, lambda kind: students_work([student_of(kind, "a")])),
    "explained inference": (
        explained_inference,
        lambda kind: students_work([student_of(kind, "a")], explain=True),
    ),
}


@pytest.mark.parametrize("way", sorted(WAYS))
def test_every_way_of_asking_counts_what_the_students_say(
    make_client: Callable[..., Client], kind: str, way: str
):
    ask, work_of = WAYS[way]
    refused = ask(make_client(max_query_work=1), ROWS)
    assert refused.status_code == 413
    [stated] = re.findall(r"cost (\S+) multiply-adds", refused.text)
    assert float(stated) == pytest.approx(len(ROWS) * work_of(kind), rel=0.05)


def test_an_explanation_counts_what_explaining_costs(
    make_client: Callable[..., Client], kind: str, problem: Callable[..., Any]
):
    baseline = Baseline.of_numbers(np.zeros(COLUMNS))
    client = make_client(max_query_work=len(ROWS) * students_work([student_of(kind, "a")], explain=True))
    document = problem(rows_in_json(client, ROWS, explain="columns"), 413, "too_much_work")
    [stated] = re.findall(r"costs (\S+) multiply-adds", document["detail"])
    expected = explanation_work(student_of(kind, "a"), baseline, len(ROWS))
    assert float(stated) == pytest.approx(expected, rel=0.05)


def test_a_row_of_several_classes_is_limited_too(
    make_client: Callable[..., Client], kind: str, problem: Callable[..., Any]
):
    client = make_client(max_query_work=1)
    problem(two_classes(client, ROWS[:1]), 413, "too_much_work")
    body = {"x": ROWS[0], "classes": list(CLASSES)}
    document = problem(client.post("/v1/models/m:query", json=body), 413, "too_much_work")
    assert "Ask for fewer classes" in document["detail"]
    assert client.post("/v1/models/m/classes/a:query", json={"x": ROWS[0]}).status_code == 200


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads in which rows are explained, decided and predicted."""
    names: list[str] = []

    def watch(module: Any, name: str) -> None:
        whole = getattr(module, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            names.append(threading.current_thread().name.partition("_")[0])
            return whole(*arguments, **named)

        monkeypatch.setattr(module, name, watched)

    watch(explanations, "explainer")
    watch(table_rows, "decide_all")
    watch(predict, "_results")
    return names


def test_explanations_are_never_computed_in_the_event_loop(
    make_client: Callable[..., Client], kind: str, threads: list[str]
):
    client = make_client()
    for body in ({"x": ROWS[0]}, {"rows": ROWS[:1]}, {"x": ROWS[0], "classes": ["a"]}):
        path = "/v1/models/m:query" if "classes" in body else "/v1/models/m/classes/a:query"
        threads.clear()
        assert client.post(path, json=body | {"explain": "columns"}).status_code == 200
        assert set(threads) == {"stms-query"}


def test_the_work_of_all_classes_decides_whether_the_event_loop_answers(
    make_client: Callable[..., Client], store: Any, threads: list[str]
):
    """An imported version may have students of different maps, of which the first costs little."""
    wide = RbfBasis(np.zeros(COLUMNS), np.ones(COLUMNS), np.ones((400_000, COLUMNS)))
    p = wide.n_basis
    slow = PackedStudent(wide, LinearForm(np.ones(p), 0.0, np.zeros(p), 0.0), 0.0, "b")
    students = {"a": linear_student("a", [1.0] * COLUMNS), "b": slow}
    publish(store, "mixed", students, linear_teacher(CLASSES, np.ones((2, COLUMNS))))
    client = make_client()
    body = {"rows": ROWS[:1], "classes": ["a", "b"]}
    for _ in range(2):
        threads.clear()
        assert client.post("/v1/models/mixed:query", json=body).status_code == 200
        assert set(threads) == {"stms-query"}
    threads.clear()
    assert client.post("/v1/models/mixed:query", json=body | {"classes": ["a"]}).status_code == 200
    assert "stms-query" not in threads
    tensor = {"name": "x", "datatype": "FP64", "shape": [2, COLUMNS], "data": np.ravel(ROWS[:2]).tolist()}
    labels = {"name": "class", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}
    threads.clear()
    answered = client.post("/v2/models/mixed/infer", json={"inputs": [tensor, labels]})
    assert answered.status_code == 200, answered.text
    assert set(threads) == {"stms-query"}


# How long answers keep the event loop


def busy(seconds: float) -> None:
    """Take so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_an_answer_that_is_slow_by_the_clock_only_changes_nothing_for_long():
    known = LoopTime("a")
    timed([known], time.sleep, 2 * SLOW_SECONDS)
    assert (known.is_quick, known.is_allowed) == (False, True)
    for _ in range(loop_time._MEASURED):
        timed([known], time.sleep, 0)
    assert (known.is_quick, known.is_allowed) == (True, True)


def test_an_answer_that_keeps_the_event_loop_is_left_to_threads_from_then_on(
    caplog: pytest.LogCaptureFixture,
):
    slow, quick = LoopTime("Class 'a' of t/m@1"), LoopTime("b")
    timed([slow], busy, 2 * SLOW_SECONDS)
    assert (slow.is_quick, slow.is_allowed) == (False, True)
    timed([slow], busy, 2 * SLOW_SECONDS)
    assert (slow.is_quick, slow.is_allowed) == (False, False)
    for _ in range(loop_time._MEASURED + 1):
        timed([slow, quick], time.sleep, 0)
    assert (slow.is_quick, slow.is_allowed, quick.is_quick) == (False, False, True)
    [record] = caplog.records
    assert "Class 'a' of t/m@1 is answered in threads" in record.message


def test_an_answer_that_fails_slowly_counts_too():
    known = LoopTime("a")

    def fail() -> None:
        busy(2 * SLOW_SECONDS)
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            timed([known], fail)
    assert not known.is_allowed


@pytest.mark.parametrize("way", ["rows", "predict", "inference", "tensor"])
def test_a_student_whose_count_is_wrong_leaves_the_event_loop(
    make_client: Callable[..., Client],
    kind: str,
    way: str,
    threads: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """Whatever the count says, two slow answers are the last ones of the event loop."""
    ask, client, packed = WAYS[way][0], make_client(), type(MAPS[kind])
    whole = packed.block
    assert ask(client, ROWS).status_code == 200

    def slow_block(self: Any, X: np.ndarray) -> np.ndarray:
        busy(2 * SLOW_SECONDS)
        return whole(self, X)

    monkeypatch.setattr(packed, "block", slow_block)
    for _ in range(3):
        assert ask(client, ROWS).status_code == 200
    threads.clear()
    assert ask(client, ROWS).status_code == 200
    assert threads
    assert set(threads) <= {"stms-query", "stms-predict"}
