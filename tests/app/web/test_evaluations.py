"""Pages of evaluations, and gates on the page of an alias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.domain.entities import JobState
from app.services.audit import list_records
from app.services.evaluations import get_evaluation, list_evaluations
from app.services.gates import gates_of
from app.services.models import get_alias
from app.store.unit_of_work import Store
from tests.app.api.conftest import CLASSES, WEIGHTS
from tests.app.web.conftest import Page, Person, Things, add_evaluation
from tests.app.web.test_actions import fields
from tests.app.web.test_uploads import send
from tests.system.published import publish_linear

Enter = Callable[..., Person]
ALIAS = "/ui/models/pets/aliases/latest"


def upload(person: Person) -> str:
    """A data set with the columns and classes of pets."""
    lines = [f"{i % 5},{i % 7},{i % 3},{CLASSES[i % 4]}" for i in range(60)]
    content = "\n".join(["a,b,c,label", *lines]).encode()
    answer = send(person, content, "checked.csv")
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"]).rpartition("/")[2].partition("?")[0]


def test_an_evaluation_shows_its_verdict_counts_and_what_was_left_out(sign_in: Enter, things: Things) -> None:
    shown = sign_in("train").get(f"/ui/evaluations/{things.evaluation_id}")
    text = " ".join(Page(shown.text).text.split())
    assert "pets@2 against pets@1" in text
    assert "1 100; left out: 7 trained on" in text
    assert "−90 +2" in text
    assert "data-poll" not in shown.text


def test_an_evaluation_is_asked_for_and_stopped(
    sign_in: Enter, things: Things, store: Store, make_client: Any
) -> None:
    person = sign_in("train")
    publish_linear(store, "seen", WEIGHTS, CLASSES, seen=b"")
    dataset = upload(person)
    assert "checked" in person.get("/ui/evaluations").text
    refused = person.post("/ui/evaluations", version="seen@", dataset_id=dataset)
    assert refused.status_code == 400
    answer = person.post(
        "/ui/evaluations", version="seen", baseline="seen@1", dataset_id=dataset, tolerance="0.02"
    )
    assert answer.status_code == 303, answer.text
    page = answer.headers["location"]
    evaluation = get_evaluation(store, page.rpartition("/")[2])
    assert (evaluation.version, evaluation.baseline, evaluation.tolerance) == ("seen@1", "seen@1", 0.02)
    shown = person.get(page).text
    assert f'data-poll="/ui/fragments/evaluations/{evaluation.id}"' in shown
    assert person.post(f"{page}/cancel").headers["location"] == page
    assert get_evaluation(store, evaluation.id).state is JobState.CANCELLED


def test_an_administrator_sets_changes_and_deletes_a_gate(
    sign_in: Enter, things: Things, store: Store
) -> None:
    admin = sign_in("admin")
    dataset = upload(admin)
    assert "the alias moves to any version" in admin.get(ALIAS).text
    wanted = fields(admin.get(ALIAS).text, f"{ALIAS}/gate") | {"dataset_id": dataset, "tolerance": "0.05"}
    assert admin.post(f"{ALIAS}/gate", **wanted).headers["location"] == ALIAS
    gate = gates_of(store, "pets")["latest"]
    assert (gate.dataset_id, gate.tolerance, gate.rule) == (dataset, 0.05, "not_worse")
    shown = admin.get(ALIAS).text
    assert "every class must be proved not worse" in shown
    assert admin.post(f"{ALIAS}/gate", **wanted).status_code == 412
    assert admin.post(f"{ALIAS}/gate", **wanted | {"least_rows": "3"}).status_code == 400
    assert sign_in("train").post(f"{ALIAS}/gate", **wanted).status_code == 403
    admin.post(f"{ALIAS}/gate/delete", **fields(shown, f"{ALIAS}/gate/delete"))
    assert gates_of(store, "pets") == {}


def test_a_gated_move_offers_the_evaluation_that_it_needs_and_an_override(
    sign_in: Enter, things: Things, store: Store
) -> None:
    admin, trainer = sign_in("admin"), sign_in("train")
    dataset = upload(admin)
    wanted = fields(admin.get(ALIAS).text, f"{ALIAS}/gate")
    admin.post(f"{ALIAS}/gate", **wanted, dataset_id=dataset)
    move = "/ui/models/pets/move?version=2&alias=latest"
    shown = trainer.get(move).text
    asked = fields(shown, "/ui/evaluations")
    assert (asked["version"], asked["baseline"], asked["dataset_id"]) == ("pets@2", "pets@1", dataset)
    assert 'name="override"' not in shown
    refused = trainer.post(ALIAS, **fields(shown, ALIAS))
    assert refused.status_code == 409
    assert "Evaluate the version against the present one" in refused.text
    evaluation = add_evaluation(store, dataset)
    shown = admin.get(move).text
    assert f"/ui/evaluations/{evaluation}" in shown
    given = fields(shown, ALIAS) | {"override": "the labels are wrong"}
    assert trainer.post(ALIAS, **given).status_code == 403
    assert admin.post(ALIAS, **given).status_code == 303
    assert get_alias(store, "pets", "latest").version == 2
    [record] = list_records(store, limit=9, action="alias.override")[0]
    assert record.details["reason"] == "the labels are wrong"


@pytest.mark.parametrize("form", ["csv", "json"])
def test_evaluations_are_a_table(sign_in: Enter, things: Things, store: Store, form: str) -> None:
    answer = sign_in("train").get(f"/ui/tables/{form}/evaluations")
    assert answer.status_code == 200
    assert list_evaluations(store, limit=9)[0][0].id in answer.text
