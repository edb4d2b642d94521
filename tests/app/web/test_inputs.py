"""The inputs of queries on the page of a version."""

from __future__ import annotations

from typing import Any

import pytest

from app.services.keys import create_key
from app.serving.columns import report as input_report
from app.serving.columns.tally import SAMPLED
from app.store.unit_of_work import Store
from tests.app.api.test_inputs import ONE, publish_people, write
from tests.app.serving.written_records import RECORD
from tests.app.web.conftest import Page

PAGE = "/ui/models/people/versions/1"


def test_a_version_of_numbers_has_no_inputs(sign_in: Any, things: Any):
    del things
    assert "Inputs" not in Page(sign_in("query").get("/ui/models/pets/versions/1").text).text


@pytest.mark.parametrize("profile", [True, False])
def test_the_page_compares_inputs_with_training(
    client: Any, store: Store, sign_in: Any, monkeypatch: pytest.MonkeyPatch, profile: bool
):
    publish_people(store, profile=profile)
    person = sign_in("query")
    assert "No record yet" in Page(person.get(PAGE).text).text
    monkeypatch.setattr(input_report, "LEAST_SAMPLED", 1)
    record = RECORD | {"job": "none of the known jobs", "age": None}
    columns = {name: [value] * SAMPLED for name, value in record.items()}
    key = create_key(store, "program", {"query"})[1]
    client.refresh()
    sent = {"authorization": f"Bearer {key}"}
    assert client.post(ONE, json={"columns": columns}, headers=sent).status_code == 200
    write(client)
    page = Page(person.get(PAGE).text)
    text = " ".join(page.text.split())
    sampled = 1 if profile else 0
    assert f"{SAMPLED} records in 24 hours, {sampled} of them compared with training" in text
    assert "none of the known jobs" not in text, "no value of a query is shown"
    rows = [known for name, known in page.elements if name == "svg" and "pair" in (known.get("class") or "")]
    assert len(rows) == (len(RECORD) if profile else 0)
    assert ("missing: 8.3 %, now 100.0 %" in text) == profile
    assert ("differs" in text) == profile
    assert "age" in text
    assert "100.0 %" in text
