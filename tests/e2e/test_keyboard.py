"""The dashboard by keyboard alone: watch, choose a threshold, publish, serve, ask, roll back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx
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
    assert person.has_focus("#key"), "the form waits for the key"
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
