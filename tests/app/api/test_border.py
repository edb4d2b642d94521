"""What every route refuses before its endpoint: keys without the scope, text and numbers beyond limits."""

from __future__ import annotations

import gzip
import io
import json
import re
import time
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import TypeAdapter
from safetensors.numpy import save

from app.api.border import (
    BODY_BYTES,
    INLINE_BYTES,
    LARGE_BODIES,
    OWN_LIMITS,
    BorderRoute,
    required_scopes,
    validated,
)
from app.api.datasets import CorrectLabels
from app.api.models import DeriveVersion
from app.api.schemas import CreateKey, SubmitJob
from app.domain.errors import InvalidRequest, ServiceError
from app.main import create_app
from app.services.keys import create_key
from app.services.sessions import begin_session
from app.settings import Settings
from app.store.unit_of_work import Store
from tests.app.api.conftest import CSV
from tests.app.started import Client
from tests.refusals import refused_as

Check = Callable[..., dict[str, Any]]
ROUTES = [
    getattr(context, "original_route", context)
    for context in iter_route_contexts(create_app(Settings(require_keys=True)).routes)
]
ENDPOINTS = [route for route in ROUTES if isinstance(route, APIRoute)]
FILLED = {"form": "csv", "version": "1", "class_index": "0", "model": "pets", "alias": "latest", "path": "x"}
UNSTORABLE = ("a%00b", "%ED%A0%80")
FAR_NUMBERS = (str(2**63), "9" * 400)


def address(route: APIRoute, **parts: str) -> str:
    """The path of a route, with these percent-encoded parts."""
    path = route.path
    for name in route.param_convertors:
        convertor = f"{{{name}:path}}" if f"{{{name}:path}}" in path else f"{{{name}}}"
        path = path.replace(convertor, parts.get(name, FILLED.get(name, "abc")))
    return path


def method_of(route: APIRoute) -> str:
    return next(iter(sorted(route.methods)))


def parameters(route: APIRoute, kind: str, *, numbers: bool = False) -> set[str]:
    """Names of the parameters of a route and its dependencies. kind: path_params or query_params.

    numbers: only those that are numbers.
    """
    names, todo = set(), [route.dependant]
    while todo:
        part = todo.pop()
        todo += part.dependencies
        names |= {
            parameter.alias
            for parameter in getattr(part, kind)
            if not numbers or re.search("int|float", str(parameter.field_info.annotation))
        }
    return names


class Callers:
    """A server with one caller per scope, and headers for both kinds of routes."""

    def __init__(self, client: Client, store: Store) -> None:
        self.client = client
        self._keys = {
            name: create_key(store, name, {name if name != "cars" else "query"}, ["cars"] * (name == "cars"))
            for name in ("operator", "query", "cars")
        }
        self._cookies = {name: begin_session(store, key)[1] for name, (key, _) in self._keys.items()}
        client.refresh()

    def headers(self, name: str, path: str) -> dict[str, str]:
        if path.startswith("/ui"):
            return {"cookie": f"stms_session={self._cookies[name]}", "sec-fetch-site": "same-origin"}
        return {"authorization": f"Bearer {self._keys[name][1]}"}

    def ask(self, name: str, method: str, path: str, **options: Any) -> Any:
        return self.client.request(method, path, headers=self.headers(name, path), **options)

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> Any:
        return self.client.post(path, headers=self.headers("operator", path) | headers, content=body)

    def status_without_body(self, name: str | None, method: str, path: str) -> int:
        """The status of a request that announces 1 MiB, none of which may be read."""
        headers = {} if name is None else self.headers(name, path)
        headers |= {"content-length": str(2**20), "content-type": "application/json"}

        async def receive() -> Any:
            pytest.fail(f"{method} {path} reads the body of a caller who may not send one")

        return int(self.client.run(self.client.exchange(method, path, receive, headers))[0]["status"])


@pytest.fixture
def callers(make_client: Callable[..., Client], store: Store, pets: Any) -> Callers:
    return Callers(make_client(require_keys=True, auth_failure_rate=0), store)


def test_every_endpoint_is_a_route_of_the_border():
    assert len(ENDPOINTS) > 80
    assert {route.path for route in ENDPOINTS if not isinstance(route, BorderRoute)} == set()


def test_the_paths_with_limits_of_their_own_exist():
    assert set(LARGE_BODIES) | OWN_LIMITS <= {route.path for route in ENDPOINTS}


@pytest.mark.usefixtures("keys_required")
def test_no_body_is_read_of_a_key_without_the_scope(callers: Callers):
    refused = 0
    for route in ENDPOINTS:
        method, path = method_of(route), address(route)
        scopes = {one.scope for one in required_scopes(route.dependant)}
        if method == "GET" or not scopes:
            continue
        if path.startswith("/v1"):
            assert callers.status_without_body(None, method, path) == 401
        if scopes - {"query"}:
            assert callers.status_without_body("query", method, path) == 403, path
            refused += 1
    assert refused > 25
    for path in (
        "/v1/models/pets:predict",
        "/v1/models/pets/classes/cat:query",
        "/v1/models/pets:query",
        "/v2/models/pets/infer",
        "/v2/repository/models/pets/load",
    ):
        assert callers.status_without_body("cars", "POST", path) == 403
        assert callers.status_without_body(None, "POST", path) == 401
    assert callers.status_without_body("query", "POST", "/v1/datasets") == 403


@pytest.mark.usefixtures("keys_required")
def test_text_and_numbers_beyond_all_limits_are_refused_by_every_route(callers: Callers):
    asked = 0
    for route in ENDPOINTS:
        if route.path == "/ui/sign-out":
            continue
        wrong = [(name, value) for name in route.param_convertors for value in UNSTORABLE]
        far = [
            (name, value) for name in parameters(route, "path_params", numbers=True) for value in FAR_NUMBERS
        ]
        paths = [address(route, **{name: value}) for name, value in wrong + far]
        for numbers, values in ((False, UNSTORABLE), (True, FAR_NUMBERS)):
            for name in parameters(route, "query_params", numbers=numbers):
                paths += [f"{address(route)}?{name}={value}" for value in values]
        for path in paths:
            answer = callers.ask("operator", method_of(route), path)
            assert 400 <= answer.status_code < 500, f"{path}: {answer.text}"
            asked += 1
    assert asked > 400


ROW = {"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}
JOB = {"dataset_id": "d", "model": "m"}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/training-jobs", {"dataset_id": "@", "model": "m"}),
    ("/v1/training-jobs", {"dataset_id": "d", "model": "@"}),
    ("/v1/training-jobs", {**JOB, "priority": "@"}),
    ("/v1/training-jobs", {**JOB, "@": 1}),
    ("/v1/training-jobs", {**JOB, "hyperparameters": {"classes": ["a", "@"]}}),
    ("/v1/training-jobs", {**JOB, "hyperparameters": {"alias": "@"}}),
    ("/v1/training-jobs", {**JOB, "hyperparameters": {"evaluation": {"dataset_id": "@"}}}),
    ("/v1/training-jobs", {**JOB, "hyperparameters": {"evaluation": {"baselines": ["@"]}}}),
    ("/v1/training-jobs", {**JOB, "hyperparameters": {"teacher": {"method": "@"}}}),
    ("/v1/datasets/ds_1/revisions", {"append_dataset_id": "@"}),
    ("/v1/datasets/ds_1/revisions", {"append_dataset_id": "ds_2", "note": "@"}),
    ("/v1/training-jobs/j/labels", {"corrections": [{"row": 1, "label": "@"}]}),
    ("/v1/training-jobs/j/labels", {"rename": {"@": "a"}}),
    ("/v1/training-jobs/j/labels", {"rename": {"a": "@"}}),
    ("/v1/training-jobs/j/labels", {"name": "@"}),
    ("/v1/models/pets/versions", {"base": "@", "thresholds": {"cat": 1}}),
    ("/v1/models/pets/versions", {"base": "1", "thresholds": {"@": 1}}),
    ("/v1/keys", {"name": "@", "scopes": ["query"]}),
    ("/v1/keys", {"name": "a", "scopes": ["@"]}),
    ("/v1/keys", {"name": "a", "scopes": ["query"], "models": ["@"]}),
    ("/v1/models/pets:query", {"x": [1, 2, 3], "classes": ["@"]}),
    ("/v1/models/pets:predict", {"x": [1, 2, 3], "target": "@"}),
    ("/v2/models/pets/infer", {"parameters": {"class": "@"}, "inputs": [ROW]}),
    ("/v2/repository/models/pets/load", {"parameters": {"@": "@"}}),
]


@pytest.mark.usefixtures("keys_required")
def test_no_text_of_a_body_holds_what_nothing_can_store(callers: Callers):
    for path, body in BODIES:
        for text in ("a\\u0000b", "\\ud800"):
            answer = callers.ask(
                "operator", "POST", path, content=json.dumps(body).replace("@", text).encode()
            )
            assert answer.status_code in {400, 404, 422}, f"{path} {body} {text}: {answer.text}"
    fields = (
        "model",
        "at",
        "class",
        "row",
        "base",
        "label",
        "threshold",
        "name",
        "scope",
        "once",
        "job",
        "do",
    )
    for route in ENDPOINTS:
        if method_of(route) == "POST" and route.path.startswith("/ui") and route.path not in OWN_LIMITS:
            for text in ("%00", "%ED%A0%80"):
                form = "&".join(f"{name}={text}" for name in (*fields, "version", "days"))
                answer = callers.ask("operator", "POST", address(route), content=form.encode())
                assert answer.status_code < 500, f"{route.path}: {answer.text}"


@pytest.mark.usefixtures("keys_required")
def test_no_name_of_an_upload_holds_what_nothing_can_store(callers: Callers):
    for bad in (b"\0", b"\xed\xa0\x80", b"\xff"):
        for disposition in (
            b'name="file"; filename="a' + bad + b'.csv"',
            b'name="' + bad + b'"; filename="a.csv"',
        ):
            head = b"--b\r\nContent-Disposition: form-data; " + disposition
            part = head + b"\r\n\r\n" + CSV + b"\r\n--b--\r\n"
            answer = callers.client.post(
                "/v1/datasets",
                content=part,
                headers=callers.headers("operator", "/v1")
                | {"content-type": "multipart/form-data; boundary=b"},
            )
            assert answer.status_code == 400, (bad, disposition, answer.text)
        for row in (b"a" + bad + b",b,label\n", b"a,b,label\n1,2,x" + bad + b"\n"):
            content = row + CSV.partition(b"\n")[2]
            answer = callers.ask("operator", "POST", "/v1/datasets?format=csv", content=content)
            assert 400 <= answer.status_code < 500, (bad, answer.text)


@pytest.mark.usefixtures("keys_required")
def test_no_name_of_a_column_or_an_array_holds_what_nothing_can_store(callers: Callers):
    table, labels = np.arange(80.0).reshape(40, 2), np.array(["a", "b"] * 20)
    for arrays, status in (
        ({"feature_names": np.array(["c\0d", "b"])}, 400),
        ({"class_names": np.array(["a\0c", "b"])}, 400),
    ):
        file = io.BytesIO()
        np.savez(file, X=table, y=labels, **arrays)
        answer = callers.ask("operator", "POST", "/v1/datasets?format=npz", content=file.getvalue())
        assert answer.status_code == status, answer.text
    tensors = {"weights": np.eye(2, 3, dtype=np.float32)}
    for names in (["a\0", "b"], ["\ud800", "b"]):
        head = save(tensors, {"labels": json.dumps(names)})
        answer = callers.ask("operator", "POST", "/v1/teachers?model=h", content=head)
        assert 400 <= answer.status_code < 500, answer.text


def test_every_whole_number_of_a_request_has_bounds():
    document = create_app(Settings()).openapi()
    unbounded = []

    def look(schema: Any, place: str) -> None:
        if isinstance(schema, dict):
            if schema.get("type") == "integer" and "enum" not in schema and "const" not in schema:
                low = schema.get("minimum", schema.get("exclusiveMinimum"))
                high = schema.get("maximum", schema.get("exclusiveMaximum"))
                if low is None or high is None or low < -(2**63) or high >= 2**63:
                    unbounded.append(place)
            for name, part in schema.items():
                if name == "$ref" and part.rsplit("/", 1)[-1] not in seen:
                    seen.add(part.rsplit("/", 1)[-1])
                    look(document["components"]["schemas"][part.rsplit("/", 1)[-1]], part)
                look(part, f"{place}.{name}")
        elif isinstance(schema, list):
            for part in schema:
                look(part, place)

    seen: set[str] = set()
    for path, operations in document["paths"].items():
        if path.endswith((":query", ":predict", "/infer")):
            # Numbers of rows are checked with row and column named, and stored nowhere.
            continue
        for method, operation in operations.items():
            look([operation.get("parameters", []), operation.get("requestBody", {})], f"{method} {path}")
    assert unbounded == []


def nested(depth: int) -> bytes:
    return b'{"name":' + b"[" * depth + b"]" * depth + b"}"


def spec(**hyperparameters: Any) -> dict[str, Any]:
    return {"dataset_id": "d", "model": "m", "hyperparameters": hyperparameters}


REMOTE = {"method": "remote", "url": "http://a.example", "model": "m"}
HEAVY: list[tuple[type, Any]] = [
    (CorrectLabels, b"[" + b",".join([b"{}"] * 340_000) + b"]"),
    (CorrectLabels, b"[" + b",".join([b"9" * 4000] * 250) + b"]"),
    (CorrectLabels, b"[" * 1_000_000),
    (CorrectLabels, b'{"name":' * 100_000),
    (CorrectLabels, nested(150)),
    (CorrectLabels, {"corrections": [{"row": i % 60, "label": "c0"} for i in range(30_000)]}),
    (CorrectLabels, {"corrections": [{"row": -1, "label": ""}] * 40_000}),
    (CorrectLabels, {"corrections": [{}] * 50_000}),
    (CorrectLabels, {"rename": {f"k{i}": "" for i in range(70_000)}}),
    (CorrectLabels, {f"k{i}": "" for i in range(70_000)}),
    (DeriveVersion, {"thresholds": {f"k{i}": None for i in range(60_000)}}),
    (SubmitJob, spec(classes=["zz"] * 200_000)),
    (SubmitJob, spec(classes=[""] * 200_000)),
    (SubmitJob, spec(classes=[True] * 150_000)),
    (SubmitJob, spec(classes=[{}] * 50_000)),
    (SubmitJob, spec(classes=[[]] * 50_000)),
    (SubmitJob, spec(evaluation={"baselines": ["x"] * 200_000})),
    (SubmitJob, spec(teacher={**REMOTE, "columns": [1] * 200_000})),
    (SubmitJob, spec(tuning={"grid": {"C": ["x"] * 200_000}})),
    (SubmitJob, json.dumps(spec(seed=7)).encode().replace(b"7", b"1" + b"0" * 4000)),
    (CreateKey, {"name": "a", "scopes": [1] * 200_000}),
    (CreateKey, {"name": "x" * 1_000_000, "scopes": ["query"]}),
]


@pytest.mark.parametrize(("model", "body"), HEAVY, ids=range(len(HEAVY)))
def test_a_body_of_a_mebibyte_is_decided_in_the_time_of_reading_it(model: type, body: Any):
    """Processor time in units of what Python's own parser takes for 1 MiB of numbers; 20 ms when quiet."""
    raw = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    adapter: TypeAdapter[Any] = TypeAdapter(model)
    with_warm_caches = b'{"x":1}'
    with pytest.raises((RequestValidationError, ServiceError)):
        validated(with_warm_caches, adapter)
    numbers = b"[" + b",".join([b"1"] * 500_000) + b"]"
    unit = min(_seconds(lambda: json.loads(numbers)) for _ in range(3))
    faults = 0

    def decide() -> None:
        nonlocal faults
        try:
            validated(raw, adapter)
        except RequestValidationError as error:
            faults = len(error.errors())
        except ServiceError:
            faults = 1

    # Alone it stays below 8 times; beside other tests 10.4 times was measured.
    assert min(_seconds(decide) for _ in range(3)) < 12 * unit
    assert faults <= 2100


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def test_json_is_refused_where_it_is_no_text_or_too_deep():
    adapter: TypeAdapter[Any] = TypeAdapter(CreateKey)
    texts = (b'{"name": "\\ud800"}', b'{"name": "\xff"}')
    for raw in (*texts, b"{}x", b"[" * 300, nested(250)):
        with refused_as(InvalidRequest, "malformed_json", match="not JSON"):
            validated(raw, adapter)


@pytest.mark.usefixtures("keys_required")
def test_most_routes_take_64_kibibytes_and_named_ones_more(callers: Callers, problem: Check):
    body = b'{"name": "a", "scopes": ["query"]' + b" " * BODY_BYTES + b"}"
    problem(callers.ask("operator", "POST", "/v1/keys", content=body), 413, "body_too_large")
    long = b'{"version": 1' + b" " * INLINE_BYTES + b"}"
    assert callers.ask("operator", "PUT", "/v1/models/pets/aliases/new", content=long).status_code == 200
    thresholds = {f"{i:0>390}": 1.0 for i in range(300)}
    answer = callers.ask("operator", "POST", "/v1/models/pets/versions", json={"thresholds": thresholds})
    assert answer.status_code not in {413, 500}
    long = b'{"dataset_id": "a", "model": "m"' + b" " * 256 * 1024 + b"}"
    problem(callers.ask("operator", "POST", "/v1/training-jobs", content=long), 413, "body_too_large")


@pytest.mark.usefixtures("keys_required")
def test_the_document_of_many_faults_is_short(callers: Callers):
    body = {"\U0001f600" * 3000 + str(i): 1 for i in range(20)}
    content = json.dumps(body, ensure_ascii=False).encode()
    answer = callers.ask("operator", "POST", "/v1/training-jobs", content=content)
    assert answer.status_code == 422
    assert len(answer.content) < 128 * 1024


@pytest.mark.usefixtures("keys_required")
def test_a_file_of_the_dashboard_has_a_plain_name(callers: Callers):
    answer = callers.ask("operator", "GET", "/ui/tables/csv/models/pets/aliases/latest/moves")
    assert answer.headers["content-disposition"] == 'attachment; filename="pets-latest-moves.csv"'
    for alias in ("x\"; filename*=UTF-8''setup.bat", "x\r\nX-Evil: 1", "Ж"):
        path = f"/ui/tables/csv/models/pets/aliases/{quote(alias, safe='')}/moves"
        assert callers.ask("operator", "GET", path).status_code == 404


@pytest.mark.usefixtures("keys_required")
def test_json_is_read_under_any_content_type_and_in_two_codings(callers: Callers, problem: Check):
    body = b'{"name": "a", "scopes": ["query"]}'
    for headers in (
        {},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "text/plain; charset=utf-8"},
        {"content-encoding": "identity"},
    ):
        assert callers.post("/v1/keys", body, headers).status_code == 201
    zipped = {"content-encoding": "gzip"}
    assert callers.post("/v1/keys", gzip.compress(body), zipped).status_code == 201
    assert callers.post("/v1/keys", zlib.compress(body), {"content-encoding": "deflate"}).status_code == 201
    problem(callers.post("/v1/keys", body, zipped), 400, "bad_encoding")
    problem(callers.post("/v1/keys", body, {"content-encoding": "br"}), 415, "bad_encoding")
    bomb = gzip.compress(b" " * (BODY_BYTES + 1))
    problem(callers.post("/v1/keys", bomb, zipped), 413, "body_too_large")


@pytest.mark.usefixtures("keys_required")
def test_parameters_that_do_not_exist_are_refused_with_those_that_do(callers: Callers, problem: Check):
    refused = 0
    for route in ENDPOINTS:
        if list(required_scopes(route.dependant)):
            answer = callers.ask("operator", method_of(route), f"{address(route)}?labl=a")
            assert answer.status_code == 400, f"{method_of(route)} {route.path}: {answer.status_code}"
            refused += 1
    assert refused > 70
    document = problem(callers.ask("operator", "GET", "/v1/models?labl=a"), 400, "unknown_parameter")
    assert document["detail"] == "There is no parameter 'labl', only after, limit, tenant."
    assert callers.ask("operator", "GET", "/v1/training-jobs?state=failed").json()["data"] == []
    assert callers.ask("operator", "GET", "/ui/models?done=publish").status_code == 200
