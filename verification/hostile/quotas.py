"""Attacks on the quotas of tenants: changing them, values that are no quotas, and parallel requests.

The tenants and their quotas are those of `verification.hostile.server`. Where parallel requests reach for a
quota, the use is compared with the quota afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from verification.hostile.archives import safetensors
from verification.hostile.attack import DATASETS, JOBS, Act, Attack, attacks, post
from verification.hostile.server import Server
from verification.hostile.wire import Answer, Header

_QUOTAS: Final = "/v1/quotas"
_CSV_TYPE: Final[Header] = (b"Content-Type", b"text/csv")
_PARALLEL: Final = 6
"""Requests at the same time; fewer than the share of one API key."""
_DENIED: Final = (403, "scope_required")
_BAD_BODY: Final = (422, "invalid_body")
_BAD_PARAMETER: Final = (400, "invalid_parameter")


def quotas() -> list[Attack]:
    """Every attack on quotas."""

    def change(text: str, query: str = "?tenant=rival", key: str = "operator") -> Act:
        return post(_QUOTAS + query, text.encode(), method="PATCH", key=key)

    def value(text: str) -> Act:
        return change(f'{{"datasets": {text}}}')

    return attacks(
        "quotas",
        ("changes its own", change('{"datasets": 1000000}', "", "rival"), *_DENIED),
        ("changes another's", change('{"datasets": 0}', "?tenant=default", "rival"), *_DENIED),
        ("an administrator changes them", change('{"datasets": 1000000}', "", "admin"), *_DENIED),
        ("who trains, changes them", change('{"datasets": 1000000}', "", "other"), *_DENIED),
        ("-1", value("-1"), *_BAD_BODY),
        ("-10^30", value("-1" + "0" * 30), *_BAD_BODY),
        ("10^30", value("1" + "0" * 30), *_BAD_BODY),
        ("2^63", value(str(2**63)), *_BAD_BODY),
        ("4301 digits", value("9" * 4301), 400, "malformed_json"),
        ("a half", value("0.5"), *_BAD_BODY),
        ("not a number", value("NaN"), *_BAD_BODY),
        ("infinity", value("Infinity"), *_BAD_BODY),
        ("1e400", value("1e400"), *_BAD_BODY),
        ("true", value("true"), *_BAD_BODY),
        ("text", value('"1000"'), *_BAD_BODY),
        ("a list", value("[1]"), *_BAD_BODY),
        ("a quota that is none", change('{"rate_limit": 1}'), *_BAD_BODY),
        ("a list of quotas", change('[{"datasets": 1}]'), *_BAD_BODY),
        ("of a tenant up", change('{"datasets": 1}', "?tenant=..%2fdefault"), *_BAD_PARAMETER),
        (
            "of a tenant of 10 000 letters",
            change('{"datasets": 1}', "?tenant=" + "a" * 10_000),
            *_BAD_PARAMETER,
        ),
        ("data sets at the same time", _race("few datasets", upload, "datasets"), 409, "quota_datasets"),
        ("bytes at the same time", _race("few bytes", upload, "stored_bytes"), 413, "quota_stored_bytes"),
        ("versions at the same time", _race("few versions", _import, "versions"), 409, "quota_versions"),
        ("jobs at the same time", _race_of_jobs, 429, "quota_unfinished_jobs"),
        ("data sets, one deleted many times", _deleted_twice, 409, "quota_datasets"),
        ("versions, one deleted", _deleted_version, 409, "quota_versions"),
    )


def upload(server: Server, key: str, number: int) -> Answer:
    """Upload a data set of some KB that depends on ``number``."""
    rows = "".join(f"{number}.{row},{row * row % 97},{'uv'[row % 2]}\n" for row in range(500))
    return post(f"{DATASETS}?format=csv", f"a,b,label\n{rows}".encode(), _CSV_TYPE, key=key)(server)


def _import(server: Server, key: str, number: int) -> Answer:
    """Import a head that depends on ``number``, as a version of one model."""
    described = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    header = {"__metadata__": {"labels": '["a", "b"]'}, "weights": described}
    head = safetensors(header, np.full(4, number, np.float32).tobytes())
    return post("/v1/teachers?model=head", head, (b"Content-Type", b"application/octet-stream"), key=key)(
        server
    )


def _submit(server: Server, key: str, dataset: str) -> Answer:
    body = json.dumps({"dataset_id": dataset, "model": "mine"}).encode()
    return post(JOBS, body, key=key)(server)


def _used(server: Server, key: str, noun: str) -> tuple[int, int]:
    """What the key's tenant uses of a quota, and what it may use."""
    with server.client(key) as client:
        (shown,) = client.get("/v1/usage").raise_for_status().json()["data"]
    return shown[noun]["used"], shown[noun]["allowed"]


def _at_once(server: Server, key: str, noun: str, act: Callable[[int], Answer]) -> Answer:
    """Call ``act`` in parallel; some calls succeed, some are refused, and the use is within the quota."""
    with ThreadPoolExecutor(_PARALLEL) as threads:
        answers = list(threads.map(act, range(1, _PARALLEL + 1)))
    refused = [answer for answer in answers if answer.status >= 400]
    assert 0 < len(refused) < _PARALLEL, f"{len(refused)} of {_PARALLEL} requests were refused"
    assert len({(answer.status, answer.code) for answer in refused}) == 1, "the refusals differ"
    used, allowed = _used(server, key, noun)
    assert used <= allowed, f"the tenant uses {used} {noun}; its quota is {allowed}"
    return refused[0]


def _race(key: str, act: Callable[[Server, str, int], Answer], noun: str) -> Act:
    """Parallel requests that would together exceed a quota."""
    return lambda server: _at_once(server, key, noun, lambda number: act(server, key, number))


def _race_of_jobs(server: Server) -> Answer:
    dataset = upload(server, "few jobs", 0).document["id"]
    return _at_once(server, "few jobs", "unfinished_jobs", lambda _: _submit(server, "few jobs", dataset))


def _deleted_twice(server: Server) -> Answer:
    """Delete one data set in parallel: one more may then be stored, not as many as there were requests."""
    key = "one dataset"
    dataset = upload(server, key, 0).document["id"]
    with ThreadPoolExecutor(_PARALLEL) as threads:
        sent = [threads.submit(_delete, server, key, f"{DATASETS}/{dataset}") for _ in range(_PARALLEL)]
        statuses = sorted(each.result().status for each in sent)
    assert statuses == [204] + [404] * (_PARALLEL - 1), statuses
    assert upload(server, key, 1).status == 201
    return upload(server, key, 2)


def _deleted_version(server: Server) -> Answer:
    """Delete a version and import two: the second is refused, and no number is used twice."""
    key = "one version"
    assert _import(server, key, 0).status == 201
    conditions: dict[str, list[Header]] = {"aliases/latest": [(b"If-Match", b'"1"')], "versions/1": []}
    for target, condition in conditions.items():
        deleted = _delete(server, key, f"/v1/models/head/{target}", *condition)
        assert deleted.status == 204, deleted.body
    assert _import(server, key, 1).document["version"] == 2
    return _import(server, key, 2)


def _delete(server: Server, key: str, target: str, *headers: Header) -> Answer:
    return post(target, b"", *headers, key=key, method="DELETE")(server)
