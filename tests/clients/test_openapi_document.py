"""schemathesis generates requests for every operation of the OpenAPI document and checks the responses.

Every check is on. What a request must be beyond its description, because it depends on the model or on
another part of the request, is in `valid_requests`; which statuses refuse and accept, in `schemathesis.toml`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.services.keys import create_key
from app.settings import Settings
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from verification.isolation_probes import WEBHOOK_URL

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
HERE = Path(__file__).parent
SECONDS = 600

pytestmark = pytest.mark.timeout(700)


def run(service: Any, folder: Path, *options: str) -> str:
    """The report, in which nothing failed."""
    command = [SCHEMATHESIS, "--config-file", HERE / "schemathesis.toml", "run"]
    command += [
        f"http://{service.address}/openapi.json",
        "--seed",
        "1",
        "--continue-on-failure",
        "--no-color",
    ]
    path = os.pathsep.join((str(HERE), str(HERE.parents[1])))
    environ = os.environ | {"PYTHONPATH": path, "SCHEMATHESIS_HOOKS": "valid_requests"}
    done = subprocess.run(
        [*map(str, command), *options],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    return done.stdout


@pytest.mark.long
def test_responses_match_the_openapi_document(start_service: Any, tmp_path: Path):
    service = start_service(STMS_WEBHOOKS=WEBHOOK_URL.removesuffix("/stms"))
    store = Store(open_engine(Settings(data_dir=service.log.parent).app_database_url))
    _, key = create_key(store, "schemathesis", {"operator"})
    store.dispose()
    authorization = ["--header", f"Authorization: Bearer {key}"]
    report = run(service, tmp_path, "--max-examples", "10", "--checks", "all", *authorization)
    paths = httpx.get(f"http://{service.address}/openapi.json", trust_env=False).json()["paths"]
    operations = sum(map(len, paths.values()))
    assert f"Tested: {operations}" in report
    [(generated, passed)] = re.findall(r"(\d+) generated, (\d+) passed", report)
    assert int(generated) == int(passed) > 5000
    assert "/v2/models/{model}/infer" in paths


@pytest.mark.long
def test_unauthenticated_responses_match_the_openapi_document(service: Any, tmp_path: Path):
    # Without a key no request reaches the validation that the coverage phase tests.
    report = run(service, tmp_path, "--max-examples", "2", "--checks", "all", "--phases", "examples,fuzzing")
    assert "401 Unauthorized" in report
