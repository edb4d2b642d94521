"""No caller without a key, and no single key, takes what other keys' requests need."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import pytest

from app.api import border
from app.auth import places
from app.auth.shares import Budgets
from app.domain.entities import Caller
from app.domain.errors import InvalidRequest
from app.services import health
from app.services.keys import create_key
from app.store.unit_of_work import Store
from tests.app.api.fast_path import fast_answer
from tests.app.started import Client

CAT = "/v1/models/pets/classes/cat:query"
PREDICT = "/v1/models/pets:predict"
ROW = json.dumps({"x": [1, 2, 3]}).encode()
INFERENCE = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}]}
).encode()
ANNOUNCED = 1 << 20
MIB = b"x" * (1 << 20)
MANY = Caller("many", "key_many")

Headers = Mapping[str, str]


@pytest.fixture
def keys(store: Store, pets, keys_required) -> dict[str, Headers]:
    made = {
        "admin": create_key(store, "boss", {"admin"})[1],
        "crowd": create_key(store, "crowd", {"query"})[1],
        "train": create_key(store, "trainer", {"train"})[1],
        "other": create_key(store, "other", {"query"})[1],
    }
    return {name: {"authorization": f"Bearer {text}"} for name, text in made.items()}


async def _never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def body_of(pieces: Iterable[bytes], *, is_whole: bool = False) -> Any:
    """A ``receive`` that gives ``pieces`` of a body, which are all or not, and then nothing."""
    waiting: list[Any] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    if is_whole:
        waiting[-1]["more_body"] = False

    async def receive() -> Any:
        return waiting.pop(0) if waiting else await _never()

    return receive


async def ask(client: Client, method: str, path: str, headers: Headers, receive: Any) -> tuple[int, Any]:
    """Status and document of the response to one request."""
    start, body = await client.exchange(method, path, receive, headers, address="203.0.113.9")
    return start["status"], json.loads(body["body"])


def whole(body: bytes) -> Any:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def query(client: Client, key: Headers) -> tuple[int, Any]:
    headers = {**key, "content-length": str(len(ROW)), "content-type": "application/json"}
    return await ask(client, "POST", CAT, headers, whole(ROW))


async def settled(budgets: Budgets, tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Let the tasks go as far as they can, then cancel them and check that they hold nothing."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert budgets.queries.used == budgets.requests.used == budgets.body_bytes.used == 0


async def start(count: int, make: Callable[[], Coroutine[Any, Any, Any]]) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(make()) for _ in range(count)]
    for _ in range(50):
        await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/keys"),
        ("POST", "/v1/datasets"),
        ("POST", "/v1/teachers"),
        ("POST", PREDICT),
        ("POST", CAT),
        ("POST", "/v1/models/pets:query"),
        ("POST", "/v2/models/pets/infer"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v1/nothing/here"),
    ],
)
@pytest.mark.parametrize("key", [None, "Bearer stms_key_000000000000000000000000_" + "x" * 43])
def test_a_caller_without_a_valid_key_is_refused_before_its_body_is_read(
    client, keys, method: str, path: str, key: str | None
):
    client.refresh()

    async def unread() -> Any:
        raise AssertionError("the body was read")

    headers = {"content-length": str(ANNOUNCED), "content-type": "application/json"}
    headers |= {} if key is None else {"authorization": key}
    status, _ = client.run(ask(client, method, path, headers, unread))
    assert status == 401
    budgets = client.context.budgets
    assert budgets.queries.used == budgets.requests.used == budgets.body_bytes.used == 0


def test_slow_bodies_without_a_key_do_not_keep_administrators_out(client, keys):
    client.refresh()

    async def scenario() -> None:
        headers = {"content-length": "1000000", "content-type": "application/json"}
        slow = await start(64, lambda: ask(client, "POST", "/v1/keys", headers, body_of([b" " * 620])))
        assert {(await task)[0] for task in slow} == {401}, "they take turns"
        assert (await ask(client, "GET", "/v1/models", keys["admin"], whole(b"")))[0] == 200

    client.run(scenario())


def test_slow_bodies_of_one_address_keep_nobody_from_signing_in(make_client, store, keys):
    """At 11b58e08 nine of them took all places of requests without a key."""
    client = make_client(keyless_rate_limit=0.0)
    texts = [create_key(store, f"person {number}", {"query"})[1] for number in range(10)]
    client.refresh()
    form = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
    proof = f"key=key_{'0' * 24}&nonce={'0' * 64}"

    async def status(method: str, path: str, address: str, body: Any, **headers: str) -> int:
        return int((await client.exchange(method, path, body, headers, address))[0]["status"])

    async def sign_in(text: str) -> int:
        body = f"key={text}".encode()
        headers = {**form, "content-length": str(len(body))}
        return await status("POST", "/ui/sign-in", "203.0.113.10", whole(body), **headers)

    async def scenario() -> None:
        headers = {**form, "content-length": "9000"}
        slow = await start(
            40, lambda: status("POST", "/ui/sign-in", "203.0.113.9", body_of([b"key=a"]), **headers)
        )
        async with asyncio.timeout(60):
            while sum(task.done() for task in slow) < 32:
                await asyncio.sleep(0.001)
        assert {task.result() for task in slow if task.done()} == {429}, "eight of them wait for their bodies"
        answered = []
        for text in texts:
            for path in ("/ui/sign-in", "/docs", "/version", "/openapi.json"):
                answered.append(await status("GET", path, "203.0.113.10", body_of([])))
            answered += [await sign_in(text) for _ in range(5)]
        assert answered == ([200] * 4 + [303] * 5) * 10
        assert await status("GET", "/version", "203.0.113.9", body_of([])) == 200
        identity = await client.exchange("GET", "/identity", body_of([]), address="203.0.113.10", query=proof)
        assert identity[0]["status"] == 204
        await settled(client.context.budgets, slow)
        assert client.context.budgets.keyless_bodies.used == client.context.budgets.keyless_places.used == 0

    client.run(scenario())


def test_readiness_probes_without_a_key_take_no_place_of_a_query(client, keys, monkeypatch):
    monkeypatch.setattr(health, "PATIENCE_SECONDS", 600.0)
    client.refresh()

    async def scenario() -> None:
        assert (await query(client, keys["other"]))[0] == 200
        probes = await start(300, lambda: ask(client, "GET", "/v2/health/ready", {}, whole(b"")))
        assert [(await query(client, keys["other"]))[0] for _ in range(5)] == [200] * 5
        assert client.context.budgets.queries.used == 0
        assert {(await probe)[0] for probe in probes} == {200}

    client.run(scenario())


@pytest.mark.parametrize("path", [CAT, "/v2/models/pets/versions/1/infer"])
def test_unfinished_bodies_of_one_key_take_no_place_of_a_query(client, keys, path: str):
    client.refresh()

    async def scenario() -> None:
        headers = {**keys["crowd"], "content-length": str(ANNOUNCED), "content-type": "application/json"}
        slow = await start(256, lambda: ask(client, "POST", path, headers, body_of([b" "])))
        budgets = client.context.budgets
        assert budgets.queries.used == 0
        assert budgets.body_bytes.used == budgets.body_bytes.share, "and its own bytes are used up"
        assert {task.result()[1].get("code", "share_exceeded") for task in slow if task.done()} == {
            "share_exceeded"
        }
        assert (await query(client, keys["other"]))[0] == 200
        await settled(budgets, slow)
        assert (await query(client, keys["crowd"]))[0] == 200

    client.run(scenario())


@pytest.mark.parametrize("path", [PREDICT, "/v1/training-jobs/job_1/labels"])
def test_unfinished_bodies_hold_no_place_of_a_request(client, keys, path: str):
    client.refresh()

    async def scenario() -> None:
        headers = {**keys["train"], "content-length": str(ANNOUNCED), "content-type": "application/json"}
        slow = await start(16, lambda: ask(client, "POST", path, headers, body_of([b" "])))
        budgets = client.context.budgets
        assert budgets.requests.used == 0
        assert not any(task.done() for task in slow)
        assert (await ask(client, "GET", "/v1/models", keys["train"], whole(b"")))[0] == 200
        await settled(budgets, slow)

    client.run(scenario())


def test_a_body_that_no_endpoint_reads_frees_no_place(client, keys, monkeypatch):
    """A request could otherwise announce a body, and be answered beyond all places."""
    client.refresh()

    async def scenario() -> None:
        budgets = client.context.budgets
        headers = {**keys["other"], "content-length": "10"}
        budgets.requests.add(MANY, budgets.requests.limit)
        status, document = await ask(client, "GET", "/v1/models", headers, body_of([]))
        assert (status, document["title"]) == (429, "Too Many Requests")
        budgets.requests.release(MANY, budgets.requests.limit)
        assert (await ask(client, "GET", "/v1/models", headers, body_of([])))[0] == 200

    client.run(scenario())


def test_keys_of_one_tenant_leave_places_to_another(client, store, keys):
    texts = [create_key(store.of_tenant("crowded"), f"k{i}", {"query"})[1] for i in range(4)]
    client.refresh()

    async def scenario() -> None:
        budgets = client.context.budgets
        crowd = [client.context.authenticator._ring.authenticate(text) for text in texts]
        for key in crowd[:2]:
            budgets.requests.take(Caller.of(key), budgets.requests.share)
        headers = {"authorization": f"Bearer {texts[2]}"}
        status, document = await ask(client, "GET", "/v1/models", headers, whole(b""))
        assert (status, document["code"]) == (429, "share_exceeded")
        assert (await ask(client, "GET", "/v1/models", keys["other"], whole(b"")))[0] == 200
        for key in crowd[:2]:
            budgets.requests.release(Caller.of(key), budgets.requests.share)

    client.run(scenario())


def test_bodies_outside_of_queries_count_in_the_byte_budget(make_client, keys):
    """Sixty-four bodies of 16 MiB would be a gigabyte."""
    client = make_client(max_inflight_bytes=64 << 20)
    client.refresh()

    async def scenario() -> None:
        headers = {**keys["crowd"], "content-length": str(16 << 20)}
        bodies = await start(16, lambda: ask(client, "POST", PREDICT, headers, body_of([MIB] * 15)))
        budgets = client.context.budgets
        assert budgets.body_bytes.used <= budgets.body_bytes.share
        assert {task.result()[0] for task in bodies if task.done()} == {429}
        assert budgets.refused["body_bytes_of_key"] > 0
        assert (await ask(client, "GET", "/v1/models", keys["other"], whole(b"")))[0] == 200
        await settled(budgets, bodies)

    client.run(scenario())


def test_refusals_are_counted_by_budget(client, keys):
    client.refresh()
    for budget in ("queries", "queries_of_key", "requests", "requests_of_tenant", "body_bytes", "keyless"):
        assert f'stms_shed_total{{reason="{budget}"}} 0.0' in client.get("/metrics").text


@pytest.mark.parametrize("path", ["/v1/models", "/v1/keys", "/version", "/openapi.json", "/docs", "/v1/x"])
@pytest.mark.parametrize(
    "foreign",
    [
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"x-forwarded-for": "198.51.100.7"},
    ],
)
def test_a_server_without_keys_refuses_requests_of_other_sites(client, problem, path: str, foreign: Headers):
    problem(client.get(path, headers=foreign), 403, "not_local")
    assert client.get("/livez", headers=foreign).status_code == 200


def test_a_page_of_another_site_cannot_replace_a_model(client, pets, problem):
    """Of a request with ``mode: no-cors``: the browser sends it without asking the server first."""
    headers = {"origin": "https://evil.example", "sec-fetch-site": "cross-site", "content-type": "text/plain"}
    response = client.post("/v1/teachers?model=pets&kind=students", content=b"x" * 100, headers=headers)
    problem(response, 403, "not_local")
    problem(client.post(CAT, content=ROW, headers={"host": "evil.example"}), 403, "not_local")
    refused = client.post("/v2/models/pets/infer", content=INFERENCE, headers={"origin": "null"})
    assert refused.status_code == 403
    assert "without API keys" in refused.json()["error"]


def test_the_fast_path_leaves_requests_of_other_sites_to_the_refusal(client, pets):
    client.post(CAT, content=ROW)
    headers = {"host": "localhost", "content-length": str(len(ROW))}
    assert fast_answer(client, CAT, headers, ROW) is not None
    for foreign in ({"origin": "http://evil.example"}, {"x-forwarded-for": "127.0.0.1"}):
        assert fast_answer(client, CAT, headers | foreign, ROW) is None
    assert fast_answer(client, CAT, headers | {"host": "evil.example"}, ROW) is None


def test_the_fast_path_does_not_pass_the_share_of_a_key(client, keys):
    client.refresh()
    headers = {**keys["other"], "host": "localhost", "content-length": str(len(ROW))}
    client.post(CAT, content=ROW, headers=keys["other"])
    queries = client.context.budgets.queries
    assert fast_answer(client, CAT, headers, ROW) is not None
    [caller] = [
        Caller.of(key) for key in client.context.authenticator._ring._keys.values() if key.name == "other"
    ]
    queries.take(caller, queries.share)
    assert fast_answer(client, CAT, headers, ROW) is None
    assert client.post(CAT, content=ROW, headers=keys["other"]).json()["code"] == "share_exceeded"
    queries.release(caller, queries.share)
    assert fast_answer(client, CAT, headers, ROW) is not None


def test_a_trailing_slash_is_not_redirected(client, problem):
    """A redirect would name the host of the request, which the client chooses."""
    problem(client.get("/v1/models/"), 404, "no_such_path")


def test_probes_use_neither_the_threads_nor_the_connections_of_requests(client, keys, monkeypatch):
    """As with 300 probes under way and a database that takes long: no request waits for them."""
    monkeypatch.setattr(health, "PATIENCE_SECONDS", 600.0)
    client.refresh()
    assert client.post(CAT, content=ROW, headers=keys["other"]).status_code == 200
    database = client.context.probes.database
    database.seconds = 1.0
    started, release = threading.Event(), threading.Event()
    inspect = database._compute

    def slow() -> Any:
        started.set()
        release.wait(600)
        return inspect()

    monkeypatch.setattr(database, "_compute", slow)
    monkeypatch.setattr(client.context.store, "read", lambda: pytest.fail("the connections of requests"))

    async def scenario() -> None:
        paths = ["/readyz", "/metrics", "/v2/health/ready"]
        probes = [
            task
            for path in paths
            for task in await start(100, lambda path=path: raw(client, path))  # type: ignore[misc]
        ]
        while not started.is_set():
            await asyncio.sleep(0.001)
        async with asyncio.timeout(120):
            await asyncio.gather(*[asyncio.to_thread(int) for _ in range(8)])
            assert (await query(client, keys["other"]))[0] == 200
            assert (await ask(client, "GET", "/v1/nothing", keys["other"], whole(b"")))[0] == 404
        release.set()
        assert {await probe for probe in probes} == {200}

    client.run(scenario())


async def raw(client: Client, path: str) -> int:
    """Status of the response to a GET without a key."""
    return int((await client.exchange("GET", path, whole(b"")))[0]["status"])


def test_refusals_of_a_key_take_turns_and_hold_no_place_meanwhile(client, keys, monkeypatch):
    monkeypatch.setattr(places, "PER_SECOND", 20.0)
    client.refresh()

    async def scenario() -> None:
        now = asyncio.get_running_loop().time
        budgets, started = client.context.budgets, now()

        def submit(name: str) -> Coroutine[Any, Any, tuple[int, Any]]:
            return ask(client, "POST", "/v1/training-jobs", keys[name], whole(b"{}"))

        refused = await start(40, lambda: submit("crowd"))
        while budgets.requests.used or budgets.body_bytes.used:
            await asyncio.sleep(0.001)
        assert sum(task.done() for task in refused) < 20
        assert (await submit("other"))[0] == 403
        assert sum(task.done() for task in refused) < 20
        assert {(await task)[0] for task in refused} <= {403, 429}
        assert now() - started >= 1.0

    client.run(scenario())


def test_two_requests_of_a_key_are_worked_on_at_once_and_others_come_between(client, store, keys):
    key, text = create_key(store, "large crowd", {"query"})
    caller = Caller.of(key)
    client.refresh()

    async def scenario() -> None:
        turns, running = client.context.budgets.turns, list[int]()

        async def list_models(headers: Headers) -> None:
            assert (await ask(client, "GET", "/v1/models", headers, whole(b"")))[0] == 200
            running.append(turns.held(caller))

        await turns.acquire(caller)
        await turns.acquire(caller)
        crowd = await start(12, lambda: list_models({"authorization": f"Bearer {text}"}))
        await list_models(keys["other"])
        assert not any(task.done() for task in crowd)
        turns.release(caller)
        turns.release(caller)
        await asyncio.gather(*crowd)
        assert max(running) == 2
        assert turns.used == 0
        assert not turns._waiting

    client.run(scenario())


def test_after_a_large_body_no_other_is_read_for_a_while(client, keys, monkeypatch):
    def slow(_body: bytes) -> Any:
        time.sleep(0.02)
        raise InvalidRequest("It is not JSON.")

    monkeypatch.setattr(border, "parse_json", slow)
    monkeypatch.setattr(border, "_REST", 25.0)
    client.refresh()

    async def scenario() -> None:
        now, body = asyncio.get_running_loop().time, b"[" * 20_000
        started = now()
        answers = [ask(client, "POST", "/v1/training-jobs", keys["train"], whole(body)) for _ in range(2)]
        assert (await answers[0])[0] == 400
        assert now() - started < 0.5, "the first one does not wait for its own rest"
        assert (await answers[1])[0] == 400
        assert now() - started > 0.5

    client.run(scenario())


def test_files_that_wait_to_be_read_take_no_threads_of_other_requests(make_client, keys, monkeypatch):
    client = make_client(max_uploads=64, key_share=1.0)
    client.refresh()
    started, release = threading.Semaphore(0), threading.Event()

    def wait(*_arguments: object) -> Any:
        started.release()
        release.wait(300)
        raise InvalidRequest("It is no file.")

    monkeypatch.setattr(client.context.reader, "read", wait)
    monkeypatch.setattr(client.context.reader, "check_queue", lambda _tenant: None)

    async def scenario() -> None:
        headers = {**keys["train"], "content-type": "text/csv"}
        body = [b"a,label\n1,x\n2,y\n"]
        uploads = await start(
            44, lambda: ask(client, "POST", "/v1/datasets", headers, body_of(body, is_whole=True))
        )
        for _ in uploads:
            assert await asyncio.to_thread(started.acquire, timeout=120)
        async with asyncio.timeout(120):
            assert (await ask(client, "GET", "/v1/models", keys["other"], whole(b"")))[0] == 200
        release.set()
        assert {(await upload)[0] for upload in uploads} == {400}

    client.run(scenario())
