"""Pages of data: columns, rows, and examples in the console."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.store.unit_of_work import Store
from app.web.charts import outline
from tests.app.web.conftest import HOSTILE, Page, Person, Things, give_data_set, query_headers

Enter = Callable[..., Person]


def test_a_data_set_shows_its_columns_and_first_rows(sign_in: Enter, things: Things) -> None:
    person = sign_in("train")
    path = f"/ui/datasets/{things.dataset_id}"
    shown = person.get(path).text
    page = Page(shown)
    assert shown.count("<figure>") == 3
    assert HOSTILE in page.text
    rows = re.findall(r"<tr><td class=\"num muted\">(\d+)</td>", shown)
    assert rows == [str(k) for k in range(20)]
    of_class = person.get(f"{path}?class=b").text
    numbers = re.findall(r"<tr><td class=\"num muted\">(\d+)</td>", of_class)
    assert numbers[:9] == [str(k) for k in (1, 2, 3, 4, 5, 6, 7, 8, 11)]
    assert "has no class" in person.get(f"{path}?class=nobody").text
    assert "no further columns" in person.get(f"{path}?columns=7").text


def test_rows_of_a_large_data_set_are_shown_when_they_are_asked_for(
    sign_in: Enter, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.web.datasets._SMALL_BYTES", 10)
    person = sign_in("train")
    path = f"/ui/datasets/{things.dataset_id}"
    shown = person.get(path).text
    assert "may have to fetch all of it" in shown
    assert 'class="num muted">0</td>' not in shown
    assert 'class="num muted">0</td>' in person.get(f"{path}?rows=true").text


def test_an_outline_begins_and_ends_at_the_base_line() -> None:
    assert outline([0, 2, 1], 30) == "M0 44V44H10V0H20V22H30V44Z"


@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_console_asks_about_examples_of_the_data_set(
    client: Any, sign_in: Enter, things: Things, store: Store, is_sparse: bool
) -> None:
    if is_sparse:
        lines = [f"{k % 2} {1 + k % 3}:{k + 1}" for k in range(30)]
        content, kind = "\n".join(lines).encode(), "svmlight"
    else:
        content = b"a,b,c,kind\n" + b"".join(b"%d,0,0,%s\n" % (k, b"ct"[k % 2 :][:1]) for k in range(30))
        kind = "csv"
    trainer, looker = sign_in("train"), sign_in("query")
    made = client.post(
        "/v1/datasets",
        params={"format": kind},
        content=content,
        headers=query_headers(client, store, "train"),
    )
    classes = made.json()["classes"]
    give_data_set(store, made.json()["digest"])
    fields = {"model": "pets", "at": "1", "row": "", "class": "cat"}
    assert "example of this class" not in looker.get("/ui/models/pets/ask?at=1").text
    assert looker.post("/ui/ask", example="class", **fields).status_code == 400
    # The classes of the model are not those of the data set.
    answer = trainer.post("/ui/ask", example="class", **fields)
    assert "no class" in html.unescape(answer.text)
    answer = trainer.post("/ui/ask", example="other", **fields)
    assert answer.status_code == 200, answer.text
    row = json.loads(html.unescape(re.findall(r"<textarea[^>]*>(.*?)</textarea>", answer.text)[0]))
    assert len(row) == 3
    assert np.count_nonzero(row) <= 1
    assert classes in (["c", "t"], ["0", "1"])
    assert "verdict" in answer.text
