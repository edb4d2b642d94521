"""Random requests: no 5xx, no NaN in answers, and correct answers to valid requests."""

from __future__ import annotations

import json
import math
from typing import Any
from urllib.parse import quote

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from app.serving.open_inference.tensors import DTYPES

SETTINGS = settings(max_examples=150, deadline=None, derandomize=True)
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.none(), st.text(max_size=3), st.just(1e300)
)
JSON = st.recursive(
    NUMBERS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner))
)
TENSOR = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "class", "other"]),
        "datatype": st.sampled_from([*DTYPES, "BYTES", "FP8", ""]),
        "shape": st.lists(st.integers(-1, 4), max_size=3),
        "data": st.one_of(
            st.lists(st.lists(NUMBERS, max_size=4), max_size=4), st.lists(NUMBERS, max_size=12), JSON
        ),
    },
    optional={
        "parameters": st.one_of(JSON, st.fixed_dictionaries({"binary_data_size": st.integers(-1, 50)}))
    },
)
REQUEST = st.fixed_dictionaries(
    {"inputs": st.one_of(st.lists(TENSOR, max_size=3), JSON)},
    optional={
        "id": st.text(),
        "parameters": st.one_of(JSON, st.fixed_dictionaries({"class": st.sampled_from(["cat", "bird", ""])})),
        "outputs": st.one_of(
            st.lists(st.fixed_dictionaries({"name": st.sampled_from(["score", "gate", "nothing"])})), JSON
        ),
    },
)


def check(response: Any) -> None:
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        assert list(response.json()) == ["error"]
        return
    length = response.headers.get("inference-header-content-length", len(response.content))
    document = json.loads(response.content[: int(length)], parse_constant=lambda name: pytest_fail(name))
    numbers = [value for output in document["outputs"] for value in output.get("data", [])]
    numbers += np.frombuffer(response.content[int(length) :], np.uint8).tolist()
    assert all(math.isfinite(value) for value in numbers)


def pytest_fail(name: str) -> None:
    raise AssertionError(f"{name} in an answer")


def test_any_json_is_answered_or_refused(standing):
    @SETTINGS
    @given(document=REQUEST, label=st.sampled_from(["", ":cat"]))
    def fuzz(document: Any, label: str) -> None:
        body = json.dumps(document).encode()
        check(standing.post(f"/v2/models/pets{label}/infer", content=body))

    fuzz()


def test_any_bytes_are_answered_or_refused(standing):
    @SETTINGS
    @given(
        body=st.binary(max_size=200),
        length=st.one_of(st.none(), st.integers(-1, 210).map(str), st.text("0123456789ab", max_size=5)),
        encoding=st.sampled_from([None, "gzip", "deflate", "identity", "br"]),
    )
    def fuzz(body: bytes, length: str | None, encoding: str | None) -> None:
        given_headers = {"inference-header-content-length": length, "content-encoding": encoding}
        headers = {name: value for name, value in given_headers.items() if value is not None}
        check(standing.post("/v2/models/pets:cat/infer", content=body, headers=headers))

    fuzz()


def test_any_binary_tensor_is_answered_or_refused(standing):
    @SETTINGS
    @given(
        datatype=st.sampled_from([*DTYPES, "BYTES"]),
        name=st.sampled_from(["x", "class"]),
        rows=st.integers(0, 3),
        data=st.binary(max_size=80),
        right=st.booleans(),
        wanted=st.booleans(),
    )
    def fuzz(datatype: str, name: str, rows: int, data: bytes, right: bool, wanted: bool) -> None:
        if right and datatype in DTYPES:
            data = (data * 100)[: rows * 3 * DTYPES[datatype].itemsize]
        shape = [rows, 3] if name == "x" else [rows]
        tensor = {"name": name, "datatype": datatype, "shape": shape}
        tensor["parameters"] = {"binary_data_size": len(data)}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": wanted}}).encode()
        headers = {"inference-header-content-length": str(len(head))}
        check(standing.post("/v2/models/pets:cat/infer", content=head + data, headers=headers))

    fuzz()


def test_any_path_is_answered_or_refused(standing):
    @SETTINGS
    @given(
        path=st.text(st.characters(exclude_characters="?#", codec="utf-8"), max_size=40),
        stem=st.sampled_from(
            ["", "models/", "models/pets:", "repository/models/pets", "models/pets/versions/"]
        ),
        method=st.sampled_from(["GET", "POST"]),
    )
    def fuzz(path: str, stem: str, method: str) -> None:
        response = standing.request(method, f"/v2/{stem}{quote(path)}")
        assert response.status_code < 500
        if response.status_code != 200:
            assert list(response.json()) == ["error"]

    fuzz()
