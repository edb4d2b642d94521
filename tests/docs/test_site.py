"""The documentation site: complete navigation, generated pages that hold everything, and a strict build."""

from __future__ import annotations

import re
import shutil
import threading
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import core
import stms_client
from app.main import create_app
from app.settings import Settings
from docs.site import commands, http_api, python_api, settings
from docs.site.__main__ import build
from docs.site.checks import missing, outside
from docs.site.stage import GENERATED, HERE, PAGES, configuration


def entries(nav: Any) -> Iterator[str]:
    """The pages of a navigation, at any depth."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from entries(part)


def test_the_navigation_has_every_page_once():
    nav = tomllib.loads(configuration())["project"]["nav"]
    pages = {
        path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md") if not path.is_relative_to(HERE)
    }
    pages.discard("reproduction/figures.md")  # written by a local run of lab.experiments.reproduce
    assert sorted(entries(nav)) == sorted({"index.md", *pages, *GENERATED})
    assert [next(iter(part)) for part in nav] == ["Start", "Tutorial", "How to", "Reference", "Explanation"]


def test_the_page_of_commands_has_every_command_and_option():
    page = commands.page()
    for text in ("## stms train", "## stms db upgrade", "`--label-column`", "`--wait`, `--no-wait`"):
        assert text in page
    assert "    stms train ds_0123 --model letters --tune" in page, "examples are blocks of code"
    assert "process-context" not in page, "hidden options are left out"


def test_the_page_of_settings_has_every_variable():
    page = settings.page()
    rows = re.findall(r"^\| `STMS_(\w+)` \| ([^|]*) \| ([^|]*) \| ([^|]+) \|$", page, re.MULTILINE)
    assert [name.lower() for name, *_ in rows] == list(Settings.model_fields)
    assert ("PORT", "`8000`", "≥ 0 and ≤ 65535") in {row[:3] for row in rows}


def test_the_page_of_the_http_api_has_every_operation_and_schema():
    document = create_app(Settings()).openapi()
    page = http_api.page(document)
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"### `{method.upper()} {path}`" in page
    anchors = set(re.findall(r"\{ #([\w-]+) \}", page))
    assert len(anchors) == len(document["components"]["schemas"])
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) <= anchors


def test_the_page_of_core_has_every_public_name():
    found = re.findall(r"^::: (core\.[\w.]+)\.(\w+)$", python_api.core_page(), re.MULTILINE)
    assert {name for _, name in found} == set(core.__all__)


def test_the_page_of_the_client_has_every_public_name():
    found = re.findall(r"^::: stms_client\.(\w+)$", python_api.client_page(), re.MULTILINE)
    assert {*found, "AsyncClient", "AsyncJob"} == set(stms_client.__all__)


LOADING = (
    '<script src="https://cdn.example/x.js"></script>',
    '<link rel="stylesheet" href="//fonts.example/a.css">',
    '<link rel="preconnect" href="https://fonts.example">',
    '<img src="a.png" srcset="a.png 1x, https://cdn.example/a.png 2x">',
    '<p style="background: url(https://cdn.example/a.png)">',
    "<style>@import 'https://cdn.example/a.css';</style>",
    "<svg><use href='http://cdn.example/icons.svg#a'></use></svg>",
    '<form action="https://forms.example/"></form>',
)


@pytest.mark.parametrize("html", LOADING)
def test_an_address_that_a_page_loads_is_found(tmp_path: Path, html: str):
    (tmp_path / "page.html").write_text(html)
    [(_, address)] = outside(tmp_path)
    assert ".example" in address


def test_links_that_a_reader_may_follow_load_nothing(tmp_path: Path):
    text = '<a href="https://other.example">x</a><img src="data:image/png;base64,AA"><script src="a.js">'
    (tmp_path / "page.html").write_text(text)
    assert list(outside(tmp_path)) == []


def test_a_style_sheet_that_loads_from_elsewhere_is_found(tmp_path: Path):
    (tmp_path / "style.css").write_text(
        "a { background: url('https://cdn.example/a.png') } b { src: url(b.woff2) }"
    )
    assert [address for _, address in outside(tmp_path)] == ["https://cdn.example/a.png"]


def test_a_link_to_a_file_that_is_not_there_is_found(tmp_path: Path):
    text = '<a href="there.html#part">x</a><a href="gone.html">y</a><img src="gone.png"><a href="#here">z</a>'
    (tmp_path / "page.html").write_text(text)
    (tmp_path / "there.html").write_text("")
    assert [address for _, address in missing(tmp_path)] == ["gone.png", "gone.html"]


@pytest.mark.long
@pytest.mark.skipif(find_spec("zensical") is None, reason="requirements/docs.txt is not installed: make docs")
def test_the_site_builds_strictly_and_loads_nothing_from_outside(tmp_path: Path):
    site, faults = build(tmp_path)
    assert faults == []
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {name.replace(".md", ".html") for name in GENERATED} | {"index.html", "tutorial.html"} <= built
    page = (site / "reference" / "core.html").read_text(encoding="utf-8")
    assert (
        foreign_requests(site, ["index.html", "tutorial.html", "dashboard.html", "reference/core.html"]) == []
    )
    first_sentence, _, _ = core.STMSClassifier.__doc__.partition("\n")
    assert first_sentence.replace("`", "") in re.sub("<[^>]*>", "", page)


def foreign_requests(site: Path, pages: list[str]) -> list[str]:
    """What a browser asks of other servers while it shows these pages; nothing is asked without a browser."""
    if shutil.which("chromium") is None or find_spec("playwright") is None:
        return []
    from playwright.sync_api import sync_playwright

    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        own = f"http://127.0.0.1:{server.server_port}/"
        for path in pages:
            page.goto(own + path, wait_until="networkidle")
        browser.close()
        server.shutdown()
    assert len(asked) > len(pages)
    return [url for url in asked if not url.startswith((own, "data:", "blob:"))]
