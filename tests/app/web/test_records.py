"""The form for a record: its fields are those of the columns, and its answers are those of the API."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.store.unit_of_work import Store
from app.web.record_form import record_of, texts_of, typical_texts
from core.packed.encoder import Encoder
from tests.app.api.test_query_records import publish_people
from tests.app.serving.written_records import RECORD, encoder, numbers_encoder, people, text_encoder
from tests.app.web.conftest import Page, Person, give_data_set, query_headers

Enter = Callable[..., Person]

ASK = "/ui/models/people/ask?at=1"
FULL = RECORD | {"note": "my card is lost"}
FILLED = {
    "v.age": "39.5", "v.hours": "40", "v.member": "true", "v.job": "clerk", "v.grade": "3",
    "v.since": "2021-05-06", "v.place": "[0.5, -1.0]", "v.note": "my card is lost",
}  # fmt: skip


@pytest.fixture(autouse=True)
def published(client: Any, store: Store) -> None:
    """Version 1 of "people", with a column of each kind."""
    publish_people(store, encoder(with_note=True))


def ask(person: Person, **fields: str) -> Any:
    return person.post("/ui/ask", **({"model": "people", "at": "1", "class": "a"} | fields))


def controls(text: str) -> dict[str, tuple[str, dict[str, str | None]]]:
    """Tag and attributes of the fields for the columns, by name."""
    found = {known.get("name") or "": (tag, known) for tag, known in Page(text).elements}
    return {name[2:]: one for name, one in found.items() if name.startswith("v.")}


def codes(text: str) -> list[str]:
    """The snippets of a page."""
    return [
        html.unescape(code) for code in re.findall(r'<pre id="code-\d"[^>]*>(.*?)</pre>', text, re.DOTALL)
    ]


def test_each_column_has_a_field_of_its_kind(sign_in: Enter) -> None:
    shown = sign_in("query").get(ASK).text
    found = controls(shown)
    assert list(found) == ["age", "hours", "member", "job", "grade", "since", "place", "note"]
    kinds = {name: (tag, known.get("type")) for name, (tag, known) in found.items()}
    assert kinds == {
        "age": ("input", "number"),
        "hours": ("input", "number"),
        "member": ("select", None),
        "job": ("input", "text"),
        "grade": ("input", "text"),
        "since": ("input", "date"),
        "place": ("textarea", None),
        "note": ("textarea", None),
    }
    needed = {name for name, (_, known) in found.items() if "required" in known}
    assert needed == {"hours", "member", "grade", "since", "place"}
    page = Page(shown)
    assert {"clerk", "cook", "nurse", "judge"} <= set(page.values("option", "value"))
    assert "In training from 20 to 59." in page.text
    assert 'name="row"' not in shown


def test_the_form_answers_as_the_api_does_and_so_do_its_snippets(
    client: Any, sign_in: Enter, store: Store
) -> None:
    headers = query_headers(client, store) | {"content-type": "application/json"}
    asked = client.post("/v1/models/people@1/classes/a:query", headers=headers, json={"record": FULL}).json()
    answer = ask(sign_in("query"), **FILLED)
    assert answer.status_code == 200, answer.text
    assert f'<dt>Score</dt><dd><span title="{asked["score"]}">' in answer.text
    curl, python, inference = codes(answer.text)
    assert json.loads(shlex.split(curl.replace("\\\n", " "))[-1]) == {
        "record": FULL | {"grade": "3"}, "explain": True
    }  # fmt: skip
    assert "'age': 39.5, 'hours': 40, 'member': True" in python
    words = shlex.split(inference.replace("\\\n", " "))
    body = json.loads(words[-1])
    assert {one["name"]: one["datatype"] for one in body["inputs"]} == {
        "age": "FP64", "hours": "FP64", "member": "BOOL", "job": "BYTES", "grade": "BYTES",
        "since": "BYTES", "place": "FP64", "note": "BYTES",
    }  # fmt: skip
    path = words[1].removeprefix("http://localhost")
    sent = client.post(path, headers=headers, content=words[-1].encode())
    assert sent.status_code == 200, sent.text
    assert (
        next(part["data"][0] for part in sent.json()["outputs"] if part["name"] == "score")
        == (asked["score"])
    )


def test_an_empty_field_is_a_gap_and_one_that_must_be_filled_is_named(sign_in: Enter) -> None:
    person = sign_in("query")
    answer = ask(person, **FILLED | {"v.age": "", "v.job": "", "v.note": ""})
    assert answer.status_code == 200, answer.text
    assert "age" not in json.loads(shlex.split(codes(answer.text)[0].replace("\\\n", " "))[-1])["record"]
    refused = ask(person, **FILLED | {"v.hours": "", "v.member": ""})
    assert refused.status_code == 400
    found = controls(refused.text)
    assert {name for name, (_, known) in found.items() if "aria-invalid" in known} == {"hours", "member"}
    assert "and had one in every training row" in refused.text


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("age", "many", "must be a number"),
        ("age", "1e999", "finite"),
        ("age", "9" * 400, "finite"),
        ("member", "yes", "must be true or false"),
        ("since", "06.05.2021", "is not a date like"),
        ("place", "[1]", "a list of 2 numbers"),
        ("place", "1 x", "a list of numbers"),
        ("job", "x" * 5000, "longer than"),
        ("note", "<script>" + "x" * 200_000, "longer than"),
    ],
)
def test_what_is_wrong_is_named_and_stays_in_its_field(
    sign_in: Enter, name: str, text: str, hint: str
) -> None:
    answer = ask(sign_in("query"), **FILLED | {f"v.{name}": text})
    assert answer.status_code == 400
    assert hint in html.unescape(answer.text)
    assert html.escape(text) in answer.text
    assert "<script>x" not in answer.text


def test_what_training_did_not_have_is_said_beside_the_answer(sign_in: Enter) -> None:
    answer = ask(sign_in("query"), **FILLED | {"v.job": "pilot", "v.age": "500"})
    assert answer.status_code == 200
    text = Page(answer.text).text
    assert re.search(r"Values that training did not have\s*job", text)
    assert re.search(r"Outside the training range\s*age", text)
    assert re.search(r"Known terms of note\s*4", text)


def test_the_answer_says_what_each_column_adds_to_the_score(sign_in: Enter) -> None:
    shown = ask(sign_in("query"), **FILLED).text
    table = shown.partition("What spoke for it")[2].partition("</table>")[0]
    assert table.count("<rect") == len(FULL)
    for name in FULL:
        assert f"<bdi>{name}</bdi>" in table
    for word in FULL["note"].split():
        assert f"<bdi>{word}</bdi>" in table
    assert "add up to the difference" in shown


def test_an_example_of_the_data_set_fills_the_form(client: Any, sign_in: Enter, store: Store) -> None:
    lines = [f"{k}.5,40,{'true' if k % 3 else 'false'},cook,{k % 5},2021-05-{1 + k % 28:02d},{'ab'[k % 2]}"
             for k in range(30)]  # fmt: skip
    lines[4:6] = [",40,true,,3,2021-05-06,a", ",40,true,,3,2021-05-06,b"]
    content = "\n".join(["age,hours,member,job,grade,since,kind", *lines]).encode()
    made = client.post("/v1/datasets", content=content, headers=query_headers(client, store, "train"))
    assert made.status_code == 201, made.text
    give_data_set(store, made.json()["digest"])
    person = sign_in("train")
    answer = ask(person, example="class", **{"v.age": "77"})
    # The file has no places.
    assert answer.status_code == 400, answer.text
    assert "place" in answer.text
    found = controls(answer.text)
    assert found["hours"][1]["value"] == "40"
    assert re.fullmatch(r"2021-05-\d\d", found["since"][1]["value"] or "")
    assert found["age"][1]["value"] != "77"


def test_rows_of_numbers_fill_the_form_by_the_names_of_their_columns(
    client: Any, sign_in: Enter, store: Store
) -> None:
    publish_people(store, numbers_encoder(), "pairs")
    content = b"p,q,kind\n" + b"".join(b"%d,7,%s\n" % (k * k, b"ab"[k % 2 :][:1]) for k in range(20))
    made = client.post("/v1/datasets", content=content, headers=query_headers(client, store, "train"))
    give_data_set(store, made.json()["digest"])
    answer = ask(sign_in("train"), model="pairs", example="other")
    assert answer.status_code == 200, answer.text
    assert controls(answer.text)["q"][1]["value"] == "7"


def test_a_version_of_very_many_columns_takes_a_record_as_a_whole(
    sign_in: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.web.console.MOST_FIELDS", 3)
    person = sign_in("query")
    shown = person.get(ASK).text
    assert "Record of 8 columns" in shown
    assert controls(shown) == {}
    assert ask(person, row=json.dumps(FULL)).status_code == 200


@pytest.mark.parametrize("known", [encoder(with_note=True), numbers_encoder(), text_encoder()])
def test_a_first_record_has_what_is_needed_and_is_answered(
    client: Any, sign_in: Enter, store: Store, known: Encoder
) -> None:
    publish_people(store, known, "first")
    texts = {f"v.{name}": text for name, text in typical_texts(known.columns).items()}
    assert ask(sign_in("query"), model="first", **texts).status_code == 200


def test_records_and_the_texts_of_fields_mean_the_same() -> None:
    columns = encoder(with_note=True).columns
    table = people(with_note=True)
    assert list(table.names) == [column.name for column in columns]
    assert record_of(columns, texts_of(FULL)) == FULL | {"grade": "3"}
    precise = FULL | {"age": 0.1 + 0.2, "hours": 1e-300, "place": [1e22, -0.125]}
    assert record_of(columns, texts_of(precise)) == precise | {"grade": "3"}
    gaps = {name: value for name, value in FULL.items() if name not in {"age", "job"}}
    assert record_of(columns, texts_of(gaps | {"age": None})) == gaps | {"grade": "3"}


def test_dates_with_times_have_a_field_for_both_and_other_forms_one_of_texts(
    client: Any, sign_in: Enter, store: Store
) -> None:
    known = encoder(with_note=True)
    with_hours = tuple(
        replace(column, cycles=("hour",)) if column.name == "since" else column  # type: ignore[type-var]
        for column in known.columns
    )
    width = sum(column.width for column in with_hours)
    publish_people(store, replace(known, columns=with_hours, means=known.means[:1].repeat(width)), "hours")
    person = sign_in("query")
    for text, control in (("2021-05-06T07:08", "datetime-local"), ("2021-05-06", "text")):
        answer = ask(person, model="hours", **FILLED | {"v.since": text})
        assert answer.status_code == 200, answer.text
        assert controls(answer.text)["since"][1]["type"] == control
        assert controls(answer.text)["since"][1]["value"] == text
    zoned = ask(person, **FILLED | {"v.since": "2021-05-06T07:08:09+02:00"})
    assert controls(zoned.text)["since"][1]["type"] == "text"
