"""MLflow itself saves, logs, loads and serves bundles, with our flavor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from app.store.unit_of_work import Store
from tests.app.serving.written_records import RECORD, encoder
from tests.clients.test_stock_clients import run
from tests.stms_client.test_bundle import pets, write
from tests.system.published import linear_student, linear_teacher, publish

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]


def test_a_bundle_is_a_model_of_mlflow(sqlite_store: Store, tmp_path: Path):
    client = tmp_path / "client"
    shutil.copytree(ROOT / "stms_client", client / "stms_client")
    numbers = write(sqlite_store, pets(sqlite_store), tmp_path).rename(tmp_path / "numbers.tar")
    known = encoder()
    rows = np.random.default_rng(0).normal(size=(2, known.layout.columns))
    people = {label: linear_student(label, row) for label, row in zip("ab", rows, strict=True)}
    version = publish(sqlite_store, "people", people, linear_teacher("ab", rows), encoder=known)
    records = write(sqlite_store, version, tmp_path)
    found = run(
        "mlflow", "mlflow_model.py", *map(str, (client, numbers, records, tmp_path)), json.dumps(RECORD)
    )
    assert found["difference"] == found["turned"] == 0.0
    assert found["columns"] == ["match", "score", "threshold"]
    assert found["logged"] is True
    assert "Name the class" in found["refusal"]
    assert found["record"] == found["record_wanted"]
    assert [row["score"] for row in found["served"]] == found["served_wanted"]
    assert {"MLmodel", "requirements.txt", "bundle/manifest.json"} <= set(found["files"])
    assert not [name for name in found["files"] if name.endswith((".pkl", ".pickle"))]
