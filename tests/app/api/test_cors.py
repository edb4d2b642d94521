"""Pages of other origins: which may ask, at which paths, and that no cookie plays a part."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.http import cors
from app.http.cors import CrossOrigin, covers
from app.services.keys import create_key
from app.settings import Settings
from tests.app.api.fast_path import fast_answer
from tests.app.started import Client

PAGE = "https://app.example.com"
CAT = "/v1/models/pets/classes/cat:query"
QUERY = {"x": [1, 2, 3]}


@pytest.fixture
def key(store, pets) -> str:
    return create_key(store, "page", {"query"}, {"pets"})[1]


@pytest.fixture
def client(make_client, key: str) -> Client:
    started: Client = make_client(
        require_keys=True, cors_origins=f"{PAGE}, http://localhost:3000, https://*.example.org"
    )
    return started


def preflight(client: Client, path: str, origin: str = PAGE, method: str = "POST"):
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type",
    }
    return client.request("OPTIONS", path, headers=headers)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        (CAT, "POST"),
        ("/v1/models/pets:query", "POST"),
        ("/v1/models/pets%3Aquery", "POST"),
        ("/v1/models/pets:predict", "POST"),
        ("/v1/models", "GET, HEAD"),
        ("/v1/models/pets", "GET, HEAD"),
        ("/v1/models/pets/versions", "GET, HEAD"),
        ("/v2", "GET, HEAD, POST"),
        ("/v2/models/pets:cat/infer", "GET, HEAD, POST"),
    ],
)
def test_a_preflight_is_answered_without_a_key(client, path: str, methods: str):
    answer = preflight(client, path)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-methods"] == methods
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "x-api-key", "content-type", "inference-header-content-length"} <= set(allowed)
    assert answer.headers["vary"] == "origin"
    assert "access-control-allow-credentials" not in answer.headers
    assert "content-length" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "/v1/datasets",
        "/v1/training-jobs",
        "/v1/keys",
        "/v1/modelsx",
        "/v2/repository/models/pets/load",
        "/v2/repository/models/pets/unload",
        "/v2x",
        "/ui/models",
        "/ui/sign-in",
        "/metrics",
        "/",
    ],
)
def test_other_paths_are_open_to_no_page(client, key: str, path: str):
    for answer in (
        preflight(client, path),
        client.get(path, headers={"origin": PAGE, "authorization": f"Bearer {key}"}),
    ):
        assert answer.status_code != 204
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "https://app.example.com.evil.example",
        "https://app.example.com:444",
        "http://app.example.com",
        "https://example.org",
        "https://app.example.com/",
        "https://APP.example.com",
        "https://user@app.example.com",
        "null",
        "*",
        "",
        "https://" + "a." * 1000 + "example.org",
    ],
)
def test_no_other_origin_may_ask(client, key: str, origin: str):
    assert (
        preflight(client, CAT, origin).status_code == 401 or preflight(client, CAT, origin).status_code == 405
    )
    headers = {"origin": origin, "authorization": f"Bearer {key}"}
    for answer in (preflight(client, CAT, origin), client.post(CAT, json=QUERY, headers=headers)):
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000", "https://a.b.example.org"])
def test_answers_name_the_origin_and_show_their_headers(client, key: str, origin: str):
    headers = {"origin": origin, "authorization": f"Bearer {key}"}
    for answer in (
        client.post(CAT, json=QUERY, headers=headers),
        client.get("/v1/models/pets", headers=headers),
        client.get("/v2/models/pets:cat", headers=headers),
    ):
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "origin" in answer.headers.get_list("vary", split_commas=True)
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    ("path", "status"), [(CAT, 401), ("/v1/models", 401), ("/v2/models/pets", 401), ("/v1/models/%00", 401)]
)
def test_errors_can_be_read_and_a_session_lets_nobody_in(client, key: str, path: str, status: int):
    signed_in = client.post(
        "/ui/sign-in", data={"key": key, "next": "/ui/"}, headers={"origin": "http://localhost"}
    )
    assert signed_in.status_code == 303
    assert client.get("/ui/models").status_code == 200
    method = "POST" if path == CAT else "GET"
    answer = client.request(method, path, headers={"origin": PAGE})
    assert "cookie" in answer.request.headers
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == PAGE
    wrong = client.post(CAT, json={"x": [1]}, headers={"origin": PAGE, "authorization": f"Bearer {key}"})
    assert (wrong.status_code, wrong.headers["access-control-allow-origin"]) == (400, PAGE)


def test_the_fast_path_sends_the_same_headers(client, key: str):
    body = b'{"x": [1, 2, 3]}'
    for origin in (PAGE, "https://evil.example", None):
        headers = {"authorization": f"Bearer {key}", "content-length": str(len(body)), "x-request-id": "r"}
        headers |= {} if origin is None else {"origin": origin}
        answered = client.post(CAT, content=body, headers=headers)
        fast = fast_answer(client, CAT, headers, body)
        assert fast is not None
        assert fast[0] == dict(answered.headers)
        assert ("access-control-allow-origin" in answered.headers) == (origin == PAGE)


def test_without_the_setting_nothing_is_added(make_client, key: str):
    client = make_client(require_keys=True)
    headers = {"origin": PAGE, "authorization": f"Bearer {key}"}
    answer = client.post(CAT, json=QUERY, headers=headers)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control") or name == "vary"]
    assert preflight(client, CAT).status_code == 405


def test_a_preflight_waits_for_its_turn(client, monkeypatch):
    turns: list[str] = []

    async def turn(address: str, **_options: bool) -> None:
        turns.append(address)

    pipeline = client.control.state.query_parts.pipeline
    monkeypatch.setattr(pipeline.budgets, "wait_without_key", turn)
    assert preflight(client, CAT).status_code == 204
    assert turns == ["127.0.0.1"]


@pytest.mark.parametrize(
    "value",
    [
        "*",
        "null",
        "app.example.com",
        "https://app.example.com/path",
        "https://a.*.example.com",
        "ftp://app.example.com",
        "https://app.example.com:99999",
        "https://user:secret@app.example.com",
        "https://bücher.example",
        "https://app.example.com https://b.example.com",
    ],
)
def test_the_setting_is_checked_at_the_start(value: str):
    with pytest.raises(ValidationError):
        Settings(cors_origins=value)


def test_the_setting_is_written_as_people_do():
    allowed = CrossOrigin("https://APP.example.com:443/ ,, http://[::1]:3000")
    assert len(allowed.headers(b"https://app.example.com")) > 1
    assert len(allowed.headers(b"http://[::1]:3000")) > 1
    assert len(allowed.headers(b"https://app.example.com:443")) == 1


def test_what_is_kept_of_origins_is_bounded():
    allowed = CrossOrigin(PAGE)
    for number in range(1000):
        allowed.headers(b"https://%d.example" % number + b"x" * 10_000)
    info = allowed._is_allowed.cache_info()
    assert info.currsize <= 256


def test_paths_are_judged_as_they_arrive():
    assert not covers(b"/v1/datasets/../models")
    assert not covers(b"/ui/v1/models")
    assert cors._methods(b"/v1/models/a:queryx") == (b"GET", b"HEAD")
