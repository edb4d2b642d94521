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
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1400, "height": 900}

_LAYOUT_FAULTS = r"""() => {
  const faults = [], page = document.documentElement, width = page.clientWidth;
  const say = (what, one, text) =>
    faults.push(`${what}: ${one.tagName} ${one.getAttribute("class") ?? ""} ${text.trim().slice(0, 60)}`);
  const isHidden = (one) => one.closest("thead")?.getBoundingClientRect().width <= 1;
  if (page.scrollWidth > width) {
    say("the page scrolls sideways", page, `${page.scrollWidth} of ${width} pixels`);
    for (const one of document.querySelectorAll("body *")) {
      const mayBeWide = one.parentElement.closest(".scroll, .unseen");
      const isWide = !mayBeWide && one.getBoundingClientRect().right > width;
      if (isWide) say("beyond the window", one, one.textContent);
    }
  }
  for (const one of document.querySelectorAll("body *")) {
    if (one.scrollWidth <= one.clientWidth + 1 || one.matches(".card .scroll, pre, textarea")) continue;
    const overflow = getComputedStyle(one).overflowX;
    if (overflow === "auto" || overflow === "scroll") say("scrolls sideways", one, one.textContent);
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (texts.nextNode()) {
    const node = texts.currentNode, box = node.parentElement;
    if (box.closest("svg, script, option, textarea, .unseen") || !box.getClientRects().length) continue;
    if (isHidden(box)) continue;
    for (const {0: word, index} of node.data.matchAll(/[\p{L}\p{M}\p{N}]+/gu)) {
      const isId = /^(?=.*\p{N}).{12}/u.test(word);
      const hasBlanks = /^[\p{Script=Latin}\p{Script=Cyrillic}\p{M}\p{N}]+$/u.test(word);
      if (word.length > 24 || isId || !hasBlanks) continue;
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top)));
      if (lines.size > 1) say(`“${word}” is broken`, box, node.data);
    }
  }
  for (const cell of document.querySelectorAll("td, th")) {
    if (isHidden(cell) || /\S{60}/.test(cell.textContent)) continue;
    const lines = cell.clientHeight / parseFloat(getComputedStyle(cell).lineHeight);
    if (lines > 12) say(`${Math.round(lines)} lines high`, cell, cell.textContent);
  }
  return [...new Set(faults)];
}"""
"""What is laid out badly on a page: it, or another part than a table in its card or a text in fixed width,
scrolls sideways; a word of at most 24 letters is broken within; a cell is higher than twelve lines.

Words of scripts that have no blanks between words may be broken, ids of letters and digits, too, and cells
with a word of 60 characters may be high.
"""


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

    def layout_faults(self) -> list[str]:
        """What is laid out badly on the page: each as a sentence, with its element."""
        faults: list[str] = self.page.evaluate(_LAYOUT_FAULTS)
        return faults

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
