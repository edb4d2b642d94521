"""`stms demo --loop`: every step with a real server, and a browser on the pages that it leaves."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from app.commands.demo.loop import ALIAS, MODEL, SETTINGS, show_loop
from app.commands.demo.temporary_server import temporary_server
from app.commands.remote import connect
from tests.app.web.browsing import NEEDS_CHROMIUM, browser, visit

pytestmark = [pytest.mark.long, NEEDS_CHROMIUM]


def test_the_loop_ends_with_a_better_version_and_its_pages_can_be_walked(tmp_path: Path):
    text = io.StringIO()
    with temporary_server(tmp_path, **SETTINGS) as server, connect(server.address, server.key) as client:
        show_loop(Console(file=text, highlight=False, width=110), client)
        said = text.getvalue()
        for part in (
            "The alarm",
            "reviewed rows",
            "answers as a shadow",
            "The gate lets it pass",
            "no promise is broken",
        ):
            assert part in said, said
        measured = re.search(r"mean F (0\.\d+) before and (0\.\d+) now; classes worse: \[\]", said)
        assert measured, said
        assert float(measured[2]) > float(measured[1]) + 0.1
        assert client.alias(MODEL, ALIAS)["version"] == 2
        client.query_rows(f"{MODEL}@{ALIAS}", "8", [[0.0] * 64] * 40)
        client.put_shadow(MODEL, ALIAS, 1, share=0.5)
        deadline = time.monotonic() + 30.0
        while not client.review(MODEL, ALIAS)["waiting"] and time.monotonic() < deadline:
            time.sleep(0.2)
        # All samples of a query are written together.
        waiting = client.review(MODEL, ALIAS)["waiting"]
        assert waiting > 0
        base = f"/ui/models/{MODEL}/aliases/{ALIAS}"
        with browser() as chromium, visit(chromium, server.address) as person:
            person.page.goto(f"{server.address}/ui/sign-in")
            person.page.fill("[name=key]", server.key)
            with person.page.expect_navigation(wait_until="load"):
                person.page.click("button.primary")
            person.open(f"{base}/live")
            shown = person.page.inner_text("main")
            for part in ("Right among yes", "Evidence against recall", "Shadow", "Its own traffic"):
                assert part in shown, shown
            person.open(f"{base}/review")
            assert "Is this row of class" in person.page.inner_text("main")
            assert person.page.locator("main tbody tr").count() == 64, "the row was kept"
            person.go("s")
            assert "/review" in person.page.url
            for path in (f"/ui/models/{MODEL}/versions/2", base, "/ui/evaluations"):
                person.open(path)
            assert not person.faults, person.faults
        assert client.review(MODEL, ALIAS)["waiting"] == waiting - 1
