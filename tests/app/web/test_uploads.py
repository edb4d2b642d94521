"""Data sets from the browser: files, what is wrong with them, and the example."""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.domain.errors import Unavailable
from app.services.example_data import digits_file
from app.store.unit_of_work import Store
from tests.app.api.conftest import CSV
from tests.app.web.conftest import SAME_ORIGIN, Page, Person, Things
from tests.refusals import refused_as

Enter = Callable[..., Person]


def send(person: Person, content: bytes, filename: str = "numbers.csv", **fields: Any) -> Any:
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
    with refused_as(Unavailable, "no_example"):
        digits_file()


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


MIXED = "\n".join(
    [
        "zip,seen,note,label",
        *(
            f"{k * k % 7},{1 + k % 28:02d}/05/2024,{('?', 'red')[k % 4 > 0]},{'ab'[k % 2]}"
            for k in range(240)
        ),
    ]
).encode()


def look(person: Person, content: bytes, filename: str = "things.csv", **fields: Any) -> Any:
    return person.client.post(
        "/ui/datasets?dry_run=true",
        headers={"cookie": person.cookie} | SAME_ORIGIN,
        files={"file": (filename, content)},
        data=fields,
    )


def chosen(text: str) -> dict[str, str]:
    """What the select of each column says, by the name that it has for those who hear the page."""
    found: dict[str, str] = {}
    name = ""
    for tag, known in Page(text).elements:
        if tag == "select":
            name = known.get("aria-label") or ""
        elif tag == "option" and "selected" in known and name.startswith("Kind of "):
            found[name.removeprefix("Kind of ")] = known["value"] or ""
    return found


def test_a_look_at_a_file_shows_its_columns_and_stores_nothing(sign_in: Enter) -> None:
    person = sign_in("train")
    answer = look(person, MIXED, name="mine", label_column="label", unlabelled="accept")
    assert answer.status_code == 200, answer.text
    page = Page(answer.text)
    text = " ".join(page.text.split())
    assert "Nothing is stored yet" in text
    for shown in ("all values are numbers", "if they are names, say category", "0 to 4", "red", "60 ?"):
        assert shown in text, shown
    assert "all values are dates of the pattern %d/%m/%Y" in text
    assert "date like 31/05/2024" in text
    assert "zip:category" in page.values("option", "value")
    assert "seen:date:%m/%d/%Y" in page.values("option", "value")
    assert {"mine", "label"} <= set(page.values("input", "value")), "what was typed is kept"
    assert "No data sets yet" in person.get("/ui/datasets").text


def test_a_file_is_stored_with_the_kinds_that_were_chosen(sign_in: Enter) -> None:
    person = sign_in("train")
    columns = ["", "zip:category", "seen:date:%d/%m/%Y", "note:ignore"]
    again = look(person, MIXED, columns=columns)
    assert chosen(again.text) == dict(zip(("zip", "seen", "note"), columns[1:], strict=True))
    assert 'name="columns" value=""' in again.text, "the table says it now"
    answer = send(person, MIXED, columns=["", "zip:category", "", "seen:date:%d/%m/%Y", "note:ignore"])
    assert answer.status_code == 303, answer.text
    shown = person.get(answer.headers["location"]).text
    assert 'aria-label="Kind of seen"><option value="" selected>date like 31/05/2024</option>' in shown
    twice = look(person, MIXED, columns=["zip:category", "zip:text"])
    assert twice.status_code == 400
    assert "says the same column twice" in twice.text


def test_kinds_of_columns_that_the_table_does_not_show_stay_where_they_were_typed(
    sign_in: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.web.column_kinds.MOST_COLUMNS", 1)
    shown = look(sign_in("train"), MIXED, columns="zip:category, note:ignore").text
    assert chosen(shown) == {"zip": "zip:category"}
    assert 'name="columns" value="note:ignore"' in shown


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"a,b,label\n1,2,x\n1,y\n", "Line 3"),
        (
            b"a,label\n" + b"".join(b"%d,%s\n" % (k, b"xy"[k % 2 :][:1]) for k in range(90)) + b"#N,x\n",
            "null_values=#N",
        ),
        (b"", "Choose a file that holds rows"),
    ],
)
def test_what_is_wrong_is_shown_beside_the_form_and_nothing_typed_is_lost(
    sign_in: Enter, content: bytes, hint: str
) -> None:
    fields = {"name": "mine", "null_values": "n.a.", "separator": "comma", "rare_classes": "drop"}
    answer = look(sign_in("train"), content, **fields)
    assert answer.status_code == 400
    assert hint in html.unescape(answer.text)
    page = Page(answer.text)
    assert {"mine", "n.a."} <= set(page.values("input", "value"))
    assert ("input", "drop") in [
        (tag, known.get("value")) for tag, known in page.elements if "checked" in known
    ]
    assert "<option selected>comma</option>" in answer.text


def test_a_look_refuses_what_an_upload_refuses(sign_in: Enter) -> None:
    person = sign_in("train")
    assert person.post("/ui/datasets?dry_run=true", name="x").status_code == 400
    assert look(sign_in("query"), MIXED).status_code == 403
    unknown = look(person, MIXED, colour="red")
    assert unknown.status_code == 400
    assert "There is no field" in html.unescape(unknown.text)


def test_hostile_names_and_values_are_shown_as_texts(sign_in: Enter) -> None:
    lines = [f"{('<i>red', '&amp;')[k % 2]},{k % 5},{'ab'[k % 2]}" for k in range(40)]
    content = "\n".join(['"<b>a, ""b""",<script>,label', *lines]).encode()
    person = sign_in("train")
    answer = look(person, content)
    assert answer.status_code == 200, answer.text
    page = Page(answer.text)
    assert not {"b", "i"} & {tag for tag, _ in page.elements}
    assert '<b>a, "b"' in page.text
    [value] = [one for one in page.values("option", "value") if "<b>a" in one and "ignore" in one]
    again = look(person, content, columns=["", value])
    assert chosen(again.text) == {'<b>a, "b"': value, "<script>": ""}


def test_files_whose_columns_have_no_kinds_have_no_selects(sign_in: Enter) -> None:
    content = io.BytesIO()
    np.savez(content, X=np.arange(40.0).reshape(20, 2), y=["a", "b"] * 10)
    answer = look(sign_in("train"), content.getvalue(), "numbers.npz")
    assert answer.status_code == 200, answer.text
    assert "What the file holds" in answer.text
    assert "Kind of" not in answer.text


def test_examples_of_cells_stand_beside_the_kinds(sign_in: Enter) -> None:
    person = sign_in("train")
    cells = ["<b>bold</b>", "$1", "-"]
    lines = [f"{cells[k % 3]};${k + 1}.25;{k * k};{'ab'[k % 2]}" for k in range(60)]
    text = "\n".join(["note;price;n;label", *lines]).encode()
    for answer in (look(person, text), person.get(send(person, text).headers["location"])):
        assert "<b>" not in answer.text
        shown = " ".join(Page(answer.text).text.split())
        assert "<b>bold</b>, $1, -" in shown
        assert "$1.25, $2.25, $3.25, …" in shown
        assert "number like $1,234.5" in shown
        assert "0, 1, 4, …" in shown
