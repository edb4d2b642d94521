"""The dashboard by keyboard alone: upload, train, watch, move a threshold, publish, serve, ask, roll back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from tests.app.web.browsing import NEEDS_CHROMIUM, Visit, browser, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Json = dict[str, Any]
Call = Callable[..., Any]

pytestmark = [pytest.mark.long, NEEDS_CHROMIUM]

MODEL = "keyed_flowers"


@pytest.fixture
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def shown(person: Visit, name: str) -> str:
    """A figure of the card of the threshold."""
    return str(
        person.page.locator(
            f"#threshold dd[data-value={name}], #threshold td[data-value={name}]"
        ).inner_text()
    )


def follow_link(person: Visit, selector: str) -> None:
    """Reach a link or button by the tabulator key, and press it."""
    person.tab_to(selector)
    person.go("Enter")


def sign_in(person: Visit, http: httpx.Client) -> None:
    person.open("/ui/jobs")
    person.wait_for_focus("#key")
    person.page.keyboard.type(http.headers["authorization"].removeprefix("Bearer "))
    person.go("Enter")
    assert person.page.url.endswith("/ui/jobs")


def watch_the_job(person: Visit, job: Json) -> None:
    """From the list of jobs to the page of one, until it has ended."""
    person.tab_to(f'a[href*="{job["id"]}"]')
    person.go("Enter")
    person.page.locator("#state-title + .push .badge.good").wait_for(timeout=300_000)
    person.page.locator("#classes tbody tr").nth(2).wait_for(timeout=20_000)


def publish_another_threshold(person: Visit) -> None:
    """Find a class, move its threshold, and publish it."""
    person.press("/")
    person.page.keyboard.type("versicolor")
    person.go("Enter")
    person.press("j")
    person.go("Enter")
    before = shown(person, "tp"), shown(person, "fp")
    person.tab_to("#slider")
    person.press("End")
    person.press("ArrowLeft")
    assert (shown(person, "tp"), shown(person, "fp")) != before
    assert re.search(r"[?&]t=", person.page.url), "the address carries the threshold"
    person.tab_to("details.confirm > summary")
    person.press("Enter")
    follow_link(person, 'form[action*="/thresholds"] button')
    assert person.page.url.endswith(f"/ui/models/{MODEL}/versions/2?done=publish")


def move_the_alias(person: Visit, version: int) -> None:
    """From the page of the move, with the differences in view."""
    button = f'form[action="/ui/models/{MODEL}/aliases/latest"] button'
    label = "Roll back" if version == 1 else "Move to"
    assert label in person.page.locator(button).inner_text()
    follow_link(person, button)
    assert "was moved" in person.page.locator("[role=status]").last.inner_text()


def ask(person: Visit) -> None:
    person.go("a")
    person.tab_to("#row")
    person.press("Control+a")
    person.page.keyboard.type("5.9, 2.8, 4.3, 1.3")
    follow_link(person, 'form[action^="/ui/ask"] button')
    assert person.page.locator(".verdict").inner_text() in {"Yes", "No"}


def test_from_a_running_job_to_a_rolled_back_version(
    chromium: Browser, http: httpx.Client, submit: Call, flowers_data: Json
) -> None:
    job = submit(flowers_data["id"], MODEL)
    origin = str(http.base_url).rstrip("/")
    with visit(chromium, origin) as person:
        sign_in(person, http)
        watch_the_job(person, job)
        publish_another_threshold(person)
        follow_link(person, f'a[href="/ui/models/{MODEL}/move?version=2"]')
        move_the_alias(person, 2)
        ask(person)
        person.go("g", "m")
        follow_link(person, f'a[href="/ui/models/{MODEL}"]')
        person.go("c")
        assert "/compare?a=1&b=2" in person.page.url
        person.go("x")
        assert "/compare?a=2&b=1" in person.page.url
        follow_link(person, f'a[href="/ui/models/{MODEL}/move?version=1"]')
        move_the_alias(person, 1)
    latest = http.get(f"/v1/models/{MODEL}/aliases/latest").json()
    assert latest["version"] == 1
    moves = http.get(f"/v1/models/{MODEL}/aliases/latest/history").json()["data"]
    assert [move["version"] for move in moves] == [1, 2, 1]


def choose_file(person: Visit, path: Path) -> None:
    """Choose a file in the field with the focus, and go on to the button. The dialogue is not of the page."""
    person.page.set_input_files("#file:focus", path)
    person.tab_to("form[data-upload] button.primary")


def upload(person: Visit, folder: Path) -> None:
    """Look at a file with a fault, read what is wrong, look at it without the fault, and upload it."""
    rng = np.random.default_rng(5)
    rows = [
        f"{k % 3 + x:.3f},{(k % 2) + y:.3f},kind {k % 3}" for k, (x, y) in enumerate(rng.normal(size=(90, 2)))
    ]
    path = folder / "kinds.csv"
    path.write_text("\n".join(["length,width,kind", *rows, "1,kind 0"]), encoding="utf-8")
    person.go("g", "d")
    if not person.page.locator("#file").is_visible():
        person.tab_to("details.group > summary")
        person.press("Enter")
    person.tab_to("#file")
    choose_file(person, path)
    with person.expect_refusal(400):
        person.press("Enter")
        person.page.locator("[data-outcome] .note.bad").wait_for()
    assert "Line 92" in person.page.locator("[data-outcome]").inner_text()
    assert person.has_focus("form[data-upload] button.primary"), "the focus stays where it was"
    path.write_text("\n".join(["length,width,kind", *rows]), encoding="utf-8")
    person.tab_to("#file", key="Shift+Tab")
    choose_file(person, path)
    person.press("Enter")
    person.page.locator("#found h2:focus").wait_for()
    person.tab_to("#found button.primary")
    person.go("Enter")
    assert "Uploaded and checked" in person.page.locator("[role=status]").last.inner_text()


def fill_in(person: Visit, selector: str, text: str) -> None:
    """Reach a field by the tabulator key, and write in it."""
    person.tab_to(selector)
    person.press("Control+a")
    person.page.keyboard.type(text)


def train(person: Visit, model: str) -> None:
    """Fill in the form with a name that is not allowed, follow the link to that field, and correct it."""
    follow_link(person, 'a.primary[href$="/train"]')
    fill_in(person, "#model", "not/allowed")
    person.tab_to('[data-group="student"] > summary')
    person.press("Enter")
    fill_in(person, '[id="p.student.C"]', "1000")
    with person.expect_refusal(400):
        person.go("Enter")
    person.tab_to('.note.bad a[href="#model"]')
    person.press("Enter")
    person.wait_for_focus("#model")  # The link leads into the field.
    assert person.page.locator('[id="p.student.C"]').input_value() == "1000", "what was filled in is kept"
    person.press("Control+a")
    person.page.keyboard.type(model)
    person.go("Enter")


def test_from_a_file_to_its_trained_job(chromium: Browser, http: httpx.Client, tmp_path: Path) -> None:
    model = "keyed_kinds"
    with visit(chromium, str(http.base_url).rstrip("/")) as person:
        sign_in(person, http)
        upload(person, tmp_path)
        train(person, model)
        assert re.search(r"/ui/jobs/job_\w+\?done=submit$", person.page.url)
        job_id = person.page.url.rpartition("/")[2].partition("?")[0]
        person.page.locator("#state-title + .push .badge.good").wait_for(timeout=300_000)
        person.page.locator("#classes tbody tr").nth(2).wait_for(timeout=20_000)
    job = http.get(f"/v1/training-jobs/{job_id}").json()
    assert (job["state"], job["model"]) == ("succeeded", model)
    assert job["hyperparameters"]["student"]["C"] == 1000
