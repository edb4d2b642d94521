"""Inference over the protocol: correct answers in every encoding, and a precise 4xx for every fault."""

from __future__ import annotations

import gzip
import json
import math
import struct
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from app.domain.entities import Caller
from app.domain.errors import InvalidRequest
from app.serving.open_inference import operations
from app.serving.open_inference.paths import parse_path
from app.serving.open_inference.requests import parse_inference
from app.serving.open_inference.tensors import DTYPES
from tests.refusals import refused_as

CAT = "/v2/models/pets:cat/infer"
ROWS = [[1.0, 5.0, 0.0], [0.25, -1.0, 7.0]]


def tensor(data: Any, datatype: str = "FP64", shape: Any = (2, 3), name: str = "x", **more: Any) -> dict:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": data, **more}


def request(data: Any = ROWS, datatype: str = "FP64", shape: Any = (2, 3), **more: Any) -> dict:
    return {"inputs": [tensor(data, datatype, shape)], **more}


def binary(document: dict, *data: bytes) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request with tensors behind its JSON."""
    for given, content in zip(document["inputs"], data, strict=True):
        given.pop("data", None)
        given["parameters"] = {"binary_data_size": len(content)}
    head = json.dumps(document).encode()
    return b"".join((head, *data)), {"inference-header-content-length": str(len(head))}


def outputs(response: Any) -> dict[str, list]:
    """The outputs of an answer by name, from JSON or binary, each checked for its form."""
    assert response.status_code == 200, response.text
    length = response.headers.get("inference-header-content-length")
    content = response.content
    assert response.headers["content-type"] == (
        "application/json" if length is None else "application/octet-stream"
    )
    document = json.loads(content if length is None else content[: int(length)])
    position = 0 if length is None else int(length)
    found = {}
    for output in document["outputs"]:
        assert output["datatype"] == ("BOOL" if output["name"] == "match" else "FP64")
        if "data" in output:
            found[output["name"]] = output["data"]
        else:
            size = output["parameters"]["binary_data_size"]
            dtype = "?" if output["datatype"] == "BOOL" else "<f8"
            found[output["name"]] = np.frombuffer(content[position : position + size], dtype).tolist()
            position += size
        assert output["shape"] == [len(found[output["name"]])]
    assert length is None or position == len(content)
    return found


@pytest.fixture
def refused() -> Callable[..., str]:
    """Checks that a response is an error in the protocol's form, and gives its text."""

    def check(response: Any, status: int, *words: str) -> str:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        document = response.json()
        assert list(document) == ["error"]
        for word in words:
            assert word in document["error"]
        return str(document["error"])

    return check


def test_the_answer_names_model_version_and_request(client, pets):
    answer = client.post(CAT, json=request(id="seven")).json()
    assert answer == {
        "model_name": "pets:cat",
        "model_version": "1",
        "id": "seven",
        "outputs": [
            {"name": "match", "datatype": "BOOL", "shape": [2], "data": [True, False]},
            {"name": "score", "datatype": "FP64", "shape": [2], "data": [1.0, 0.25]},
            {"name": "threshold", "datatype": "FP64", "shape": [2], "data": [0.5, 0.5]},
        ],
    }
    assert "id" not in client.post(CAT, json=request()).json()


def test_a_calibrated_student_returns_probabilities(client, calibrated):
    found = outputs(client.post(CAT, json=request()))
    assert list(found) == ["match", "score", "probability", "threshold"]
    np.testing.assert_allclose(found["probability"], [1 / (1 + math.exp(-2 * s)) for s in (1.0, 0.25)])


def test_requested_outputs_are_returned_in_their_order(client, calibrated):
    wanted = [{"name": name} for name in ("rejection", "score", "gate")]
    found = outputs(client.post(CAT, json=request(outputs=wanted)))
    assert list(found) == ["rejection", "score", "gate"]
    assert found["gate"] == [2 * sum(row) + 1 for row in ROWS]
    assert found["rejection"] == [g - s for g, s in zip(found["gate"], found["score"], strict=True)]
    assert list(outputs(client.post(CAT, json=request(outputs=[{"name": "match"}])))) == ["match"]
    assert list(outputs(client.post(CAT, json=request(outputs=[])))) == list(
        outputs(client.post(CAT, json=request(outputs=None)))
    )


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v2/models/pets:cat/infer", {}),
        ("/v2/models/pets%3Acat/infer", {}),
        ("/v2/models/pets/infer", {"parameters": {"class": "cat"}}),
        ("/v2/models/pets@latest/infer", {"parameters": {"class": "cat"}}),
        ("/v2/models/pets%40latest%3Acat/infer", {}),
        ("/v2/models/pets:cat/versions/1/infer", {}),
        ("/v2/models/pets/versions/latest/infer", {"parameters": {"class": "cat"}}),
    ],
)
def test_model_version_and_class_can_be_named_in_every_way(standing, path: str, document: dict):
    assert outputs(standing.post(path, json=request(**document)))["score"] == [1.0, 0.25]


@pytest.mark.parametrize("safe", ["", "/"])
def test_class_names_may_contain_any_character(client, pets, safe: str):
    name = quote("pets:größe/1:x", safe=safe)
    for path in (f"/v2/models/{name}/infer", f"/v2/models/{name}/versions/1/infer"):
        answer = client.post(path, json=request())
        assert outputs(answer)["score"] == [0.0, 7.0]
        assert answer.json()["model_name"] == "pets:größe/1:x"


def test_versions_and_aliases_resolve_to_their_version(client, publish_pets):
    publish_pets()
    publish_pets(sign=-1.0)
    scores = {
        version: outputs(client.post(f"/v2/models/pets:cat/versions/{version}/infer", json=request()))[
            "score"
        ][0]
        for version in ("1", "2", "latest")
    }
    assert scores == {"1": 1.0, "2": -1.0, "latest": -1.0}


@pytest.mark.parametrize("form", ["list", "nested", "binary"])
@pytest.mark.parametrize("shape", [(1,), (2,), (2, 1)])
def test_an_input_may_name_one_class_per_row(standing, form: str, shape: tuple):
    labels = ["cat", "日本"][: shape[0]]
    given = tensor([[label] for label in labels] if form == "nested" else labels, "BYTES", shape, "class")
    document = {"inputs": [tensor(ROWS), given], "outputs": [{"name": "score"}, {"name": "match"}]}
    if form == "binary":
        packed = b"".join(struct.pack("<I", len(label.encode())) + label.encode() for label in labels)
        body, headers = binary(document, np.array(ROWS).tobytes(), packed)
        answer = standing.post("/v2/models/pets/infer", content=body, headers=headers)
    else:
        answer = standing.post("/v2/models/pets/infer", json=document)
    expected = [1.0, 0.25] if shape == (1,) else [1.0, -6.25]
    assert outputs(answer) == {"score": expected, "match": [True, False]}


@pytest.mark.parametrize("datatype", list(DTYPES))
@pytest.mark.parametrize("form", ["flat", "nested", "binary"])
def test_every_datatype_gives_the_same_answer_in_every_form(standing, datatype: str, form: str):
    table = np.array([[1, 0, 1], [0, 1, 1]]).astype(DTYPES[datatype])
    if datatype.startswith("FP"):
        table += DTYPES[datatype].type(0.1)
    document = request(table.tolist() if form == "nested" else table.ravel().tolist(), datatype)
    if form == "binary":
        body, headers = binary(document, table.tobytes())
        answer = standing.post(CAT, content=body, headers=headers)
    else:
        answer = standing.post(CAT, json=document)
    assert outputs(answer)["score"] == table[:, 0].astype(float).tolist()


def test_numbers_are_rounded_to_their_datatype(client, pets):
    flat = [0.1, 0, 0]
    scores = [
        outputs(client.post(CAT, json=request(flat, datatype, (1, 3))))["score"][0]
        for datatype in ("FP16", "FP32", "FP64")
    ]
    assert scores == [float(np.float16(0.1)), float(np.float32(0.1)), 0.1]


def test_one_axis_is_one_row(client, pets):
    assert outputs(client.post(CAT, json=request([4, 0, 0], "INT64", (3,))))["score"] == [4.0]


@pytest.mark.parametrize("form", ["flat", "nested", "binary"])
def test_large_requests_are_decided_in_threads_and_answered_the_same(client, calibrated, form: str):
    table = np.random.default_rng(0).normal(size=(5000, 3)).round(3)
    document = request(table.tolist() if form == "nested" else table.ravel().tolist(), shape=table.shape)
    if form == "binary":
        body, headers = binary(document, table.tobytes())
        answer = client.post(CAT, content=body, headers=headers)
    else:
        answer = client.post(CAT, json=document)
    found = outputs(answer)
    np.testing.assert_array_equal(found["score"], table[:, 0])
    np.testing.assert_array_equal(found["match"], table[:, 0] >= 0.5)


def test_a_small_body_with_much_work_is_decided_in_a_thread(client, pets, monkeypatch):
    monkeypatch.setattr(operations, "INLINE_WORK", 1)
    assert outputs(client.post(CAT, json=request()))["score"] == [1.0, 0.25]


def test_outputs_are_binary_on_request(client, pets):
    everything = client.post(CAT, json=request(parameters={"binary_data_output": True}))
    assert everything.headers["content-type"] == "application/octet-stream"
    expected = {"match": [True, False], "score": [1.0, 0.25], "threshold": [0.5, 0.5]}
    assert outputs(everything) == expected
    wanted = [{"name": "match"}, {"name": "score", "parameters": {"binary_data": True}}]
    mixed = client.post(CAT, json=request(outputs=wanted))
    head = json.loads(mixed.content[: int(mixed.headers["inference-header-content-length"])])
    assert "data" in head["outputs"][0]
    assert head["outputs"][1]["parameters"] == {"binary_data_size": 16}
    assert outputs(mixed) == {"match": [True, False], "score": [1.0, 0.25]}
    wanted[1]["parameters"]["binary_data"] = False
    plain = client.post(CAT, json=request(outputs=wanted, parameters={"binary_data_output": True}))
    assert outputs(plain)["score"] == [1.0, 0.25]


def test_a_body_without_json_is_rows_of_float64(client, pets):
    headers = {"inference-header-content-length": "0"}
    body = np.array(ROWS).tobytes()
    answer = client.post(CAT, content=body, headers=headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert outputs(answer)["score"] == [1.0, 0.25]


def test_a_body_without_json_needs_its_class_in_the_name_and_whole_rows(client, pets, refused):
    headers = {"inference-header-content-length": "0"}
    body = np.array(ROWS).tobytes()
    refused(client.post("/v2/models/pets/infer", content=body, headers=headers), 400, "pets:CLASS")
    refused(client.post(CAT, content=body[:-8], headers=headers), 400, "bytes")
    refused(client.post(CAT, content=body[:8], headers=headers), 400)
    refused(client.post(CAT, content=b"", headers=headers), 400)


@pytest.mark.parametrize("content_type", [None, "application/octet-stream", "application/json", "text/plain"])
def test_the_content_type_of_a_request_does_not_matter(standing, content_type: str | None):
    headers = {} if content_type is None else {"content-type": content_type}
    answer = standing.post(CAT, content=json.dumps(request()).encode(), headers=headers)
    assert outputs(answer)["score"] == [1.0, 0.25]


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_requests_are_decompressed(client, pets, refused, name: str, pack: Callable):
    body, headers = binary(request(), np.array(ROWS).tobytes())
    headers["content-encoding"] = name
    assert outputs(client.post(CAT, content=pack(body), headers=headers))["score"] == [1.0, 0.25]
    refused(client.post(CAT, content=pack(body)[:-4], headers=headers), 400, "Content-Encoding")
    refused(client.post(CAT, content=pack(body) + b"more", headers=headers), 400, "Content-Encoding")
    refused(client.post(CAT, content=b"no such thing", headers=headers), 400, "Content-Encoding")


def test_a_body_that_decompresses_beyond_the_limit_is_refused(make_client, pets, refused):
    client = make_client(max_query_bytes=2000)
    bomb = zlib.compress(b" " * 1_000_000)
    refused(client.post(CAT, content=bomb, headers={"content-encoding": "deflate"}), 413, "2000")
    refused(client.post(CAT, content=b" " * 2001), 413, "2000")


def test_other_encodings_are_refused(client, pets, refused):
    body = json.dumps(request()).encode()
    refused(client.post(CAT, content=body, headers={"content-encoding": "br"}), 415, "gzip")
    plain = client.post(CAT, content=body, headers={"content-encoding": "identity"})
    assert outputs(plain)["score"] == [1.0, 0.25]


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate, br", "gzip"),
        ("gzip;q=0.2, Deflate;q=0.8", "deflate"),
        ("gzip;q=0, identity", None),
        ("br", None),
        ("gzip;q=nonsense", None),
    ],
)
def test_large_answers_are_compressed_as_accepted(standing, accepted: str, encoding: str | None):
    body, headers = binary(request(shape=(500, 3)), np.ones((500, 3)).tobytes())
    answer = standing.post(CAT, content=body, headers={**headers, "accept-encoding": accepted})
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["vary"] == "accept-encoding"
    # httpx has unpacked it.
    assert outputs(answer)["score"] == [1.0] * 500


def test_small_answers_and_errors_are_never_compressed(client, pets):
    headers = {"accept-encoding": "gzip, deflate"}
    for response in (
        client.post(CAT, json=request(), headers=headers),
        client.post(CAT, content=b"{" + b" " * 4000, headers=headers),
        client.get("/v2/models/pets", headers=headers),
    ):
        assert "content-encoding" not in response.headers


FAULTS: list[tuple[Any, int, str]] = [
    ({}, 400, "inputs"),
    ([], 400, "object"),
    ({"inputs": []}, 400, "0 inputs"),
    ({"inputs": [tensor(ROWS), tensor(ROWS, name="y")]}, 400, "no names of columns"),
    ({"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP64"}]}, 400, "no data"),
    ({"inputs": [{"shape": [2, 3], "datatype": "FP64", "data": ROWS}]}, 400, "name"),
    (request(datatype="FP128"), 400, "FP128"),
    (request(datatype="BYTES"), 400, "BYTES where numbers"),
    (request(["a"] * 6, "BYTES"), 400, "BYTES where numbers"),
    (request(shape=(-1, 3)), 400, "shape"),
    (request(shape=(2, 2)), 400, "nested as its shape 2 × 2"),
    (request(shape=(3, 3)), 400, "nested as its shape"),
    (request(shape=(1, 3)), 400, "nested as its shape"),
    (request([[1, 2, 3], 4, [5, 6, 7]]), 400, "nested as its shape"),
    (request([[1, 2, 3], [[4, 5, 6]]]), 400, "got `array`"),
    (request([[[1, 2, 3], [4, 5, 6]]]), 400, "got `array`"),
    (request([[1, 2, "]"], [4, 5, 6]]), 400, "nested as its shape"),
    (request([[1, 2, 3], [4, 5]]), 400, "nested as its shape"),
    (request([[1, 2, 3]] * 2, shape=(6,)), 400, "nested as its shape"),
    (request([1, 2, 3]), 400, "3 numbers"),
    (request([1] * 7), 400, "more than 6 numbers"),
    (request([]), 400, "too little data"),
    (request({"a": [1, 2, 3]}), 400, "list of numbers"),
    (request("1,2,3,4,5,6"), 400, "list of numbers"),
    (request([1, 2, 3, 4, 5, "6"]), 400, "got `str`"),
    (request([1, 2, 3, 4, 5, None]), 400, "got `null`"),
    (request([1, 2, 3, 4, 5, True]), 400, "got `bool`"),
    (request([0, 1, 0, 1, 0, 2], "BOOL"), 400, "got `int`"),
    (request([1.5] * 6, "INT32"), 400, "got `float`"),
    (request([1, 2, 3, 4, 5, 256], "UINT8"), 400, "UINT8 cannot hold"),
    (request([1, 2, 3, 4, 5, -1], "UINT64"), 400, "UINT64 cannot hold"),
    (request([1, 2, 3, 4, 5, 10**400], "INT64"), 400, "INT64"),
    (request([1, 2, 3, 4, 5, 1e39], "FP32"), 400, "row 1 (counted from 0): column 2 is an infinite value"),
    (request([1, 2, 3, 4, 5, 1e300]), 400, "row 1 (counted from 0): column 2"),
    (request(shape=(1, 2, 3)), 400, "rows × columns"),
    (request(shape=()), 400, "rows × columns"),
    (request([], shape=(0, 3)), 400, "at least one row"),
    (request([1] * 4, shape=(2, 2)), 400, "has 2 values; 3 are needed"),
    (request(shape=(2**40, 3)), 400, "shape"),
    (request(shape=(2**20, 3)), 413, "at most 100000"),
    (request(shape=(2, 2**31)), 400, "too little data"),
    (request(outputs=[{"name": "logits"}]), 400, "logits"),
    (request(outputs=[{"name": "score"}] * 2), 400, "twice"),
    (request(outputs=[{"name": "probability"}]), 400, "not calibrated"),
    (request(outputs=[{"name": "score", "parameters": {"binary_data": 1}}]), 400, "binary_data"),
    (request(outputs=[{"name": "score", "parameters": {"classification": 3}}]), 400, "classification"),
    (request(parameters={"binary_data_output": "yes"}), 400, "binary_data_output"),
    (request(parameters={"class": "dog"}), 400, "one way"),
    (request(id=7), 400, "id"),
    (request(parameters=[1]), 400, "The request has unusable parameters"),
    (request(parameters={"note": "a" * 20_000}), 400, "beyond 16384 bytes"),
    (request(outputs=[{"name": "score", "parameters": "a"}]), 400, "Output 'score' has unusable parameters"),
    ({"inputs": [{}] * 10_001}, 413, "more than 10000 objects"),
    ({"inputs": [tensor(ROWS, parameters={"binary_data_size": 48})]}, 400, "either data or"),
    ({"inputs": [tensor(ROWS, parameters={"shared_memory_region": "r"})]}, 400, "shared_memory_region"),
]


@pytest.mark.parametrize(("document", "status", "words"), FAULTS, ids=range(len(FAULTS)))
def test_bad_requests_are_refused_with_a_precise_error(standing, refused, document, status: int, words: str):
    refused(standing.post(CAT, content=json.dumps(document).encode()), status, words)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"hello", "not JSON"),
        (b"[" * 100_000, "cannot be used"),
        (b'{"inputs": ' + b"[" * 100_000, "cannot be used"),
        (json.dumps(request([1, 2, 3, 4, 5, math.nan])).encode(), "NaN"),
        (json.dumps(request([1, 2, 3, 4, 5, math.inf])).encode(), "NaN"),
        (json.dumps(request([1, 2, 3, 4, 5, 0])).replace("0]", "1e400]").encode(), "out of range"),
        (b'{"inputs": [{"name": "\xff", "shape": [1]}]}', "not JSON"),
        (json.dumps(request(id="\ud800")).encode(), "not JSON"),
    ],
)
def test_invalid_json_is_refused(standing, refused, body: bytes, words: str):
    refused(standing.post(CAT, content=body), 400, words)


@pytest.mark.parametrize(
    ("inputs", "parameters", "words"),
    [
        ([], {}, "pets:CLASS"),
        ([], {"class": 3}, "must be text"),
        ([tensor(["cat"], "BYTES", (1,), "class")], {"class": "cat"}, "one way"),
        ([tensor(["cat"] * 3, "BYTES", (3,), "class")], {}, "3 classes"),
        ([tensor(["cat"], "BYTES", (2,), "class")], {}, "1 texts"),
        ([tensor([1, 2], "BYTES", (2,), "class")], {}, "list of texts"),
        ([tensor("cat", "BYTES", (1,), "class")], {}, "list of texts"),
    ],
)
def test_the_class_must_be_named_once_and_as_text(standing, refused, inputs, parameters, words: str):
    document = {"inputs": [tensor(ROWS), *inputs], "parameters": parameters}
    refused(standing.post("/v2/models/pets/infer", json=document), 400, words)


def test_too_many_different_classes_are_refused(client, pets, refused):
    labels = [str(i) for i in range(300)]
    rows = tensor([0] * 900, "INT8", (300, 3))
    document = {"inputs": [rows, tensor(labels, "BYTES", (300,), "class")]}
    refused(client.post("/v2/models/pets/infer", json=document), 413, "256")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda body, head: (body[:-1], head), "ends before"),
        (lambda body, head: (body + b"x", head), "1 bytes behind"),
        (lambda body, head: (body, head | {"inference-header-content-length": "99999"}), "from 0 to"),
        (lambda body, head: (body, head | {"inference-header-content-length": "-1"}), "from 0 to"),
        (lambda body, head: (body.replace(b"48", b"47"), head), "behind"),
        (
            lambda body, head: (body.replace(b"48", b'"a"'), {"inference-header-content-length": "x"}),
            "from 0",
        ),
        (lambda body, head: (body[: body.index(b"}]}") + 3], {}), "ends before"),
    ],
)
def test_binary_data_must_match_their_description(standing, refused, edit: Callable, words: str):
    body, headers = edit(*binary(request(), np.array(ROWS).tobytes()))
    refused(standing.post(CAT, content=body, headers=headers), 400, words)


@pytest.mark.parametrize("length", [b"", b"-1", b"x", b"99999"])
def test_a_length_of_the_json_part_is_a_number_within_the_body(length: bytes):
    with refused_as(InvalidRequest, "bad_header_length"):
        parse_inference(json.dumps(request()).encode(), length, parse_path(CAT.encode()))


@pytest.mark.parametrize(
    ("size", "data"), [("a", b""), (-1, b""), (True, b"x"), (40, b"12345678" * 5), (49, b"1" * 49)]
)
def test_binary_sizes_must_match_the_shape(standing, refused, size: Any, data: bytes):
    document = {"inputs": [tensor(None, parameters={"binary_data_size": size})]}
    del document["inputs"][0]["data"]
    head = json.dumps(document).encode()
    headers = {"inference-header-content-length": str(len(head))}
    refused(standing.post(CAT, content=head + data, headers=headers), 400, "bytes")


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (b"\x05\x00\x00\x00cat", "cut off"),
        (b"\x03\x00", "cut off"),
        (b"\x01\x00\x00\x00\xff", "not UTF-8"),
        (b"\x03\x00\x00\x00cat" * 2, "2 texts"),
    ],
)
def test_truncated_binary_texts_are_refused(standing, refused, packed: bytes, words: str):
    document = {"inputs": [tensor(ROWS), tensor(None, "BYTES", (1,), "class")]}
    body, headers = binary(document, np.array(ROWS).tobytes(), packed)
    refused(standing.post("/v2/models/pets/infer", content=body, headers=headers), 400, words)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "column 2 is NaN"),
        (math.inf, "column 2 is an infinite value"),
        (1e200, "column 2 is a number beyond"),
    ],
)
@pytest.mark.parametrize("several", [False, True])
def test_bad_numbers_are_named_by_row_and_column(standing, refused, value, words: str, several: bool):
    table = np.zeros((5, 3))
    table[3, 2] = value
    document = {"inputs": [tensor(None, "FP64", (5, 3))]}
    data = [table.tobytes()]
    if several:
        document["inputs"].append(tensor(None, "BYTES", (5,), "class"))
        data.append(
            b"".join(b"\x03\x00\x00\x00" + label for label in [b"dog", b"dog", b"dog", b"cat", b"cat"])
        )
    else:
        document["parameters"] = {"class": "cat"}
    body, headers = binary(document, *data)
    refused(standing.post("/v2/models/pets/infer", content=body, headers=headers), 400, words)


def test_an_error_names_the_row_of_a_score_beyond_float64(client, publish_pets, refused):
    publish_pets(coef=np.full(3, 1e300))
    rows = [[0, 0, 0], [1e99, 1e99, 1e99]]
    refused(client.post(CAT, json=request(rows)), 400, "row 1 ", "no finite score")


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/cats:cat/infer",
        "/v2/models/pets:bird/infer",
        "/v2/models/pets:cat/versions/7/infer",
        "/v2/models/pets:cat/versions/none/infer",
        "/v2/models/pets@1:cat/versions/1/infer",
        "/v2/models/pets:cat/versions/%20/infer",
        "/v2/models/p%20ts:cat/infer",
        "/v2/models/pets:%ff/infer",
        "/v2/models/pets:a%00b/infer",
        "/v2/models/pets:" + "a" * 401 + "/infer",
        "/v2/models//infer",
        "/v2/nothing",
        "/v2/models",
        "/v2/repository/models//load",
    ],
)
def test_unknown_names_get_404(standing, refused, path: str):
    refused(standing.post(path, json=request()), 404)


def test_an_unknown_class_in_the_request_gets_404(client, pets, refused):
    for label in ("bird", "", "a\0b"):
        document = request(parameters={"class": label})
        refused(client.post("/v2/models/pets/infer", json=document), 404, "pets")


def test_paths_that_only_begin_with_v2_are_not_handled(client):
    assert client.get("/v2x").headers["content-type"] == "application/problem+json"


def test_wrong_methods_are_refused(client, pets, refused):
    response = client.get(CAT)
    refused(response, 405)
    assert response.headers["allow"] == "POST"
    response = client.post("/v2/models/pets")
    refused(response, 405)
    assert response.headers["allow"] == "GET, HEAD"


def test_rows_beyond_the_limit_are_refused(make_client, pets, refused):
    client = make_client(max_query_rows=1)
    refused(client.post(CAT, json=request()), 413, "at most 1")
    headers = {"inference-header-content-length": "0"}
    refused(client.post(CAT, content=np.array(ROWS).tobytes(), headers=headers), 413, "at most 1")


def test_requests_beyond_the_limit_in_flight_get_429(make_client, pets, refused):
    client = make_client(max_inflight_queries=1)
    client.context.budgets.queries.take(Caller("another", "key_1"))
    response = client.post(CAT, json=request())
    refused(response, 429)
    assert response.headers["retry-after"] == "1"
    assert client.get("/v2/health/live").status_code == 200
    client.context.budgets.queries.release(Caller("another", "key_1"))
    assert client.post(CAT, json=request()).status_code == 200
    assert client.context.budgets.queries.used == 0


def test_bodies_beyond_the_byte_budget_get_429(client, pets, refused):
    budget = client.context.budgets.body_bytes
    budget.take(Caller("another", "key_1"), client.context.settings.max_inflight_bytes)
    document = request([0.125] * 30_000, shape=(10_000, 3))
    refused(client.post(CAT, json=document), 429)
    budget.release(Caller("another", "key_1"), client.context.settings.max_inflight_bytes)
    assert client.post(CAT, json=document).status_code == 200
    assert budget.used == 0


def test_an_unexpected_error_reveals_no_details(client, pets, refused, monkeypatch, caplog):
    def fail(*_arguments: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(operations, "answer", fail)
    text = refused(client.post(CAT, json=request()), 500)
    assert "secret" not in text
    assert "secret" in caplog.text
