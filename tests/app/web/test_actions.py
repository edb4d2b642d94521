"""Forms of the pages: aliases, jobs, data sets and keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from app.domain.curves import pack
from app.domain.entities import JobState
from app.services.audit import list_records
from app.services.models import get_alias
from app.store.unit_of_work import Store
from tests.app.api.test_query_records import publish_people
from tests.app.serving.written_records import encoder, refusing_encoder
from tests.app.web.conftest import Page, Person, Things

Enter = Callable[..., Person]


def fields(html: str, action: str) -> dict[str, str]:
    """The hidden fields of the form with an action."""
    form = html[html.index(f'action="{action}"') :].partition("</form>")[0]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"[^>]*>', form))


def test_an_alias_is_moved_with_the_differences_in_view_and_rolled_back(
    sign_in: Enter, things: Things, store: Store
) -> None:
    person = sign_in("train")
    with store.begin() as uow:
        for version, f1 in ((1, 0.5), (2, 0.75)):
            from app.store.tables import model_versions

            means = {"means": {"svm": {"f1": f1, "brier": f1 / 10}}}
            change = model_versions.update().where(model_versions.c.version == version).values(metrics=means)
            uow.connection.execute(change)
    shown = person.get("/ui/models/pets/move?version=2&alias=latest").text
    text = " ".join(Page(shown).text.split())
    assert "+0.2500 (better)" in text
    assert "+0.0250 (worse)" in text
    form = fields(shown, "/ui/models/pets/aliases/latest")
    answer = person.post("/ui/models/pets/aliases/latest", **form)
    assert answer.headers["location"] == "/ui/models/pets?done=move"
    assert get_alias(store, "pets", "latest").version == 2
    assert "was moved" in person.get(answer.headers["location"]).text
    # The same form again, after the alias was moved.
    again = person.post("/ui/models/pets/aliases/latest", **form)
    assert again.status_code == 412
    assert "What to do" in again.text
    back = person.get("/ui/models/pets/move?version=1&alias=latest").text
    assert "Roll back to version 1" in back
    person.post("/ui/models/pets/aliases/latest", **fields(back, "/ui/models/pets/aliases/latest"))
    assert get_alias(store, "pets", "latest").version == 1


def test_aliases_and_versions_are_made_and_deleted(sign_in: Enter, things: Things, store: Store) -> None:
    person = sign_in("train")
    shown = person.get("/ui/models/pets/move?version=1&alias=canary").text
    person.post("/ui/models/pets/aliases/canary", **fields(shown, "/ui/models/pets/aliases/canary"))
    assert get_alias(store, "pets", "canary").version == 1
    assert person.post("/ui/models/pets/aliases/canary", version="1").status_code == 428
    page = person.get("/ui/models/pets").text
    action = "/ui/models/pets/aliases/production/delete"
    assert person.post(action, **fields(page, action)).status_code == 303
    assert person.post("/ui/models/pets/versions/2/delete").status_code == 303
    assert person.post("/ui/models/pets/versions/1/delete").status_code == 409


def test_jobs_are_cancelled_retried_and_deleted(sign_in: Enter, things: Things, store: Store) -> None:
    person = sign_in("train")
    path = f"/ui/jobs/{things.job.id}"
    assert "Retry" not in person.get(path).text
    person.post(f"{path}/cancel")
    page = person.get(f"{path}?done=cancel").text
    assert "Retry" in page
    assert "finished students are kept" in page
    assert person.post(f"{path}/retry").status_code == 303
    with store.read() as uow:
        assert uow.jobs.get(things.job.id).state is JobState.QUEUED
    assert person.post(f"{path}/delete").status_code == 409
    person.post(f"{path}/cancel")
    assert person.post(f"{path}/delete").headers["location"] == "/ui/jobs?done=delete"
    assert person.get(path).status_code == 404


def test_marked_jobs_are_cancelled_and_deleted_each_as_one_by_itself(
    sign_in: Enter, store: Store, add_job: Any
) -> None:
    person = sign_in("train")
    with store.begin() as uow:
        jobs = [add_job(uow).id for _ in range(3)]
        with_version = add_job(uow, state=JobState.SUCCEEDED).id
    with store.of_tenant("rival").begin() as uow:
        foreign = add_job(uow, tenant="rival").id
    page = Page(person.get("/ui/jobs").text)
    assert sorted(page.values("input", "value")[-4:]) == sorted([*jobs, with_version])
    path = "/ui/jobs/several"
    early = person.post(path, do="delete", job=jobs[:2])
    assert early.status_code == 409
    assert "2 of 2 jobs stay as they are" in early.text
    assert "Cancel it first" in early.text
    assert (
        person.post(path, do="cancel", job=[*jobs, jobs[0]]).headers["location"]
        == "/ui/jobs?done=cancel-several"
    )
    mixed = person.post(path, do="delete", job=[jobs[0], foreign, "job_none"])
    assert "2 of 3 jobs stay as they are" in mixed.text
    assert all(job_id in mixed.text for job_id in (foreign, "job_none"))
    done = person.post(path, do="delete", job=jobs[1:])
    assert done.headers["location"] == "/ui/jobs?done=delete-several"
    assert "The marked jobs were deleted." in person.get(done.headers["location"]).text
    for name in ("job.cancel", "job.delete"):
        records, _ = list_records(store, limit=100, action=name)
        assert sorted(one.object for one in records) == sorted(jobs)
        assert {one.actor_name for one in records} == {"Ada"}
    with store.of_tenant("rival").read() as uow:
        assert uow.jobs.get(foreign).state is JobState.QUEUED
    for wrong in (
        {"do": "cancel"},
        {"do": "publish", "job": with_version},
        {"do": "cancel", "job": "a<b>"},
    ):
        refused = person.post(path, **wrong)
        assert refused.status_code == 400
        assert "Mark 1 to 250 jobs" in refused.text
        assert "not_marked" in refused.text


def test_a_data_set_is_deleted_when_no_job_needs_it(sign_in: Enter, things: Things) -> None:
    person = sign_in("train")
    path = f"/ui/datasets/{things.dataset_id}"
    refused = person.post(f"{path}/delete")
    assert refused.status_code == 409
    assert "cancel it first" in refused.text
    person.post(f"/ui/jobs/{things.job.id}/cancel")
    assert person.post(f"{path}/delete").status_code == 303
    assert person.get(path).status_code == 404


def test_a_key_is_made_shown_once_rotated_and_revoked(client: Any, sign_in: Enter) -> None:
    person = sign_in("admin")
    made = person.post(
        "/ui/keys", name="robot", scope=["query"], models="pets, door", days="2", rate_limit="5"
    )
    assert made.status_code == 200, made.text
    assert made.headers["cache-control"] == "no-store"
    [text] = re.findall(r'id="secret">(stms_\S+)</code>', made.text)
    assert client.get("/v1/models", headers={"x-api-key": text}).status_code == 200
    key_id = re.match(r"stms_(key_[0-9a-f]+)_", text)[1]
    assert text not in person.get("/ui/keys").text
    rotated = person.post(f"/ui/keys/{key_id}/rotate", hours="1")
    [new] = re.findall(r'id="secret">(stms_\S+)</code>', rotated.text)
    for known in (text, new):
        assert client.get("/v1/models", headers={"x-api-key": known}).status_code == 200
    assert person.post(f"/ui/keys/{key_id}/revoke").headers["location"] == "/ui/keys?done=revoke"
    for known in (text, new):
        assert client.get("/v1/models", headers={"x-api-key": known}).status_code == 401


@pytest.mark.long
def test_wrong_fields_of_a_key_are_named(sign_in: Enter) -> None:
    person = sign_in("admin")
    assert person.post("/ui/keys", name="robot", scope=["operator"]).status_code == 403
    faulty = person.post("/ui/keys", name="", scope=["train"], models="pets")
    assert faulty.status_code == 400
    assert "1 to 100 printable characters" in faulty.text
    assert "no other scopes than query and download" in faulty.text
    assert "days must be a number" in person.post("/ui/keys", name="a", scope=["query"], days="x").text


def test_forms_need_the_scope_of_what_they_do(sign_in: Enter, things: Things) -> None:
    person = sign_in("query")
    for path in (
        "/ui/jobs/several",
        f"/ui/jobs/{things.job.id}/cancel",
        f"/ui/jobs/{things.job.id}/retry",
        f"/ui/jobs/{things.job.id}/delete",
        f"/ui/datasets/{things.dataset_id}/delete",
        f"/ui/datasets/{things.dataset_id}/train",
        "/ui/datasets/example",
        "/ui/models/pets/aliases/latest",
        "/ui/models/pets/aliases/latest/delete",
        "/ui/models/pets/versions/1/delete",
        "/ui/keys",
        f"/ui/keys/{things.key_id}/rotate",
        f"/ui/keys/{things.key_id}/revoke",
    ):
        answer = person.post(path, name="x", scope="query", version="1", revision="1")
        assert answer.status_code == 403, path


def test_a_threshold_is_moved_and_published(
    client: Any, sign_in: Enter, things: Things, store: Store
) -> None:
    with store.read() as uow:
        version = uow.models.version("pets", 1)
    curve = {"positives": 10, "negatives": 90, "thresholds": [2.0, 1.0, -1.0]}
    curve |= {"tp": [4, 8, 10], "fp": [0, 3, 50]}
    with store.begin() as uow:
        uow.students.keep_curves([((0, "svm"), pack(curve))], str(version.job_id))
    person = sign_in("train")
    path = f"/ui/jobs/{version.job_id}/classes/0"
    text = " ".join(Page(person.get(f"{path}?t=1.0&cost=5").text).text.split())
    assert "0.7273" in text, "precision"
    assert "Cost13" in text
    shown = person.get(f"{path}?t=1.5").text
    assert re.search(r'data-value="tp">4<', shown), "the next stricter point"
    for most, tp in ((0, 4), (3.3, 4), (3.4, 8), (100, 10)):
        shown = person.get(f"{path}?t=1.5&most={most}").text
        assert f'data-value="tp">{tp}<' in shown, "the loosest point that accepts no more of the others"
        assert "data-unreached hidden" in shown
    assert person.get(f"{path}?most=101").status_code == 400
    action = "/ui/models/pets/thresholds"
    made = person.post(action, **fields(person.get(f"{path}?t=1.0").text, action))
    assert made.headers["location"] == "/ui/models/pets/versions/3?done=publish"
    assert "Published as a new version" in person.get(made.headers["location"]).text
    with store.read() as uow:
        again = uow.models.version("pets", 3)
        row = uow.students.served(str(again.job_id), "cat", "svm")
    assert row is not None
    assert row.threshold == 1.0
    assert person.get(f"/ui/jobs/{again.job_id}/classes/0").status_code == 200
    assert sign_in("query").post(action, base="1", label="cat", threshold="1").status_code == 403


def test_a_move_that_would_refuse_questions_is_red_and_needs_a_tick(sign_in: Enter, store: Store) -> None:
    publish_people(store, encoder())
    publish_people(store, refusing_encoder())
    person = sign_in("train")
    shown = person.get("/ui/models/people/move?version=2&alias=latest").text
    assert re.search(r'<div class="worse"><bdi>Column &#39;job&#39; was category and is category', shown)
    assert f">{len(encoder().names)}</td>" in shown, "the columns that are used"
    assert 'name="allow_schema_change"' in shown
    form = fields(shown, "/ui/models/people/aliases/latest")
    refused = person.post("/ui/models/people/aliases/latest", **form)
    assert (refused.status_code, "tick the box" in refused.text) == (409, True)
    assert get_alias(store, "people", "latest").version == 1
    compared = person.get("/ui/models/people/compare?a=1&b=2").text
    assert '<li class="worse"><bdi>Column &#39;job&#39;' in compared
    person.post("/ui/models/people/aliases/latest", **form, allow_schema_change="true")
    assert get_alias(store, "people", "latest").version == 2
    back = person.get("/ui/models/people/move?version=1&alias=latest").text
    assert "allow_schema_change" not in back


def test_a_version_is_trained_again_and_gets_other_classes(
    sign_in: Enter, things: Things, store: Store
) -> None:
    person = sign_in("train")
    shown = person.get("/ui/models/pets/versions/1").text
    for action in ("retrain", "classes", "classes/merge", "classes/add"):
        assert f'action="/ui/models/pets/versions/1/{action}"' in shown
    renamed = person.post("/ui/models/pets/versions/1/classes", label="cat", new="Cat")
    assert renamed.status_code == 303, renamed.text
    page = person.get(renamed.headers["location"]).text
    assert "This version has other classes" in page
    assert "Cat" in Page(page).text
    unknown = person.post("/ui/models/pets/versions/1/classes", label="cow", new="")
    assert unknown.status_code == 404
    nothing = person.post(
        "/ui/models/pets/versions/1/retrain", dataset_id="ds_none", classes="changed", alias=""
    )
    assert (nothing.status_code, "ds_none" in nothing.text) == (404, True)
    assert sign_in("query").post("/ui/models/pets/versions/1/retrain").status_code == 403
