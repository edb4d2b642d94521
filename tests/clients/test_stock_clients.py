"""Third-party clients of the protocol, each in its own environment, work with this server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.system.environments import Offline, environment

HERE = Path(__file__).parent
SECONDS = 60

# Cold, the environments take minutes.
pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

SCORES = {"cat": [1.0, 0.25], "dog": [5.0, -1.0]}
CAT = {"match": [True, False], "score": [1.0, 0.25], "threshold": [0.5, 0.5]}


def home(name: str) -> Path:
    """The environment of a client; skips the test where it cannot be made for want of a package index."""
    try:
        return environment(HERE / "requirements" / f"{name}.txt")
    except Offline as error:
        pytest.skip(str(error))


def run(client: str, driver: str, *arguments: str) -> Any:
    """What a driver prints, run by the interpreter of a client's environment."""
    python = home(client) / "bin" / "python"
    command = [python, "-I", HERE / "drivers" / driver, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=["sync", "aio"])
def triton(request: pytest.FixtureRequest, service: Any) -> dict[str, Any]:
    found: dict[str, Any] = run("triton", "triton.py", request.param, service.address, service.key)
    return found | {"form": request.param}


def test_tritonclient_uses_every_management_call(triton):
    control = triton["control"]
    for name in ("live", "ready", "model_ready", "class_ready", "version_ready"):
        assert control[name] is True, name
    assert control["missing_ready"] is False
    assert "binary_tensor_data" in control["server"]["extensions"]
    assert control["model"]["versions"] == ["1"]
    assert [given["name"] for given in control["model"]["inputs"]] == ["x", "class"]
    assert [given["name"] for given in control["class"]["inputs"]] == ["x"]
    assert [output["name"] for output in control["class"]["outputs"]][:2] == ["match", "score"]
    assert control["config"]["name"] == "pets:cat"
    assert control["config"]["input"] == [{"name": "x", "data_type": "TYPE_FP64", "dims": [3]}]
    assert control["config"]["max_batch_size"] > 0
    for lacking in ("traces", "shared_memory", "missing"):
        assert control[lacking]["status"] == "404", lacking
    assert "traces" in control["traces"]["message"]
    assert "cats" in control["missing"]["message"]
    ready = {"version": "1", "state": "READY", "reason": ""}
    assert control["index"] == [{"name": name} | ready for name in ("people", "pets")]
    assert control["loaded"] == control["unloaded"] == SCORES["cat"]
    assert control["unload_missing"]["status"] == "404"
    [counted] = control["model_statistics"]["model_stats"]
    assert counted["inference_count"] >= 4
    assert counted["inference_stats"]["success"]["ns"] > 0
    assert counted in control["statistics"]["model_stats"]


def test_tritonclient_infers_in_json_and_in_binary(triton):
    found = triton["inference"]
    assert found["binary"] == {"model": "pets:cat", "version": "1", "outputs": CAT}
    assert found["json"]["outputs"] == {"score": SCORES["cat"]}
    assert found["mixed"]["outputs"] == {"score": CAT["score"], "match": CAT["match"]}
    assert found["parameter"]["outputs"]["score"] == SCORES["dog"]
    assert found["input"]["outputs"]["score"] == [1.0, -6.25]
    assert found["json_input"]["outputs"] == CAT
    assert found["encoded_name"]["model"] == "pets:größe/1:x"
    assert found["encoded_name"]["outputs"]["score"] == [0.0, 7.0]
    assert found["version"]["outputs"] == found["alias"]["outputs"] == CAT
    for datatype in ("FP32", "FP16", "INT8", "INT64", "UINT16", "BOOL"):
        for form in ("binary", "json"):
            assert found[f"{datatype} {form}"]["outputs"]["score"] == [1.0, 0.0], (datatype, form)
    if triton["form"] == "sync":
        assert found["async"] == [found["binary"]] * 3


@pytest.mark.parametrize("packing", ["gzip", "deflate"])
def test_tritonclient_compresses_both_ways(triton, packing: str):
    for form in (packing, f"{packing} json"):
        assert triton["inference"][form] == {"rows": 1000, "first": SCORES["cat"]}


def test_tritonclient_reads_errors(triton):
    found = triton["inference"]
    for name, words in (
        ("nan", "row 0 (counted from 0): 'b' is NaN"),
        ("nan json", "NaN"),
        ("columns", "has 2 values"),
    ):
        assert found[name]["status"] == "400"
        assert words in found[name]["message"]
    assert found["no class"]["status"] == "400"
    assert "pets:CLASS" in found["no class"]["message"]
    assert triton["keys"]["infer"]["status"] == "401"
    assert triton["keys"]["live"] is True


def test_kserve_queries_by_protocol_v2(service):
    found = run("kserve", "kserve_rest.py", service.address, service.key)
    assert found["live"] is found["ready"] is found["model_ready"] is True
    assert found["missing_ready"] is False
    for name in ("json", "binary", "float32", "all_binary"):
        assert found[name] == {"id": "seven", "model": "pets:cat", "outputs": CAT}, name
    assert found["mixed"]["outputs"] == {"score": CAT["score"], "match": CAT["match"]}
    assert found["parameter"]["outputs"]["score"] == SCORES["dog"]
    assert found["by_hand"] == [4.0]
    assert found["no_class"]["status"] == 400
    assert "pets:CLASS" in found["no_class"]["message"]
    assert found["no_key"]["status"] == 401


def test_the_codecs_of_mlserver_send_arrays_and_data_frames(service):
    found = run("mlserver", "mlserver_codecs.py", service.address, service.key)
    for name in ("numpy", "float32", "frame", "turned", "float32 frame", "labelled", "mlflow"):
        assert found[name] == CAT, name
    assert found["integers"]["score"] == [1.0, 0.0]
    assert found["one row"]["score"] == [1.0]
    assert found["missing"]["status"] == found["renamed"]["status"] == 400
    assert "'c' has no value" in found["missing"]["error"]
    assert "did you mean 'c'?" in found["renamed"]["error"]
    assert (found["split"]["status"], "inputs" in found["split"]["error"]) == (400, True)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_mlserver_infer_works_through_a_file(service, tmp_path: Path, binary: bool, batch: int):
    rows = [[i, -i, 0.5] for i in range(7)]
    requests = tmp_path / "requests.txt"
    lines = [{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": row}]} for row in rows]
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    answers = tmp_path / "answers.txt"
    command = [home("mlserver") / "bin" / "mlserver", "infer", "--url", service.address]
    command += ["--model-name", "pets:cat", "--input-data-path", requests, "--output-data-path", answers]
    command += [
        "--workers",
        "2",
        "--batch-size",
        str(batch),
        "--request-headers",
        f"X-Api-Key: {service.key}",
    ]
    if binary:
        command.append("--binary-data")
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for line in answers.read_text().splitlines():
        answer = json.loads(line)
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        found[answer["parameters"]["batch_index"]] = outputs
    assert found == {
        i: {"match": [row[0] >= 0.5], "score": [float(row[0])], "threshold": [0.5]}
        for i, row in enumerate(rows)
    }
