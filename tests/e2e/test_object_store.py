"""The whole service on PostgreSQL with an object store: upload, train, ask, delete."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from app.store.blob_moves import all_objects
from app.store.bodies import OBJECT_BYTES, BlobBodies, Place
from app.store.engine import open_engine
from app.store.opening import open_objects
from app.store.tables import blob_chunks, blobs
from app.store.unit_of_work import Store
from stms_client import Client
from tests.system.deployment import QUICK_SOLVERS, Deployment
from tests.system.object_store import ObjectStore

ROWS = 30_000


def rows_file(folder: Path) -> Path:
    """Two classes of which column 0 tells, 17 MB."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 72))
    path = folder / "rows.npz"
    np.savez(path, X=X, y=(X[:, 0] > 0).astype(np.int64))
    assert path.stat().st_size > 16 * 2**20, "small files go through the API"
    return path


@pytest.mark.long
def test_bytes_pass_the_database_by(
    new_database: Callable[[], AbstractContextManager[str]], object_store_server: ObjectStore, tmp_path: Path
):
    prefix = "e2e"
    settings = QUICK_SOLVERS | object_store_server.settings(prefix) | {"STMS_UPLOADS": "presigned"}
    objects = open_objects(object_store_server.address(prefix))
    with (
        new_database() as address,
        Deployment(
            tmp_path / "service", api=1, workers=1, database=address, keys={"all": {"admin", "operator"}},
            settings=settings, is_clean=True,
        ) as service,
        Client(service.url, service.keys["all"]) as client,
    ):  # fmt: skip
        (tmp_path / "files").mkdir()
        dataset = client.upload_dataset(rows_file(tmp_path / "files"), name="numbers")
        assert dataset["rows"] == ROWS
        small = tmp_path / "files" / "small.csv"
        small.write_text("a,label\n" + "1,x\n2,y\n" * 20, encoding="utf-8")
        assert client.upload_dataset(small)["rows"] == 40, "it is sent past the API, too"
        with service.client("all") as http:
            answer = http.post("/v1/datasets", params={"format": "csv"}, content=small.read_bytes())
        assert (answer.status_code, answer.json()["code"]) == (409, "uploads_presigned")
        quick = {
            "automatic": False,
            "features": {"kind": "linear"},
            "student": {"method": "gsvm0"},
            "teacher": {"max_epochs": 20},
            "calibration": {"kind": "none"},
            "guard": {"kind": "off"},
        }
        job = client.submit_job(dataset["id"], "numbers", quick).wait()
        assert job.state == "succeeded"
        assert client.is_class("numbers", "1", [3.0] + [0.0] * 71)
        assert not client.is_class("numbers", "1", [-3.0] + [0.0] * 71)
        store = Store(open_engine(address), objects=objects)
        check_places(store, objects)
        with service.client() as http:
            checks = {one["name"]: one for one in http.get("/readyz?verbose").json()["checks"]}
        assert checks["object_store"]["ok"], checks
        checked = service.run("db", "check-blobs")
        assert checked.returncode == 0, checked.stderr
        assert "has all" in checked.stdout
        with store.read() as uow:
            digest = uow.datasets.get(dataset["id"]).blob_digest
        client.delete_dataset(dataset["id"])
        with store.read() as uow:
            assert not uow.blobs.exists(digest)
        store.dispose()


def check_places(store: Store, objects: BlobBodies) -> None:
    """Large blobs are objects alone, small ones rows alone."""
    with store.read() as uow:
        placed = uow.connection.execute(sa.select(blobs.c.digest, blobs.c.size, blobs.c.place)).all()
        chunks = set(uow.connection.execute(sa.select(blob_chunks.c.digest)).scalars())
    large = {digest: size for digest, size, place in placed if place == Place.OBJECTS}
    assert large
    assert min(large.values()) >= OBJECT_BYTES
    assert large.keys().isdisjoint(chunks)
    assert {digest for digest, size, _ in placed if size >= OBJECT_BYTES} == set(large)
    assert large.items() <= all_objects(objects).items()
