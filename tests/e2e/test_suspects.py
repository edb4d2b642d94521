"""A newcomer's use of suspect labels over HTTP and on the command line: train, look, correct, train again."""

from __future__ import annotations

import csv as csv_module
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sklearn.datasets import load_digits

pytestmark = pytest.mark.long

Json = dict[str, Any]
Call = Callable[..., Any]
WRONG = (3, 50, 111, 200, 333, 404, 480, 512, 590)


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any, Any]:
    """600 rows, their true labels, and those with mistakes."""
    X, y = load_digits(return_X_y=True)
    truth = y[:600].astype(str)
    given = truth.copy()
    given[list(WRONG)] = [str((int(truth[row]) + 3) % 10) for row in WRONG]
    return X[:600], truth, given


@pytest.fixture(scope="module")
def trained(train: Call, upload: Call, npz: Call, digits: tuple[Any, Any, Any]) -> Json:
    X, _, given = digits
    return train(upload(npz(X=X, y=given), "npz")["id"], "mislabelled", teacher={"method": "forest"})


def test_wrong_labels_come_first_and_are_corrected(
    http: httpx.Client, train: Call, trained: Json, digits: tuple[Any, Any, Any]
) -> None:
    X, truth, given = digits
    found = trained["provenance"]["suspects"]
    assert len(WRONG) - 2 <= found["rows"] < 60
    assert found["of"] == 600
    path = f"/v1/training-jobs/{trained['id']}/suspects"
    rows = http.get(path).json()["data"]
    first = [one["row"] for one in rows[: len(WRONG)]]
    assert len(set(first) & set(WRONG)) >= len(WRONG) - 2
    for one in rows:
        assert one["label"] == given[one["row"]]
        assert one["x"] == X[one["row"]].tolist()
    assert {one["part"] for one in rows} == {"training", "test"}
    fixed = [row for row in first if row in WRONG]
    kept = [one["row"] for one in rows if one["row"] not in WRONG][:3]
    corrections = [{"row": row, "label": str(truth[row])} for row in fixed]
    corrections += [{"row": row, "keep": True} for row in kept]
    answer = http.post(path, json={"corrections": corrections, "name": "checked"})
    assert answer.status_code == 201, answer.text
    again = train(answer.json()["id"], "checked", teacher={"method": "forest"})
    left = [one["row"] for one in http.get(f"/v1/training-jobs/{again['id']}/suspects").json()["data"]]
    assert not set(left) & {*fixed, *kept}


def test_suspects_are_not_looked_for_on_request(
    http: httpx.Client, train: Call, trained: Json, problem: Call
) -> None:
    other = train(trained["dataset_id"], "silent", teacher={"method": "forest"}, suspects={"limit": 0})
    problem(http.get(f"/v1/training-jobs/{other['id']}/suspects"), 404, "suspects_not_found")
    # Nothing else of the job differs.
    assert other["provenance"]["preparation_digest"] == trained["provenance"]["preparation_digest"]
    assert other["provenance"]["teacher_digest"] == trained["provenance"]["teacher_digest"]
    assert "suspects" not in other["provenance"]


def test_the_command_line_writes_a_file_and_sends_it_back(
    service: Any, trained: Json, tmp_path: Path
) -> None:
    file = tmp_path / "suspects.csv"
    done = service.run(
        "jobs",
        "suspects",
        trained["id"],
        "--limit",
        "5",
        "--output",
        str(file),
        STMS_API_KEY=service.keys["train"],
        STMS_URL=service.url,
    )
    assert done.returncode == 0, done.stderr
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv_module.DictReader(lines))
    assert len(rows) == 5
    rows[0]["label"], rows[1]["keep"] = rows[0]["suggested"], "yes"
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv_module.DictWriter(lines, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    done = service.run(
        "jobs",
        "suspects",
        trained["id"],
        "--corrections",
        str(file),
        STMS_API_KEY=service.keys["train"],
        STMS_URL=service.url,
    )
    assert done.returncode == 0, done.stderr
    assert "1 labels are corrected and 1 confirmed" in done.stdout
