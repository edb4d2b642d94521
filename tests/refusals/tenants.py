"""Attacks of one tenant on another: its objects by their ids, its name, and keys for it.

Another tenant's object is answered like one that does not exist. Who names another tenant without the scope
operator gets the error of the missing scope, whether or not there is such a tenant.
"""

from __future__ import annotations

import json
from typing import Final

from tests.refusals.quotas import upload
from tests.refusals.refusal import (
    DATASETS,
    JOBS,
    KEYS,
    Act,
    Answer,
    Header,
    Refusal,
    Server,
    get,
    key_id,
    post,
    refusals,
)

_AUDIT: Final = "/v1/audit"
_MODEL: Final = "/v1/models/pets"
_USAGE: Final = "/v1/usage"
_JOB: Final = f"{JOBS}/{{job}}"
_ROW: Final = b'{"x": [1, 2, 3]}'
_INPUT: Final = b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}]}'
_ANY: Final[Header] = (b"If-Match", b"*")
_STREAM: Final[Header] = (b"Accept", b"text/event-stream")

_DENIED: Final = (403, "scope_required")
_NO_DATASET: Final = (404, "dataset_not_found")
_NO_JOB: Final = (404, "job_not_found")
_NO_KEY: Final = (404, "key_not_found")
_NO_MODEL: Final = (404, "model_not_found")
_NO_VERSION: Final = (404, "version_not_found")
_NO_ALIAS: Final = (404, "alias_not_found")
_BAD_BODY: Final = (422, "invalid_body")
_BAD_PARAMETER: Final = (400, "invalid_parameter")

_OBJECTS: Final[tuple[tuple[str, str, str, bytes, tuple[Header, ...], tuple[int, str]], ...]] = (
    ("reads a data set", "GET", f"{DATASETS}/{{dataset}}", b"", (), _NO_DATASET),
    ("deletes a data set", "DELETE", f"{DATASETS}/{{dataset}}", b"", (), _NO_DATASET),
    ("trains on a data set", "POST", JOBS, b'{"dataset_id": "<dataset>", "model": "a"}', (), _NO_DATASET),
    ("reads a job", "GET", _JOB, b"", (), _NO_JOB),
    ("deletes a job", "DELETE", _JOB, b"", (), _NO_JOB),
    ("cancels a job", "POST", f"{_JOB}/cancel", b"", (), _NO_JOB),
    ("retries a job", "POST", f"{_JOB}/retry", b"", (), _NO_JOB),
    ("reads the events of a job", "GET", f"{_JOB}/events", b"", (), _NO_JOB),
    ("follows a job", "GET", f"{_JOB}/events", b"", (_STREAM,), _NO_JOB),
    ("reads the students of a job", "GET", f"{_JOB}/students", b"", (), _NO_JOB),
    ("reads a trace of a job", "GET", f"{_JOB}/students/0/svm/trace", b"", (), _NO_JOB),
    ("reads a model", "GET", _MODEL, b"", (), _NO_MODEL),
    ("reads a version", "GET", f"{_MODEL}/versions/1", b"", (), _NO_VERSION),
    ("reads the classes of a version", "GET", f"{_MODEL}/versions/1/classes", b"", (), _NO_VERSION),
    ("deletes a version", "DELETE", f"{_MODEL}/versions/1", b"", (), _NO_VERSION),
    ("reads an alias", "GET", f"{_MODEL}/aliases/latest", b"", (), _NO_ALIAS),
    ("moves an alias", "PUT", f"{_MODEL}/aliases/latest", b'{"version": 1}', (_ANY,), _NO_VERSION),
    ("makes an alias", "PUT", f"{_MODEL}/aliases/mine", b'{"version": 1}', (), _NO_VERSION),
    ("deletes an alias", "DELETE", f"{_MODEL}/aliases/latest", b"", (_ANY,), _NO_ALIAS),
    ("predicts", "POST", f"{_MODEL}:predict", _ROW, (), _NO_MODEL),
    ("rotates a key", "POST", f"{KEYS}/{{key}}/rotate", b"", (), _NO_KEY),
    ("revokes a key", "DELETE", f"{KEYS}/{{key}}", b"", (), _NO_KEY),
)
"""What an administrator of another tenant tries, by the names of `_filled`, and the answer."""

_QUERIES: Final[tuple[tuple[str, str, str, bytes, tuple[int, str | None]], ...]] = (
    ("asks", "POST", f"{_MODEL}/classes/cat:query", _ROW, _NO_MODEL),
    ("asks for many classes", "POST", f"{_MODEL}:query?class=cat&class=dog", _ROW, _NO_MODEL),
    ("asks by the tenant's name", "POST", "/v1/models/default%2Fpets/classes/cat:query", _ROW, _NO_MODEL),
    (
        "asks an alias by the tenant's name",
        "POST",
        "/v1/models/default%2Fpets@latest:query?class=cat",
        _ROW,
        _NO_MODEL,
    ),
    ("reads the metadata", "GET", "/v2/models/pets:cat", b"", (404, None)),
    ("reads the metadata of a version", "GET", "/v2/models/pets:cat/versions/1", b"", (404, None)),
    ("asks whether it is ready", "GET", "/v2/models/pets:cat/ready", b"", (404, None)),
    ("reads the statistics", "GET", "/v2/models/pets:cat/stats", b"", (404, None)),
    ("infers", "POST", "/v2/models/pets:cat/infer", _INPUT, (404, None)),
    ("infers by the tenant's name", "POST", "/v2/models/default%2Fpets:cat/infer", _INPUT, (404, None)),
)

_LISTS: Final = (DATASETS, JOBS, "/v1/evaluations", "/v1/models", KEYS, _AUDIT, _USAGE)


def objects() -> list[Refusal]:
    """Another tenant's objects by their ids: with every verb, and with the name of their tenant."""
    found = []
    for name, method, target, body, headers, answer in _OBJECTS:
        act = _filled(target, body, *headers, method=method)
        named = _filled(f"{target}?tenant=default", body, *headers, method=method)
        found += refusals("tenants", (name, act, *answer), (f"{name}, by its tenant", named, *_DENIED))
    for name, method, target, body, answer in _QUERIES:
        found += refusals("tenants", (name, _filled(target, body, method=method, key="rival query"), *answer))
    return found


def names() -> list[Refusal]:
    """Names of tenants without the scope operator, in every place, and lists."""
    mine = b'{"dataset_id": "ds_none", "model": "mine"}'
    return refusals(
        "tenants",
        *(
            (f"lists {path} of another", get(f"{path}?tenant=default", key="rival"), *_DENIED)
            for path in _LISTS
        ),
        *((f"finds nothing in {path}", _finds_nothing(path), *_NO_DATASET) for path in _LISTS),
        ("is named twice", get(f"{DATASETS}?tenant=rival&tenant=default", key="rival"), *_DENIED),
        ("has no name", get(f"{DATASETS}?tenant=", key="rival"), *_DENIED),
        ("has a name with NUL", get(f"{DATASETS}?tenant=default%00", key="rival"), *_BAD_PARAMETER),
        ("is all", get(f"{DATASETS}?tenant=*", key="rival"), *_DENIED),
        ("is SQL", get(f"{DATASETS}?tenant='%20OR%201=1--", key="rival"), *_DENIED),
        ("is in another case", get(f"{DATASETS}?tenant=DEFAULT", key="rival"), *_DENIED),
        ("does not exist", get(f"{DATASETS}?tenant=nobody", key="rival"), *_DENIED),
        (
            "is in a header",
            _filled(f"{DATASETS}/{{dataset}}", b"", (b"X-Tenant", b"default"), method="GET"),
            *_NO_DATASET,
        ),
        (
            "is in a cookie",
            _filled(f"{DATASETS}/{{dataset}}", b"", (b"Cookie", b"tenant=default"), method="GET"),
            *_NO_DATASET,
        ),
        ("is in the body of a job", _filled(JOBS, mine[:-1] + b', "tenant": "default"}'), *_BAD_BODY),
        ("is in the model of a job", _filled(JOBS, mine.replace(b'"mine"', b'"default/pets"')), *_BAD_BODY),
        ("tests on another's data set", _test_on_another, *_NO_DATASET),
        ("repeats another's request", _repeat_of_another, *_NO_DATASET),
        ("reads the workers", get("/v1/workers", key="rival"), *_DENIED),
    )


def keys() -> list[Refusal]:
    """Keys that reach for scopes and tenants which their maker does not have."""

    def made(scopes: str, more: str = "", key: str = "rival", query: str = "") -> Act:
        return post(KEYS + query, f'{{"name": "mine", "scopes": {scopes}{more}}}'.encode(), key=key)

    def operators(path: str, method: str) -> Act:
        return _filled(f"{KEYS}/{{operator}}{path}", b"", method=method, key="admin")

    return refusals(
        "tenants",
        ("gives itself the scope operator", made('["operator"]'), *_DENIED),
        ("hides the scope operator", made('["query", "train", "admin", "operator"]'), *_DENIED),
        ("names the scope operator twice", made('["admin"], "scopes": ["operator"]'), *_DENIED),
        ("gives itself OPERATOR", made('["OPERATOR"]'), 400, "invalid_request"),
        ("gives itself every scope", made('["*"]'), 400, "invalid_request"),
        ("makes a key of another tenant", made('["query"]', query="?tenant=default"), *_DENIED),
        ("makes a key with a tenant", made('["query"]', ', "tenant": "default"'), *_BAD_BODY),
        (
            "makes a key of another's model",
            made('["query"]', ', "models": ["default/pets"]'),
            400,
            "invalid_request",
        ),
        ("makes a key with an id", made('["query"]', ', "id": "key_000000000000000000000000"'), *_BAD_BODY),
        ("is no administrator", made('["query"]', key="rival query"), *_DENIED),
        ("trains, and makes an administrator", made('["admin"]', key="other"), *_DENIED),
        ("rotates the operator's key", operators("/rotate", "POST"), *_DENIED),
        ("revokes the operator's key", operators("", "DELETE"), *_DENIED),
        ("submits a job of high priority", _filled(JOBS, _job("high"), key="other"), *_DENIED),
        ("submits a job of the highest priority", _filled(JOBS, _job("highest"), key="other"), *_BAD_BODY),
        ("submits a job of priority 0", _filled(JOBS, _job(0), key="other"), *_BAD_BODY),
    )


def _filled(
    target: str, body: bytes = b"", *headers: Header, method: str = "POST", key: str = "rival"
) -> Act:
    """A request about objects of the default tenant: their ids replace names in the target and the body."""

    def act(server: Server) -> Answer:
        ids = {"dataset": server.dataset, "job": server.kept["job"]}
        ids |= {name: key_id(server, text) for name, text in (("key", "query"), ("operator", "operator"))}
        content = body
        for name, value in ids.items():
            content = content.replace(f"<{name}>".encode(), value.encode())
        return post(target.format(**ids), content, *headers, key=key, method=method)(server)

    return act


def _job(priority: object) -> bytes:
    return json.dumps({"dataset_id": "<dataset>", "model": "mine", "priority": priority}).encode()


def _finds_nothing(path: str) -> Act:
    """Read a list as another tenant's administrator; nothing in it may be of the default tenant."""

    def act(server: Server) -> Answer:
        answer = get(f"{path}?limit=1000", key="rival")(server)
        assert answer.status == 200, answer.body
        shown = answer.body.decode()
        hidden = ["default", "pets", server.dataset, server.kept["job"], key_id(server, "query")]
        assert not [word for word in hidden if f'"{word}"' in shown], "a list shows another tenant's objects"
        return _filled(f"{DATASETS}/{{dataset}}", method="GET")(server)

    return act


def _test_on_another(server: Server) -> Answer:
    """A job on a data set of one's own that is to be evaluated on another tenant's."""
    own = upload(server, "rival", 0)
    assert own.status in {200, 201}, own.body
    spec = {"evaluation": {"dataset_id": server.dataset}}
    body = {"dataset_id": own.document["id"], "model": "mine", "hyperparameters": spec}
    return post(JOBS, json.dumps(body).encode(), key="rival")(server)


def _repeat_of_another(server: Server) -> Answer:
    """Another tenant's Idempotency-Key and body: the answer is that of a first request."""
    body = json.dumps({"dataset_id": server.dataset, "model": "same"}).encode()
    repeated: Header = (b"Idempotency-Key", b"same-for-tenants")
    assert post(JOBS, body, repeated, key="train")(server).status == 202
    return post(JOBS, body, repeated, key="rival")(server)
