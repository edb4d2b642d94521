"""What consoles and notebooks show of clients, jobs, data sets and answers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stms_client import AsyncClient, Client, Curve, Decision, Decisions
from stms_client.results import Package

JOB = {
    "id": "job_1",
    "dataset_id": "ds_1",
    "model": "letters",
    "state": "failed",
    "version": None,
    "progress": {"done": 2, "total": 9},
    "error": {"code": "disk_full", "message": "No <disk> is left."},
    "warnings": [],
    "hyperparameters": {"student": {"C": 10}},
    "provenance": {"seed": 7},
}
DATASET = {
    "id": "ds_1",
    "name": "<b>letters",
    "rows": 900,
    "test_rows": 100,
    "columns": 16,
    "classes": ["A", "B"],
    "class_count": 2,
    "summary": {"warnings": [{"code": "rare", "message": "…"}], "schema": [{}]},
}


@pytest.fixture
def stms(written):
    with Client(written.address, "stms_secret", tenant="shop") as client:
        yield client


def test_a_client_shows_its_address_and_never_its_key(stms, written):
    assert repr(stms) == f"Client(address='{written.address}', tenant='shop')"
    assert (
        repr(AsyncClient("http://127.0.0.1:9", "stms_secret")) == "AsyncClient(address='http://127.0.0.1:9')"
    )
    assert "secret" not in stms._repr_html_()


def test_a_job_is_shown_by_its_state_and_not_by_its_whole_document(stms, written):
    written.on("GET", "/v1/training-jobs/job_1", JOB)
    job = stms.job("job_1")
    assert repr(job) == (
        "Job(id='job_1', model='letters', state='failed', dataset_id='ds_1', progress='2 of 9', "
        "error='No <disk> is left.')"
    )
    card = job._repr_html_()
    assert "<tr><th>error</th><td>No &lt;disk&gt; is left.</td></tr>" in card
    assert "seed" not in card
    assert json.loads(json.dumps(job)) == JOB, "it is the whole document all the same"


def test_data_sets_are_shown_by_their_counts_whatever_call_gives_them(stms, written, tmp_path):
    file = tmp_path / "letters.csv"
    file.write_text("1,A\n2,B\n")
    written.on("POST", "/v1/datasets", DATASET, 201)
    written.on("POST", "/v1/datasets:fetch", DATASET, 201)
    written.on("POST", "/v1/training-jobs/job_1/labels", DATASET, 201)
    written.on("POST", "/v1/datasets/ds_1/revisions", DATASET, 201)
    written.on("GET", "/v1/datasets/ds_1", DATASET)
    written.on("GET", "/v1/datasets", {"data": [DATASET]})
    given = [
        stms.upload_dataset(file),
        stms.upload_rows(np.eye(2), ["A", "B"], name="letters"),
        stms.upload_table({"a": [1, 2], "kind": ["A", "B"]}, label="kind", name="letters"),
        stms.fetch_dataset("https://example.com/letters.csv"),
        stms.correct_labels("job_1", {0: "A"}),
        stms.revise_dataset("ds_1", delete=[0]),
        stms.dataset("ds_1"),
        *stms.datasets(),
    ]
    shown = (
        "Dataset(id='ds_1', name='<b>letters', rows=900, test_rows=100, columns=16, classes=2, warnings=1)"
    )
    assert [repr(dataset) for dataset in given] == [shown] * 8
    assert "<tr><th>name</th><td>&lt;b&gt;letters</td></tr>" in given[0]._repr_html_()
    assert given[0] == DATASET


def test_a_decision_is_shown_without_what_it_does_not_have():
    decision = Decision(True, 1 / 3, 0.25, "pets", 3, 0.75, effects={"columns": [{"name": "age"}] * 90})
    assert repr(decision) == (
        "Decision(match=True, score=0.3333333333333333, threshold=0.25, model='pets', version=3, "
        "probability=0.75)"
    )
    card = decision._repr_html_()
    assert "<tr><th>match</th><td>yes</td></tr><tr><th>score</th><td>0.333333</td></tr>" in card
    assert "gate" not in card


@pytest.mark.parametrize("scores", [[1.5, -1.0] * 20, np.array([1.5, -1.0] * 20)], ids=["list", "array"])
def test_many_decisions_are_shown_by_their_number_and_the_first(scores):
    decisions = Decisions(scores, 0.5, "pets", 3, [0.9, 0.1] * 20)
    assert repr(decisions) == "Decisions(rows=40, matches=20, threshold=0.5, model='pets', version=3)"
    card = decisions._repr_html_()
    assert card.count("<tr>") == 11
    assert "<tr><th>0</th><td>yes</td><td>1.5</td><td>0.9</td></tr>" in card


def test_curves_and_packages_are_shown_without_their_points_and_bytes():
    curve = Curve("A", "gsvm", 4, 10, [0.1] * 201, [1] * 201, [0] * 201, 0.1)
    assert (
        repr(curve) == "Curve(label='A', method='gsvm', points=201, positives=4, negatives=10, threshold=0.1)"
    )
    package = Package(b"content" * 999, '"3-ab"', "pets", 3, None, None)
    assert len(repr(package)) < 100
