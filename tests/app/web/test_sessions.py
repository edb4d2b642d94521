"""Signing in: what a session may do, when it ends, and that other sites cannot use it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from app.services.keys import create_key, revoke_key, rotate_key
from app.services.sessions import SECONDS, begin_session, find_session
from app.store.unit_of_work import Store
from tests.app.web.conftest import SAME_ORIGIN, Person, Things

Enter = Callable[..., Person]


def test_pages_lead_to_the_form_and_back(client: Any, store: Store) -> None:
    assert client.get("/").headers["location"] == "/ui/"
    answer = client.get("/ui/jobs?state=failed")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/ui/sign-in?next=%2Fui%2Fjobs%3Fstate%3Dfailed"
    assert 'value="/ui/jobs?state=failed"' in client.get(answer.headers["location"]).text
    text = create_key(store, "Ada", {"train"})[1]
    client.refresh()
    form = {"key": f" {text}\n", "next": "/ui/jobs?state=failed"}
    signed = client.post("/ui/sign-in", headers=SAME_ORIGIN, data=form)
    assert (signed.status_code, signed.headers["location"]) == (303, "/ui/jobs?state=failed")
    cookie = signed.headers["set-cookie"]
    assert re.fullmatch(
        r"stms_session=ses_\w{24}_[\w-]{43}; Path=/; HttpOnly; SameSite=Strict; Max-Age=43200", cookie
    )
    assert text not in cookie


@pytest.mark.parametrize(
    "next_", ["https://evil.example/ui/", "//evil.example/ui/", "/\\evil", "/v1/keys", ""]
)
def test_signing_in_leads_to_pages_of_this_server_only(client: Any, store: Store, next_: str) -> None:
    text = create_key(store, "Ada", {"train"})[1]
    client.refresh()
    signed = client.post("/ui/sign-in", headers=SAME_ORIGIN, data={"key": text, "next": next_})
    assert signed.headers["location"] == "/ui/"


def test_a_wrong_key_is_refused_counted_and_audited(make_client: Any, store: Store) -> None:
    client = make_client(require_keys=True, auth_failure_rate=0.01)
    create_key(store, "Ada", {"train"})
    client.refresh()
    answers = [
        client.post("/ui/sign-in", headers=SAME_ORIGIN, data={"key": "stms_key_0_wrong"}) for _ in range(3)
    ]
    assert [answer.status_code for answer in answers] == [401, 429, 429]
    assert "does not have the form" in answers[0].text
    assert "set-cookie" not in answers[0].headers
    client.run(client.context.audit_writer.write())
    with store.of_all_tenants().read() as uow:
        [record] = uow.audit.page(limit=5, action="request.refused")[0]
    assert record.details["codes"] == {"invalid_key": 1, "too_many_failures": 2}


def test_what_a_session_does_is_done_by_its_key(sign_in: Enter, things: Things, store: Store) -> None:
    person = sign_in("train")
    answer = person.post(f"/ui/jobs/{things.job.id}/cancel")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/jobs/{things.job.id}?done=cancel")
    with store.read() as uow:
        [record] = uow.audit.page(limit=5, action="job.cancel")[0]
        [begun] = uow.audit.page(limit=5, action="session.begin")[0]
    assert record.actor_name == "Ada"
    assert record.actor == begun.details["key"]


def test_signing_out_ends_the_session(sign_in: Enter) -> None:
    person = sign_in("train")
    assert person.get("/ui/jobs").status_code == 200
    answer = person.post("/ui/sign-out")
    assert answer.headers["set-cookie"].startswith("stms_session=; ")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert person.get("/ui/jobs").status_code == 303


def test_a_session_ends_with_its_key(client: Any, sign_in: Enter, store: Store) -> None:
    for end in (revoke_key, rotate_key):
        person = sign_in("train")
        with store.read() as uow:
            key = uow.keys.all()[-1]
        assert person.get("/ui/jobs").status_code == 200
        end(store, key.id)
        client.refresh()
        answer = person.get("/ui/jobs")
        assert answer.headers["location"].startswith("/ui/sign-in")


def test_a_session_outlives_a_rotation_for_the_overlap(client: Any, sign_in: Enter, store: Store) -> None:
    person = sign_in("train")
    with store.read() as uow:
        rotate_key(store, uow.keys.all()[-1].id, 3600.0)
    client.refresh()
    assert person.get("/ui/jobs").status_code == 200


def test_a_session_ends_by_itself(client: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = create_key(store, "short", {"train"}, expires_at=time.time() + 60)
    session, text = begin_session(store, key)
    assert session.expires_at == key.expires_at, "never later than its key"
    long, long_text = begin_session(store, create_key(store, "long", {"train"})[0])
    assert find_session(store, long_text) == long
    monkeypatch.setattr("app.services.sessions.time.time", lambda: long.created_at + SECONDS)
    assert find_session(store, long_text) is None
    assert find_session(store, text) is None
    assert find_session(store, long_text[:-1] + ("A" if long_text[-1] != "A" else "B")) is None


def test_a_key_has_a_bounded_number_of_sessions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services.sessions.SESSIONS_PER_KEY", 3)
    key, _ = create_key(store, "many", {"train"})
    texts = [begin_session(store, key)[1] for _ in range(5)]
    alive = [find_session(store, text) is not None for text in texts]
    assert alive == [False, False] + [True] * 3


def test_requests_that_other_sites_cause_change_nothing(sign_in: Enter, things: Things) -> None:
    person = sign_in("operator")
    path = f"/ui/jobs/{things.job.id}/cancel"
    for headers in (
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://localhost"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ):
        answer = person.post(path, headers=headers)
        assert answer.status_code == 403, headers
        assert "Another site" in answer.text
    assert "queued" in person.get(f"/ui/jobs/{things.job.id}").text
    # A browser sends no Sec-Fetch-Site over plain HTTP to another machine.
    assert person.post(path, headers={"origin": "http://localhost"}).status_code == 303


def test_a_cookie_is_no_key_of_the_api_and_a_key_no_cookie(client: Any, sign_in: Enter, store: Store) -> None:
    person = sign_in("operator")
    assert client.get("/v1/keys", headers={"cookie": person.cookie}).status_code == 401
    text = create_key(store, "Bob", {"operator"})[1]
    client.refresh()
    assert client.get("/ui/keys", headers={"authorization": f"Bearer {text}"}).status_code == 303
    assert client.get("/ui/keys", headers={"cookie": f"stms_session={text}"}).status_code == 303


def test_behind_a_proxy_with_tls_the_cookie_is_secure(make_client: Any, store: Store) -> None:
    client = make_client(require_keys=True, trusted_proxies="127.0.0.1")
    text = create_key(store, "Ada", {"train"})[1]
    client.refresh()
    tls = SAME_ORIGIN | {"x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.5"}
    signed = client.post("/ui/sign-in", headers=tls, data={"key": text})
    cookie = signed.headers["set-cookie"]
    assert cookie.startswith("__Host-stms_session=")
    assert cookie.endswith("; Secure")
    sent = {"cookie": cookie.partition(";")[0]}
    assert client.get("/ui/jobs", headers=sent | tls).status_code == 200
    assert client.get("/ui/jobs", headers=sent).status_code == 303, "an unencrypted connection has another"


def test_the_rate_limit_of_the_key_holds_for_its_sessions(sign_in: Enter) -> None:
    person = sign_in("train", rate_limit=0.01, rate_burst=3)
    statuses = [person.get("/ui/jobs").status_code for _ in range(4)]
    assert statuses == [200, 200, 429, 429], "signing in was the first of three"


def test_a_session_holds_at_once_in_other_processes(make_client: Any, store: Store) -> None:
    first, second = make_client(require_keys=True), make_client(require_keys=True)
    text = create_key(store, "Ada", {"train"})[1]
    first.refresh()
    second.refresh()
    signed = first.post("/ui/sign-in", headers=SAME_ORIGIN, data={"key": text})
    sent = {"cookie": signed.headers["set-cookie"].partition(";")[0]}
    for client in (first, second, first, second):
        assert client.get("/ui/jobs", headers=sent).status_code == 200


def test_a_server_without_keys_needs_no_signing_in(make_client: Any) -> None:
    client = make_client()
    assert client.get("/ui/sign-in").headers["location"] == "/ui/"
    assert client.get("/ui/workers").status_code == 200
    assert client.get("/ui/workers", headers={"host": "evil.example"}).status_code == 403
    assert client.post("/ui/theme", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    themed = client.post("/ui/theme", headers=SAME_ORIGIN, data={"theme": "dark", "next": "/ui/models"})
    assert themed.headers["location"] == "/ui/models"
    cookie = {"cookie": themed.headers["set-cookie"].partition(";")[0]}
    assert 'data-theme="dark"' in client.get("/ui/models", headers=cookie).text


def test_a_link_from_another_site_reaches_those_who_have_signed_in(client: Any) -> None:
    """The browser does not send the cookie with such a request, only after the page has led it on."""
    answer = client.get("/ui/sign-in?next=/ui/models", headers={"sec-fetch-site": "cross-site"})
    assert '<meta http-equiv="refresh" content="0; url=/ui/models">' in answer.text
    assert "http-equiv" not in client.get("/ui/sign-in?next=/ui/models").text
