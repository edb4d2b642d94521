"""Queries over HTTP in every format: tensors, .npy, compressed bodies, several classes, explanations."""

from __future__ import annotations

import asyncio
import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from app.services.keys import create_key
from app.store.unit_of_work import Store
from core.packed import LinearBasis, LinearForm, PackedStudent, PolytopeForm, RbfBasis, SigmoidCalibration
from tests.system.published import linear_student, linear_teacher, publish

Check = Callable[..., dict[str, Any]]
CAT = "/v1/models/pets/classes/cat:query"
PETS = "/v1/models/pets:query"
SEAL = "/v1/models/sea/classes/seal:query"
ROWS = np.array([[0.25, -1.0, 7.0], [-3.5, 2.0, 0.0], [1e-3, 0.0, -2.0]])


def tensor(values: ArrayLike, dtype: str = "float32", **headers: str) -> dict[str, Any]:
    array = np.asarray(values, dtype)
    shape = ",".join(map(str, array.shape))
    little = array.astype(array.dtype.newbyteorder("<"))
    return {
        "content": little.tobytes(),
        "headers": {
            "content-type": "application/octet-stream",
            "x-tensor-shape": shape,
            "x-tensor-dtype": dtype,
            **headers,
        },
    }


def npy(array: NDArray[Any], *, version: tuple[int, int] = (1, 0), **headers: str) -> dict[str, Any]:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version, allow_pickle=False)
    return {"content": stream.getvalue(), "headers": {"content-type": "application/x-npy", **headers}}


@pytest.fixture
def sea(store: Store) -> dict[str, PackedStudent]:
    """Version 1 of model "sea": a calibrated kernel student, one on the same map, and a linear one."""
    rng = np.random.default_rng(5)
    shared = RbfBasis(rng.normal(size=3), np.full(3, 0.4), rng.normal(size=(6, 3)))

    def student(label: str, packed: Any, **more: Any) -> PackedStudent:
        p = packed.n_basis
        return PackedStudent(
            packed,
            LinearForm(rng.normal(size=p), 0.1, rng.normal(size=p), -0.2),
            threshold=0.05,
            label=label,
            **more,
        )

    students = {
        "seal": student("seal", shared, calibration=SigmoidCalibration(1.5, -0.25)),
        "orca": student("orca", shared),
        "crab": student("crab", LinearBasis(3)),
    }
    publish(store, "sea", students, linear_teacher(list(students), np.eye(3)))
    return students


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_raw_tensor_of_many_rows_gets_the_answer_of_json(standing, dtype: str):
    answer = standing.post(CAT, **tensor(ROWS, dtype)).json()
    given = ROWS.astype(dtype).astype(float).tolist()
    assert answer == standing.post(CAT, json={"rows": given}).json()


def test_a_raw_tensor_of_one_axis_is_one_row(standing):
    answer = standing.post(CAT, **tensor(ROWS[1], "float64")).json()
    assert answer == standing.post(CAT, json={"x": ROWS[1].tolist()}).json()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", ["<f4", "<f8", ">f4", ">f8", "<f2", "i1", "<i4", ">i8", "u1", "<u8", "?"])
@pytest.mark.filterwarnings("ignore:Stored array in format:UserWarning")
def test_an_npy_body_gets_the_answer_of_json(standing, dtype: str, version: tuple[int, int]):
    table = np.array([[1, 0, 1], [0, 0, 1]]).astype(dtype)
    expected = standing.post(CAT, json={"rows": table.astype(float).tolist()}).json()
    assert standing.post(CAT, **npy(table, version=version)).json() == expected


def test_an_npy_body_in_fortran_order_keeps_its_rows(standing):
    table = np.asfortranarray(ROWS)
    assert standing.post(CAT, **npy(table)).json() == standing.post(CAT, json={"rows": ROWS.tolist()}).json()
    assert standing.post(CAT, **npy(ROWS[2])).json()["score"] == ROWS[2, 0]


def test_scores_are_raw_on_request(standing):
    response = standing.post(CAT, **tensor(ROWS, accept="application/octet-stream"))
    assert response.headers["content-type"] == "application/octet-stream"
    np.testing.assert_array_equal(np.frombuffer(response.content, "<f8"), ROWS[:, 0].astype("f4"))
    named = {name: response.headers[name] for name in response.headers if name.startswith("x-")}
    assert named.pop("x-request-id")
    assert named == {
        "x-tensor-shape": "3",
        "x-tensor-dtype": "float64",
        "x-tensor-columns": "score",
        "x-model": "pets",
        "x-model-version": "1",
        "x-threshold": "0.0",
    }
    one = standing.post(CAT, json={"x": [4, 5, 6]}, headers={"accept": "application/octet-stream"})
    assert np.frombuffer(one.content, "<f8").tolist() == [4.0]


def test_scores_are_npy_if_accept_prefers_it(standing):
    accept = "application/json;q=0.4, application/x-npy;q=0.9, text/html;q=x, application/octet-stream;q=0.8"
    response = standing.post(CAT, json={"rows": ROWS.tolist()}, headers={"accept": accept})
    assert response.headers["content-type"] == "application/x-npy"
    scores = np.load(io.BytesIO(response.content), allow_pickle=False)
    np.testing.assert_array_equal(scores, ROWS[:, 0])
    assert standing.post(CAT, json={"x": [1, 2, 3]}, headers={"accept": "text/html"}).json()["match"] is True


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"x-tensor-shape": "4,3"}, "wrong_length", "X-Tensor-Shape"),
        ({"x-tensor-shape": "3,3,1"}, "bad_header", "X-Tensor-Shape"),
        ({"x-tensor-shape": "-3,3"}, "bad_header", "X-Tensor-Shape"),
        ({"x-tensor-shape": "9" * 13}, "bad_header", "X-Tensor-Shape"),
        ({"x-tensor-shape": ""}, "bad_header", "X-Tensor-Shape"),
        ({"x-tensor-dtype": "float16"}, "bad_header", "X-Tensor-Dtype"),
        ({"x-tensor-dtype": ""}, "bad_header", "X-Tensor-Dtype"),
        ({"x-tensor-shape": "9"}, "wrong_columns", "x"),
        ({"x-tensor-shape": "1,9"}, "wrong_columns", "rows"),
    ],
)
def test_a_tensor_that_does_not_match_its_headers_is_refused(
    standing, problem: Check, change: dict[str, str], code: str, field: str
):
    asked = tensor(ROWS)
    [fault] = problem(standing.post(CAT, **asked | {"headers": asked["headers"] | change}), 400, code)[
        "errors"
    ]
    assert fault["field"] == field


def test_a_tensor_of_too_many_rows_is_refused(make_client, pets, problem: Check):
    client = make_client(max_query_rows=2)
    problem(client.post(CAT, **tensor(ROWS)), 413, "too_many_rows")
    assert client.post(CAT, **tensor(ROWS[:2])).status_code == 200


@pytest.mark.parametrize("write", [tensor, npy])
@pytest.mark.parametrize(
    ("value", "code"),
    [(np.nan, "not_finite"), (np.inf, "not_finite"), (-np.inf, "not_finite"), (1e150, "too_large")],
)
def test_an_error_names_a_bad_number_in_a_tensor(
    standing, problem: Check, write: Callable[..., dict[str, Any]], value: float, code: str
):
    table = np.ones((40_000, 3))
    table[31_234, 2] = value
    asked = tensor(table, "float64") if write is tensor else npy(table)
    [fault] = problem(standing.post(CAT, **asked), 400, code)["errors"]
    assert (fault["field"], fault["row"], fault["column"]) == ("rows", 31_234, 2)
    assert "31234" in fault["message"]
    assert fault["message"].startswith("rows, row 31234")
    asked = tensor(table[31_234], "float64") if write is tensor else npy(table[31_234])
    [fault] = problem(standing.post(CAT, **asked), 400, code)["errors"]
    assert (fault["field"], fault["row"], fault["column"]) == ("x", 0, 2)


def test_a_long_double_beyond_float64_is_refused_without_warning(standing, problem: Check):
    table = np.full((1, 3), np.longdouble("1e4000"))
    problem(standing.post(CAT, **npy(table)), 400, "not_finite")


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)],
)
def test_compressed_bodies_are_decompressed(standing, encoding: str, pack: Callable[[bytes], bytes]):
    headers = {"content-encoding": encoding}
    assert standing.post(CAT, content=pack(b'{"x": [3, 2, 1]}'), headers=headers).json()["score"] == 3.0
    asked = tensor(ROWS, "float64")
    response = standing.post(CAT, content=pack(asked["content"]), headers=asked["headers"] | headers)
    assert [r["score"] for r in response.json()["results"]] == ROWS[:, 0].tolist()


def test_a_decompression_bomb_is_refused_at_the_limit(make_client, pets, problem: Check):
    client = make_client(max_query_bytes=4 * 1024**2)
    headers = {"content-encoding": "gzip"}
    problem(
        client.post(CAT, content=gzip.compress(bytes(64 * 1024**2)), headers=headers), 413, "body_too_large"
    )
    small = gzip.compress(bytes(2 * 1024**2))
    problem(client.post(CAT, content=small, headers=headers), 413, "body_unpacks_too_far")


@pytest.mark.parametrize("how", ["body", "query string"])
def test_gate_and_rejection_are_included_on_request(client, sea, how: str):
    x = [0.5, -0.25, 1.0]
    body, params = ({"explain": True}, {}) if how == "body" else ({}, {"explain": "true"})
    student = sea["seal"]
    answer = client.post(SEAL, json={"x": x, **body}, params=params).json()
    assert answer["score"] == pytest.approx(student.score(x), rel=1e-12)
    assert answer["gate"] == pytest.approx(student.gate([x])[0], rel=1e-12)
    assert answer["rejection"] == pytest.approx(student.rejection([x])[0], rel=1e-9)
    assert answer["gate"] - answer["rejection"] == pytest.approx(answer["score"], rel=1e-12)
    assert answer["probability"] == pytest.approx(student.probability(x), rel=1e-12)
    many = client.post(SEAL, json={"rows": [x, [0, 0, 0]], **body}, params=params).json()["results"]
    names = ("match", "score", "threshold", "probability", "gate", "rejection")
    assert [list(result) for result in many] == [list(names)] * 2
    assert [many[0][name] for name in names] == pytest.approx([answer[name] for name in names], rel=1e-12)


def test_calibrated_students_include_a_probability(client, sea):
    assert "probability" in client.post(SEAL, json={"x": [1, 2, 3]}).json()
    rows = client.post(SEAL, json={"rows": ROWS.tolist()}).json()["results"]
    expected = sea["seal"].probabilities(ROWS)
    np.testing.assert_allclose([row["probability"] for row in rows], expected, rtol=1e-12)
    answer = client.post("/v1/models/sea/classes/orca:query", json={"x": [1, 2, 3]}).json()
    assert "probability" not in answer
    assert "gate" not in answer


def test_an_explained_binary_answer_names_its_columns(client, sea):
    headers = {"accept": "application/octet-stream"}
    response = client.post(SEAL, json={"rows": ROWS.tolist(), "explain": True}, headers=headers)
    assert response.headers["x-tensor-columns"] == "score,probability,gate,rejection"
    assert response.headers["x-tensor-shape"] == "3,4"
    table = np.frombuffer(response.content).reshape(3, 4)
    student = sea["seal"]
    np.testing.assert_allclose(table[:, 0], student.scores(ROWS), rtol=1e-12)
    np.testing.assert_allclose(table[:, 1], student.probabilities(ROWS), rtol=1e-12)
    np.testing.assert_allclose(table[:, 2], student.gate(ROWS), rtol=1e-12)
    one = client.post(
        "/v1/models/sea/classes/orca:query", json={"x": [1, 2, 3], "explain": True}, headers=headers
    )
    assert (one.headers["x-tensor-columns"], one.headers["x-tensor-shape"]) == ("score,gate,rejection", "3")


@pytest.fixture
def fish(store: Store) -> dict[str, PackedStudent]:
    """Version 1 of model "fish": the rejections of cod are x₀ and x₁, against the gate 2; eel has one."""
    two = PolytopeForm([[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]], [2.0, 2.0], np.zeros(3), 2.0)
    one = LinearForm([1.0, 0.0, 0.0], 0.0, np.zeros(3), 0.0)
    students = {"cod": PackedStudent(LinearBasis(3), two, 0.0, "cod")}
    students["eel"] = PackedStudent(LinearBasis(3), one, 0.0, "eel")
    publish(store, "fish", students, linear_teacher(list(students), np.eye(3)[:2]))
    return students


def test_an_explained_answer_tells_which_of_several_rejections_decides(client, fish):
    cod, both = "/v1/models/fish/classes/cod:query", "/v1/models/fish:query"
    asked = {"x": [1.0, 5.0, 0.0], "explain": True}
    answer = client.post(cod, json=asked).json()
    told = {name: answer[name] for name in ("match", "score", "gate", "rejection", "piece")}
    assert told == {"match": False, "score": -3.0, "gate": 2.0, "rejection": 5.0, "piece": 1}
    assert client.post(cod, json=asked | {"x": {"indices": [1], "values": [5.0]}}).json()["piece"] == 1
    assert "piece" not in client.post(cod, json={"x": [1.0, 5.0, 0.0]}).json()
    rows = {"rows": [[1.0, 5.0, 0.0], [1.0, 0.5, 0.0]], "explain": True}
    many = client.post(cod, json=rows).json()["results"]
    assert [(row["score"], row["rejection"], row["piece"]) for row in many] == [(-3, 5, 1), (1, 1, 0)]
    of_cod, of_eel = client.post(both, json=asked | {"classes": ["cod", "eel"]}).json()["classes"]
    assert (of_cod["piece"], "piece" in of_eel) == (1, False)
    of_cod, of_eel = client.post(both, json=rows | {"classes": ["cod", "eel"]}).json()["classes"]
    assert ([row["piece"] for row in of_cod["results"]], "piece" in of_eel["results"][0]) == ([1, 0], False)
    raw = client.post(cod, json=rows, headers={"accept": "application/octet-stream"})
    assert raw.headers["x-tensor-columns"] == "score,gate,rejection,piece"
    assert np.frombuffer(raw.content).reshape(2, 4)[:, 3].tolist() == [1.0, 0.0]
    raw = client.post(
        f"{both}?class=cod&class=eel&explain=true", **tensor(rows["rows"], accept="application/x-npy")
    )
    assert raw.headers["x-tensor-columns"] == "score,gate,rejection"


@pytest.mark.parametrize("explain", [False, True])
def test_a_sparse_row_is_the_row_with_zeros_for_every_map(client, sea, explain: bool):
    sparse, dense = {"indices": [2, 0], "values": [0.5, -1.0]}, [-1.0, 0.0, 0.5]
    classes = ["crab", "seal", "orca"]
    for labels in (classes, classes[:1]):
        answers = [
            client.post("/v1/models/sea:query", json={"classes": labels, "x": x, "explain": explain}).json()
            for x in (sparse, dense)
        ]
        for here, there in zip(*(answer["classes"] for answer in answers), strict=True):
            assert here.pop("class") == there.pop("class")
            assert here == pytest.approx(there, rel=1e-12)
    for label in classes:
        path = f"/v1/models/sea/classes/{label}:query"
        scores = [client.post(path, json={"x": x}).json()["score"] for x in (sparse, dense)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-12)


def test_several_classes_are_answered_in_their_order(client, sea):
    body = {"classes": ["crab", "seal", "orca"], "x": [0.5, -0.25, 1.0]}
    answer = client.post("/v1/models/sea:query", json=body).json()
    assert (answer["model"], answer["version"]) == ("sea", 1)
    assert [entry.pop("class") for entry in answer["classes"]] == body["classes"]
    for label, entry in zip(body["classes"], answer["classes"], strict=True):
        alone = client.post(f"/v1/models/sea/classes/{label}:query", json={"x": body["x"]}).json()
        assert entry == {name: alone[name] for name in entry}
        assert ("probability" in entry) == (label == "seal")


@pytest.mark.parametrize("explain", [False, True])
def test_several_classes_answer_many_rows(client, sea, explain: bool):
    body = {"classes": ["orca", "crab", "seal"], "rows": ROWS.tolist(), "explain": explain}
    answer = client.post("/v1/models/sea@1:query", json=body).json()
    for entry in answer["classes"]:
        path = f"/v1/models/sea/classes/{entry['class']}:query"
        alone = client.post(path, json={"rows": body["rows"], "explain": explain}).json()["results"]
        for here, there in zip(entry["results"], alone, strict=True):
            assert here == pytest.approx(there, rel=1e-12)
    raw = client.post("/v1/models/sea@1:query", json=body, headers={"accept": "application/octet-stream"})
    table = np.frombuffer(raw.content).reshape(
        [int(size) for size in raw.headers["x-tensor-shape"].split(",")]
    )
    assert table.shape == ((3, 3, 3) if explain else (3, 3))
    scores = table[:, :, 0] if explain else table
    expected = np.transpose([sea[label].scores(ROWS) for label in body["classes"]])
    np.testing.assert_allclose(scores, expected, rtol=1e-12)
    assert raw.headers["x-threshold"] == "0.05,0.05,0.05"


def test_classes_can_be_named_in_the_query_string(standing):
    label = quote("größe/1:x")
    asked = tensor(ROWS)
    answer = standing.post(f"{PETS}?class=dog&class={label}", **asked).json()
    assert [entry["class"] for entry in answer["classes"]] == ["dog", "größe/1:x"]
    assert [r["score"] for r in answer["classes"][0]["results"]] == ROWS[:, 1].tolist()
    one = standing.post(f"{PETS}?class=dog&explain=false", json={"x": [1, 2, 3]}).json()
    assert one["classes"][0]["score"] == 2.0
    sparse = {"x": {"indices": [1], "values": [7]}}
    assert standing.post(f"{PETS}?class=dog", json=sparse).json()["classes"][0]["score"] == 7.0


def test_one_error_names_all_unknown_classes(standing, problem: Check):
    body = {"classes": ["cat", "bird", "dog", "newt"], "x": [1, 2, 3]}
    document = problem(standing.post(PETS, json=body), 404, "class_not_found")
    assert "'bird', 'newt'" in document["detail"]
    assert "bird" in document["errors"][0]["message"]
    many = {"classes": [f"c{i}" for i in range(15)], "x": [1, 2, 3]}
    detail = problem(standing.post(PETS, json=many), 404, "class_not_found")["detail"]
    assert "'c9' and 5 more. Version 1 of model 'pets' has no class 'c0'; it has 4 classes" in detail
    problem(standing.post("/v1/models/cats:query", json=body), 404, "model_not_found")
    problem(standing.post("/v1/models/pets@9:query", json=body), 404, "version_not_found")


@pytest.mark.usefixtures("keys_required")
def test_a_key_limited_to_models_can_query_only_these(client, pets, sea, store: Store, problem: Check):
    _, text = create_key(store, "reader", {"query"}, {"pets"})
    client.refresh()
    headers = {"authorization": f"Bearer {text}"}
    for _ in range(2):
        body = {"classes": ["cat", "dog"], "x": [1, 2, 3]}
        assert client.post(PETS, json=body, headers=headers).status_code == 200
        body["classes"] = ["seal"]
        problem(client.post("/v1/models/sea:query", json=body, headers=headers), 403, "model_not_allowed")
        problem(client.post(PETS, json=body), 401, "key_required")


def test_large_queries_are_evaluated_in_a_thread(client, sea, pets):
    rows = np.random.default_rng(0).normal(size=(4000, 3))
    asked = tensor(rows, "float64", accept="application/octet-stream")
    response = client.post("/v1/models/sea:query?class=seal&class=orca", **asked)
    expected = np.transpose([sea["seal"].scores(rows), sea["orca"].scores(rows)])
    np.testing.assert_allclose(np.frombuffer(response.content).reshape(-1, 2), expected, rtol=1e-12)
    packed = gzip.compress(asked["content"])
    headers = asked["headers"] | {"content-encoding": "gzip"}
    response = client.post("/v1/models/pets:query?class=cat", content=packed, headers=headers)
    np.testing.assert_array_equal(np.frombuffer(response.content), rows[:, 0])


def test_several_classes_are_of_one_version_even_if_the_alias_moves(
    client, pets, publish_again, monkeypatch: pytest.MonkeyPatch
):
    cache = client.context.cache
    real = cache.student

    cat_is_there = asyncio.Event()

    async def moving(reference: str, label: str) -> Any:
        if label == "dog" and reference == "default/pets":
            await cat_is_there.wait()
            publish_again()
            await client.context.refresher.refresh("default/pets")
        served = await real(reference, label)
        cat_is_there.set()
        return served

    monkeypatch.setattr(cache, "student", moving)
    answer = client.post(PETS, json={"classes": ["cat", "dog"], "x": [1, 2, 3]}).json()
    assert answer["version"] == 2
    assert [entry["score"] for entry in answer["classes"]] == [-1.0, -2.0]


def test_the_teacher_accepts_the_same_formats(standing, problem: Check):
    path = "/v1/models/pets:predict"
    labels = [r["label"] for r in standing.post(path, json={"rows": ROWS.tolist()}).json()["results"]]
    for asked in (tensor(ROWS), npy(ROWS)):
        assert [r["label"] for r in standing.post(path, **asked).json()["results"]] == labels
    packed = tensor(ROWS, **{"content-encoding": "gzip"})
    packed["content"] = gzip.compress(packed["content"])
    assert [r["label"] for r in standing.post(path, **packed).json()["results"]] == labels
    one = standing.post(path, **tensor(ROWS[0]), params={"scores": "true"}).json()
    assert (one["label"], one["scores"]["cat"]) == (labels[0], 0.25)
    asked = standing.post(path, **tensor(ROWS[0]), params={"target": "cat"}).json()
    assert (asked["target"], asked["match"]) == ("cat", False)
    bad = tensor([[1, 2, 3], [1, np.nan, 3]])
    [fault] = problem(standing.post(path, **bad), 400, "not_finite")["errors"]
    assert (fault["field"], fault["row"], fault["column"]) == ("rows", 1, 1)


def test_a_sum_beyond_float64_is_refused_in_every_format(client, store: Store, problem: Check):
    huge = linear_student("a", [1e300, 1e300])
    opposed = PackedStudent(
        LinearBasis(2), LinearForm(np.array([1e308, 0.0]), 0.0, np.array([-1e308, 0.0]), 0.0), 0.0, "b"
    )
    publish(store, "huge", {"a": huge, "b": opposed}, linear_teacher(["a", "b"], np.eye(2)))
    path = "/v1/models/huge/classes/a:query"
    table = np.ones((5, 2))
    table[3] = 1e90
    [fault] = problem(client.post(path, **tensor(table, "float64")), 400, "out_of_range")["errors"]
    assert fault["row"] == 3
    problem(client.post(path, **tensor(table[3], "float64")), 400, "out_of_range")
    # Score and gate are finite, their difference is not.
    path = "/v1/models/huge/classes/b:query"
    for _ in range(2):
        assert client.post(path, json={"x": [1.0, 0.0]}).status_code == 200
        problem(client.post(path, json={"x": [1.0, 0.0], "explain": True}), 400, "out_of_range")
        problem(client.post(path, json={"rows": [[1.0, 0.0]], "explain": True}), 400, "out_of_range")


def test_the_openapi_document_describes_every_format(client):
    paths = client.get("/openapi.json").json()["paths"]
    forms = {"application/json", "application/octet-stream", "application/x-npy"}
    for path in ("/v1/models/{model}/classes/{class}:query", "/v1/models/{model}:query"):
        operation = paths[path]["post"]
        assert _contents(operation) == forms
        assert set(operation["responses"]["200"]["content"]) == forms
        named = {parameter["name"] for parameter in operation["parameters"]}
        assert {"model", "class", "explain", "X-Tensor-Shape", "X-Tensor-Dtype", "Content-Encoding"} == named
        assert "X-Threshold" in operation["responses"]["200"]["headers"]
        assert operation["requestBody"]["content"]["application/json"]["examples"]
    teacher = paths["/v1/models/{model}:predict"]["post"]
    assert _contents(teacher) == forms
    named = {parameter["name"] for parameter in teacher["parameters"]}
    assert {"model", "scores", "target", "X-Tensor-Shape"} <= named


def _contents(operation: dict[str, Any]) -> set[str]:
    """The content types of a request body, also those that generators of clients cannot read."""
    return operation["requestBody"]["content"].keys() | operation["requestBody"]["x-content"].keys()
