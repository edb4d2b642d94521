"""The pages in a real browser with a table of every kind: a look at it, another kind, a job, a question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.app.web.browsing import NEEDS_CHROMIUM, Visit, browser, visit
from tests.e2e.test_keyboard import sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Json = dict[str, Any]

pytestmark = [pytest.mark.long, NEEDS_CHROMIUM]

MODEL = "shop_orders"


@pytest.fixture
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def orders(folder: Path, broken: str = "12") -> Path:
    """A file of every kind: those who like "late" have other notes, days and districts."""
    lines = ["price,district,ordered,paid,note,kind"]
    for k in range(240):
        late = k % 2
        price = "?" if k % 15 == 0 else broken if k % 60 == 8 else f"{10 + 5 * late + k % 7}.5"
        words = ("came too late and was cold", "came in time and was hot")[not late]
        note = f"order {k} {words} says number {k % 5}"
        day = f"{1 + k % 28:02d}/0{1 + 2 * late + k % 2}/2024"
        paid, kind = ("true", "false")[k % 3 > 0], ("on time", "late")[late]
        lines.append(f"{price},{k % 6 + 6 * late},{day},{paid},{note},{kind}")
    path = folder / "orders.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def accessible(person: Visit) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(person.page).response["violations"]
    assert [(one["id"], [node["target"] for node in one["nodes"][:3]]) for one in found] == []


def look(person: Visit, path: Path) -> None:
    """Open the form, choose a file, and ask for its columns."""
    person.open("/ui/datasets")
    if not person.page.locator("#file").is_visible():
        person.page.locator("details.group > summary").first.click()
    person.page.set_input_files("#file", path)
    person.page.get_by_role("button", name="Look at its columns").click()


def test_from_a_mixed_file_to_an_answered_record(
    chromium: Browser, http: httpx.Client, follow: Callable[..., Json], tmp_path: Path
) -> None:
    with visit(chromium, str(http.base_url).rstrip("/")) as person:
        sign_in(person, http)
        page = person.page
        with person.expect_refusal(400):
            look(person, orders(tmp_path, broken="##"))
            page.locator("[data-outcome] .note.bad").wait_for()
        assert "null_values=##" in page.locator("[data-outcome]").inner_text()
        page.set_input_files("#file", orders(tmp_path))
        page.get_by_role("button", name="Look at its columns").click()
        page.locator("#found h2:focus").wait_for()
        accessible(person)
        assert "16 ?" in page.locator("#found").inner_text()
        page.get_by_label("Kind of paid").select_option("paid:category")
        page.get_by_role("button", name="Look at it with these kinds").click()
        page.locator('#found option[selected][value="paid:category"]').wait_for(state="attached")
        with page.expect_navigation():
            page.locator("#found button.primary").click()
        assert "Uploaded and checked" in page.locator("main").inner_text()
        accessible(person)
        page.get_by_label("Kind of district").select_option("district:category")
        with page.expect_navigation():
            page.get_by_role("button", name="Train with these kinds").click()
        assert "district as category" in page.locator("main").inner_text()
        page.fill("#model", MODEL)
        with page.expect_navigation():
            page.get_by_role("button", name="Train", exact=True).click()
        assert "district as category" in page.locator("main").inner_text()
        job_id = page.url.rpartition("/")[2].partition("?")[0]
        job = follow(http.get(f"/v1/training-jobs/{job_id}").json())
        assert job["state"] == "succeeded", job["error"]
        person.open(f"/ui/models/{MODEL}/ask?class=late")
        accessible(person)
        with page.expect_navigation():
            page.locator("[name=example][value=class]").click()
        assert page.locator(".verdict").inner_text() in {"Yes", "No"}
        page.get_by_label("price").fill("")
        page.get_by_label("district").fill("99")
        page.get_by_label("paid").fill("true")
        page.get_by_label("note").fill("it came too late")
        with page.expect_navigation():
            page.get_by_role("button", name="Ask", exact=True).click()
        shown = page.locator("main").inner_text()
        assert page.locator(".verdict").inner_text() in {"Yes", "No"}
        assert "district" in page.locator("dt:text('Values that training did not have') + dd").inner_text()
        assert '"note": "it came too late"' in shown
        assert page.get_by_label("price").input_value() == ""
        accessible(person)


def test_a_file_is_looked_at_and_stored_without_scripts(
    chromium: Browser, http: httpx.Client, tmp_path: Path
) -> None:
    key = http.headers["authorization"].removeprefix("Bearer ")
    with visit(chromium, str(http.base_url).rstrip("/"), java_script_enabled=False) as person:
        page = person.page
        person.open("/ui/sign-in")
        page.fill("#key", key)
        page.locator("button.primary").click()
        page.locator("nav.sections").wait_for()
        path = orders(tmp_path, broken="13")
        look(person, path)
        page.locator("#found").wait_for()
        assert "choose it again" in page.locator("form[data-upload]").inner_text()
        page.get_by_label("Kind of district").select_option("district:category")
        page.fill("#name", "without scripts")
        page.set_input_files("#file", path)
        page.locator("#found button.primary").click()
        page.locator("h1:has-text('without scripts')").wait_for()
        row = page.locator("#schema tr", has_text="district")
        assert row.locator("option:checked").inner_text() == "category"
