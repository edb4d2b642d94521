"""A head of three thousand classes on a real server, brought by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

K, D = 3_000, 64


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((K, D)).astype(np.float32)


@pytest.fixture(scope="module")
def head_path(tmp_path_factory: pytest.TempPathFactory, weights: np.ndarray) -> Path:
    path = tmp_path_factory.mktemp("head") / "faces.safetensors"
    names = json.dumps([f"person {number}" for number in range(K)])
    save_file({"weights": weights, "bias": np.arange(K, dtype=np.float64)}, path, {"labels": names})
    return path


@pytest.fixture
def ask(run, live):
    return lambda *arguments: run(*arguments, STMS_URL=live.address)


@pytest.fixture
def imported(ask, head_path: Path) -> str:
    result = ask("models", "import", str(head_path), "--model", "faces")
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_a_head_is_imported_and_every_class_answers(imported: str, ask, live, weights: np.ndarray):
    assert imported.strip() == "faces version 1: 3000 classes on 64 columns, ready for queries."
    x = np.random.default_rng(6).standard_normal(D)
    with httpx.Client(base_url=live.address, trust_env=False) as client:
        for row in (0, 1, 1_999, K - 1):
            path = f"/v1/models/faces/classes/person%20{row}:query"
            answer = client.post(path, json={"x": x.tolist()}).json()
            assert answer["score"] == pytest.approx(float(weights[row].astype(float) @ x + row), rel=1e-9)
        missing = client.post("/v1/models/faces/classes/person%203000:query", json={"x": x.tolist()})
        assert missing.json()["code"] == "class_not_found"
    assert "3000" in ask("models", "show", "faces").stdout


def test_a_head_with_rivals_answers_like_the_whole_head(ask, tmp_path: Path):
    file = tmp_path / "few.npz"
    np.savez(file, weights=np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]), labels=np.array(["a", "b", "c"]))
    imported = ask("models", "import", str(file), "--model", "few", "--rivals", "2", "--row-norm", "1")
    assert imported.exit_code == 0, imported.output
    answer = ask("query", "few", "a", "--row", "2,3", "--explain-scores").stdout
    assert answer.startswith("no (score -1, threshold 0, gate 2, rejection 3, piece 0, rival b, "), answer
    assert ask("query", "few", "b", "--row", "2,3").stdout.startswith("yes (score 1, ")


def test_classes_are_shown_from_where_one_wants(imported: str, ask):
    shown = ask("models", "classes", "faces", "--after", "2997", "--limit", "5")
    assert shown.stdout.split() == ["number", "label", "2998", "person", "2998", "2999", "person", "2999"]
    many = json.loads(ask("models", "classes", "faces", "--limit", "2500", "--json").stdout)
    assert many == [{"id": number, "label": f"person {number}"} for number in range(2500)]
    assert "no more classes" in ask("models", "classes", "faces", "--after", "3000").stdout


def test_the_files_of_the_head_are_shared_and_named_by_digest(imported: str, ask, live):
    version: dict[str, Any] = json.loads(ask("models", "show", "faces", "--json").stdout)["versions"][0]
    digest = version["teacher_digest"]
    path = live.data_dir / "cache" / digest[:2] / f"{digest}.packed"
    assert path.stat().st_size > K * D * 4
    assert not list((live.data_dir / "cache").glob("stms-upload-*"))


def test_what_is_wrong_with_a_head_is_told_by_place(ask, tmp_path: Path):
    bad = tmp_path / "bad.npz"
    np.savez(bad, weights=np.array([[1.0, np.nan]]), labels=np.array(["a"]))
    result = ask("models", "import", str(bad), "--model", "bad", "--kind", "students", "--alias", "")
    assert result.exit_code == 1
    assert "weights has NaN at row 0, column 1" in result.stderr
    empty = tmp_path / "empty.npz"
    empty.touch()
    result = ask("models", "import", str(empty), "--model", "bad")
    assert result.exit_code == 1
    assert "is empty" in result.stderr


@pytest.mark.long
def test_students_of_a_head_are_trained_for_the_classes_of_the_data(
    ask, live, csv_file: Path, tmp_path: Path
):
    """The head knows five classes, the data three of them; its rows are the gates of their students."""
    weights = np.array([[0.0, 1.0], [1.0, 0.0], [-1.0, -1.0], [5.0, 5.0], [2.0, 1.0]])
    names = np.array(["c", "b", "a", "x", "y"])
    np.savez(tmp_path / "net.npz", weights=weights, bias=np.array([0.0, 0.0, 5.0, 1.0, 1.0]), labels=names)
    assert ask("models", "import", str(tmp_path / "net.npz"), "--model", "net").exit_code == 0
    given = ["--set", "features.kind=linear", "--set", "teacher.model=net"]
    trained = ask("train", str(csv_file), "--model", "kinds-of-net", "--label-column", "kind", *given)
    assert trained.exit_code == 0, trained.output
    version = json.loads(ask("models", "show", "kinds-of-net", "--json").stdout)["versions"][0]
    assert version["classes"] == ["a", "b", "c"]
    job = json.loads(ask("jobs", "show", version["job_id"], "--json").stdout)
    assert job["hyperparameters"]["teacher"]["model"] == "net@1", "the job keeps the version it began with"
    path = f"{live.address}/v1/models/kinds-of-net/classes/b:query"
    for x, is_b in (([10.0, 0.0], True), ([0.0, 10.0], False), ([0.0, 0.0], False)):
        assert httpx.post(path, json={"x": x}, trust_env=False).json()["match"] is is_b
