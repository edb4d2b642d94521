"""Bundles from the browser: what a file holds, what is wrong with it, its import; also without scripts."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from app.services.bundle_export import Part, open_bundle
from app.store.unit_of_work import Store
from tests.app.api.conftest import publish_pets
from tests.app.api.test_process import Server, server
from tests.app.web.browsing import NEEDS_CHROMIUM, browser, visit
from tests.app.web.conftest import SAME_ORIGIN, Page, Person

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["server"]

Enter = Callable[..., Person]
PATH = "/ui/bundles"


def exported(store: Store, **part: Any) -> bytes:
    with open_bundle(store, publish_pets(store), Part(**part)) as file:
        return b"".join(file.pieces(store))


def send(person: Person, content: bytes, *, look: bool = False, **fields: str) -> Any:
    return person.client.post(
        f"{PATH}?dry_run=true" if look else PATH,
        headers={"cookie": person.cookie} | SAME_ORIGIN,
        files={"file": ("pets.tar", content)},
        data=fields,
    )


def test_a_bundle_is_looked_at_and_imported(sign_in: Enter, store: Store) -> None:
    person, data = sign_in("train"), exported(store, teacher=False)
    assert PATH in Page(person.get("/ui/models").text).values("a", "href")
    form = Page(person.get(PATH).text)
    assert "multipart/form-data" in form.values("form", "enctype")
    seen = send(person, data, look=True, model="animals", alias="live", allow_older="true")
    assert seen.status_code == 200, seen.text
    shown = Page(seen.text)
    for text in (
        "What the bundle holds",
        "of pets",
        "The next version of animals",
        "cat",
        "will not predict",
    ):
        assert text in " ".join(shown.text.split()), text
    assert {"animals", "live"} <= set(shown.values("input", "value")), "the fields are kept"
    assert person.get("/ui/models/animals").status_code == 404, "nothing is stored by a look"
    made = send(person, data, model="animals", alias="live")
    assert made.status_code == 303, made.text
    page = person.get(made.headers["location"]).text
    assert "Imported." in page
    assert "live" in Page(person.get("/ui/models/animals").text).text
    again = send(person, data, model="animals", alias="")
    assert again.headers["location"].endswith("done=import-known")
    assert "Published already" in send(person, data, look=True, model="animals").text


@pytest.mark.parametrize("look", [True, False])
def test_what_is_wrong_is_said_with_what_to_do(sign_in: Enter, store: Store, look: bool) -> None:
    person = sign_in("train")
    older, newer = exported(store), exported(store)
    damaged = newer.replace(b'"method":"', b'"methoD":"', 1)
    assert damaged != newer
    for content, fields, status, said in (
        (damaged, {}, 400, "manifest"),
        (b"x" * 2000, {}, 400, "no header of a tar file"),
        (newer, {"model": "a b"}, 400, "name"),
        (newer, {"alias": "a b"}, 400, "alias"),
    ):
        if look and "alias" in fields:
            continue
        answer = send(person, content, look=look, **fields)
        assert (answer.status_code, said in html.unescape(answer.text)) == (status, True), answer.text
        assert "What to do" in answer.text
    assert send(person, newer, model="animals").status_code == 303
    refused = send(person, older, look=look, model="animals")
    assert refused.status_code == 409
    assert "the box of the form" in refused.text
    assert send(person, older, look=look, model="animals", allow_older="true").status_code in {200, 303}


def test_only_forms_of_this_server_and_people_who_may_train_import(sign_in: Enter, store: Store) -> None:
    person, data = sign_in("train"), exported(store)
    assert person.post(PATH, model="x").status_code == 400
    headers = {"cookie": person.cookie, "sec-fetch-site": "cross-site"}
    assert person.client.post(PATH, headers=headers, files={"file": ("a.tar", data)}).status_code == 403
    assert send(sign_in("download"), data).status_code == 403
    assert PATH not in Page(sign_in("query").get("/ui/models").text).values("a", "href")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.mark.long
@NEEDS_CHROMIUM
@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_browser_imports_a_bundle(
    chromium: Browser, server: Server, store: Store, tmp_path: Path, scripts: bool
) -> None:
    file, noise = tmp_path / "pets.tar", tmp_path / "noise.tar"
    file.write_bytes(exported(store))
    noise.write_bytes(b"noise" * 500)
    with visit(chromium, server.url, java_script_enabled=scripts) as person:
        page = person.page
        person.open("/ui/models")
        page.get_by_role("link", name="Import a bundle…").click()
        page.get_by_label("File").set_input_files(noise)
        with person.expect_refusal(400):
            page.get_by_role("button", name="Look at it").click()
            page.get_by_text("What to do").wait_for()
        page.get_by_label("File").set_input_files(file)
        page.get_by_label("Model", exact=True).fill("animals")
        page.get_by_role("button", name="Look at it").click()
        page.get_by_text("What the bundle holds").wait_for()
        assert page.get_by_label("Model", exact=True).input_value() == "animals"
        if not scripts:
            page.get_by_label("File").set_input_files(file)
        page.get_by_role("button", name="Import").last.click()
        page.wait_for_url("**/ui/models/animals/versions/1*")
        assert page.get_by_text("Imported.").is_visible()
    x = {"x": [1.0, 2.0, 3.0]}
    url = f"{server.url}/v1/models/animals/classes/cat:query"
    assert httpx.post(url, json=x, trust_env=False).json()["score"] == 1.0
