"""HEAD wherever GET is, and the Allow header of every resource."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts

from app.http.head_requests import answer_head
from tests.app.started import Client

PATHS = [
    "/",
    "/livez",
    "/readyz",
    "/readyz?verbose",
    "/readyz/queries",
    "/version",
    "/metrics",
    "/docs",
    "/docs/swagger-ui.css",
    "/openapi.json",
    "/v1/models",
    "/v1/models/pets",
    "/v1/models/pets/versions/1",
    "/v1/models/unknown",
    "/v1/training-jobs?limit=2",
    "/v1/datasets",
    "/v1/whoami",
    "/v1/nothing",
    "/v1/models?unknown=1",
    "/v2",
    "/v2/",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/pets",
    "/v2/models/pets/ready",
    "/v2/models/pets/stats",
    "/v2/models/stats",
    "/v2/models/unknown",
    "/ui",
    "/ui/",
    "/ui/models",
    "/ui/sign-in",
    "/ui/nothing",
]


@pytest.mark.parametrize("path", PATHS)
def test_head_has_status_and_headers_of_get_and_no_body(standing: Client, path: str):
    get, head = standing.get(path), standing.request("HEAD", path)
    assert get.status_code == head.status_code
    assert head.content == b""
    # Figures change between the two.
    varying = {"date", "x-request-id", *(["content-length"] if path == "/metrics" else [])}
    assert _without(varying, head.headers) == _without(varying, get.headers)
    assert head.headers.keys() == get.headers.keys()


def _without(names: set[str], headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in names}


def test_head_asks_for_what_has_changed_as_get_does(standing: Client):
    tag = standing.get("/v1/models/pets").headers["etag"]
    answer = standing.request("HEAD", "/v1/models/pets", headers={"if-none-match": tag})
    assert (answer.status_code, answer.headers["etag"]) == (304, tag)


def test_head_needs_the_key_that_get_needs(make_client, keys_required):
    client = make_client()
    for path in ("/v1/models", "/v2/models/pets"):
        assert client.request("HEAD", path).status_code == 401
    assert client.request("HEAD", "/ui/models").status_code == 303
    assert client.request("HEAD", "/livez").status_code == 200


def test_an_endless_answer_ends_with_its_head():
    async def endless(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            await send({"type": "http.response.body", "body": b"more", "more_body": True})

    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "HEAD"}
    asyncio.run(asyncio.wait_for(answer_head(endless, scope, receive, send), 5))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert not sent[1]["body"]
    assert not sent[1]["more_body"]


def test_head_is_not_in_the_openapi_document(standing: Client):
    assert all("head" not in operations for operations in standing.control.openapi()["paths"].values())


def _allowed(client: Client, path: str) -> set[str]:
    """The methods of a resource that Allow names, when an unknown one is tried."""
    response = client.request("PROPFIND", path, headers={"origin": "http://localhost"})
    assert response.status_code == 405, path
    return set(response.headers["allow"].split(", "))


def test_allow_names_the_methods_of_every_route(standing: Client):
    routes: dict[str, set[str]] = {}
    for route in iter_route_contexts(standing.control.routes):
        if route.path is not None and not route.path.endswith("{path:path}"):
            path = re.sub(r"\{[^}]*\}", "1", route.path)
            routes.setdefault(path, set()).update(route.methods or ())
    assert {"/", "/docs", "/ui/sign-in", "/v1/models/1"} <= routes.keys()
    for path, methods in routes.items():
        assert _allowed(standing, path) == (methods | {"HEAD"} if "GET" in methods else methods), path


def test_allow_of_queries_and_of_the_open_inference_protocol(standing: Client):
    expected = {
        "/v1/models/pets/classes/cat:query": {"POST"},
        "/v1/models/pets:query": {"POST"},
        "/v1/models/pets:predict": {"POST"},
        "/v2": {"GET", "HEAD"},
        "/v2/models/pets": {"GET", "HEAD"},
        "/v2/health/ready": {"GET", "HEAD"},
        "/v2/models/pets/infer": {"POST"},
        "/v2/repository/index": {"POST"},
    }
    assert {path: _allowed(standing, path) for path in expected} == expected


def test_no_method_is_named_where_there_is_nothing(standing: Client):
    for path in ("/ui/nothing", "/v1/nothing", "/nothing"):
        response = standing.request("PROPFIND", path, headers={"origin": "http://localhost"})
        assert (response.status_code, "allow" in response.headers) == (404, False)
