"""Tokens of issuers over HTTP: what callers with one may do, and their revocation."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.domain.entities import ModelVersion
from app.domain.errors import InvalidRequest, NotFound, Overloaded
from app.services import token_revocations
from app.services.keys import create_key
from app.services.retention import clean
from app.services.token_revocations import list_revocations, revoke_tokens
from app.settings import Settings
from app.store.unit_of_work import Store
from tests.app.api.fast_path import as_response, prepare
from tests.refusals import refused_as
from tests.system.token_issuer import NAME, issuer_setting, key_set, public_jwk, token

CAT = "/v1/models/pets/classes/cat:query"
ROW = b'{"x": [1.0, 0.0, 0.0]}'
OTHER = "https://issuer.rival.example.com"
SUBJECT = "repo:acme/app:ref:main"
RULES = [
    {"claim": "sub", "equals": "root", "scopes": ["admin"]},
    {"claim": "sub", "equals": "limited", "scopes": ["query"], "models": ["dogs"]},
    {"claim": "sub", "equals": "trainer", "scopes": ["train"]},
    {"claim": "sub", "prefix": "repo:acme/", "scopes": ["query"]},
]
pytestmark = pytest.mark.usefixtures("keys_required")

Problem = Callable[..., dict[str, Any]]


@pytest.fixture
def issuers(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(public_jwk("ES256"), public_jwk("RS256")))
    return [
        issuer_setting(path, rules=RULES),
        issuer_setting(path, issuer=OTHER, tenant="rival", rules=RULES),
    ]


@pytest.fixture
def client(make_client: Any, pets: ModelVersion, issuers: list[dict[str, Any]]) -> Any:
    return make_client(token_issuers=issuers)


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}", "content-type": "application/json"}


def query(client: Any, text: str) -> Any:
    return client.post(CAT, headers=bearer(text), content=ROW)


def test_a_token_asks_a_model_and_shows_who_it_is(client: Any) -> None:
    text = token()
    assert query(client, text).json()["match"] is True
    shown = client.get("/v1/whoami", headers=bearer(text)).json()
    assert shown["id"] == f"jwt:{NAME}:{SUBJECT}"
    assert (shown["name"], shown["tenant"], shown["scopes"]) == (SUBJECT, "default", ["query"])
    assert shown["expires_at"] is not None
    assert query(client, token("RS256")).status_code == 200


@pytest.mark.parametrize(
    ("text", "code", "detail"),
    [
        (lambda: token() + "x", "invalid_token", "The signature of the token is wrong."),
        (lambda: token(aud="other"), "invalid_token", "The token is for another audience (aud)."),
        (
            lambda: token(exp=1),
            "expired_token",
            "The token has expired; it is valid for at most 3600 seconds.",
        ),
        (lambda: token(sub="nobody"), "token_without_rule", "No rule of this server is for the token."),
    ],
)
def test_other_tokens_are_refused_on_every_route(
    client: Any, problem: Problem, text: Callable[[], str], code: str, detail: str
) -> None:
    for answer in (query(client, text()), client.get("/v1/whoami", headers=bearer(text()))):
        assert problem(answer, 401, code)["detail"] == detail
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_token_may_only_ask_the_models_of_its_rule(client: Any, problem: Problem) -> None:
    text = token(sub="limited")
    problem(query(client, text), 403, "model_not_allowed")
    assert client.get("/v1/models", headers=bearer(text)).json()["data"] == []


def test_a_token_sees_nothing_of_another_tenant(client: Any, problem: Problem) -> None:
    text = token(iss=OTHER, sub="root")
    problem(query(client, text), 404, "model_not_found")
    assert client.get("/v1/models", headers=bearer(text)).json()["data"] == []
    assert client.get("/v1/whoami", headers=bearer(text)).json()["tenant"] == "rival"
    problem(client.get("/v1/models?tenant=default", headers=bearer(text)), 403, "scope_required")


def test_what_a_token_does_is_recorded_under_its_subject(client: Any, csv: bytes, store: Store) -> None:
    text = token(sub="trainer")
    headers = {"authorization": f"Bearer {text}"}
    made = client.post("/v1/datasets", params={"name": "n", "format": "csv"}, headers=headers, content=csv)
    assert made.json()["created_by"] == f"jwt:{NAME}:trainer"
    with store.read() as uow:
        [record] = uow.audit.page(limit=5, action="dataset.create")[0]
    assert (record.actor, record.actor_name, record.scope) == (f"jwt:{NAME}:trainer", "trainer", "train")


def test_a_known_head_ends_at_the_expiry_of_its_token(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expiry = int(time.time()) + 60
    assert query(client, token()).status_code == 200, "the student is in memory"
    head = prepare(client, CAT, bearer(token(exp=expiry)) | {"content-length": str(len(ROW))})
    assert b'"match":true' in as_response(head.answer(ROW))[1]
    monkeypatch.setattr(time, "time", lambda: float(expiry))
    monkeypatch.setattr("app.serving.prepared.time", lambda: float(expiry))
    assert head.answer(ROW) is None
    assert prepare(client, CAT, bearer(token(exp=expiry)) | {"content-length": str(len(ROW))}) is None


@pytest.mark.parametrize("by", [{"sub": SUBJECT}, {"jti": "token-1"}])
def test_a_revoked_token_is_replayed_in_vain(client: Any, problem: Problem, by: dict[str, str]) -> None:
    text, root = token(iat=int(time.time()) - 60), token(sub="root", jti="token-0")
    headers = bearer(text) | {"content-length": str(len(ROW))}
    call = (CAT.encode(), [(name.encode(), value.encode()) for name, value in headers.items()], ROW, None, [])
    path = client.app.fast_path
    assert query(client, text).status_code == 200, "the student is in memory"
    for _ in range(2):
        assert path(*call, b"a head that repeats").startswith(b"HTTP/1.1 200")
    assert list(path.known) == [b"a head that repeats"]
    body = {"issuer": NAME, "reason": "found in a log", **by}
    made = client.post("/v1/token-revocations", headers=bearer(root), json=body)
    assert made.status_code == 201
    assert path.known == {}, "known heads are forgotten before the answer"
    assert path(*call, b"a head that repeats") is None
    assert problem(query(client, text), 401, "revoked_token")["detail"] == "The token has been revoked."
    assert query(client, token(jti="token-2", iat=int(time.time()) + 29)).status_code == 401 - 201 * (
        "jti" in by
    )
    listed = client.get("/v1/token-revocations", headers=bearer(root)).json()["data"]
    assert listed == [made.json()]
    assert listed[0] | {"id": "", "created_at": "", "expires_at": ""} == {
        "id": "",
        "tenant": "default",
        "issuer": NAME,
        "sub": by.get("sub"),
        "jti": by.get("jti"),
        "reason": "found in a log",
        "created_by": f"jwt:{NAME}:root",
        "created_at": "",
        "expires_at": "",
    }


def test_a_started_server_knows_what_was_revoked_before(
    make_client: Any, problem: Problem, store: Store, issuers: list[dict[str, Any]]
) -> None:
    text = token()
    revoke_tokens(store, Settings(token_issuers=issuers).token_issuers, NAME, jti="token-1")
    problem(query(make_client(token_issuers=issuers), text), 401, "revoked_token")


def test_administrators_revoke_tokens_of_their_own_tenant_only(
    client: Any, problem: Problem, store: Store
) -> None:
    key = create_key(store, "train", {"train"})[1]
    root = create_key(store, "root", {"admin"})[1]
    client.refresh()

    def revoke(text: str, **body: Any) -> Any:
        return client.post("/v1/token-revocations", headers=bearer(text), json={"issuer": NAME, **body})

    problem(revoke(key, sub="x"), 403, "scope_required")
    problem(client.get("/v1/token-revocations", headers=bearer(key)), 403, "scope_required")
    problem(revoke(root, sub="x", issuer=OTHER), 404, "token_issuer_not_found")
    problem(revoke(root, sub="x", issuer="gone"), 404, "token_issuer_not_found")
    assert problem(revoke(root), 400, "invalid_request")["errors"][0]["code"] == "one_of_two"
    assert problem(revoke(root, sub="x", jti="y"), 400, "invalid_request")["errors"][0]["field"] == "sub"
    assert problem(revoke(root, sub="x\n"), 400, "invalid_request")["errors"][0]["code"] == "bad_name"
    assert revoke(root, sub="x").status_code == 201
    rival = token(iss=OTHER, sub="root")
    assert client.get("/v1/token-revocations", headers=bearer(rival)).json()["data"] == []
    with store.read() as uow:
        [record] = uow.audit.page(limit=5, action="token.revoke")[0]
    assert record.details == {"issuer": NAME, "sub": "x", "jti": None, "reason": ""}


def test_revocations_are_bounded_listed_in_pages_and_deleted_once_they_have_expired(
    store: Store, issuers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = Settings(token_issuers=issuers).token_issuers
    monkeypatch.setattr(token_revocations, "MAX_OF_TENANT", 3)
    made = [revoke_tokens(store, known, NAME, sub=name) for name in "abc"]
    with refused_as(Overloaded, "too_many_revocations", match="within the last hour"):
        revoke_tokens(store, known, NAME, sub="d")
    assert list_revocations(store, limit=2) == (made[:2], True)
    assert list_revocations(store, limit=2, after=made[1].id) == (made[2:], False)
    assert list_revocations(store.of_tenant("rival"), limit=2) == ([], False)
    with pytest.raises(NotFound):
        revoke_tokens(store.of_tenant("rival"), known, NAME, sub="a")
    with pytest.raises(InvalidRequest):
        revoke_tokens(store, known, NAME, sub="a", reason="\n")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600 + 61)
    assert list_revocations(store, limit=9) == ([], False)
    clean(store, Settings(data_dir=tmp_path))
    monkeypatch.undo()
    assert list_revocations(store, limit=9) == ([], False)


def test_a_new_key_of_an_issuer_is_read_while_tokens_of_the_old_one_go_on(
    client: Any, problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.auth.jwks.WANTED_SECONDS", 0.0)
    old, new = token(), token("ES256", 1, jti="token-2")
    assert query(client, old).status_code == 200
    (tmp_path / "keys.json").write_bytes(key_set(public_jwk("ES256", 1)))
    deadline = time.monotonic() + 10
    while (answer := query(client, new)).status_code == 503 and time.monotonic() < deadline:
        problem(answer, 503, "token_keys_unread")
        assert query(client, old).status_code == 200
        time.sleep(0.01)
    assert answer.status_code == 200
    assert query(client, old).status_code == 200
    monkeypatch.setattr("app.auth.jwks.WANTED_SECONDS", 60.0)
    problem(query(client, token(jti="token-3")), 401, "invalid_token")


def test_a_token_begins_no_session(client: Any) -> None:
    form = {"key": token(sub="root"), "next": "/ui/"}
    origin = {"origin": "http://localhost", "host": "localhost"}
    answer = client.post("/ui/sign-in", headers=origin, data=form)
    assert answer.status_code == 401
    assert "A token begins no session" in answer.text
    assert "set-cookie" not in answer.headers


def test_verifications_and_failing_readings_are_counted(client: Any) -> None:
    query(client, token())
    for _ in range(2):
        query(client, token(aud="other"))
    client.run(client.context.audit_writer.write())
    text = client.get("/metrics").text
    assert 'stms_tokens_total{reason="verified"} 1.0' in text
    assert re.search(r'stms_tokens_total{reason="refused"} [12]\.0', text), "each of the two at most once"
    assert "stms_token_keys_unread_total 0.0" in text


def test_a_caller_may_go_on_until_the_token_expires(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    is_valid = client.context.authenticator.is_valid
    caller = client.get("/v1/whoami", headers=bearer(token())).json()["id"]
    assert is_valid(caller)
    monkeypatch.setattr(time, "time", lambda: time.monotonic() + 1e10)
    assert not is_valid(caller)
