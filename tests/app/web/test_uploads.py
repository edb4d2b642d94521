"""Data sets from the browser: files, what is wrong with them, and the example."""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.services.example_data import digits_file
from app.store.unit_of_work import Store
from tests.app.api.conftest import CSV
from tests.app.web.conftest import SAME_ORIGIN, Page, Person, Things

Enter = Callable[..., Person]


def send(person: Person, content: bytes, filename: str = "numbers.csv", **fields: str) -> Any:
    return person.client.post(
        "/ui/datasets",
        headers={"cookie": person.cookie} | SAME_ORIGIN,
        files={"file": (filename, content)},
        data=fields,
    )


def test_a_file_becomes_a_data_set_and_is_shown(sign_in: Enter) -> None:
    person = sign_in("train")
    form = Page(person.get("/ui/datasets").text)
    assert "multipart/form-data" in form.values("form", "enctype")
    answer = send(person, CSV, label_column="", name="", format="")
    assert answer.status_code == 303, answer.text
    shown = person.get(answer.headers["location"]).text
    assert "Uploaded and checked" in shown
    assert "numbers" in shown
    again = send(person, CSV)
    assert again.headers["location"].endswith("?done=known")
    named = send(person, CSV + b"40,1,no\n", name="mine", label_column="label", unlabelled="accept")
    assert "mine" in person.get(named.headers["location"]).text


def test_a_large_file_is_taken_within_the_limit_of_uploads(make_client: Any, store: Store) -> None:
    from tests.app.web.test_sessions import create_key

    client = make_client(require_keys=True, max_body_bytes=1024, max_upload_bytes=4096)
    text = create_key(store, "Ada", {"train"})[1]
    client.refresh()
    signed = client.post("/ui/sign-in", headers=SAME_ORIGIN, data={"key": text})
    person = Person(client, signed.headers["set-cookie"].partition(";")[0])
    rows = [b"%d,%d,%s\n" % (k, k * k, b"ab"[k % 2 :][:1]) for k in range(200)]
    assert send(person, b"a,b,label\n" + b"".join(rows)).status_code == 303
    refused = send(person, b"a,b,label\n" + 2 * b"".join(rows) + b" " * 200_000)
    assert refused.status_code == 413
    assert "ask an operator to raise" in refused.text


@pytest.mark.parametrize(
    ("content", "name", "hint"),
    [
        (b"", "a.csv", "Choose a file that holds rows"),
        (b"a,b,label\n1,2,x\n1,y\n", "a.csv", "Line 3"),
        (b"a,b,label\n1,2,<b>x\n1,2,y\n", "a.csv", "<b>x"),
        (b"\x00\x01\x02", "a.npz", "What to do"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_what_to_do(
    sign_in: Enter, content: bytes, name: str, hint: str
) -> None:
    answer = send(sign_in("train"), content, name)
    assert answer.status_code in {400, 415}, answer.text
    assert "<b>x" not in answer.text
    text = html.unescape(answer.text)
    assert hint in text
    assert "What to do" in text


def test_only_forms_of_this_server_are_taken(sign_in: Enter, things: Things) -> None:
    person = sign_in("train")
    assert person.post("/ui/datasets", name="x").status_code == 400
    headers = {"cookie": person.cookie, "sec-fetch-site": "cross-site"}
    other = person.client.post("/ui/datasets", headers=headers, files={"file": ("a.csv", CSV)})
    assert other.status_code == 403
    assert send(sign_in("query"), CSV).status_code == 403
    assert person.post("/ui/datasets/example", headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_the_example_is_one_click_from_every_empty_page(sign_in: Enter) -> None:
    person = sign_in("train")
    for path in ("/ui/jobs", "/ui/datasets", "/ui/models"):
        assert "/ui/datasets/example" in Page(person.get(path).text).values("form", "action"), path
    assert "/ui/datasets/example" not in sign_in("query").get("/ui/models").text
    made = person.post("/ui/datasets/example")
    assert made.status_code == 303, made.text
    page = Page(person.get(made.headers["location"]).text)
    assert "handwritten digits" in page.text
    assert f"{made.headers['location'].partition('?')[0]}/train" in page.values("a", "href")
    assert person.post("/ui/datasets/example").headers["location"].endswith("done=known")


def test_the_example_is_always_the_same_and_has_a_test_part() -> None:
    content = digits_file()
    assert content == digits_file()
    with np.load(io.BytesIO(content)) as arrays:
        assert arrays["X_train"].shape == (1352, 64)
        assert arrays["X_test"].shape == (445, 64)
        assert np.bincount(arrays["y_test"]).min() > 40


def test_a_server_without_the_file_says_so(sign_in: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services.example_data.find_spec", lambda _name: None)
    answer = sign_in("train").post("/ui/datasets/example")
    assert answer.status_code == 503
    assert "Upload a file of your own" in answer.text


def test_a_table_of_texts_and_gaps_shows_the_kinds_of_its_columns_and_its_records(sign_in: Enter) -> None:
    person = sign_in("train")
    lines = [
        f"{'?' if k % 9 == 0 else k * k},{('red', 'blue')[k % 2]},{k % 4 == 0},{'ab'[k % 2]}"
        for k in range(40)
    ]
    answer = send(person, "\n".join(["size,colour,lost,label", *lines]).encode(), "things.csv")
    assert answer.status_code == 303, answer.text
    shown = html.unescape(person.get(answer.headers["location"]).text)
    for text in ("all values are numbers", "category", "boolean", "no value", "red", "true"):
        assert text in shown, text
