"""HTTP clients of other languages at their defaults ask a real server: queries, tensors, an upload and a job.

Programs that are not installed are skipped; `.ci/run all` installs them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "programs"
SECONDS = 120
PACKAGES = {
    "javac": "openjdk-17-jdk-headless",
    "java": "openjdk-17-jdk-headless",
    "node": "nodejs",
    "curl": "curl",
    "wget": "wget",
}
"""The package of Debian that contains a program."""
QUERY = "/v1/models/pets/classes/cat:query"
BODY = '{"x": [1, 5, 0]}'
TENSOR = '{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 5, 0]}]}'

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def need(*programs: str) -> None:
    """Skip the test where a program is absent."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install {PACKAGES[program]}")


def printed(*command: object, code: int = 0) -> str:
    """What a program prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr if code else done.stdout


@pytest.fixture
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file that no other test uploads."""
    rows = [f"{row},{row % 7},{'ab'[row % 2]}" for row in range(60)]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join([f"x,{request.node.name.replace('[', '_').strip(']')},label", *rows, ""]))
    return file


def check(lines: list[str], model: str) -> None:
    """Check the answers of a program, in the order in which all programs ask."""
    answers = [(int(status), text) for status, _, text in (line.partition("\t") for line in lines)]
    assert [status for status, _ in answers] == [200, 200, 200, 200, 200, 201, 202], answers
    models, head, one, chunked, tensor, dataset, job = (text for _, text in answers)
    assert [each["name"] for each in json.loads(models)["data"]] == ["people", "pets"]
    assert head == ""
    for text in (one, chunked):
        assert_cat(json.loads(text))
    assert_tensor(json.loads(tensor))
    assert json.loads(dataset)["rows"] == 60
    submitted = json.loads(job)
    assert (submitted["dataset_id"], submitted["model"]) == (json.loads(dataset)["id"], model)


def assert_cat(answer: Any) -> None:
    assert (answer["match"], answer["score"], answer["model"]) == (True, 1.0, "pets")


def assert_tensor(answer: Any) -> None:
    assert {output["name"]: output["data"] for output in answer["outputs"]}["score"] == [1.0]


def test_http_client_of_java(service: Any, table: Path):
    need("java", "javac")
    check(printed("java", HERE / "Ask.java", service.address, service.key, table).splitlines(), "java")


def test_fetch_of_node(service: Any, table: Path):
    need("node")
    check(printed("node", HERE / "ask.mjs", service.address, service.key, table).splitlines(), "node")


def test_http_client_of_python(service: Any, table: Path):
    check(
        printed(sys.executable, HERE / "ask.py", service.address, service.key, table).splitlines(), "python"
    )


@pytest.mark.parametrize("form", ["--http1.1", "--http2", "--http1.0"])
def test_curl(service: Any, table: Path, form: str):
    """With --http2 it offers an upgrade to h2c in each first request of a connection."""
    need("curl")
    shared = [form, "--silent", "--show-error", "--fail", "-H", f"Authorization: Bearer {service.key}"]
    base = f"http://{service.address}"

    def curl(*arguments: object) -> str:
        return printed("curl", *shared, *arguments)

    assert_cat(json.loads(curl("--data", BODY, base + QUERY)))
    if form != "--http1.0":
        chunked = ["-H", "Transfer-Encoding: chunked"]
        assert_cat(json.loads(curl(*chunked, "--data", BODY, base + QUERY)))
    assert_tensor(json.loads(curl("--data", TENSOR, f"{base}/v2/models/pets:cat/infer")))
    dataset = json.loads(curl("--data-binary", f"@{table}", f"{base}/v1/datasets?name=curl"))
    assert dataset["rows"] == 60
    body = json.dumps({"dataset_id": dataset["id"], "model": "curl"})
    assert json.loads(curl("--data", body, f"{base}/v1/training-jobs"))["dataset_id"] == dataset["id"]
    # Several requests over one connection.
    answers = curl("--data", BODY, base + QUERY, base + QUERY, base + QUERY)
    decoder, seen = json.JSONDecoder(), 0
    while answers:
        answer, end = decoder.raw_decode(answers)
        assert_cat(answer)
        answers, seen = answers[end:].lstrip(), seen + 1
    assert seen == 3
    for path in (
        "/livez",
        "/readyz",
        "/readyz/queries",
        "/metrics",
        "/v1/models",
        "/v2",
        "/docs",
        "/ui/sign-in",
    ):
        head = curl("--head", base + path)
        assert head.startswith(("HTTP/1.1 200", "HTTP/1.0 200")), head
        assert "content-length" in head.lower()


@pytest.mark.parametrize(
    "path", ["/livez", "/readyz", "/readyz/queries", "/metrics", "/v1/models", "/v2", "/"]
)
def test_wget_spider(service: Any, path: str):
    need("wget")
    key = f"--header=Authorization: Bearer {service.key}"
    said = printed("wget", "--spider", "--quiet", "--no-proxy", key, f"http://{service.address}{path}")
    assert said == ""


def test_wget_posts_a_query(service: Any):
    need("wget")
    key = f"--header=Authorization: Bearer {service.key}"
    address = f"http://{service.address}{QUERY}"
    said = printed("wget", "--quiet", "--no-proxy", "-O", "-", key, f"--post-data={BODY}", address)
    assert_cat(json.loads(said))
