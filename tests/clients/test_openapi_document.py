"""schemathesis, made for any API, knows this one from its OpenAPI document alone, and tries all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
SECONDS = 150

# A model and a class that exist, or nothing but errors would be seen. What the document cannot say is not
# held against it: a file that is no data set fits "binary", and beside JSON a header for tensors is ignored.
CONFIGURATION = """
[parameters]
"path.model" = "pets"
"path.class" = "cat"
"path.version" = "1"

[checks]
positive_data_acceptance.enabled = false

[[operations]]
include-path-regex = "^/v1/models/.*:(query|predict)$"
checks.negative_data_rejection.enabled = false
"""

pytestmark = pytest.mark.timeout(200)


def run(service: Any, folder: Path, *options: str) -> str:
    """The report, in which nothing failed."""
    command = [
        SCHEMATHESIS,
        "run",
        f"http://{service.address}/openapi.json",
        "--seed",
        "1",
    ]
    command += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-color", *options]
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    return done.stdout


def test_the_api_answers_as_its_document_says(start_service: Any, tmp_path: Path):
    service = start_service(STMS_REQUIRE_KEYS="false")
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    report = run(service, tmp_path, "--max-examples", "8")
    paths = httpx.get(f"http://{service.address}/openapi.json", trust_env=False).json()["paths"]
    operations = sum(map(len, paths.values()))
    assert f"Tested: {operations}" in report
    assert "/v2/models/{model}/infer" in paths


def test_strangers_are_refused_as_the_document_says(service: Any, tmp_path: Path):
    report = run(service, tmp_path, "--max-examples", "2", "--exclude-checks", "positive_data_acceptance")
    assert "401 Unauthorized" in report
