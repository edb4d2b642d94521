"""A real browser on the pages: Debian's Chromium, driven by Playwright, whose every fault fails a test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
PHONE = {"width": 375, "height": 740}
DESK = {"width": 1280, "height": 900}


@dataclass
class Visit:
    """A page of the server at ``origin``. faults: errors, violations of its policy, and foreign requests."""

    page: Page
    origin: str
    faults: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Note every fault from now on."""
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._request)
        self.page.add_init_script(
            "document.addEventListener('securitypolicyviolation',"
            " (event) => console.error('policy', event.violatedDirective, event.blockedURI));"
        )

    def _console(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.faults.append(f"console: {message.text} at {self.page.url}")

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob"} and f"{parts.scheme}://{parts.netloc}" != self.origin:
            self.faults.append(f"request to {request.url}")

    def open(self, path: str) -> None:
        """Open a page by its address, and wait for its scripts."""
        answer = self.page.goto(self.origin + path, wait_until="load")
        assert answer is not None
        assert answer.ok, f"{path}: {answer.status}"

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def go(self, *keys: str) -> None:
        """Press keys of which the last one leads to another page."""
        self.press(*keys[:-1])
        with self.page.expect_navigation(wait_until="load"):
            self.press(keys[-1])

    @contextmanager
    def expect_refusal(self, status: int) -> Iterator[None]:
        """What follows is answered with this status, which the browser logs as an error."""
        before = len(self.faults)
        yield
        new = self.faults[before:]
        assert [fault for fault in new if f"status of {status}" in fault], new
        self.faults[before:] = [fault for fault in new if f"status of {status}" not in fault]

    def tab_to(self, selector: str, most: int = 150, key: str = "Tab") -> None:
        """Press the tabulator key until an element that matches has the focus."""
        for _ in range(most):
            self.press(key)
            if self.has_focus(selector):
                return
        pytest.fail(f"{selector} on {self.page.url} is not reached by the tabulator key")

    def has_focus(self, selector: str) -> bool:
        """Whether an element that matches has the focus."""
        found: bool = self.page.evaluate("(one) => Boolean(document.activeElement?.matches(one))", selector)
        return found

    def wait_for_focus(self, selector: str) -> None:
        """Wait until an element that matches has the focus: `autofocus` acts after the page was loaded."""
        self.page.wait_for_function("(one) => document.activeElement?.matches(one)", arg=selector)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser, for as long as the context lasts."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def visit(opened: Browser, origin: str, **options: Any) -> Iterator[Visit]:
    """A person with an empty profile; in the end, nothing must have gone wrong on any page."""
    context = opened.new_context(**{"viewport": DESK, "reduced_motion": "reduce"} | options)
    try:
        visited = Visit(context.new_page(), origin)
        visited.watch()
        yield visited
        assert visited.faults == []
    finally:
        context.close()
