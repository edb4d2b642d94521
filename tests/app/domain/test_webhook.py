"""Addresses, events and messages of webhooks; signatures are verified by the libraries of receivers."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured_event
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from app.domain.origins import AllowedServers, Origin
from app.domain.redaction import redact
from app.domain.webhook import (
    DELAYS,
    EVENTS,
    MAX_BODY,
    MAX_TEXT,
    Target,
    WebhookEvent,
    due_after,
    faults_of,
    wants,
)
from app.domain.webhook_message import body_of, check_of, headers_of, secret_of, secret_text

ALLOWED = AllowedServers.of("https://hooks.example.com,https://*.example.org:8443")
EVENT = WebhookEvent(
    "evt_1",
    "job.failed",
    "acme",
    "job_1",
    1767225600.5,
    {"model": "letters", "error": {"code": "x", "message": "größer < 1 & 日本"}},
    "letters",
)
GOOD = {"name": "ours", "events": ["job.failed"], "models": ["letters"], "form": "slack"}


@pytest.mark.parametrize(
    ("url", "origin", "path"),
    [
        ("https://hooks.example.com", "https://hooks.example.com", "/"),
        ("https://HOOKS.example.com:443/a/b?c=%20&d", "https://hooks.example.com", "/a/b?c=%20&d"),
        ("http://[::1]:8080/?x", "http://[::1]:8080", "/?x"),
        ("https://hooks.example.com.?q", "https://hooks.example.com", "/?q"),
    ],
)
def test_an_address_is_an_origin_and_a_path(url, origin, path):
    assert Target.of(url) == Target(Origin.of(origin), path)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "hooks.example.com",
            "ftp://hooks.example.com",
            "//hooks.example.com",
            "https://",
            "https:///a",
        ),
        *("https://user@hooks.example.com", "https://a:b@hooks.example.com/", "https://hooks.example.com/#a"),
        *("https://hooks.example.com\\@evil.example", "https://hooks.example.com/a b", "https://h/\r\nX: y"),
        *(
            "https://hooks.example.com:99999",
            "https://hooks.example.com:x",
            "https://größe.example/",
            "https://[x",
        ),
        *("https://hooks.example.com:0/", "https://h/" + "a" * 2000, "file:///etc/passwd", "HTTPS://h\0/"),
    ],
)
def test_other_addresses_are_refused(url):
    with pytest.raises(ValueError, match=r"The address must"):
        Target.of(url)
    assert [fault.code for fault in faults_of(url=url, allowed=ALLOWED, **GOOD)] == ["bad_url"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, None),
        ({"url": "https://a.b.example.org:8443/x"}, None),
        ({"url": "https://example.org:8443/x"}, "webhook_not_allowed"),
        ({"url": "http://hooks.example.com/"}, "webhook_not_allowed"),
        ({"url": "https://hooks.example.com:444/"}, "webhook_not_allowed"),
        ({"url": "https://hooks.example.com.evil.example/"}, "webhook_not_allowed"),
        ({"name": ""}, "bad_name"),
        ({"name": "\u202e"}, "bad_name"),
        ({"events": []}, "unknown_event"),
        ({"events": ["job.failed", "job.*"]}, "unknown_event"),
        ({"form": "xml"}, "unknown_form"),
        ({"models": ["a/b"]}, "bad_name"),
        ({"models": [f"m{number}" for number in range(101)]}, "too_long"),
    ],
)
def test_fields_are_checked(changed, code):
    fields = {"url": "https://hooks.example.com/x", "allowed": ALLOWED} | GOOD | changed
    assert [fault.code for fault in faults_of(**fields)] == ([] if code is None else [code])


def test_without_a_setting_nothing_is_allowed():
    [fault] = faults_of(url="https://hooks.example.com/x", allowed=AllowedServers.of(""), **GOOD)
    assert fault.code == "webhook_not_allowed"
    assert "STMS_WEBHOOKS" in fault.message


def test_an_event_goes_to_those_who_want_it():
    other = WebhookEvent("evt_2", "key.expiring", "acme", "key_1", 0.0, {})
    assert wants(["job.failed"], [], EVENT)
    assert wants(["job.failed"], ["a", "letters"], EVENT)
    assert not wants(["job.failed"], ["a"], EVENT)
    assert not wants(["job.succeeded"], [], EVENT)
    assert wants(EVENTS, ["a"], other), "the event belongs to no model"


def test_the_attempts_are_further_and_further_apart():
    assert DELAYS == (0, 5, 30, 300, 1800, 7200, 28800)
    assert [due_after(attempts, 100.0) for attempts in (1, 2, 6, 7)] == [105.0, 130.0, 28900.0, None]
    assert due_after(1, 100.0, wait=60.0) == 160.0
    assert due_after(4, 100.0, wait=60.0) == 1900.0


@pytest.mark.parametrize("form", ["cloudevents", "slack"])
def test_the_library_of_receivers_verifies_the_signature(form):
    secret, body = secret_of(b"root" * 8, "wh_1"), body_of(EVENT, form)
    headers = headers_of(EVENT.id, body, secret, time.time(), form)
    verifier = Verifier(secret_text(secret))
    assert verifier.verify(body, headers) == json.loads(body)
    for changed, sent in ((body + b" ", headers), (body, headers | {"webhook-id": "evt_2"})):
        with pytest.raises(WebhookVerificationError):
            verifier.verify(changed, sent)
    with pytest.raises(WebhookVerificationError):
        Verifier(secret_text(secret_of(b"root" * 8, "wh_2"))).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        verifier.verify(body, headers_of(EVENT.id, body, secret, time.time() - 600, form))


def test_the_lines_of_the_documentation_verify_the_signature():
    page = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    secret, body = secret_of(b"root" * 8, "wh_1"), body_of(EVENT, "cloudevents")
    text, headers = secret_text(secret), headers_of(EVENT.id, body, secret, time.time(), "cloudevents")
    assert names["is_genuine"](body, headers, text)
    assert not names["is_genuine"](body + b" ", headers, text)
    assert not names["is_genuine"](body, headers | {"webhook-id": "evt_2"}, text)
    assert not names["is_genuine"](body, headers, secret_text(b"x" * 32))
    old = headers_of(EVENT.id, body, secret, time.time() - 400, "cloudevents")
    assert not names["is_genuine"](body, old, text)


def test_the_library_of_cloudevents_reads_the_body():
    body = body_of(EVENT, "cloudevents")
    headers = headers_of(EVENT.id, body, b"secret", 0.0, "cloudevents")
    event = from_structured_event(HTTPMessage(headers={"content-type": headers["Content-Type"]}, body=body))
    assert (event.get_id(), event.get_type(), event.get_subject()) == ("evt_1", "job.failed", "job_1")
    assert (event.get_source(), event.get_time().timestamp()) == ("urn:stms:acme", 1767225600.5)
    assert event.get_data() == EVENT.data


def test_slack_gets_one_line_without_marks():
    assert json.loads(body_of(EVENT, "slack")) == {
        "text": "job.failed: job_1, model letters, größer &lt; 1 &amp; 日本"
    }


@pytest.mark.parametrize("form", ["cloudevents", "slack"])
@pytest.mark.parametrize("character", ["a", "&", "\x01", "\U0001f600", '"'])
def test_the_body_is_bounded(form, character):
    error = {"code": "x" * 64, "message": character * MAX_TEXT}
    data = {"model": "m" * 100, "error": error, "links": {"version": "/v1/models/" + "m" * 100}}
    event = WebhookEvent("evt_1", "job.failed", "t" * 100, "s" * 201, 0.0, data)
    assert len(body_of(event, form)) <= MAX_BODY


def test_secrets_differ_by_webhook_and_root():
    secrets = {secret_of(root, name) for root in (b"a" * 32, b"b" * 32) for name in ("wh_1", "wh_2")}
    assert len(secrets) == 4
    assert all(len(secret) == 32 for secret in secrets)
    assert check_of(b"a" * 32) != check_of(b"b" * 32)
    assert redact(f"the secret is {secret_text(secrets.pop())}") == "the secret is whsec_***"
