"""Signing in: what a session may do, when it ends, and that other sites cannot use it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from app.domain.entities import Caller
from app.domain.errors import NotAuthenticated
from app.services.keys import create_key, revoke_key, rotate_key
from app.services.sessions import SECONDS, begin_session, find_session
from app.store.unit_of_work import Store
from tests.app.web.conftest import SAME_ORIGIN, Person, Things
from tests.refusals import refused_as

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
        r"stms_session=ses_\w{24}_\w{24}_[\w-]{86}; Path=/; HttpOnly; SameSite=Strict; Max-Age=43200", cookie
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


def test_no_session_and_an_ended_one_are_told_apart(client: Any, store: Store) -> None:
    key, _ = create_key(store, "Ada", {"train"})
    client.refresh()
    text = begin_session(store, key)[1]
    revoke_key(store, key.id)
    client.refresh()
    for headers, code in (
        ([], "session_required"),
        ([(b"cookie", f"stms_session={text}".encode())], "session_ended"),
    ):
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/ui/jobs",
            "headers": headers,
            "client": ("127.0.0.1", 1),
        }
        with refused_as(NotAuthenticated, code):
            asyncio.run(client.context.sessions.authenticate(scope))


def test_an_ended_session_never_comes_back(client: Any, sign_in: Enter, store: Store) -> None:
    person = sign_in("train")
    with store.read() as uow:
        key = uow.keys.all()[-1]
    rotate_key(store, key.id)
    with store.read() as uow:
        assert uow.sessions.newest_of(key.id) is None, "deleted in the same transaction"
    for overlap in (3600.0, 3600.0):
        rotate_key(store, key.id, overlap)
        client.refresh()
        assert person.get("/ui/jobs").status_code == 303


def test_a_session_lasts_no_longer_than_the_text_that_began_it(
    client: Any, sign_in: Enter, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, old = create_key(store, "Ada", {"train"})
    client.refresh()
    early = begin_session(store, key)[1]
    rotated = rotate_key(store, key.id, 3600.0)[0]
    client.refresh()
    signed = client.post("/ui/sign-in", headers=SAME_ORIGIN, data={"key": old, "next": "/ui/"})
    late = signed.headers["set-cookie"].partition(";")[0].partition("=")[2]
    client.forget_cookies()
    current, stale = begin_session(store, rotated)[1], begin_session(store, key)[1]
    statuses = [
        client.get("/ui/jobs", headers={"cookie": f"stms_session={text}"}).status_code
        for text in (early, late, current, stale)
    ]
    assert statuses == [200] * 4
    rotate_key(store, key.id, 3600.0)
    client.refresh()
    authenticator = client.context.authenticator
    assert [authenticator.key_of_session(text) is not None for text in (early, late, current, stale)] == [
        *(False, False, True, False)
    ]
    monkeypatch.setattr("app.services.keys.time.time", lambda: time.monotonic() + 1e10)
    assert authenticator.key_of_session(current) is None


def test_a_session_begun_while_the_key_is_rotated_ends_with_the_rotation(client: Any, store: Store) -> None:
    """A process that has not read the rotation yet begins a session with the old text."""
    key, _ = create_key(store, "Ada", {"train"})
    rotate_key(store, key.id)
    _, text = begin_session(store, key)
    client.refresh()
    assert client.get("/ui/jobs", headers={"cookie": f"stms_session={text}"}).status_code == 303


def test_made_up_sessions_are_refused_without_the_database(
    client: Any, sign_in: Enter, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = sign_in("train")
    assert person.get("/ui/jobs").status_code == 200
    session = person.cookie.partition("=")[2]
    key_number, secret = session.split("_", 3)[2:]
    read: list[str] = []
    find = find_session
    monkeypatch.setattr(
        "app.auth.sessions.find_session", lambda store, text: read.append(text) or find(store, text)
    )
    for made_up in (
        f"ses_{'0' * 24}_{key_number}_{secret}",
        f"ses_{'0' * 24}_{'0' * 24}_{secret}",
        f"ses_{'0' * 24}_{secret[:43]}",
        session[:-1] + ("A" if session[-1] != "A" else "B"),
    ):
        for _ in range(8):
            client.get("/ui/jobs", headers={"cookie": f"stms_session={made_up}"})
    assert read == []
    for _ in range(3):
        client.context.sessions._remembered.clear()
        assert person.get("/ui/jobs").status_code == 200, "although the address has failed too often"
    assert read == [session] * 3


def test_a_tenant_and_a_key_read_a_bounded_number_of_sessions_at_once(client: Any, store: Store) -> None:
    """Others, and those whose sessions were valid lately, are not refused meanwhile."""
    keys = [create_key(store, name, {"train"})[0] for name in ("Ada", "Eve", "Joe")]
    texts = {key: [begin_session(store, key)[1] for _ in range(10)] for key in keys}
    other, _ = create_key(store.of_tenant("other"), "Bob", {"train"})
    foreign = begin_session(store.of_tenant("other"), other)[1]
    sessions, [ada, eve, joe] = client.context.sessions, keys
    first = texts[ada][0]

    async def crowd() -> list[Any]:
        await sessions._find(first, Caller.of(ada))
        sessions._remembered[first] = sessions._remembered[first][0], 0.0
        finding = [sessions._find(text, Caller.of(ada)) for text in texts[ada][1:]]
        finding += [sessions._find(text, Caller.of(eve)) for text in texts[eve][:8]]
        finding += [sessions._find(texts[joe][0], Caller.of(joe)), sessions._find(first, Caller.of(ada))]
        return await asyncio.gather(
            *finding, sessions._find(foreign, Caller.of(other)), return_exceptions=True
        )

    found = [getattr(result, "reason", "found") for result in client.run(crowd())]
    assert found[:9] == ["found"] * 8 + ["share_exceeded"], "one key has half"
    assert found[9:] == ["found"] * 8 + ["overloaded", "found", "found"]
    assert not sessions._places
    assert not sessions._reading


def test_signing_in_is_bounded_and_repetitions_share_a_row(make_client: Any, store: Store) -> None:
    client = make_client(require_keys=True)
    text = create_key(store, "Ada", {"query"})[1]
    other = create_key(store, "Bob", {"query"})[1]
    client.refresh()
    answers = [client.post("/ui/sign-in", headers=SAME_ORIGIN, data={"key": text}) for _ in range(22)]
    assert [answer.status_code for answer in answers] == [303] * 20 + [429] * 2
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 3
    assert client.post("/ui/sign-in", headers=SAME_ORIGIN, data={"key": other}).status_code == 303
    client.run(client.context.audit_writer.write(everything=True))
    with store.of_all_tenants().read() as uow:
        rows = [row for row in uow.audit.page(limit=50)[0] if row.actor_name == "Ada"]
    assert {row.action: row.details.get("count") for row in rows} == {
        "session.begin": None,
        "session.repeat": 19,
        "request.refused": 2,
    }
    assert len(rows) == 3


def test_a_wrong_key_has_one_row_that_counts_it(client: Any, store: Store) -> None:
    for _ in range(4):
        assert client.post("/ui/sign-in", headers=SAME_ORIGIN, data={"key": "wrong"}).status_code == 401
    client.run(client.context.audit_writer.write())
    with store.of_all_tenants().read() as uow:
        rows = uow.audit.page(limit=50)[0]
    assert [(row.action, row.details["count"]) for row in rows] == [("request.refused", 4)]


def test_servers_on_several_ports_of_a_machine_have_cookies_of_their_own(client: Any, store: Store) -> None:
    text = create_key(store, "Ada", {"train"})[1]
    client.refresh()
    here = {"host": "127.0.0.1:8000"}
    signed = client.post("/ui/sign-in", headers=SAME_ORIGIN | here, data={"key": text})
    cookie = signed.headers["set-cookie"].partition(";")[0]
    client.forget_cookies()
    assert cookie.startswith("port8000_stms_session=ses_")
    others = "; ".join(f"{name}=ses_of_another_server" for name in ("stms_session", "port9000_stms_session"))
    for sent in (f"{cookie}; {others}", f"{others}; {cookie}", f"port8000_stms_session=made-up; {cookie}"):
        assert client.get("/ui/jobs", headers=here | {"cookie": sent}).status_code == 200
    assert client.get("/ui/jobs", headers={"host": "[::1]:9000", "cookie": cookie}).status_code == 303
    gone = client.post("/ui/sign-out", headers=SAME_ORIGIN | here | {"cookie": f"{others}; {cookie}"})
    assert gone.headers["set-cookie"].startswith("port8000_stms_session=; ")
    assert client.get("/ui/jobs", headers=here | {"cookie": cookie}).status_code == 303


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
        assert "cross_site" in answer.text
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
    plain = {"cookie": sent["cookie"].removeprefix("__Host-")}
    assert client.get("/ui/jobs", headers=plain | tls).status_code == 303, "any server of the host can set it"


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
