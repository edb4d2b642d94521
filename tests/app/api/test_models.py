"""Published models over HTTP: versions, aliases and conditional writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.domain.curves import pack
from app.domain.entities import ModelVersion
from tests.app.api.test_query_records import publish_people
from tests.app.serving.written_records import encoder, refusing_encoder

Check = Callable[..., dict[str, Any]]
ROW = {"x": [1.0, 2.0, 3.0]}


def test_a_model_shows_its_versions_and_aliases(client, pets: ModelVersion, publish_again):
    publish_again()
    view = client.get("/v1/models/pets").json()
    assert view["name"] == "pets"
    assert [version["version"] for version in view["versions"]] == [2, 1]
    assert view["versions"][0]["classes"] == list(pets.classes)
    assert [(alias["alias"], alias["version"]) for alias in view["aliases"]] == [("latest", 2)]
    [summary] = client.get("/v1/models").json()["data"]
    assert (summary["id"], summary["name"], summary["latest_version"]) == ("pets", "pets", 2)


def test_rules_choose_thresholds_and_the_history_of_a_class_has_them(client, pets, store, problem: Check):
    curve = {"positives": 10, "negatives": 90, "thresholds": [2.0, 1.0], "tp": [4, 8], "fp": [0, 3]}
    with store.begin() as uow:
        uow.students.keep_curves([((0, pets.method), pack(curve))], str(pets.job_id))
    rule = {"choose": {"cat": {"recall": 0.7}}}
    chosen = client.post("/v1/models/pets/thresholds", json={"base": "latest"} | rule).json()
    assert (chosen["base"], chosen["classes"][0]["threshold"]) == (1, 1.0)
    strict = {"choose": {"cat": {"recall": 0.9}}}
    refusal = problem(client.post("/v1/models/pets/thresholds", json=strict), 400, "invalid_request")
    assert refusal["errors"][0]["code"] == "rule_not_obeyed"
    two = {"choose": {"cat": {"recall": 0.9, "max_false_positive_rate": 0.1}}}
    problem(client.post("/v1/models/pets/thresholds", json=two), 422, "invalid_body")
    assert client.post("/v1/models/pets/versions", json=rule).json()["version"] == 2
    first = client.get("/v1/models/pets/thresholds?class=cat&limit=1")
    assert [(one["version"], one["threshold"]) for one in first.json()["data"]] == [(2, 1.0)]
    assert "after=2" in first.headers["link"]
    problem(client.get("/v1/models/pets/thresholds?class=cow"), 404, "class_not_found")


def test_a_version_is_found_by_number_and_alias(client, pets, problem: Check):
    by_number, by_alias = (
        client.get("/v1/models/pets/versions/1"),
        client.get("/v1/models/pets/versions/latest"),
    )
    assert by_number.json() == by_alias.json()
    tag = {"if-none-match": by_number.headers["etag"]}
    assert client.get("/v1/models/pets/versions/1", headers=tag).status_code == 304
    problem(client.get("/v1/models/pets/versions/2"), 404, "version_not_found")
    problem(client.get("/v1/models/pets/versions/other"), 404, "alias_not_found")
    problem(client.get("/v1/models/cats/versions/1"), 404, "version_not_found")
    problem(client.get("/v1/models/cats"), 404, "model_not_found")


def test_an_unchanged_model_is_304(client, pets, publish_again):
    tag = {"if-none-match": client.get("/v1/models/pets").headers["etag"]}
    assert client.get("/v1/models/pets", headers=tag).status_code == 304
    publish_again(alias=None)
    assert client.get("/v1/models/pets", headers=tag).status_code == 200


def test_an_alias_is_created_moved_and_moved_back(client, pets, publish_again, problem: Check):
    publish_again(alias=None)
    path = "/v1/models/pets/aliases/production"
    problem(client.get(path), 404, "alias_not_found")
    made = client.put(path, json={"version": 1}, headers={"if-none-match": "*"})
    assert (made.status_code, made.json()["version"]) == (200, 1)
    assert client.get(path).headers["etag"] == made.headers["etag"]
    assert client.get(path, headers={"if-none-match": made.headers["etag"]}).status_code == 304
    moved = client.put(path, json={"version": 2}, headers={"if-match": made.headers["etag"]})
    assert (moved.status_code, moved.json()["version"]) == (200, 2)
    assert moved.headers["etag"] != made.headers["etag"]
    back = client.put(path, json={"version": 1}, headers={"if-match": moved.headers["etag"]})
    assert back.json()["version"] == 1


def test_queries_follow_a_moved_alias_at_once(client, pets, publish_again):
    publish_again(alias=None)
    path = "/v1/models/pets/classes/cat:query"
    assert client.post(path, json=ROW).json()["score"] == 1.0
    etag = client.get("/v1/models/pets/aliases/latest").headers["etag"]
    client.put("/v1/models/pets/aliases/latest", json={"version": 2}, headers={"if-match": etag})
    answer = client.post(path, json=ROW).json()
    assert (answer["score"], answer["version"]) == (-1.0, 2)


def test_moving_an_alias_requires_its_etag(client, pets, publish_again, problem: Check):
    publish_again(alias=None)
    path, body = "/v1/models/pets/aliases/latest", {"version": 2}
    problem(client.put(path, json=body), 428, "if_match_required")
    for stale in ('"7"', '"0"', 'W/"1"', '"something"', '"1", "2"'):
        problem(client.put(path, json=body, headers={"if-match": stale}), 412, "precondition_failed")
    problem(client.put(path, json=body, headers={"if-none-match": "*"}), 412, "precondition_failed")
    problem(client.put(path, json=body, headers={"if-none-match": '"1"'}), 400, "bad_condition")
    assert client.get(path).json()["version"] == 1


def test_creating_an_alias_requires_no_etag(client, pets):
    assert client.put("/v1/models/pets/aliases/new", json={"version": 1}).status_code == 200


def test_a_deleted_version_answers_no_queries(client, pets, publish_again, problem: Check):
    publish_again(alias=None)
    path, asked = "/v1/models/pets/versions/2", "/v1/models/pets@2/classes/cat:query"
    before = client.get("/v1/models/pets").headers["etag"]
    client.refresh()
    assert client.post(asked, json=ROW).status_code == 200
    assert client.delete(path).status_code == 204
    problem(client.post(asked, json=ROW), 404, "version_not_found")
    assert client.post("/v1/models/pets@1/classes/cat:query", json=ROW).status_code == 200
    assert client.get("/v1/models/pets").headers["etag"] != before
    problem(client.get(path), 404, "version_not_found")
    problem(client.delete(path), 404, "version_not_found")
    problem(client.delete("/v1/models/pets/versions/1"), 409, "version_has_alias")
    publish_again(alias=None)
    assert client.get("/v1/models/pets/versions/3").status_code == 200


def test_deleting_an_alias_requires_its_etag(client, pets, problem: Check):
    path = "/v1/models/pets/aliases/latest"
    problem(client.delete(path), 428, "if_match_required")
    problem(client.delete(path, headers={"if-match": '"7"'}), 412, "precondition_failed")
    tag = client.get(path).headers["etag"]
    assert client.delete(path, headers={"if-match": tag}).status_code == 204
    problem(client.get(path), 404, "alias_not_found")
    problem(client.delete(path, headers={"if-match": tag}), 404, "alias_not_found")
    made = client.put(path, json={"version": 1})
    assert made.headers["etag"] != tag, "what was read before it was deleted does not fit"
    assert client.delete(path, headers={"if-match": made.headers["etag"]}).status_code == 204
    assert client.delete("/v1/models/pets/versions/1").status_code == 204
    problem(client.get("/v1/models/pets"), 404, "model_not_found")
    problem(client.post("/v1/models/pets/classes/cat:query", json=ROW), 404, "model_not_found")


def test_a_move_to_a_version_that_refuses_more_is_refused_unless_that_is_said(client, store, problem: Check):
    publish_people(store, encoder())
    publish_people(store, refusing_encoder())
    path = "/v1/models/people/aliases/latest"
    tag = client.get(path).headers["etag"]
    assert client.get(path).json()["version"] == 1, "the publication left it"
    refused = problem(client.put(path, json={"version": 2}, headers={"if-match": tag}), 409, "schema_change")
    [error] = refused["errors"]
    assert (error["field"], error["code"], error["name"]) == ("columns.job", "column_retyped", "job")
    assert "a value that no row of training had" in error["message"]
    assert client.get(path).headers["etag"] == tag
    problem(client.delete(path, headers={"if-match": tag}), 409, "schema_change")
    moved = client.put(path, json={"version": 2, "allow_schema_change": True}, headers={"if-match": tag})
    assert (moved.status_code, moved.json()["version"]) == (200, 2)
    [record] = client.get("/v1/audit", params={"action": "alias.move", "limit": 1}).json()["data"]
    assert record["details"]["allow_schema_change"]["changes"][0]["name"] == "job"
    back = client.put(path, json={"version": 1}, headers={"if-match": moved.headers["etag"]})
    tag = back.headers["etag"]
    gone = client.delete(f"{path}?allow_schema_change=true", headers={"if-match": tag})
    assert gone.status_code == 204
