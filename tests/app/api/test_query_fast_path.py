"""The fast path of warm queries gives the same responses as the ASGI path."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from app.domain.entities import Caller
from app.services.keys import create_key
from app.settings import Settings
from core.packed import evaluation
from tests.app.api.fast_path import as_response, fast_answer, prepare

X = [1.5, -2.0, 0.25]
TARGET = b"/v1/models/pets/classes/cat:query"


def body_of(**content: Any) -> bytes:
    return json.dumps(content).encode()


class Paths:
    """The fast path and the ASGI path of a started server."""

    def __init__(self, client: Any, key: str) -> None:
        self.client, self.key = client, key

    def headers(self, body: bytes, **more: str) -> dict[str, str]:
        base = {"authorization": f"Bearer {self.key}", "content-length": str(len(body))}
        return base | {name.replace("_", "-"): value for name, value in more.items()}

    def fast(self, target: bytes, body: bytes, **more: str) -> tuple[dict[str, str], bytes] | None:
        return fast_answer(self.client, target, self.headers(body, **more), body)

    def asgi(self, target: bytes, body: bytes, **more: str) -> Any:
        return self.client.post(target.decode(), content=body, headers=self.headers(body, **more))


@pytest.fixture
def paths(make_client, store, pets) -> Paths:
    key = create_key(store, "tests", {"query"}, {"pets"})[1]
    paths = Paths(make_client(require_keys=True), key)
    assert paths.asgi(TARGET, body_of(x=X)).status_code == 200
    return paths


def test_both_paths_give_the_same_response(paths):
    for body in (body_of(x=X), body_of(rows=[X, X]), body_of(x={"indices": [0], "values": [2]})):
        answered = paths.asgi(TARGET, body, x_request_id="mine")
        response = paths.fast(TARGET, body, x_request_id="mine")
        assert response is not None
        headers, data = response
        assert data == answered.content
        assert headers == dict(answered.headers)


def test_every_response_has_its_own_request_id(paths):
    names = {paths.fast(TARGET, body_of(x=X))[0]["x-request-id"] for _ in range(3)}
    assert len(names) == 3
    assert paths.fast(TARGET, body_of(x=X), x_request_id='bad "name"')[0]["x-request-id"] != 'bad "name"'


def test_queries_on_the_fast_path_are_counted(paths):
    before = paths.client.context.metrics.counts()["pets"]
    paths.fast(TARGET, body_of(x=X))
    paths.fast(TARGET, body_of(rows=[X, X, X]))
    paths.fast(TARGET, b"nonsense")
    after = paths.client.context.metrics.counts()["pets"]
    assert after.statuses["200"] - before.statuses["200"] == 2
    assert after.rows - before.rows == 4
    assert sum(after.buckets) - sum(before.buckets) == 2
    assert after.statuses.keys() == {"200"}


@pytest.mark.parametrize(
    ("target", "body", "status"),
    [
        (TARGET, b"nonsense", 400),
        (TARGET, body_of(x=[1.0]), 400),
        (TARGET.replace(b"cat", b"unknown"), body_of(x=X), 404),
        (b"/v1/models/others/classes/cat:query", body_of(x=X), 403),
        (b"/v1/models/pets:query", body_of(x=X, classes=["cat"]), 200),
        (TARGET.replace(b"cat", b"dog"), body_of(x=X), 200),
        (b"/v1/models/pets/classes/cat?x=:query", body_of(x=X), 404),
        (b"/v2/models/pets:query", body_of(x=X), 405),
    ],
)
def test_requests_other_than_warm_queries_take_the_asgi_path(paths, target, body, status):
    assert paths.fast(target, body) is None
    assert paths.asgi(target, body).status_code == status


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"authorization": "Bearer stms_key_000000000000000000000000_" + "x" * 43}, 401),
        ({"authorization": "Basic x"}, 401),
        ({"content_encoding": "br"}, 415),
        ({"content_length": "3x"}, 400),
    ],
)
def test_unusual_headers_take_the_asgi_path(paths, more, status):
    assert paths.fast(TARGET, body_of(x=X), **more) is None
    assert paths.asgi(TARGET, body_of(x=X), **more).status_code == status


def test_other_formats_have_the_same_answer_on_both_paths(paths):
    tensor = {
        "content_type": "application/octet-stream",
        "x_tensor_shape": "2,3",
        "x_tensor_dtype": "float32",
    }
    table = np.array([X, X], np.float32).tobytes()
    for body, more in (
        (body_of(x=X), {"accept": "application/x-npy"}),
        (table, tensor),
        (table, tensor | {"accept": "application/octet-stream"}),
    ):
        named = more | {"x_request_id": "mine"}
        answered = paths.asgi(TARGET, body, **named)
        assert answered.status_code == 200, answered.text
        headers, data = paths.fast(TARGET, body, **named)
        assert (data, headers) == (answered.content, dict(answered.headers))


def arrived(paths: Paths, body: bytes, cuts: list[int], **more: str) -> tuple[dict[str, str], bytes] | None:
    """The response to a body that arrives in pieces; None if it has no immediate one."""
    memory = np.full(len(body), 255, np.uint8).data
    arriving = prepare(paths.client, TARGET, paths.headers(body, **more)).arriving(memory)
    assert arriving is not None
    for start, stop in pairwise([0, *cuts, len(body)]):
        memory[start:stop] = body[start:stop]
        arriving.progress(stop)
    return as_response(arriving.answer(memory))


@pytest.mark.parametrize("accept", ["application/octet-stream", "application/json"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_that_are_scored_while_they_arrive_have_the_same_answer(paths, monkeypatch, dtype, accept):
    monkeypatch.setattr(evaluation, "_CACHED_ENTRIES", 300)
    body = np.random.default_rng(1).normal(size=(1001, 3)).astype(dtype).tobytes()
    tensor = {"content_type": "application/octet-stream", "accept": accept, "x_request_id": "mine"}
    tensor |= {"x_tensor_shape": "1001,3", "x_tensor_dtype": dtype}
    answered = paths.asgi(TARGET, body, **tensor)
    assert answered.status_code == 200, answered.text
    for cuts in ([], [7], [5000, 5001, 9000]):
        assert arrived(paths, body, cuts, **tensor) == (dict(answered.headers), answered.content)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_with_an_unusable_number_are_left_to_the_asgi_path_as_they_arrive(paths, dtype):
    table = np.ones((1001, 3), dtype)
    table[17, 2] = np.nan
    tensor = {"content_type": "application/octet-stream", "x_tensor_shape": "1001,3", "x_tensor_dtype": dtype}
    assert arrived(paths, table.tobytes(), [6000], **tensor) is None
    answered = paths.asgi(TARGET, table.tobytes(), **tensor)
    assert (answered.status_code, "row 17" in answered.text) == (400, True), answered.text


@pytest.mark.parametrize("shape", ["3003", "1000,3", "1001,4"])
def test_a_tensor_of_another_shape_is_needed_whole(paths, shape):
    body = np.ones((1001, 3), np.float32).tobytes()
    tensor = {
        "content_type": "application/octet-stream",
        "x_tensor_shape": shape,
        "x_tensor_dtype": "float32",
    }
    assert prepare(paths.client, TARGET, paths.headers(body, **tensor)).arriving(memoryview(body)) is None


def test_non_ascii_targets_and_bodies_without_length_take_the_asgi_path(paths):
    assert paths.fast("/v1/models/pets/classes/größe:query".encode(), body_of(x=X)) is None
    assert fast_answer(paths.client, TARGET, {"authorization": f"Bearer {paths.key}"}, body_of(x=X)) is None


def test_a_server_at_its_limit_takes_the_asgi_path(paths):
    paths.client.context.budgets.queries.take(Caller("another", "key_1"), Settings().max_inflight_queries)
    assert paths.fast(TARGET, body_of(x=X)) is None
    assert paths.asgi(TARGET, body_of(x=X)).status_code == 429


def test_large_bodies_take_the_asgi_path(paths):
    body = body_of(rows=[X] * 5000)
    assert len(body) > 32 * 1024
    assert paths.fast(TARGET, body) is None
    assert paths.asgi(TARGET, body).status_code == 200


def tensor(values: Any = X, datatype: str = "FP64", shape: Any = (1, 3), **more: Any) -> dict[str, Any]:
    return {"name": "x", "shape": list(shape), "datatype": datatype, "data": values, **more}


def binary(datatype: str, rows: int = 1, **more: Any) -> tuple[bytes, int]:
    """A body with its row behind the JSON, and the length of the JSON."""
    data = np.array([X] * rows, {"FP64": "<f8", "FP32": "<f4"}[datatype]).tobytes()
    row = {"name": "x", "shape": [rows, 3], "datatype": datatype}
    head = body_of(inputs=[row | {"parameters": {"binary_data_size": len(data)}}], **more)
    return head + data, len(head)


INFER = b"/v2/models/pets:cat/infer"
INFERENCES = [
    body_of(inputs=[tensor()]),
    body_of(inputs=[tensor(shape=[3])]),
    body_of(inputs=[tensor([0.1, 0.2, 1e-3], "FP32")]),
    body_of(inputs=[tensor([[1.5, -2.0, 0.25]])], id="mine"),
    body_of(inputs=[tensor([1, 2, 3], "INT64")]),
    body_of(inputs=[tensor([*X, *X], shape=[2, 3])], outputs=[{"name": "score"}, {"name": "gate"}]),
    body_of(inputs=[tensor()], id='a "b"', parameters={"binary_data_output": True}),
]


@pytest.mark.parametrize("body", INFERENCES)
@pytest.mark.parametrize("label", [":cat", "@1:cat", ""])
def test_inferences_have_the_same_answer_on_both_paths(paths, body, label):
    if not label:
        body = body_of(**{"parameters": {"class": "cat"}, **json.loads(body)})
        if b"binary_data_output" in body:
            body = body.replace(b'{"binary_data_output"', b'{"class": "cat", "binary_data_output"')
    target = f"/v2/models/pets{label}/infer".encode()
    answered = paths.asgi(target, body, x_request_id="mine")
    assert answered.status_code == 200, answered.text
    headers, data = paths.fast(target, body, x_request_id="mine")
    assert (data, headers) == (answered.content, dict(answered.headers))


@pytest.mark.parametrize("datatype", ["FP64", "FP32"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"id": "mine"},
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "score", "parameters": {"binary_data": True}}]},
    ],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_binary_inferences_have_the_same_answer_on_both_paths(paths, datatype, more, rows):
    body, length = binary(datatype, rows, **more)
    named = {"x_request_id": "mine", "inference_header_content_length": str(length)}
    answered = paths.asgi(INFER, body, **named)
    assert answered.status_code == 200, answered.text
    for _ in range(2):
        headers, data = paths.fast(INFER, body, **named)
        assert (data, headers) == (answered.content, dict(answered.headers))


@pytest.mark.parametrize(
    ("target", "body", "more", "status"),
    [
        (INFER, b"nonsense", {}, 400),
        (INFER, body_of(inputs=[tensor([1.0])]), {}, 400),
        (INFER, body_of(inputs=[tensor([1.0], shape=[1, 1])]), {}, 400),
        (INFER, body_of(inputs=[tensor([1e300, 0, 0])]), {}, 400),
        (INFER, body_of(inputs=[tensor([1e300, 0, 0], "FP32")]), {}, 400),
        (INFER, body_of(inputs=[tensor(), tensor()]), {}, 400),
        (INFER, body_of(inputs=[tensor()], outputs=[{"name": "probability"}]), {}, 400),
        (INFER, binary("FP64")[0][:-1], {"inference_header_content_length": str(binary("FP64")[1])}, 400),
        (INFER, binary("FP64")[0], {"inference_header_content_length": "9x"}, 400),
        (INFER, body_of(inputs=[tensor()]), {"content_encoding": "br"}, 415),
        (INFER.replace(b"cat", b"bird"), body_of(inputs=[tensor()]), {}, 404),
        (INFER.replace(b"pets", b"others"), body_of(inputs=[tensor()]), {}, 403),
        (b"/v2/models/pets/infer", body_of(inputs=[tensor()]), {}, 400),
    ],
)
def test_faulty_inferences_are_left_to_the_asgi_path(paths, target, body, more, status):
    assert paths.fast(target, body, **more) is None
    assert paths.asgi(target, body, **more).status_code == status


def test_inferences_on_the_fast_path_are_in_the_statistics(paths):
    def counted() -> tuple[int, int, int]:
        [stats] = paths.client.get(
            "/v2/models/pets/stats", headers={"authorization": f"Bearer {paths.key}"}
        ).json()["model_stats"]
        return stats["inference_count"], stats["execution_count"], stats["inference_stats"]["success"]["ns"]

    body = body_of(inputs=[tensor()])
    paths.asgi(INFER, body)
    rows, times, ns = counted()
    paths.fast(INFER, body)
    paths.fast(INFER, INFERENCES[5])
    after = counted()
    assert after[:2] == (rows + 3, times + 2)
    assert after[2] > ns


PREDICT = b"/v1/models/pets:predict"


@pytest.mark.parametrize(
    "content",
    [
        {"x": X},
        {"rows": [X, X]},
        {"x": X, "scores": True},
        {"x": X, "target": "dog"},
        {"x": {"indices": [0], "values": [2]}},
    ],
)
def test_predictions_have_the_same_answer_on_both_paths(paths, content):
    body = body_of(**content)
    answered = paths.asgi(PREDICT, body, x_request_id="mine")
    assert answered.status_code == 200
    before = paths.client.context.metrics.counts()["pets"].predictions
    headers, data = paths.fast(PREDICT, body, x_request_id="mine")
    assert (data, headers) == (answered.content, dict(answered.headers))
    assert paths.client.context.metrics.counts()["pets"].predictions == before + 1


@pytest.mark.parametrize(
    ("target", "body", "status"),
    [
        (PREDICT, body_of(x=[1.0]), 400),
        (PREDICT, body_of(x=X, target="bird"), 404),
        (b"/v1/models/others:predict", body_of(x=X), 403),
        (b"/v1/models/a b:predict", body_of(x=X), 400),
    ],
)
def test_faulty_predictions_are_left_to_the_asgi_path(paths, target, body, status):
    paths.asgi(PREDICT, body_of(x=X))
    assert paths.fast(target, body) is None
    if b" " not in target:
        assert paths.asgi(target, body).status_code == status


def test_predictions_that_cost_much_are_left_to_the_asgi_path(paths, monkeypatch):
    body = body_of(rows=[X] * 4)
    paths.asgi(PREDICT, body)
    assert paths.fast(PREDICT, body) is not None
    monkeypatch.setattr("app.serving.query.prepared_prediction.INLINE_WORK", 10)
    assert paths.fast(PREDICT, body) is None


def test_the_first_prediction_loads_a_small_teacher_for_the_next_one(paths):
    cache, body = paths.client.context.cache, body_of(x=X)
    assert cache.loaded_teacher("default/pets") is None

    async def story() -> None:
        assert fast_answer(paths.client, PREDICT, paths.headers(body), body) is None
        deadline = time.monotonic() + 60
        while cache.loaded_teacher("default/pets") is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert fast_answer(paths.client, PREDICT, paths.headers(body), body) is not None

    paths.client.run(story())


def test_a_large_teacher_is_not_loaded_for_predictions(paths, monkeypatch):
    monkeypatch.setattr("app.serving.query.prepared_prediction.INLINE_WORK", 10)
    body = body_of(x=X)

    async def story() -> None:
        assert fast_answer(paths.client, PREDICT, paths.headers(body), body) is None
        await asyncio.sleep(0.2)
        assert paths.client.context.cache.loaded_teacher("default/pets") is None

    paths.client.run(story())
