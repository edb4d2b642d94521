"""The pages in a real browser: nothing is violated, nothing foreign is asked, and axe finds nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from app.store.unit_of_work import Store
from tests.app.api.test_process import Server, server
from tests.app.web.browsing import DESK, NEEDS_CHROMIUM, PHONE, browser, visit
from tests.app.web.conftest import Things
from tests.app.web.test_pages import addresses

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["server"]

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def pages(things: Things) -> list[str]:
    """Every page, and one that does not exist is not among them: the browser logs its status."""
    return [path for path in addresses(things) if "/fragments/" not in path]


def test_scripts_run_and_shortcuts_work(chromium: Browser, server: Server, things: Things) -> None:
    job = f"/ui/jobs/{things.job.id}"
    with visit(chromium, server.url) as person:
        person.open(job)
        assert person.page.evaluate("document.body.innerText.includes('alert')"), "labels are shown as text"
        person.press("/")
        assert person.has_focus("input[type=search]")
        person.press("Escape")
        person.page.locator("h1").click()
        person.press("?")
        assert person.page.locator("dialog#shortcuts").is_visible()
        assert "Retry what is missing" not in person.page.locator("dialog#shortcuts").inner_text()
        person.press("Escape")
        person.press("j")
        assert person.has_focus("tbody tr:first-child a")
        person.press("ArrowDown")
        assert person.has_focus("tbody tr:nth-child(2) a")
        person.press("k")
        person.go("Enter")
        assert "/classes/" in person.page.url
        person.go("g", "m")
        assert person.page.url.endswith("/ui/models")
        person.open(f"{job}/classes/0")
        assert person.page.locator("#slider").is_visible(), "the script has shown the slider"
        for most, threshold in (("10", "0.5"), ("20", "0.1")):
            person.page.fill("#most", most)
            person.page.get_by_role("button", name="To this threshold").click()
            assert person.page.locator("#t").input_value() == threshold
            assert person.page.url.endswith(f"?t={threshold}&cost=1.0")


@pytest.mark.long
def test_one_box_marks_all_jobs_of_a_page(
    chromium: Browser, server: Server, store: Store, add_job: Any
) -> None:
    with store.begin() as uow:
        for _ in range(3):
            add_job(uow)
    with visit(chromium, server.url) as person:
        person.open("/ui/jobs")
        every, boxes = person.page.locator("[data-marks]"), person.page.locator("input[name=job]")
        count = boxes.count()
        assert count >= 3
        marked = person.page.locator("input[name=job]:checked")
        person.tab_to("[data-marks]")
        person.press("Space")
        assert marked.count() == count
        boxes.first.uncheck()
        assert not every.is_checked()
        assert every.evaluate("box => box.indeterminate")
        boxes.first.check()
        assert every.is_checked()
        person.tab_to("[data-marks]")
        person.press("Space")
        assert marked.count() == 0


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(
    chromium: Browser, server: Server, things: Things, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with visit(chromium, server.url, color_scheme=scheme) as person:
        found = []
        for path in pages(things):
            person.open(path)
            violations = Axe().run(person.page).response["violations"]
            for one in violations:
                targets = [node["target"] for node in one["nodes"][:3]]
                found.append(f"{path}: {one['id']}: {one['help']}: {targets}")
        assert found == []


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_pages_fit_their_window_and_break_no_word(
    chromium: Browser, server: Server, things: Things, scheme: Any, viewport: Any
) -> None:
    is_phone = viewport is PHONE
    options = {"color_scheme": scheme, "has_touch": is_phone, "is_mobile": is_phone}
    with visit(chromium, server.url, viewport=viewport, **options) as person:
        faults = []
        for path in pages(things):
            person.open(path)
            faults += [f"{path}: {fault}" for fault in person.layout_faults()]
        assert not faults, "\n".join(faults)


@pytest.mark.long
def test_colours_are_chosen_by_hand_and_paper_is_light(
    chromium: Browser, server: Server, things: Things
) -> None:
    def background() -> str:
        colour: str = person.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return colour

    with visit(chromium, server.url, color_scheme="light") as person:
        person.open("/ui/jobs")
        light = background()
        person.page.emulate_media(color_scheme="dark")
        dark = background()
        assert dark != light
        person.page.emulate_media(color_scheme="light")
        person.tab_to("details.account > summary")
        person.press("Enter")
        person.tab_to("button[name=theme][value=dark]")
        person.go("Enter")
        assert person.page.url.endswith("/ui/jobs")
        assert background() == dark
        person.page.emulate_media(media="print")
        assert background() == "rgb(255, 255, 255)"
        assert person.page.locator("nav.sections").is_hidden()


@pytest.mark.long
def test_a_region_that_stays_tells_what_has_changed(
    chromium: Browser, server: Server, things: Things, store: Store
) -> None:
    with visit(chromium, server.url) as person:
        person.open(f"/ui/jobs/{things.job.id}")
        region = person.page.locator("#live")
        assert region.inner_text() == ""
        with store.begin() as uow:
            uow.events.append(
                things.job.id, "student_failed", {"label": "zebra", "method": "svm", "message": "no"}
            )
        region.filter(has_text="zebra").wait_for(state="attached", timeout=20_000)
        assert region.get_attribute("role") == "status"


@pytest.mark.long
def test_the_half_of_the_state_is_not_empty_beside_many_events(
    chromium: Browser, server: Server, things: Things, store: Store
) -> None:
    with store.begin() as uow:
        for number in range(40):
            data = {"label": f"class {number}", "method": "svm", "message": "a long message " * 10}
            uow.events.append(things.job.id, "student_failed", data)
    with visit(chromium, server.url, viewport=DESK) as person:
        person.open(f"/ui/jobs/{things.job.id}")
        rest = person.page.evaluate(
            "() => { const card = document.querySelector('[aria-labelledby=state-title]');"
            " return card.getBoundingClientRect().bottom"
            " - card.querySelector('dl').getBoundingClientRect().bottom; }"
        )
        assert rest < 100
        assert person.page.evaluate(
            "() => { const one = document.getElementById('events');"
            " return one.scrollHeight > one.clientHeight; }"
        )
