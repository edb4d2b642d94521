"""Authentication of callers, their scopes and limits, and the check of the address to listen at."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.auth.authenticator import (
    ANONYMOUS,
    Authenticator,
    InsecureBinding,
    authorise,
    check_binding,
    is_loopback,
)
from app.domain.audit_context import UNKNOWN, Actor, AuditContext, audit_context
from app.domain.entities import ApiKey
from app.domain.errors import NotAuthenticated, NotAuthorised, RateLimited
from app.services.first_key import ensure_first_key
from app.services.keys import all_keys, create_key, revoke_key, rotate_key
from app.settings import Settings
from app.store.unit_of_work import Store
from tests.refusals import refused_as


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.7", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback_is_recognised(host: str, expected: bool):
    assert is_loopback(host) is expected


def test_listening_beyond_loopback_requires_a_valid_key(sqlite_store: Store):
    world = Settings(host="0.0.0.0", require_keys=True)
    check_binding(Settings(), sqlite_store)
    with pytest.raises(InsecureBinding, match="stms keys create"):
        check_binding(world, sqlite_store)
    key, _ = create_key(sqlite_store, "root", {"admin"})
    check_binding(world, sqlite_store)
    with pytest.raises(InsecureBinding, match="STMS_REQUIRE_KEYS"):
        check_binding(Settings(host="0.0.0.0", require_keys=False), sqlite_store)
    revoke_key(sqlite_store, key.id)
    with pytest.raises(InsecureBinding):
        check_binding(world, sqlite_store)


def bearer(text: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + text.encode()}


def test_a_cached_header_is_not_checked_again(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch):
    key, text = create_key(sqlite_store, "one", {"query"})
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    assert authenticator.identify(bearer(text)) == key
    monkeypatch.setattr(authenticator._ring, "recognise", lambda _text: pytest.fail("checked again"))
    assert authenticator.identify(bearer(text)) == key


def test_a_new_snapshot_clears_cached_headers(sqlite_store: Store):
    key, text = create_key(sqlite_store, "one", {"query"})
    create_key(sqlite_store, "two", {"query"})
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    assert authenticator.identify(bearer(text)) == key
    revoke_key(sqlite_store, key.id)
    assert authenticator.identify(bearer(text)) == key, "as before until the next snapshot"
    authenticator.replace(all_keys(sqlite_store))
    with pytest.raises(NotAuthenticated):
        authenticator.identify(bearer(text))


def test_a_changed_key_clears_cached_headers_and_leaves_other_keys(sqlite_store: Store):
    key, text = create_key(sqlite_store, "one", {"query"})
    other, other_text = create_key(sqlite_store, "two", {"query"})
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    new, new_text = create_key(sqlite_store, "three", {"query"})
    assert authenticator.identify(bearer(text)) == key
    authenticator.update([revoke_key(sqlite_store, key.id), new])
    with refused_as(NotAuthenticated, "revoked_key"):
        authenticator.identify(bearer(text))
    assert authenticator.identify(bearer(other_text)) == other
    assert authenticator.identify(bearer(new_text)) == new


def test_only_valid_short_headers_are_cached_and_not_too_many(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
):
    _, text = create_key(sqlite_store, "one", {"query"})
    _, other = create_key(sqlite_store, "two", {"query"})
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    for bad in (bearer(text[:-1] + "!"), bearer("x"), {b"authorization": text.encode()}):
        with pytest.raises(NotAuthenticated):
            authenticator.identify(bad)
    authenticator.identify(bearer(" " * 5000 + text))
    authenticator.identify({b"x-api-key": text.encode()})
    assert authenticator._cached == {}
    monkeypatch.setattr("app.auth.authenticator._MAX_CACHED", 1)
    authenticator.identify(bearer(text))
    authenticator.identify(bearer(other))
    assert len(authenticator._cached) == 1
    authenticator.replace(all_keys(sqlite_store))
    monkeypatch.setattr("app.auth.authenticator._MAX_CACHED", 9)
    monkeypatch.setattr("app.auth.authenticator._MAX_CACHED_BYTES", 150)
    for header in (bearer(text), bearer(other)):
        authenticator.identify(header)
    assert len(authenticator._cached) == 1, "their bytes are bounded, too"


def test_a_server_without_any_key_answers_nobody():
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace([])
    with pytest.raises(NotAuthenticated):
        authenticator.identify({b"host": b"localhost"})
    with pytest.raises(NotAuthenticated):
        authenticator.identify(bearer("stms_whatever"))


def asked(text: str | None, client: str = "192.0.2.1") -> dict[str, object]:
    """The scope of a request."""
    key = {} if text is None else bearer(text)
    return {"headers": [(b"host", b"localhost"), *key.items()], "client": (client, 1)}


def test_an_authenticated_caller_is_the_actor_of_the_audit_context(sqlite_store: Store):
    key, text = create_key(sqlite_store, "one", {"train"})
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    with audit_context(AuditContext()) as context:
        assert authenticator.authenticate(asked(text)) == key
    assert context.actor == Actor(key.id, "one", "train", "default")
    assert authenticator.actor_of(bearer(text).items()) == context.actor
    assert authenticator.actor_of(bearer(text + "x").items()) == UNKNOWN
    authorise(key, "train")
    with pytest.raises(NotAuthorised):
        authorise(key, "admin")


def test_the_rate_limit_of_a_key_does_not_affect_others(sqlite_store: Store):
    _, text = create_key(sqlite_store, "busy", {"query"}, rate_limit=0.001, rate_burst=3)
    _, other = create_key(sqlite_store, "other", {"query"})
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    for _ in range(3):
        authenticator.authenticate(asked(text))
    with pytest.raises(RateLimited) as caught:
        authenticator.authenticate(asked(text))
    assert caught.value.quota == 3
    for _ in range(10):
        authenticator.authenticate(asked(other))


@pytest.mark.parametrize("elsewhere", [{"http_version": "1.0"}, {"headers": [(b"host", b"evil.example")]}])
@pytest.mark.parametrize("is_parsed", [False, True])
def test_a_server_without_keys_answers_requests_of_this_machine_only(is_parsed: bool, elsewhere):
    authenticator = Authenticator(Settings())
    authenticator.replace([])
    own = asked(None) | {"http_version": "1.1"}
    assert authenticator.authenticate(own, dict(own["headers"]) if is_parsed else None) is ANONYMOUS
    other = own | elsewhere
    with refused_as(NotAuthorised, "not_local"):
        authenticator.authenticate(other, dict(other["headers"]) if is_parsed else None)


def test_anonymous_callers_are_limited_by_address():
    authenticator = Authenticator(Settings(rate_limit=0.001))
    authenticator.replace([])
    authenticator.authenticate(asked(None))
    with pytest.raises(RateLimited, match="This address"):
        authenticator.authenticate(asked(None))
    authenticator.authenticate(asked(None, "192.0.2.2"))


def test_trusted_proxies_require_keys(sqlite_store: Store):
    """What a proxy forwards comes from loopback; without keys its sender would be an administrator."""
    for require_keys in (True, False):
        settings = Settings(trusted_proxies="127.0.0.1", require_keys=require_keys)
        authenticator = Authenticator(settings)
        authenticator.replace([])
        with pytest.raises(NotAuthenticated, match="needed"):
            authenticator.authenticate(asked(None))
        with pytest.raises(InsecureBinding, match="STMS_TRUSTED_PROXIES"):
            check_binding(settings, sqlite_store)
    create_key(sqlite_store, "root", {"admin"})
    check_binding(Settings(trusted_proxies="127.0.0.1", require_keys=True), sqlite_store)


def test_pages_of_other_origins_require_keys(sqlite_store: Store):
    for require_keys in (True, False):
        with pytest.raises(InsecureBinding, match="STMS_CORS_ORIGINS"):
            check_binding(Settings(cors_origins="https://a.example", require_keys=require_keys), sqlite_store)
    create_key(sqlite_store, "root", {"admin"})
    check_binding(Settings(cors_origins="https://a.example", require_keys=True), sqlite_store)


def test_wrong_keys_are_limited_and_valid_keys_are_not(sqlite_store: Store):
    _, text = create_key(sqlite_store, "one", {"query"})
    authenticator = Authenticator(Settings(require_keys=True, auth_failure_rate=0.001))
    authenticator.replace(all_keys(sqlite_store))
    wrong = text[:-1] + ("x" if text[-1] != "x" else "y")
    with pytest.raises(NotAuthenticated):
        authenticator.authenticate(asked(wrong))
    for _ in range(3):
        with refused_as(RateLimited, "too_many_failures"):
            authenticator.authenticate(asked(wrong))
        authenticator.authenticate(asked(text))
    with pytest.raises(NotAuthenticated, match="needed"):
        authenticator.authenticate(asked(None))
    with pytest.raises(NotAuthenticated):
        authenticator.authenticate(asked(wrong, "192.0.2.9"))


def test_a_cached_header_expires_with_its_key(sqlite_store: Store, monkeypatch):
    ends = time.time() + 100
    _, text = create_key(sqlite_store, "short", {"query"}, expires_at=ends)
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    authenticator.identify(bearer(text))
    monkeypatch.setattr("time.time", lambda: ends - 0.01)
    authenticator.identify(bearer(text))
    monkeypatch.setattr("time.time", lambda: ends)
    with refused_as(NotAuthenticated, "expired_key"):
        authenticator.identify(bearer(text))


def test_the_old_text_of_a_rotated_key_is_valid_during_the_overlap(sqlite_store: Store, monkeypatch):
    key, old = create_key(sqlite_store, "one", {"query"})
    rotated, new = rotate_key(sqlite_store, key.id, 50)
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    assert authenticator.identify(bearer(old)) == authenticator.identify(bearer(new)) == rotated
    monkeypatch.setattr("time.time", lambda: rotated.previous_until)
    assert authenticator.identify(bearer(new)) == rotated
    for _ in range(2):
        with pytest.raises(NotAuthenticated):
            authenticator.identify(bearer(old))


def test_key_usage_is_recorded_without_cost_for_warm_queries(sqlite_store: Store):
    key, text = create_key(sqlite_store, "one", {"query"})
    authenticator = Authenticator(Settings(require_keys=True))
    authenticator.replace(all_keys(sqlite_store))
    assert authenticator.drain_usage() == {}
    before = time.time()
    for _ in range(3):
        authenticator.identify(bearer(text))
    [(used, at)] = authenticator.drain_usage().items()
    assert used == key.id
    assert before <= at <= time.time()
    assert authenticator.drain_usage() == {}
    authenticator.identify(bearer(text))
    assert set(authenticator.drain_usage()) == {key.id}


def test_an_expired_key_does_not_allow_listening_beyond_loopback(sqlite_store: Store, monkeypatch):
    ends = time.time() + 100
    create_key(sqlite_store, "root", {"admin"}, expires_at=ends)
    world = Settings(host="0.0.0.0", require_keys=True)
    check_binding(world, sqlite_store)
    monkeypatch.setattr("time.time", lambda: ends + 1)
    with pytest.raises(InsecureBinding):
        check_binding(world, sqlite_store)


@pytest.mark.parametrize(
    ("scopes", "models", "allowed"),
    [
        ({"admin"}, set(), {"admin", "train", "query", "query a", "query b"}),
        ({"train"}, set(), {"train", "query", "query a", "query b"}),
        ({"query"}, set(), {"query", "query a", "query b"}),
        ({"query"}, {"a"}, {"query", "query a"}),
    ],
)
def test_a_wider_scope_includes_the_narrower_ones(scopes: set[str], models: set[str], allowed: set[str]):
    key = ApiKey("key_1", "k", "0" * 64, frozenset(scopes), frozenset(models), 1.0)
    for what in ("admin", "train", "query", "query a", "query b"):
        scope, _, model = what.partition(" ")
        if what in allowed:
            authorise(key, scope, model or None)
        else:
            with refused_as(NotAuthorised, "model_not_allowed" if scope in scopes else "scope_required"):
                authorise(key, scope, model or None)


def test_a_server_without_keys_does_not_start_on_a_database_with_keys(sqlite_store: Store, tmp_path: Path):
    settings = Settings(require_keys=False)
    ensure_first_key(sqlite_store, tmp_path)
    check_binding(settings, sqlite_store)
    key, _ = create_key(sqlite_store.of_tenant("acme"), "camera", {"query"})
    with pytest.raises(InsecureBinding, match=rf"{key.id} 'camera'.*stms keys revoke"):
        check_binding(settings, sqlite_store)
    check_binding(Settings(require_keys=True), sqlite_store)
    revoke_key(sqlite_store.of_all_tenants(), key.id)
    check_binding(settings, sqlite_store)
