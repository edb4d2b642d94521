"""Renaming and removing classes over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from app.store.unit_of_work import Store
from tests.app.api.conftest import publish_pets


def test_the_new_version_answers_by_its_classes_when_an_alias_points_to_it(client: Any, store: Store) -> None:
    publish_pets(store)
    answer = client.request(
        "PATCH", "/v1/models/pets/classes", json={"rename": {"cat": "Cat"}, "remove": ["dog"]}
    )
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == "/v1/models/pets/versions/2"
    document = answer.json()
    assert document["classes"][0] == "Cat"
    assert "dog" not in document["classes"]
    rows = {"rows": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, -1.0]]}
    before = client.post("/v1/models/pets/classes/cat:query", json=rows).json()["results"]
    after = client.post("/v1/models/pets@2/classes/Cat:query", json=rows).json()["results"]
    assert before == after
    assert client.post("/v1/models/pets@2/classes/dog:query", json=rows).json()["code"] == "class_not_found"
    labels = {one["label"] for one in client.post("/v1/models/pets@2:predict", json=rows).json()["results"]}
    assert labels <= set(document["classes"])
    bundle = client.get("/v1/models/pets/versions/2/bundle")
    imported = client.post("/v1/bundles?model=copies", content=bundle.content)
    assert imported.status_code == 201, imported.text
    copied = client.post("/v1/models/copies/classes/Cat:query", json=rows).json()["results"]
    assert copied == before


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "value_error"),
        ({"rename": {}, "remove": []}, 422, "value_error"),
        ({"rename": {"cat": ""}}, 422, "string_too_short"),
        ({"rename": {"cat": "dog"}}, 400, "class_exists"),
        ({"remove": ["cat"], "alias": "production"}, 422, "extra_forbidden"),
        ({"remove": ["cow"]}, 404, "class_not_found"),
        ({"base": "nothing", "remove": ["cat"]}, 404, "alias_not_found"),
    ],
)
def test_wrong_changes_are_refused(
    client: Any, store: Store, body: dict[str, Any], status: int, code: str
) -> None:
    publish_pets(store)
    answer = client.request("PATCH", "/v1/models/pets/classes", json=body)
    assert answer.status_code == status, answer.text
    problem = answer.json()
    assert code in {problem["code"], *(fault["code"] for fault in problem.get("errors", ()))}
