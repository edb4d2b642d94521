"""Data sets from addresses that boto3 signed, in a bucket of moto."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.clients.conftest import Start
from tests.clients.test_stock_clients import HERE, home

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file of 3 MB with two classes."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(20_000, 8))
    lines = [",".join(["class", *(f"x{column}" for column in range(8))])]
    lines += [",".join(["a" if row[0] > 0 else "b", *map(repr, row.tolist())]) for row in rows]
    path = tmp_path_factory.mktemp("bucket") / "letters.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def bucket(letters: Path) -> Iterator[dict[str, str]]:
    """Origin of a bucket, the presigned address of its file and that of one that is missing."""
    command = [home("moto") / "bin" / "python", "-I", HERE / "drivers" / "moto_bucket.py", letters]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.wait(30) == 0


def test_a_presigned_address_becomes_the_data_set_of_the_file(
    start_service: Start, bucket: dict[str, str], letters: Path
):
    service = start_service(STMS_DATASET_SOURCES=bucket["origin"])
    headers = {"Authorization": f"Bearer {service.key}"}
    with httpx.Client(base_url=f"http://{service.address}", headers=headers, timeout=60) as client:

        def fetch(**body: Any) -> httpx.Response:
            return client.post("/v1/datasets:fetch", json={"reading": {"label_column": "class"}} | body)

        content = letters.read_bytes()
        fetched = fetch(url=bucket["file"], sha256=hashlib.sha256(content).hexdigest())
        assert fetched.status_code == 201, fetched.text
        assert fetched.json()["name"] == "letters"
        uploaded = client.post(
            "/v1/datasets", params={"label_column": "class", "filename": "letters.csv"}, content=content
        )
        assert (uploaded.status_code, uploaded.json()["id"]) == (200, fetched.json()["id"])
        missing = fetch(url=bucket["missing"])
        assert (missing.status_code, missing.json()["code"]) == (422, "source_refused")
    written = service.log.read_text() + missing.text + fetched.text
    signature = bucket["file"].partition("Signature=")[2].partition("&")[0]
    assert len(signature) > 10
    assert signature not in written
    assert "in/letters.csv" not in service.log.read_text()
