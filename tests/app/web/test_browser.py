"""The pages in a real browser: no violation of their policy, no error, and no request to another address."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from app.store.unit_of_work import Store
from tests.app.api.test_process import Server, server
from tests.app.web.conftest import Things

__all__ = ["server"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]


def opened(address: str, folder: Path) -> tuple[str, list[str]]:
    """The document of a page after two seconds, and the lines of the browser's console."""
    command = [
        "chromium",
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--disable-background-networking", "--enable-logging=stderr", "--virtual-time-budget=4000"),
        *("--no-first-run", f"--user-data-dir={folder / 'profile'}"),
        # No other name or address is reached.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        *("--dump-dom", address),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_browser_shows_the_pages_and_runs_their_scripts(
    server: Server, things: Things, store: Store, tmp_path: Path
) -> None:
    job = f"{server.url}/ui/jobs/{things.job.id}"
    for address, sign in {
        f"{server.url}/": "Data sets",
        job: "Classes",
        f"{server.url}/ui/models/pets": "Aliases",
        f"{server.url}/ui/models/pets/ask?at=1": "Question",
    }.items():
        page, console = opened(address, tmp_path)
        assert console == [], address
        assert sign in page
        assert "alert(&#39;x&#39;)" in page or "<script>alert" not in page
    page, console = opened(f"{job}/classes/0", tmp_path)
    assert console == []
    assert 'data-slider=""' in page, "the script has shown the slider"
    assert 'data-slider="" hidden' not in page
