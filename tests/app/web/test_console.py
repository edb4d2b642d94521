"""The console: its answers are those of the API, and its snippets can be run."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.domain.errors import InvalidRequest
from app.services.keys import create_key
from app.services.models import get_version
from app.store.unit_of_work import Store
from app.web.console import _example, parsed_row
from tests.app.web.conftest import Page, Person, Things
from tests.refusals import at_fault

Enter = Callable[..., Person]


def test_the_console_answers_as_the_api_does(
    client: Any, sign_in: Enter, things: Things, store: Store
) -> None:
    person = sign_in("query")
    shown = person.get("/ui/models/pets/ask?at=latest").text
    assert "[0.0, 0.0, 0.0]" in shown
    fields = {"model": "pets", "at": "1", "row": "3 1, 2"}
    answer = person.post("/ui/ask", **fields, **{"class": "cat"})
    assert answer.status_code == 200
    assert "Yes, it is “cat”" in Page(answer.text).text
    text = create_key(store, "program", {"query"})[1]
    client.refresh()
    headers = {"authorization": f"Bearer {text}"}
    asked = client.post("/v1/models/pets@1/classes/cat:query", headers=headers, json={"x": [3, 1, 2]}).json()
    assert asked["score"] == 3.0
    assert '<dt>Score</dt><dd><span title="3.0">3</span></dd>' in answer.text
    no = person.post("/ui/ask", model="pets", at="1", row="[-1, 0, 0]", **{"class": "größe/1:x"})
    assert "Yes" in no.text or "No" in no.text


def test_the_snippets_ask_the_same_question(
    client: Any, sign_in: Enter, things: Things, store: Store
) -> None:
    text = create_key(store, "program", {"query"})[1]
    client.refresh()
    headers = {"authorization": f"Bearer {text}", "content-type": "application/json"}
    answer = sign_in("query").post(
        "/ui/ask", model="pets", at="latest", row="[3, 1, 2]", **{"class": "größe/1:x"}
    )
    found = re.findall(r'<pre id="code-\d"[^>]*>(.*?)</pre>', answer.text, re.DOTALL)
    codes = [html.unescape(code) for code in found]
    scores = []
    for code in (codes[0], codes[2]):
        words = shlex.split(code.replace("\\\n", " "))
        address, body = words[1], words[words.index("-d") + 1]
        assert address.startswith("http://localhost/")
        sent = client.post(address.removeprefix("http://localhost"), headers=headers, content=body.encode())
        assert sent.status_code == 200, sent.text
        sent_back = sent.json()
        scores.append(sent_back["score"] if "score" in sent_back else _score(sent_back))
    assert scores == [2.0, 2.0]
    compile(codes[1], "snippet", "exec")
    assert "stms.query('pets@latest', 'größe/1:x', [3, 1, 2], explain=True)" in codes[1]


def _score(answer: dict[str, Any]) -> float:
    return next(part["data"][0] for part in answer["outputs"] if part["name"] == "score")


def test_what_is_wrong_with_a_question_is_shown_beside_it(sign_in: Enter, things: Things) -> None:
    person = sign_in("query")
    for row, label, hint in (
        ("1 2", "cat", "has 2 values"),
        ("1 2 x", "cat", "no number"),
        ("[1, 2", "cat", "not JSON"),
        ('{"y": 1}', "cat", "no names of columns"),
        ('{"x": 1}', "cat", "no names of columns"),
        ("1 2 3", "cow", "no class"),
        ("1 2 1e999", "cat", "x"),
        (f"[{10**200}, 1, 2]", "cat", "x"),
        ("[" + "9" * 4000 + ", 1, 2]", "cat", "x"),
    ):
        answer = person.post("/ui/ask", model="pets", at="1", row=row, **{"class": label})
        assert answer.status_code == 400, row
        assert hint in html.unescape(answer.text), row
    assert person.post("/ui/ask", model="no-pets", at="1", row="1", **{"class": "cat"}).status_code == 404


def test_a_version_without_its_data_set_has_no_examples(client: Any, things: Things, store: Store) -> None:
    key, _ = create_key(store, "Ada", {"train"})
    version = replace(get_version(store, "pets", "1"), dataset_digest="f" * 64)
    with at_fault(InvalidRequest, "no_dataset"):
        _example(client.context, key, version, "cat", "class")


def test_a_limited_key_asks_its_models_only(sign_in: Enter, things: Things) -> None:
    person = sign_in("query", models=["door"])
    assert person.post("/ui/ask", model="pets", at="1", row="1 2 3", **{"class": "cat"}).status_code == 403
    assert person.get("/ui/models/pets/ask").status_code == 403


@pytest.mark.parametrize("text", ["1,2;3", "1 2\n3", "[1, 2, 3]", '{"x": [1, 2, 3]}'])
def test_rows_may_be_written_in_several_ways(text: str) -> None:
    assert parsed_row(text) == [1, 2, 3]


@pytest.mark.parametrize("text", ['{"x": 1, "y": 2}', '{"x": {"x": 1, "y": 2}}'])
def test_a_row_may_have_the_names_of_its_columns(text: str) -> None:
    assert parsed_row(text) == {"x": 1, "y": 2}


def test_a_row_of_any_length_is_not_taken() -> None:
    with at_fault(InvalidRequest, "wrong_row"):
        parsed_row(json.dumps([0.123456] * 30_000))
