"""Responses have security headers and reveal no internals, and no secret is logged."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

import pytest
import sqlalchemy as sa

from app.logs import Masking
from app.services import datasets, keys, models
from app.services.keys import create_key
from app.store.unit_of_work import Store
from tests.app.api.conftest import CSV

QUERY = "/v1/models/pets/classes/cat:query"
ROW = {"x": [1, 2, 3]}
INSIDE = "SELECT secret_column FROM api_keys; /usr/lib/python/site.py postgresql://stms:hunter2@db Traceback"


def fails(*_: Any, **__: Any) -> Any:
    raise RuntimeError(INSIDE)


def fails_in_the_database(*_: Any, **__: Any) -> Any:
    raise sa.exc.ProgrammingError(INSIDE, {"password": "hunter2"}, RuntimeError(INSIDE))


@pytest.mark.parametrize("error", [fails, fails_in_the_database])
@pytest.mark.parametrize(
    ("where", "method", "path", "options"),
    [
        ((datasets, "find_dataset"), "POST", "/v1/datasets?format=csv", {"content": CSV}),
        ((datasets, "store_rows"), "POST", "/v1/datasets?format=csv", {"content": CSV}),
        ((models, "list_models"), "GET", "/v1/models", {}),
        ((keys, "create_key"), "POST", "/v1/keys", {"json": {"name": "k", "scopes": ["query"]}}),
        (("app.serving.query.handler.answer_class",), "POST", QUERY, {"json": ROW}),
        (("app.serving.query.evaluate.parse_class",), "POST", QUERY + "?explain=true", {"json": ROW}),
        (("app.store.repositories.audit.Audit.page",), "GET", "/v1/audit", {}),
        (("app.store.unit_of_work.UnitOfWork.__init__",), "GET", "/v1/training-jobs", {}),
        (("app.serving.open_inference.repository.Repository.metadata",), "GET", "/v2/models/pets", {}),
        (("app.serving.predictor.parse_prediction",), "POST", "/v1/models/pets:predict", {"json": ROW}),
    ],
)
def test_an_internal_error_reveals_nothing(
    client, pets, monkeypatch, error: Callable[..., Any], where: Any, method: str, path: str, options: Any
):
    assert client.post(QUERY, json=ROW).status_code == 200
    monkeypatch.setattr(*where, error)
    response = client.request(method, path, **options)
    assert response.status_code == 500, response.text
    shown = response.text + str(response.headers)
    for word in ("SELECT", "site.py", "hunter2", "Traceback", "RuntimeError", "Error(", ".py", "sqlalchemy"):
        assert word not in shown


def test_responses_are_not_cacheable_by_others(client, store: Store, pets):
    for method, path, options in (
        ("POST", QUERY, {"json": ROW}),
        ("POST", QUERY, {"json": ROW, "headers": {"accept": "application/octet-stream"}}),
        ("GET", "/v1/keys", {}),
        ("GET", "/v1/models", {}),
        ("GET", "/v1/models/none", {}),
        ("GET", "/v2/models/pets", {}),
        ("GET", "/v2/models/none", {}),
        ("POST", "/v1/models/pets:predict", {"json": ROW}),
        ("GET", "/readyz", {}),
    ):
        response = client.request(method, path, **options)
        assert response.headers.get_list("cache-control") == ["no-store"], path
        assert "server" not in response.headers
    assert client.get("/v1/models/pets").headers["cache-control"] == "no-cache"


def test_the_docs_page_has_a_strict_policy_and_loads_only_from_this_server(client):
    response = client.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    rules = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert response.headers["x-frame-options"] == "DENY"
    assert client.get("/redoc").status_code == 404
    addresses = re.findall(r'(?:src|href)="(.*?)"', response.text)
    types = {"js": "text/javascript", "css": "text/css"}
    assert len(addresses) == 4
    for address in addresses:
        if address != "data:,":
            # It is relative, since a proxy may publish the page below a prefix.
            assert urljoin("/docs", address).startswith("/docs/")
            loaded = client.get(urljoin("/docs", address))
            assert loaded.status_code == 200
            assert loaded.headers["content-type"].split(";")[0] == types[address.rpartition(".")[2]]


def test_other_html_has_a_policy_that_allows_nothing(client):
    from fastapi.responses import HTMLResponse

    @client.control.get("/page")
    def page() -> HTMLResponse:
        return HTMLResponse("<p>")

    response = client.get("/page")
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert response.headers["x-frame-options"] == "DENY"


def test_many_failures_log_no_secret(make_client, store: Store, pets, monkeypatch):
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    _, text = create_key(store, "root", {"admin"})
    wrong = text[:-3] + "xyz"
    secrets = [text[-43:], wrong[-43:], "hunter2"]
    handler = Kept(level=0)
    handler.setFormatter(Masking())
    root = logging.getLogger()
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.DEBUG)
    try:
        client = make_client()
        for key in (text, wrong):
            for method, path in (
                ("GET", f"/v1/models?key={key}"),
                ("GET", f"/v1/{key}"),
                ("POST", f"/v1/models/pets/classes/{key}:query"),
                ("POST", f"/v1/keys/{key}/rotate"),
                ("PUT", f"/v1/models/{key}/aliases/x"),
                ("POST", f"/v2/models/{key}/infer"),
            ):
                for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key, "cookie": key}, {}):
                    client.request(method, path, headers=headers, json={"name": key, "x": [key]})
        assert client.post(QUERY, json=ROW, headers={"x-api-key": text}).status_code == 200
        monkeypatch.setattr(models, "list_models", fails)
        monkeypatch.setattr("app.serving.query.handler.answer_class", fails)
        headers = {"authorization": f"Bearer {text}", "x-request-id": text[:100]}
        assert client.get(f"/v1/models?after={text}", headers=headers).status_code == 500
        assert client.post(QUERY, json=ROW, headers=headers).status_code == 500
        client.run(client.context.audit_writer.write())
        audited = client.get("/v1/audit?limit=1000", headers=headers).text
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    log = "\n".join(lines)
    assert "failed" in log
    assert "***@db" in log
    for secret in secrets:
        assert secret not in log
        assert secret not in audited
    assert "request.refused" in audited
