"""KServe's own models, storage initialiser and client, with its files and the server of bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.services.bundle_export import open_bundle
from app.store.unit_of_work import Store
from tests.clients.conftest import CLASSES, WEIGHTS
from tests.clients.test_stock_clients import CAT, SCORES, run
from tests.e2e.test_bundle_server import make_key, serving
from tests.system.published import linear_student, linear_teacher, publish

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

FILES = Path(__file__).parents[2] / "deploy" / "kserve"


def test_a_bundle_comes_through_the_storage_initialiser_and_is_asked(sqlite_store: Store, tmp_path: Path):
    students = {
        label: linear_student(label, row, threshold=0.5) for label, row in zip(CLASSES, WEIGHTS, strict=True)
    }
    version = publish(sqlite_store, "pets", students, linear_teacher(CLASSES, WEIGHTS))
    bundle, models, keys = tmp_path / "pets.tar", tmp_path / "models", tmp_path / "keys"
    with open_bundle(sqlite_store, version) as file:
        bundle.write_bytes(b"".join(file.pieces(sqlite_store)))
    models.mkdir()
    found: Any = run("kserve_storage", "kserve_files.py", str(FILES), f"file://{bundle}", str(models))
    assert found["faults"] == []
    assert "manifest.json" in found["put"]
    key = make_key(keys)
    with serving(tmp_path, models, keys, "--model-name", "pets") as up:
        asked = run("kserve", "kserve_rest.py", up.address.removeprefix("http://"), key)
    assert asked["live"] is asked["ready"] is asked["model_ready"] is True
    for name in ("json", "binary", "float32", "all_binary"):
        assert asked[name] == {"id": "seven", "model": "pets:cat", "outputs": CAT}, name
    assert asked["parameter"]["outputs"]["score"] == SCORES["dog"]
    assert asked["no_key"]["status"] == 401
