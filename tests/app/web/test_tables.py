"""Tables of pages as CSV and JSON: the same rows, at most a thousand, and nothing that a spreadsheet runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest

from app.domain.entities import StudentRow, StudentState
from app.services.class_table import MAX_ROWS
from app.store.unit_of_work import Store
from app.web.tables import as_csv
from tests.app.web.conftest import HOSTILE, Page, Person, Things

Enter = Callable[..., Person]
RANK = {"query": 0, "train": 1, "admin": 2, "operator": 3}


def tables(things: Things) -> dict[str, str]:
    """Every table, with the scope that it needs.

    Workers, servers and traffic come first: they list only what has reported within the last 10 seconds.
    """
    job, models = f"jobs/{things.job.id}", "models/pets"
    return {
        "workers": "operator",
        "servers": "operator",
        "traffic": "operator",
        "jobs": "train",
        "jobs?state=failed": "train",
        f"{job}/classes?sort=f1": "train",
        f"{job}/classes/0/students": "train",
        f"{job}/classes/0/svm/curve": "train",
        f"{job}/classes/0/svm/trace": "train",
        "datasets": "train",
        f"datasets/{things.dataset_id}/classes": "train",
        "models": "query",
        f"{models}/versions": "query",
        f"{models}/aliases": "query",
        f"{models}/aliases/production/moves": "query",
        f"{models}/changes?a=1&b=2": "train",
        "keys": "admin",
        "audit": "admin",
        "checks": "query",
        "quotas": "train",
    }


def test_every_table_is_the_same_as_csv_and_as_json_for_those_with_its_scope(
    sign_in: Enter, things: Things
) -> None:
    people = {scope: sign_in(scope) for scope in RANK}
    for path, needed in tables(things).items():
        for scope, person in people.items():
            answer = person.get(f"/ui/tables/json/{path}")
            assert answer.status_code == (200 if RANK[scope] >= RANK[needed] else 403), f"{path} for {scope}"
        rows = people["operator"].get(f"/ui/tables/json/{path}").json()["data"]
        answer = people["operator"].get(f"/ui/tables/csv/{path}")
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        assert answer.headers["content-disposition"].startswith("attachment; filename=")
        read = list(csv.DictReader(io.StringIO(answer.text)))
        assert len(read) == len(rows) > 0, path
        assert list(read[0]) == list(rows[0])
    assert people["operator"].get("/ui/tables/xml/jobs").status_code == 404


@pytest.mark.long
def test_every_page_with_a_table_links_to_it(sign_in: Enter, things: Things) -> None:
    person = sign_in("operator")
    job = f"/ui/jobs/{things.job.id}"
    pages = ["/ui/jobs", job, f"{job}/classes/0", "/ui/datasets", f"/ui/datasets/{things.dataset_id}"]
    pages += ["/ui/models", "/ui/models/pets", "/ui/models/pets/aliases/production", "/ui/keys", "/ui/audit"]
    pages += ["/ui/models/pets/compare?a=1&b=2", "/ui/traffic", "/ui/workers"]
    pages += ["/ui/health"]
    found = set()
    for path in pages:
        links = [link for link in Page(person.get(path).text).values("a", "href") if "/tables/" in link]
        assert links, path
        assert sum("/csv/" in link for link in links) == sum("/json/" in link for link in links)
        for link in links:
            assert person.get(link).status_code == 200, link
        found |= {link.partition("?")[0].partition("/json/")[2] for link in links}
    assert {path.partition("?")[0] for path in tables(things)} <= found


def test_a_long_table_comes_in_pages(sign_in: Enter, things: Things, store: Store) -> None:
    rows = [
        StudentRow(
            things.job.id, 10 + k, f"class {k:04d}", "svm", StudentState.SUCCEEDED, metrics={"f1": 0.5}
        )
        for k in range(MAX_ROWS)
    ]
    with store.begin() as uow:
        uow.students.save_all(rows)
    person = sign_in("train")
    first = person.get(f"/ui/tables/json/jobs/{things.job.id}/classes?sort=class")
    more = first.json()["next"]
    assert first.headers["link"] == f'<{more}>; rel="next"'
    second = person.get(more).json()
    labels = [row["label"] for row in (*first.json()["data"], *second["data"])]
    assert len(labels) == len(set(labels)) == MAX_ROWS + 2
    assert second["next"] is None


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_text_that_a_spreadsheet_takes_for_a_formula_is_marked_as_text(text: str) -> None:
    [row] = csv.DictReader(io.StringIO(as_csv([{"label": text, "change": -1.0}]).decode(), newline=""))
    assert row == {"label": f"'{text}", "change": "-1.0"}


def test_labels_come_back_as_they_are(sign_in: Enter, things: Things) -> None:
    person = sign_in("train")
    path = f"jobs/{things.job.id}/classes?sort=class"
    read: Any = csv.DictReader(io.StringIO(person.get(f"/ui/tables/csv/{path}").text, newline=""))
    assert next(read)["label"] == HOSTILE
    assert person.get(f"/ui/tables/json/{path}").json()["data"][0]["label"] == HOSTILE
