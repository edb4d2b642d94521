"""Bytes of pages, the time until the server has sent them, and until Chromium has painted them."""

from __future__ import annotations

import re
import shutil
import statistics
import time
from typing import Any, Final

from lab.benchmarks.connection import Connection
from lab.benchmarks.dashboard.site import Site

_FILES = re.compile(r'(?:href|src)="(/ui/static/[^"]*)"')
_CHROMIUM: Final = "chromium"
_PAINTED: Final = ("jobs", "running job", "class", "compare", "model")


def measure(site: Site, quick: bool) -> dict[str, Any]:
    """Sizes and times of every page, and the first paint of some."""
    sizes, times = {}, {}
    for name, path in site.content.pages.items():
        text = site.text(path)
        files = sorted(set(_FILES.findall(text)))
        sizes[name] = len(text.encode()) + sum(len(site.text(file).encode()) for file in files)
        times[name] = _milliseconds(site, path, 5 if quick else 40)
        print(f"{name:12} {sizes[name]:7} bytes   {times[name]:6.1f} ms", flush=True)
    largest = max(sizes, key=sizes.__getitem__)
    paints = _paints(site, 2 if quick else 9)
    return {
        "page_bytes": sizes[largest],
        "page_bytes_of": largest,
        "first_paint_ms": None if paints is None else round(max(paints.values()), 1),
        "first_paints_ms": paints,
        "big_job_ms": round(times["ended job"], 1),
        "running_job_ms": round(times["running job"], 1),
        "big_compare_ms": round(times["compare"], 1),
    }


def _milliseconds(site: Site, path: str, count: int) -> float:
    """Median time from a request to the last byte of its answer, over one connection."""
    connection = Connection(site.port, site.request(path), timeout=60)
    times = []
    for _ in range(count):
        started = time.perf_counter()
        connection.ask()
        times.append(time.perf_counter() - started)
    connection.close()
    return 1000 * statistics.median(times)


def _paints(site: Site, visits: int) -> dict[str, float] | None:
    """Median first contentful paint of pages in milliseconds, each visit with an empty cache."""
    program = shutil.which(_CHROMIUM)
    if program is None:
        print(f"NOT MEASURED: first paint, because {_CHROMIUM} is not installed.")
        return None
    from playwright.sync_api import sync_playwright

    name, _, value = site.cookie.partition("=")
    cookie = {"name": name, "value": value, "url": site.address}
    found: dict[str, float] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for title in _PAINTED:
            times = []
            for _ in range(visits + 1):
                context = browser.new_context()
                context.add_cookies([cookie])  # type: ignore[list-item]
                page = context.new_page()
                page.goto(site.address + site.content.pages[title])
                times.append(page.evaluate(_FIRST_PAINT))
                context.close()
            # The first visit also loads fonts and starts processes of the browser.
            found[title] = round(statistics.median(times[1:]), 1)
            print(f"{title:12} first paint after {found[title]:6.1f} ms", flush=True)
        browser.close()
    return found


_FIRST_PAINT: Final = """() => new Promise((done) => {
  new PerformanceObserver((list) => {
    const entry = list.getEntriesByName("first-contentful-paint")[0];
    if (entry) done(entry.startTime);
  }).observe({type: "paint", buffered: true});
})"""
