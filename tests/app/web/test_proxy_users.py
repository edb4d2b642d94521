"""People whom a trusted proxy names: who counts as such a proxy, and what the rules let them do."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.domain.caller_rules import ProxyRule, Rule
from app.settings import Settings
from app.store.unit_of_work import Store
from tests.app.web.conftest import SAME_ORIGIN, Person, Things

RULES = [
    {"claim": "groups", "equals": "ops", "scopes": ["admin"]},
    {"claim": "user", "equals": "ada@example.com", "scopes": ["train"]},
    {"claim": "user", "prefix": "acme/", "scopes": ["train"], "tenant": "acme"},
]
WANTED = {
    "require_keys": True,
    "trusted_proxies": "127.0.0.1",
    "proxy_user_header": "X-Forwarded-Email",
    "proxy_groups_header": "X-Forwarded-Groups",
    "proxy_rules": RULES,
}
ADA = {"x-forwarded-email": "ada@example.com"}


@pytest.fixture
def client(make_client: Any) -> Any:
    """A server behind a proxy at the address that the requests of these tests come from."""
    return make_client(**WANTED)


def test_a_named_person_sees_the_pages_of_the_rule_without_a_session(client: Any) -> None:
    assert client.get("/ui/jobs", headers=ADA).status_code == 200
    assert client.get("/ui/keys", headers=ADA).status_code == 403
    answer = client.get("/ui/sign-in?next=/ui/jobs", headers=ADA)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs")
    ops = {"x-forwarded-email": "bob@example.com", "x-forwarded-groups": "dev, ops"}
    assert client.get("/ui/keys", headers=ops).status_code == 200


@pytest.mark.parametrize("proxies", ["10.0.0.1", "10.0.0.0/8, 192.0.2.1"])
@pytest.mark.parametrize("headers", [list(ADA.items()), [*ADA.items(), *ADA.items()]])
def test_from_any_other_address_the_header_is_ignored(
    make_client: Any, proxies: str, headers: list[tuple[str, str]]
) -> None:
    client = make_client(**WANTED | {"trusted_proxies": proxies})
    for more in ([], [("x-forwarded-for", "10.0.0.1")], [("x-real-ip", "10.0.0.1")]):
        answer = client.get("/ui/jobs", headers=[*headers, *more])
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/sign-in?next=%2Fui%2Fjobs")
        assert client.get("/ui/sign-in", headers=[*headers, *more]).status_code == 200


def test_without_the_setting_the_header_is_ignored(make_client: Any) -> None:
    client = make_client(require_keys=True, trusted_proxies="127.0.0.1")
    assert client.get("/ui/jobs", headers=ADA).status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        [*ADA.items(), *ADA.items()],
        [("x-forwarded-email", "eve@example.com"), *ADA.items()],
        [("x-forwarded-email", "ada@example.com, eve@example.com")],
        [("x-forwarded-email", "x" * 256)],
        [("x-forwarded-email", "ada\u0007")],
        [*ADA.items(), ("x-forwarded-groups", "a"), ("x-forwarded-groups", "ops")],
        [*ADA.items(), ("x-forwarded-groups", "x" * 9000)],
    ],
)
def test_a_header_that_does_not_name_one_person_gives_nobody_access(
    client: Any, headers: list[tuple[str, str]]
) -> None:
    answer = client.get("/ui/jobs", headers=headers)
    assert answer.status_code == 403
    assert "proxy_user_unclear" in answer.text


def test_a_person_without_a_rule_is_refused(client: Any) -> None:
    answer = client.get("/ui/jobs", headers={"x-forwarded-email": "eve@example.com"})
    assert answer.status_code == 403
    assert "No rule of this server is for" in answer.text
    assert "proxy_user_without_rule" in answer.text
    assert client.get("/ui/jobs", headers={"x-forwarded-email": ""}).status_code == 303, "nobody is named"


def test_the_api_takes_no_name_from_a_proxy(client: Any) -> None:
    assert client.get("/v1/whoami", headers=ADA).status_code == 401
    query = client.post("/v1/models/m/classes/c:query", headers=ADA, json={"x": [1.0]})
    assert query.status_code == 401


def test_forms_still_have_to_come_from_a_page_of_this_server(
    client: Any, things: Things, store: Store
) -> None:
    path = f"/ui/jobs/{things.job.id}/cancel"
    for sent in (
        {},
        {"sec-fetch-site": "cross-site"},
        {"origin": "https://evil.example", "host": "localhost"},
    ):
        assert client.post(path, headers=ADA | sent).status_code == 403
    assert client.post(path, headers=ADA | SAME_ORIGIN).status_code == 303
    with store.read() as uow:
        [record] = uow.audit.page(limit=5, action="job.cancel")[0]
    assert (record.actor, record.actor_name, record.scope) == (
        "proxy:ada@example.com",
        "ada@example.com",
        "train",
    )


def test_a_person_sees_the_tenant_of_the_rule_only(client: Any, things: Things) -> None:
    acme = {"x-forwarded-email": "acme/eve"}
    assert client.get(f"/ui/jobs/{things.job.id}", headers=acme).status_code == 404
    assert client.get(f"/ui/jobs/{things.job.id}", headers=ADA).status_code == 200


def test_the_named_person_goes_before_a_session_and_signing_in_still_works_without_one(
    client: Any, sign_in: Any
) -> None:
    person: Person = sign_in("admin")
    assert person.get("/ui/keys").status_code == 200
    assert person.get("/ui/keys", **ADA).status_code == 403


def test_the_rate_limit_is_that_of_the_person(make_client: Any) -> None:
    client = make_client(**WANTED, rate_limit=0.001, rate_burst=2)
    ops = {"x-forwarded-email": "bob@example.com", "x-forwarded-groups": "ops"}
    statuses = [client.get("/ui/keys", headers=ops).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert client.get("/ui/jobs", headers=ADA).status_code == 200


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"trusted_proxies": ""}, "needs STMS_TRUSTED_PROXIES and STMS_PROXY_RULES"),
        ({"proxy_rules": []}, "needs STMS_TRUSTED_PROXIES and STMS_PROXY_RULES"),
        ({"proxy_user_header": ""}, "need STMS_PROXY_USER_HEADER"),
        ({"proxy_user_header": "Cookie"}, "begins with X- or Remote-"),
        ({"proxy_groups_header": "X Groups"}, "begins with X- or Remote-"),
        ({"proxy_rules": [{"claim": "mail", "equals": "x", "scopes": ["query"]}]}, "'user' or 'groups'"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(changed: dict[str, Any], message: str) -> None:
    Settings(**WANTED)
    with pytest.raises(ValidationError, match=message):
        Settings(**WANTED | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prefix": "b:"}, "either equals or prefix"),
        ({"equals": None}, "either equals or prefix"),
        ({"equals": None, "prefix": "prod"}, "ends with the sign behind a name"),
        ({"scopes": []}, "at least 1"),
        ({"scopes": ["operator"]}, "'admin', 'train', 'download' or 'query'"),
        ({"scopes": ["train"], "models": ["m"]}, "can be limited to models"),
        ({"models": ["a b"]}, "pattern"),
        ({"tenant": "x"}, "Extra inputs"),
    ],
)
def test_rules_that_mean_nothing_are_refused(changed: dict[str, Any], message: str) -> None:
    usual = {"claim": "sub", "equals": "a", "scopes": ["query"]}
    assert Rule.model_validate(usual).applies({"sub": "a"})
    with pytest.raises(ValidationError, match=message):
        Rule.model_validate(usual | changed)


def test_a_rule_compares_whole_texts_and_whole_names() -> None:
    rule = ProxyRule.model_validate({"claim": "groups", "prefix": "acme/", "scopes": ["query"]})
    for claims in ({"groups": ["x", "acme/ops"]}, {"groups": "acme/"}):
        assert rule.applies(claims)
    for other in ({}, {"groups": None}, {"groups": ["x acme/"]}, {"groups": {"acme/": 1}}, {"user": "acme/"}):
        assert not rule.applies(other)
