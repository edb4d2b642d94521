"""Parallel requests that reach for a quota; afterwards the use is compared with the quota.

The tenants and their quotas are those of `tests.refusals.contents`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.refusals.quotas import delete, import_head, upload
from tests.refusals.refusal import DATASETS, JOBS, Act, Answer, Refusal, post, refusals
from verification.hostile.server import Server

_PARALLEL: Final = 6
"""Requests at the same time; fewer than the share of one API key."""


def races() -> list[Refusal]:
    """Every race for a quota."""
    return refusals(
        "quotas",
        ("data sets at the same time", _race("few datasets", upload, "datasets"), 409, "quota_datasets"),
        ("bytes at the same time", _race("few bytes", upload, "stored_bytes"), 413, "quota_stored_bytes"),
        ("versions at the same time", _race("few versions", import_head, "versions"), 409, "quota_versions"),
        ("jobs at the same time", _race_of_jobs, 429, "quota_unfinished_jobs"),
        ("data sets, one deleted many times", _deleted_twice, 409, "quota_datasets"),
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
        sent = [threads.submit(delete, server, key, f"{DATASETS}/{dataset}") for _ in range(_PARALLEL)]
        statuses = sorted(each.result().status for each in sent)
    assert statuses == [204] + [404] * (_PARALLEL - 1), statuses
    assert upload(server, key, 1).status == 201
    return upload(server, key, 2)
