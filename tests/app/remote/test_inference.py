"""Scores by the Open Inference Protocol: what is asked, what is believed, and what is tried again."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from app.domain.origins import Origin
from app.domain.remote_teacher import RemoteScores
from app.remote.connection import RemoteConnection
from app.remote.errors import RemoteFailed
from app.remote.inference import RemoteModel
from tests.model_server import ModelServer, metadata, model_server

ROWS = np.array([[0.1, 0.2], [1e-300, -3.0], [1 / 3, 4.0]])
WEIGHTS = np.array([[1.0, 0.5], [-1.0, 2.0], [0.25, 1 / 7]])
PAUSES: list[float] = []
OPEN: list[RemoteConnection] = []


def linear(rows: Any) -> Any:
    return rows @ WEIGHTS.T


@pytest.fixture
def server() -> Iterator[ModelServer]:
    PAUSES.clear()
    with model_server(linear, metadata(2, 3)) as running:
        yield running
    while OPEN:
        OPEN.pop().close()


def model(
    server: ModelServer, waits: Callable[[str], None] = lambda _text: None, **options: Any
) -> RemoteModel:
    teacher = RemoteScores(url=server.url, model="m", **options)
    connection = RemoteConnection(Origin.of(server.url), ["127.0.0.1"], teacher.timeout)
    OPEN.append(connection)
    return RemoteModel(teacher, connection, 3, waits, PAUSES.append)


def failure(server: ModelServer, **options: Any) -> RemoteFailed:
    with pytest.raises(RemoteFailed) as refused:
        model(server, **options).scores(ROWS)
    return refused.value


def test_scores_come_to_the_last_bit_over_one_connection(server):
    asked = model(server, version="7")
    assert np.array_equal(asked.scores(ROWS), linear(ROWS))
    assert np.array_equal(asked.scores(ROWS[:1]), linear(ROWS[:1]))
    assert server.paths == ["/v2/models/m/versions/7", *["/v2/models/m/versions/7/infer"] * 2]


def test_a_server_that_describes_nothing_is_asked_by_the_names_given(server):
    server.metadata = {"name": "m"}
    assert np.array_equal(model(server).scores(ROWS), linear(ROWS))
    assert model(server, output_name="scores", input_name="x").scores(ROWS).shape == (3, 3)
    assert failure(server, output_name="proba").reason == "remote_output"


def test_rows_take_datatype_and_shape_of_the_input(server):
    server.metadata["inputs"] = [{"name": "x", "datatype": "FP32", "shape": [-1, 2, 1]}]
    server.score = lambda rows: linear(rows[:, :, 0])
    scores = model(server).scores(ROWS)
    assert server.asked[0].shape == (3, 2, 1)
    assert np.array_equal(server.asked[0][:, :, 0], ROWS.astype(np.float32).astype(float))
    assert np.allclose(scores, linear(ROWS), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [-1, 2]}]}, "remote_wrong_datatype"),
        ({"inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 3]}]}, "remote_wrong_shape"),
        ({"inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, -1, 2]}]}, "remote_wrong_shape"),
        ({"inputs": [{"name": name, "datatype": "FP64", "shape": [-1, 2]} for name in "ab"]}, "remote_input"),
        ({"outputs": [{"name": "scores", "datatype": "INT64", "shape": [-1, 3]}]}, "remote_wrong_datatype"),
        ({"outputs": [{"name": "scores", "datatype": "FP64", "shape": [-1, 4]}]}, "remote_wrong_shape"),
        (
            {"outputs": [{"name": name, "datatype": "FP64", "shape": [-1, 3]} for name in "ab"]},
            "remote_output",
        ),
        ({"inputs": "x"}, "remote_bad_answer"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_any_row_is_sent(server, change, code):
    server.metadata |= change
    assert failure(server).reason == code
    assert server.asked == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"datatype": "INT64"}, "remote_wrong_datatype"),
        ({"datatype": "BYTES"}, "remote_wrong_datatype"),
        ({"shape": [3, 2]}, "remote_wrong_shape"),
        ({"shape": [2, 3]}, "remote_wrong_shape"),
        ({"shape": [9]}, "remote_wrong_shape"),
        ({"data": [0.0] * 8}, "remote_wrong_shape"),
        ({"data": [[0.0] * 9]}, "remote_wrong_shape"),
        ({"data": [[0.0, 0.0], [0.0]]}, "remote_bad_answer"),
        ({"data": ["0.0"] * 9}, "remote_bad_answer"),
        ({"data": [True] * 9}, "remote_bad_answer"),
        ({"data": [None] * 9}, "remote_bad_answer"),
        ({"data": {"a": 1}}, "remote_bad_answer"),
        ({"data": [float("nan")] * 9}, "remote_bad_answer"),
        ({"data": [float("inf")] * 9}, "remote_bad_answer"),
        ({"name": "other"}, "remote_output"),
    ],
)
def test_an_answer_of_another_kind_is_refused(server, change, code):
    server.change = lambda output: output | change
    assert failure(server).reason == code
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"outputs": []}', b'{"outputs": 1}', b"[" * 100_000, b"\xff", b'{"outputs": [{}]}'],
)
def test_an_answer_that_is_not_of_the_protocol_is_refused(server, body):
    server.canned = [(200, {}, body)]
    assert failure(server).reason == "remote_bad_answer"


NUMBERS = b'{"outputs": [{"name": "scores", "datatype": "FP64", "shape": [3, 3], "data": %s}]}'
HOSTILE = {
    "numbers": NUMBERS % (b"[" + b"1," * 400_000 + b"1]"),
    "empty lists": NUMBERS % (b"[" + b"[]," * 300_000 + b"[]]"),
    "deep lists": NUMBERS % (b"[" * 400_000 + b"]" * 400_000),
    "outputs": b'{"outputs": [' + b'{"name":"s","datatype":"FP64","shape":[],"data":0},' * 20_000 + b"{}]}",
    "axes": (NUMBERS % b"[1]").replace(b"[3, 3]", b"[" + b"1000," * 200_000 + b"1]"),
    "other fields": b'{"outputs": [], "parameters": {"a": [' + b"{}," * 300_000 + b"{}]}}",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_an_answer_is_refused_before_its_many_elements_become_objects(server, body):
    """64 MiB of empty lists, which the size allows for a million scores, took 2.6 GB as objects."""
    asked = model(server)
    asked.scores(ROWS)
    assert len(body) < 2**20
    server.canned = [(200, {}, body)]
    tracemalloc.start()
    try:
        with pytest.raises(RemoteFailed) as refused:
            asked.scores(ROWS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.reason in {"remote_bad_answer", "remote_wrong_shape"}
    # The body itself is in memory up to three times: as pieces, as a whole and as its data.
    assert peak < 4 * len(body) + 2**20


def test_numbers_too_large_for_a_float_are_refused(server):
    text = json.dumps({"outputs": [{"name": "scores", "datatype": "FP64", "shape": [3, 3], "data": [0] * 9}]})
    server.canned = [(200, {}, text.replace("[0,", "[1e999,").encode())]
    assert failure(server).reason in {"remote_not_finite", "remote_bad_answer"}


def test_nested_and_whole_numbers_are_scores(server):
    server.change = lambda output: output | {"data": [[1, 2, 3], [4, 5, 6], [7, 8, 9]]}
    assert model(server).scores(ROWS).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]


def test_an_answer_that_is_too_large_is_refused(server):
    server.canned = [(200, {}, b" " * (2**20 + 3 * 3 * 64 + 1))]
    assert failure(server).reason == "remote_answer_too_large"


def test_faults_of_the_server_are_waited_for_longer_and_longer(server):
    server.canned = [
        (503, {}, b""),
        (500, {}, b'{"error": "model\\ncrashed"}'),
        (429, {"Retry-After": "9"}, b""),
    ]
    reasons: list[str] = []
    assert np.array_equal(model(server, reasons.append).scores(ROWS), linear(ROWS))
    assert PAUSES == [0.5, 1.0, 9.0]
    assert "503" in reasons[0]
    assert "model crashed" in reasons[1]
    assert server.rows == 3


def test_after_the_last_attempt_the_job_fails_with_the_reason(server):
    server.canned = [(503, {}, b"")] * 9
    found = failure(server, retries=8)
    assert found.reason == "remote_unavailable"
    assert "9 attempts" in found.message
    assert "503" in found.message
    assert PAUSES == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("status", "code"), [(400, "remote_refused"), (401, "remote_refused"), (404, "remote_no_model")]
)
def test_a_refusal_is_not_repeated(server, status, code):
    server.canned = [(status, {}, b'{"error": "no such thing"}')] * 2
    found = failure(server)
    assert found.reason == code
    assert "no such thing" in found.message
    assert len(server.canned) == 1


def test_an_unknown_model_is_named(server):
    server.metadata = None
    assert failure(server).reason == "remote_no_model"
    assert PAUSES == []
