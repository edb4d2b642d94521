"""Clients that stock generators make of the OpenAPI document compile, and work with a real server.

The generators are openapi-python-client, and openapi-generator for Python and for TypeScript, whose code is
compiled by `tsc --strict`. Java, Node.js and npm must be installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.test_stock_clients import HERE, home, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CAT = {"match": True, "score": 1.0, "threshold": 0.5, "model": "pets", "version": 1}
SIZES = [(True, 1.0), (False, 0.0)]


@pytest.fixture(scope="module")
def document(service: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_text(httpx.get(f"http://{service.address}/openapi.json", trust_env=False).text)
    return path


def generate(client: str, *arguments: object) -> str:
    """What a generator prints. The command is that of the environment of ``client``."""
    done = subprocess.run(
        [home(client) / "bin" / arguments[0], *map(str, arguments[1:])],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": f"{home(client) / 'bin'}:/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check(answers: Any) -> None:
    """Compare the answers of a driver with what the model `pets` says."""
    assert answers["name"] == "clients"
    assert answers["models"] == ["people", "pets"]
    assert {name: answers["one"][name] for name in CAT} == CAT
    assert [(each["match"], each["score"]) for each in answers["many"]["results"]] == SIZES
    assert [each["score"] for each in answers["several"]["classes"]] == [0.0, 5.0]


def test_openapi_python_client(service: Any, document: Path, tmp_path: Path):
    folder = tmp_path / "client"
    said = generate(
        "openapi_python_client",
        "openapi-python-client",
        "generate",
        "--path",
        document,
        "--output-path",
        folder,
        "--fail-on-warning",
    )
    assert "Unable" not in said
    check(run("openapi_python_client", "openapi_python_client.py", str(folder), service.address, service.key))


def test_openapi_generator_for_python(service: Any, document: Path, tmp_path: Path):
    need("java")
    generate(
        "openapi_generator",
        "openapi-generator-cli",
        "generate",
        "-g",
        "python",
        "-i",
        document,
        "-o",
        tmp_path,
    )
    check(run("openapi_generator", "openapi_generator.py", str(tmp_path), service.address, service.key))


def test_openapi_generator_for_typescript(service: Any, document: Path, tmp_path: Path):
    for program in ("java", "node", "npm"):
        need(program)
    folder = shutil.copytree(HERE / "typescript", tmp_path / "typescript")
    generate(
        "openapi_generator",
        "openapi-generator-cli",
        "generate",
        "-g",
        "typescript-fetch",
        "-i",
        document,
        "-o",
        folder / "client",
    )
    npm(folder, "npm", "ci", "--no-audit", "--no-fund")
    npm(folder, "npx", "tsc", "--project", ".")
    check(json.loads(npm(folder, "node", "out/ask.js", f"http://{service.address}", service.key)))


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def npm(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
