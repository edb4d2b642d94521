"""`stms api --bundle`: models from files, without a database and without a folder to write to but /tmp."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from app.services.bundle_export import open_bundle
from app.store.unit_of_work import Store
from tests.app.api.conftest import publish_pets
from tests.system.deployment import environment, stms
from tests.system.processes import Process, answers, free_port, wait_for

pytestmark = pytest.mark.timeout(300)

STMS = Path(sys.executable).with_name("stms")


@dataclass
class Up:
    """A running server of bundles. log: what it has written."""

    process: Process
    address: str
    log: Path
    temporary: Path
    http: httpx.Client

    def ask(self, model: str, label: str, x: list[float], key: str) -> httpx.Response:
        url = f"{self.address}/v1/models/{model}/classes/{label}:query"
        headers = {"Authorization": f"Bearer {key}"}
        return self.http.post(url, json={"x": x}, headers=headers)

    def until(self, model: str, label: str, x: list[float], key: str, status: int) -> httpx.Response:
        """The answer once it has this status."""
        deadline = time.monotonic() + 60
        while True:
            answer = self.ask(model, label, x, key)
            if answer.status_code == status:
                return answer
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)


def make_key(file: Path, *options: str) -> str:
    """Append a key to the file; returns its text."""
    command = [STMS, "keys", "create", "camera", "--offline", str(file), *options]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    return made.stdout.split()[-1]


def export(store: Store, folder: Path, name: str, **options: Any) -> Path:
    """The bundle of a new version of the pets."""
    version = publish_pets(store, **options)
    path = folder / name
    with open_bundle(store, version) as file:
        path.write_bytes(b"".join(file.pieces(store)))
    return path


@contextmanager
def serving(
    folder: Path, bundle: Path, keys: Path | None, *options: str, expects: int = 0, **settings: str
) -> Iterator[Up]:
    # Paths of Unix sockets are short.
    port, temporary = free_port(), Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    settings |= {"TMPDIR": str(temporary), "STMS_PORT": str(port)}
    if keys is not None:
        settings["STMS_KEYS_FILE"] = str(keys)
    work = folder / "work"
    work.mkdir()
    process = Process("server", stms("api", "--bundle", bundle, *options), work, environment(settings))
    http = httpx.Client(trust_env=False, timeout=60)
    up = Up(process, f"http://127.0.0.1:{port}", process.log, temporary, http)
    process.start()
    try:
        wait_for(lambda: not process.is_running or answers(f"{up.address}/v2/health/ready"))
        assert expects or process.is_running, process.said()
        yield up
        assert process.end() == expects, process.said()
        # Nothing but the log was written elsewhere, and nothing is left.
        assert list(work.iterdir()) == [process.log]
        assert list(temporary.glob("stms-*")) == []
    finally:
        http.close()
        process.kill()
        shutil.rmtree(temporary, ignore_errors=True)


def test_it_answers_as_the_server_that_exported_the_bundle(sqlite_store: Store, tmp_path: Path):
    bundle, keys = export(sqlite_store, tmp_path, "pets.tar"), tmp_path / "keys"
    unpacked = tmp_path / "models"
    with tarfile.open(bundle) as tar:
        tar.extractall(unpacked, filter="data")
    (unpacked / "pets.sig").write_text("A signature beside the bundle.")
    key, limited = make_key(keys), make_key(keys, "--model", "others")
    with serving(tmp_path, unpacked, keys, "--model-name", "animals") as up:
        rows = np.random.default_rng(0).normal(size=(20, 3)).tolist()
        for label in ("cat", "dog"):
            for x in rows:
                answer = up.ask("animals", label, x, key)
                assert answer.status_code == 200, answer.text
        assert up.ask("pets", "cat", rows[0], key).status_code == 404
        assert up.ask("animals", "cat", rows[0], limited).status_code == 403
        assert up.ask("animals", "cat", rows[0], "wrong").status_code == 401
        with httpx.Client(base_url=up.address, headers={"x-api-key": key}, trust_env=False) as client:
            tensor = {"name": "x", "shape": [1, 3], "datatype": "FP64", "data": rows[0]}
            inferred = client.post("/v2/models/animals:cat/infer", json={"inputs": [tensor]})
            assert inferred.status_code == 200, inferred.text
            assert client.get("/v1/models/animals/versions/latest").json()["method"] == "svm"
            # Nothing can be trained, uploaded or signed into here.
            for path in ("/v1/datasets", "/v1/training-jobs", "/v1/keys", "/ui/"):
                assert client.get(path).status_code in (403, 404), path
            assert client.get("/metrics").status_code == 200


@pytest.mark.long
def test_files_that_change_are_followed(sqlite_store: Store, tmp_path: Path):
    models, keys = tmp_path / "models", tmp_path / "keys"
    models.mkdir()
    first = export(sqlite_store, tmp_path, "first.tar")
    second = export(sqlite_store, tmp_path, "second.tar", sign=-1.0)
    (models / "pets.tar").write_bytes(first.read_bytes())
    key = make_key(keys)
    with serving(tmp_path, models, keys) as up:
        x = [1.0, 2.0, 3.0]
        assert up.ask("pets", "cat", x, key).json()["version"] == 1
        # A new key is valid, and one that is gone is not, without a signal.
        later = make_key(keys)
        up.until("pets", "cat", x, later, 200)
        lines = keys.read_text().splitlines(keepends=True)
        keys.write_text("".join(line for line in lines if json.loads(line)["id"] in later))
        up.until("pets", "cat", x, key, 401)
        # A damaged file is no reason to stop; then another version, and back.
        (models / "pets.tar").write_bytes(second.read_bytes()[: second.stat().st_size // 2])
        up.process.send(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while "did not get ready" not in up.log.read_text():
            assert time.monotonic() < deadline, up.log.read_text()
            time.sleep(0.1)
        assert up.ask("pets", "cat", x, later).status_code == 200
        for number, source in ((2, second), (1, first)):
            (models / "pets.tar").write_bytes(source.read_bytes())
            up.process.send(signal.SIGHUP)
            deadline = time.monotonic() + 60
            while (answer := up.ask("pets", "cat", x, later)).json().get("version") != number:
                assert answer.status_code == 200
                assert time.monotonic() < deadline, up.log.read_text()
                time.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("absent", "does not exist"),
        ("empty", "has no bundle"),
        ("noise", "is not a bundle"),
        ("cut", "cannot be served"),
        ("incomplete", "cannot be read: "),
        ("no keys", "STMS_KEYS_FILE names the file"),
        ("two", "are both of model"),
        ("unsigned", "cannot be served: The bundle is not signed"),
    ],
)
def test_it_does_not_start_with_less_than_everything(
    sqlite_store: Store, tmp_path: Path, kind: str, text: str
):
    bundle, keys = tmp_path / "models", tmp_path / "keys"
    make_key(keys)
    made = export(sqlite_store, tmp_path, "pets.tar")
    if kind != "absent":
        bundle.mkdir()
    if kind == "noise":
        (bundle / "a.tar").write_bytes(bytes(range(256)) * 100)
    elif kind == "cut":
        (bundle / "a.tar").write_bytes(made.read_bytes()[: made.stat().st_size // 2])
    elif kind == "incomplete":
        with tarfile.open(made) as tar:
            tar.extractall(bundle, filter="data")
        max((bundle / "blobs").iterdir()).unlink()
    elif kind in ("no keys", "two", "unsigned"):
        (bundle / "a.tar").write_bytes(made.read_bytes())
        if kind == "two":
            (bundle / "b.tar").write_bytes(made.read_bytes())
    trusted = tmp_path / "trusted.pem"
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    trusted.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    settings = {"STMS_BUNDLE_KEYS": str(trusted)} if kind == "unsigned" else {}
    with serving(tmp_path, bundle, None if kind == "no keys" else keys, expects=1, **settings) as up:
        up.process.wait(60)
        assert text in " ".join(up.log.read_text().split())
        assert "Traceback" not in up.log.read_text()


@pytest.mark.long
def test_a_database_beside_it_is_refused(tmp_path: Path):
    environment = os.environ | {"STMS_DATABASE_URL": f"sqlite:///{tmp_path}/x.sqlite"}
    command = [STMS, "api", "--bundle", str(tmp_path)]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "leave STMS_DATABASE_URL out" in " ".join(refused.stderr.split())
    environment = os.environ | {"STMS_BUNDLE": str(tmp_path), "STMS_DATA_DIR": str(tmp_path / "data")}
    refused = subprocess.run(
        [STMS, "serve"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert refused.returncode == 1
    assert "STMS_BUNDLE is for `stms api`" in " ".join(refused.stderr.split())
    assert not (tmp_path / "data").exists()
