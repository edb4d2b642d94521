"""Gates over HTTP: an alias moves only to versions that were evaluated against its present one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.domain.entities import JobState, new_id
from app.domain.errors import InvalidRequest
from app.domain.evaluation import Evaluation
from app.domain.event_text import describe_event
from app.services.audit import list_records
from app.services.keys import create_key
from app.services.models import point_alias
from app.settings import Settings
from app.store.unit_of_work import Store
from core.monitoring.comparison import PairedCounts, compare_classes, overall
from tests.app.api.conftest import WEIGHTS
from tests.app.started import Client
from tests.system.published import publish_linear

LABELS = ("cat", "dog", "bird", "fish")
ALIAS = "/v1/models/letters/aliases/live"
GATE = f"{ALIAS}/gate"
EQUAL = (PairedCounts(2000, 0, 0), PairedCounts(6000, 0, 0))
WORSE = (PairedCounts(2000, 200, 5), PairedCounts(6000, 0, 0))
FEW = (PairedCounts(20, 0, 0), PairedCounts(60, 0, 0))


@pytest.fixture
def letters(client: Client, store: Store) -> None:
    """Versions 1 and 2, and an alias that was made for 1."""
    for sign in (1.0, -1.0):
        publish_linear(store, "letters", sign * WEIGHTS, LABELS, seen=b"")
    client.refresh()
    assert client.put(ALIAS, json={"version": 1}).status_code == 200


@pytest.fixture
def dataset(client: Client) -> str:
    lines = [f"{i % 5},{i % 7},{i % 3},{LABELS[i % 4]}" for i in range(60)]
    content = "\n".join(["a,b,c,label", *lines]).encode()
    return str(client.post("/v1/datasets?format=csv", content=content).json()["id"])


def set_gate(client: Client, dataset: str, **changed: Any) -> Any:
    tag = client.get(GATE).headers.get("etag")
    condition = {"if-match": tag} if tag else {}
    return client.put(GATE, json={"dataset_id": dataset, **changed}, headers=condition)


def move(client: Client, version: int, **changed: Any) -> Any:
    condition = {"if-match": client.get(ALIAS).headers["etag"]}
    return client.put(ALIAS, json={"version": version, **changed}, headers=condition)


def evaluated(store: Store, dataset: str, *pairs: tuple[PairedCounts, PairedCounts], **changed: Any) -> str:
    """Store the result of an evaluation of version 2 against version 1, as a worker would."""
    given: dict[str, Any] = {
        "id": new_id("ev"),
        "version": "letters@2",
        "baseline": "letters@1",
        "dataset_id": dataset,
        "part": "all",
        "tolerance": 0.01,
        "alpha": 0.05,
        "unknown_classes": "drop",
        "state": JobState.RUNNING,
        "created_at": 0.0,
        "created_by": "me",
    }
    rows = changed.pop("rows", 8000)
    evaluation = Evaluation(**given | changed)
    compared = compare_classes(pairs, evaluation.tolerance, evaluation.alpha)
    classes = [
        {"class": label, "comparison": one.as_dict()} for label, one in zip(LABELS, compared, strict=False)
    ]
    result = {"rows_used": rows, "verdict": overall([one.verdict for one in compared])}
    with store.begin() as uow:
        uow.evaluations.add(evaluation)
        uow.evaluations.succeed(evaluation.id, result, {"classes": classes, "not_compared": []})
    return evaluation.id


def test_a_gate_is_set_changed_and_deleted_under_conditions(client, letters, dataset, problem):
    problem(client.get(GATE), 404, "gate_not_found")
    made = client.put(GATE, json={"dataset_id": dataset})
    assert made.status_code == 200, made.text
    document = made.json()
    assert (document["rule"], document["revision"]) == ("not_worse", 1)
    assert (document["tolerance"], document["alpha"], document["least_rows"]) == (0.01, 0.05, 50)
    assert client.get(GATE).json() == document
    body = {"dataset_id": dataset, "rule": "no_class_worse", "least_rows": 100}
    problem(client.put(GATE, json=body), 428, "if_match_required")
    problem(client.put(GATE, json=body, headers={"if-match": '"9"'}), 412, "precondition_failed")
    changed = client.put(GATE, json=body, headers={"if-match": made.headers["etag"]})
    assert (changed.json()["rule"], changed.json()["revision"]) == ("no_class_worse", 2)
    problem(client.delete(GATE), 428, "if_match_required")
    problem(client.delete(GATE, headers={"if-match": '"1"'}), 412, "precondition_failed")
    assert client.delete(GATE, headers={"if-match": '"2"'}).status_code == 204
    problem(client.delete(GATE, headers={"if-match": '"2"'}), 404, "gate_not_found")


def test_a_gate_needs_an_alias_a_data_set_and_bounds(client, letters, dataset, problem):
    other = "/v1/models/letters/aliases/other/gate"
    problem(client.put(other, json={"dataset_id": dataset}), 404, "alias_not_found")
    problem(client.get(other), 404, "alias_not_found")
    problem(client.put(GATE, json={"dataset_id": "ds_none"}), 404, "dataset_not_found")
    for wrong in ({"rule": "better"}, {"least_rows": 49}, {"tolerance": 1}, {"shadow_hours": 24}):
        problem(client.put(GATE, json={"dataset_id": dataset, **wrong}), 422, "invalid_body")


def test_a_gated_alias_moves_after_an_evaluation_that_passes(client, store, letters, dataset, problem):
    set_gate(client, dataset)
    refused = problem(move(client, 2), 409, "gate_not_passed")
    assert f"stms evaluate letters@2 --dataset {dataset} --baseline letters@1" in refused["detail"]
    assert client.get(ALIAS).json()["version"] == 1
    evaluated(store, dataset, EQUAL, EQUAL)
    assert move(client, 2).status_code == 200


def test_a_failed_evaluation_names_the_classes(client, store, letters, dataset, problem):
    set_gate(client, dataset)
    evaluation = evaluated(store, dataset, EQUAL, WORSE, EQUAL)
    refused = problem(move(client, 2), 409, "gate_failed")
    assert evaluation in refused["detail"]
    assert [(fault["field"], fault["code"]) for fault in refused["errors"]] == [("classes.dog", "worse")]
    assert "only the present version has 200 right, only the new one 5" in refused["errors"][0]["message"]


def test_the_rule_decides_about_undecided_classes(client, store, letters, dataset, problem):
    set_gate(client, dataset)
    evaluated(store, dataset, EQUAL, FEW)
    refused = problem(move(client, 2), 409, "gate_failed")
    assert [(fault["field"], fault["code"]) for fault in refused["errors"]] == [("classes.dog", "undecided")]
    set_gate(client, dataset, rule="no_class_worse")
    assert move(client, 2).status_code == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": 99},
        {"dataset_id": "ds_other"},
        {"baseline": "letters@2"},
        {"baseline": None},
        {"version": "letters@1"},
        {"version": "other@2"},
        {"tolerance": 0.02},
        {"alpha": 0.1},
        {"tenant": "rival"},
    ],
)
def test_an_evaluation_of_something_else_does_not_count(client, store, letters, dataset, problem, changed):
    set_gate(client, dataset, least_rows=100)
    of_tenant = store.of_tenant(changed.get("tenant", "default"))
    evaluated(of_tenant, changed.pop("dataset_id", dataset), EQUAL, EQUAL, **changed)
    problem(move(client, 2), 409, "gate_not_passed")


def test_a_smaller_tolerance_passes_and_never_fails(client, store, letters, dataset, problem):
    set_gate(client, dataset)
    evaluated(store, dataset, EQUAL, WORSE, tolerance=0.005)
    problem(move(client, 2), 409, "gate_not_passed")
    evaluated(store, dataset, EQUAL, EQUAL, tolerance=0.005)
    assert move(client, 2).status_code == 200


def test_a_rollback_is_never_refused(client, store, letters, dataset, problem):
    evaluated(store, dataset, EQUAL)
    set_gate(client, dataset)
    assert move(client, 2).status_code == 200
    assert move(client, 1).status_code == 200
    assert move(client, 2).status_code == 200, "that the alias has had by now"
    publish_linear(store, "letters", WEIGHTS, LABELS, alias=None, seen=b"")
    problem(move(client, 3), 409, "gate_not_passed")


def test_an_override_has_a_reason_and_leaves_a_record(client, store, letters, dataset, problem):
    set_gate(client, dataset)
    evaluation = evaluated(store, dataset, WORSE)
    problem(move(client, 2, override=""), 422, "invalid_body")
    problem(move(client, 2, override="x" * 201), 422, "invalid_body")
    with pytest.raises(InvalidRequest) as refused:
        point_alias(store, Settings(), "letters", "live", 2, 1, override="\n")
    assert refused.value.faults[0].code == "bad_reason"
    assert move(client, 2, override="the labels of the data set are wrong").status_code == 200
    [row] = list_records(store, limit=9, action="alias.override")[0]
    assert row.object == "letters@live"
    assert row.details["reason"] == "the labels of the data set are wrong"
    assert (row.details["from"], row.details["version"]) == (1, 2)
    assert row.details["gate"]["evaluation"] == evaluation
    assert move(client, 1, override="not needed").status_code == 200
    assert len(list_records(store, limit=9, action="alias.override")[0]) == 1


def test_what_publishes_does_not_move_a_gated_alias_and_says_so(client, store, letters, dataset):
    set_gate(client, dataset)
    version = publish_linear(store, "letters", WEIGHTS, LABELS, alias="live", seen=b"")
    assert client.get(ALIAS).json()["version"] == 1
    with store.read() as uow:
        unmoved = uow.jobs.get(str(version.job_id)).provenance["alias_not_moved"]
    assert (unmoved["alias"], unmoved["version"], unmoved["reason"]) == ("live", 1, "gate")
    assert unmoved["code"] == "gate_not_passed"
    assert "stays at version 1: The gate of alias 'live'" in str(describe_event("alias_not_moved", unmoved))


def test_an_import_does_not_move_a_gated_alias(client, store, letters, dataset, tmp_path):
    path = tmp_path / "head.npz"
    np.savez(path, weights=WEIGHTS, labels=np.array(LABELS))
    set_gate(client, dataset)
    imported = client.post("/v1/teachers?model=letters&alias=live", content=path.read_bytes())
    assert imported.status_code == 201, imported.text
    assert imported.json()["alias"] is None
    assert client.get(ALIAS).json()["version"] == 1
    [row] = list_records(store, limit=9, action="model.import")[0]
    assert row.details["alias_not_moved"]["reason"] == "gate"


@pytest.mark.usefixtures("keys_required")
def test_gates_and_overrides_are_for_administrators(client, store, problem):
    keys = {}
    for scope in ("admin", "train", "query"):
        keys[scope] = {"authorization": f"Bearer {create_key(store, scope, {scope})[1]}"}
    rival = {"authorization": f"Bearer {create_key(store.of_tenant('rival'), 'r', {'admin'})[1]}"}
    for sign in (1.0, -1.0):
        publish_linear(store, "letters", sign * WEIGHTS, LABELS, alias="live", seen=b"")
    client.refresh()
    lines = [f"{i % 5},{i % 7},{i % 3},{LABELS[i % 4]}" for i in range(60)]
    content = "\n".join(["a,b,c,label", *lines]).encode()
    upload = client.post("/v1/datasets?format=csv", content=content, headers=keys["train"])
    body = {"dataset_id": upload.json()["id"]}
    problem(client.put(GATE, json=body, headers=keys["train"]), 403, "scope_required")
    problem(client.put(GATE, json=body, headers=rival), 404, "alias_not_found")
    assert client.put(GATE, json=body, headers=keys["admin"]).status_code == 200
    assert client.get(GATE, headers=keys["query"]).status_code == 200
    problem(client.get(GATE, headers=rival), 404, "alias_not_found")
    first = {"if-match": '"1"'}
    problem(client.delete(GATE, headers=keys["train"] | first), 403, "scope_required")
    problem(client.delete(GATE, headers=rival | first), 404, "alias_not_found")
    publish_linear(store, "letters", WEIGHTS, LABELS, alias=None, seen=b"")
    tag = {"if-match": client.get(ALIAS, headers=keys["query"]).headers["etag"]}
    over = {"version": 3, "override": "because"}
    problem(client.put(ALIAS, json=over, headers=keys["train"] | tag), 403, "scope_required")
    problem(client.delete(ALIAS, headers=keys["train"] | tag), 403, "scope_required")
    assert client.put(ALIAS, json=over, headers=keys["admin"] | tag).status_code == 200
    tag = {"if-match": client.get(ALIAS, headers=keys["query"]).headers["etag"]}
    assert client.delete(ALIAS, headers=keys["admin"] | tag).status_code == 204
    assert client.put(ALIAS, json={"version": 1}, headers=keys["train"]).status_code == 200
    problem(client.get(GATE, headers=keys["train"]), 404, "gate_not_found")
