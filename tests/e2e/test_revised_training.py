"""Training on revisions: test rows stay test rows, and only students of classes that changed are new."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stms_client import Client, Problem
from tests.system.deployment import QUICK_SOLVERS, Deployment

QUICK = {"automatic": False, "features": {"kind": "linear"}, "calibration": {"kind": "none"}, "alias": None}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("revised")
    with (
        Deployment(folder, serve=True, is_new=False, settings=QUICK_SOLVERS) as service,
        Client(service.url, service.first_key) as client,
    ):
        yield client


def _file(folder: Path, name: str, X: Any, y: Any) -> Path:
    path = folder / f"{name}.csv"
    lines = [
        ",".join([*(f"{value:.9g}" for value in row), str(label)]) for row, label in zip(X, y, strict=True)
    ]
    path.write_text("\n".join(["a,b,c,label", *lines]) + "\n")
    return path


def _digests(client: Client, job: Any) -> dict[str, str]:
    return {row["label"]: row["digest"] for row in client.students(job["id"]) if row["digest"]}


def test_test_rows_stay_and_unchanged_students_keep_their_bytes(client: Client, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(4, 3)) * 4
    codes = np.arange(400) % 4
    X, y = centres[codes] + rng.normal(size=(400, 3)), np.array(["p", "q", "r", "s"])[codes]
    base = client.upload_dataset(_file(tmp_path, "base", X, y), label_column="label")
    job = client.wait_for_job(client.submit_job(base["id"], "letters", QUICK | {"seed": 7})["id"])
    assert job["provenance"]["test_part"]["rows"] == 80
    more = centres[0] + rng.normal(size=(40, 3))
    extra = client.upload_dataset(_file(tmp_path, "more", more, ["p"] * 40), rare_classes="keep")
    revised = client.revise_dataset(base["id"], append=extra["id"], delete=[0, 4])
    assert revised["change"]["classes_changed"] == ["p"]
    # A fifth of each class: 20 of 100 rows of the others, and 28 of 138 of the class that has grown.
    split = {"share": None, "seed": 7}
    assert (revised["summary"]["test_split"], revised["summary"]["held_out_rows"] - 3 * 20) == (split, 28)
    again = client.retrain("letters", f"{base['id']}@latest", base=1, classes="changed").wait()
    assert again["state"] == "succeeded", again["error"]
    assert again["provenance"]["retrained_from"]["classes"] == ["p"]
    before, after = _digests(client, job), _digests(client, again)
    assert sorted(after) == ["p", "q", "r", "s"]
    assert [label for label in after if after[label] != before[label]] == ["p"]
    # None of the rows that the first job was measured on was learned from: they are all left to evaluate on.
    found = client.wait_for_evaluation(
        client.evaluate("letters@1", base["id"], baseline=f"letters@{again['version']}", part="all")["id"]
    )
    assert found["state"] == "succeeded", found
    assert found["rows_used"] >= 78
    answers = client.query(f"letters@{again['version']}", "q", X[1].tolist())
    assert answers.match
    # Another seed, or a share, changes nothing of which rows these are.
    other = client.retrain("letters", revised["id"], base=1, hyperparameters={"seed": 8}).wait()
    assert other["provenance"]["test_part"]["rows"] == revised["summary"]["held_out_rows"]
    assert other["provenance"]["test_part"]["digest"] == again["provenance"]["test_part"]["digest"]


def test_nothing_changed_and_no_revision(client: Client, tmp_path: Path) -> None:
    version = client.version("letters", 1)
    first = client.job(version["job_id"])["dataset_id"]
    for dataset, code in [(first, "nothing_changed"), (None, "nothing_changed")]:
        with pytest.raises(Problem) as refused:
            client.retrain("letters", dataset, base=1, classes="changed")
        assert refused.value.code == code
    stranger = client.upload_dataset(_file(tmp_path, "stranger", np.eye(3)[[0, 0, 1, 1]], [*"ppqq"]))
    with pytest.raises(Problem) as refused:
        client.retrain("letters", stranger["id"], base=1, classes="changed")
    assert refused.value.code == "not_a_revision"


def test_two_classes_become_one(client: Client) -> None:
    before = _digests(client, client.job(client.version("letters", 1)["job_id"]))
    job = client.merge_classes("letters", "qr", ["q", "r"], base=1).wait()
    assert job["state"] == "succeeded", job["error"]
    assert client.version("letters", job["version"])["classes"] == ["p", "qr", "s"]
    after = _digests(client, job)
    assert (after["p"], after["s"]) == (before["p"], before["s"])
    assert after["qr"] not in before.values()
    merged = client.dataset(job["dataset_id"])
    assert merged["summary"]["class_counts"] == {"p": 100, "qr": 200, "s": 100}
    rows = {row["label"]: row for row in client.students(job["id"]) if row["method"] != "teacher"}
    assert rows["qr"]["metrics"]["f1"] > 0.5
    with pytest.raises(Problem) as refused:
        client.merge_classes("letters", "s", ["p", "q"], base=1)
    assert refused.value.code == "class_exists"
