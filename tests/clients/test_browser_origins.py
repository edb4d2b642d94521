"""A real browser asks from pages of two origins, of which STMS_CORS_ORIGINS names one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.app.web.browsing import CHROMIUM, NEEDS_CHROMIUM

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), NEEDS_CHROMIUM]

ASK = """
async ([address, key, path, body]) => {
    const headers = {"Authorization": `Bearer ${key}`, "Content-Type": "application/json"};
    try {
        const answer = await fetch(`http://${address}${path}`, {method: "POST", headers, body});
        return [answer.status, answer.headers.get("x-request-id") !== null, await answer.json()];
    } catch (error) {
        return [0, false, String(error)];
    }
}
"""
QUERY = "/v1/models/pets/classes/cat:query"
INFER = "/v2/models/pets:cat/infer"
ROW = '{"x": [1, 5, 0]}'
TENSOR = '{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 5, 0]}]}'


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[str]:
    """The port of a server with an empty page."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_arguments: Any) -> None:
            pass

    (tmp_path / "index.html").write_text("<!doctype html><title>A page</title>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield str(server.server_port)
    server.shutdown()
    server.server_close()


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield browser.new_page()
        browser.close()


def test_a_page_of_a_listed_origin_asks_and_others_do_not(
    start_service: Callable[..., Any], pages: str, page: Page
):
    # For a browser the two names are two origins.
    service = start_service(STMS_CORS_ORIGINS=f"http://localhost:{pages}")

    def ask(path: str, body: str, key: str = service.key) -> Any:
        return page.evaluate(ASK, [service.address, key, path, body])

    page.goto(f"http://localhost:{pages}/")
    status, has_request_id, answer = ask(QUERY, ROW)
    assert (status, has_request_id, answer["match"]) == (200, True, True)
    assert ask(INFER, TENSOR)[0] == 200
    assert ask(QUERY, '{"x": [1]}')[0] == 400, "errors can be read, too"
    assert ask(QUERY, ROW, "wrong")[0] == 401
    assert ask("/v1/training-jobs", "{}")[0] == 0, "jobs are open to no page"

    page.goto(f"http://127.0.0.1:{pages}/")
    status, _, error = ask(QUERY, ROW)
    assert (status, error) == (0, "TypeError: Failed to fetch")
