"""Stock gRPC clients of the protocol, each in its own environment, work with this server."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from app.serving.open_inference.grpc.descriptors import TABLE
from tests.clients.conftest import Service, Start
from tests.clients.test_stock_clients import CAT, SCORES, home, run
from tests.system.processes import free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def grpc_service(start_service: Start) -> tuple[Service, str]:
    """A server, and its address for gRPC."""
    port = free_port()
    return start_service(STMS_GRPC_PORT=str(port), STMS_REQUIRE_KEYS="true"), f"127.0.0.1:{port}"


@pytest.fixture(scope="module", params=["sync", "aio"])
def triton(request: pytest.FixtureRequest, grpc_service: tuple[Service, str]) -> dict[str, Any]:
    service, address = grpc_service
    found: dict[str, Any] = run("triton_grpc", "triton_grpc.py", request.param, address, service.key)
    return found | {"form": request.param}


def test_tritonclient_uses_every_management_call(triton):
    control = triton["control"]
    for name in ("live", "ready", "model_ready", "class_ready", "version_ready"):
        assert control[name] is True, name
    assert control["missing_ready"] is False
    assert "model_repository" in control["server"]["extensions"]
    assert control["model"]["versions"] == ["1"]
    assert [given["name"] for given in control["model"]["inputs"]] == ["x", "class"]
    assert control["class"]["inputs"] == [{"name": "x", "datatype": "FP64", "shape": ["-1", "3"]}]
    assert [output["name"] for output in control["class"]["outputs"]][:2] == ["match", "score"]
    assert control["traces"]["status"] == "StatusCode.UNIMPLEMENTED"
    assert control["missing"]["status"] == control["unload_missing"]["status"] == "StatusCode.NOT_FOUND"
    assert "cats" in control["missing"]["message"]
    assert control["load_changed"]["status"] == "StatusCode.INVALID_ARGUMENT"
    ready = {"version": "1", "state": "READY"}
    assert control["index"] == {"models": [{"name": name} | ready for name in ("people", "pets")]}
    assert control["loaded"] == control["unloaded"] == SCORES["cat"]
    [counted] = control["model_statistics"]["model_stats"]
    assert int(counted["inference_count"]) >= 4
    assert int(counted["inference_stats"]["success"]["ns"]) > 0
    assert counted in control["statistics"]["model_stats"]


def test_tritonclient_infers(triton):
    found = triton["inference"]
    cat = {"model": "pets:cat", "version": "1", "id": "", "outputs": CAT}
    for name in ("plain", "version", "alias", "columns", "other header"):
        assert found[name] == cat, name
    assert (found["wanted"]["id"], list(found["wanted"]["outputs"])) == ("seven", ["score", "match"])
    assert found["parameter"]["outputs"]["score"] == SCORES["dog"]
    assert found["input"]["outputs"]["score"] == [1.0, -6.25]
    for datatype in ("FP32", "FP16", "INT8", "INT64", "UINT16", "BOOL"):
        assert found[datatype]["outputs"]["score"] == [1.0, 0.0], datatype
    assert found["large"] == [100_000, SCORES["cat"]]
    assert found["gzip"] is found["deflate"] is None
    if triton["form"] == "sync":
        assert found["async"] == [cat] * 3


def test_tritonclient_reads_errors(triton):
    found = triton["inference"]
    for name, words in (
        ("nan", "row 0 (counted from 0): 'b' is NaN"),
        ("narrow", "has 2 values"),
        ("no class", "pets:CLASS"),
    ):
        assert found[name]["status"] == "StatusCode.INVALID_ARGUMENT", name
        assert words in found[name]["message"]
    assert found["missing"]["status"] == "StatusCode.NOT_FOUND"
    assert found["no key"]["status"] == "StatusCode.UNAUTHENTICATED"


def test_tritonclient_streams_answers_and_errors_in_order(triton):
    first, second, third = triton["stream"]
    assert (first["id"], first["outputs"]) == ("1", CAT)
    assert "wolf" in second["message"]
    assert (third["id"], third["outputs"]["score"]) == ("3", SCORES["dog"])


def test_kserve_infers(grpc_service: tuple[Service, str]):
    service, address = grpc_service
    found = run("kserve", "kserve_grpc.py", address, service.key)
    assert found["live"] is found["ready"] is found["model_ready"] is True
    assert found["missing_ready"] is False
    for name in ("raw", "typed", "float32"):
        assert found[name] == {"id": "seven", "model": "pets:cat", "outputs": CAT}, name
    assert found["parameter"]["outputs"]["score"] == SCORES["dog"]
    assert found["no_class"]["status"] == "StatusCode.INVALID_ARGUMENT"
    assert found["no_key"]["status"] == "StatusCode.UNAUTHENTICATED"


def test_the_fields_have_the_numbers_and_types_of_tritonclient():
    """Of each message that both have; messages within messages are found by their own name."""
    command = [home("triton_grpc") / "bin" / "python", "-I", "-c", _FIELDS_OF_TRITON]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    theirs = json.loads(done.stdout)
    ours = {
        message: [field.strip() for field in fields.split(";") if field.strip()]
        for message, fields in TABLE.items()
        if message not in OF_OTHERS
    }
    for message, fields in ours.items():
        assert set(fields) <= set(theirs[message]), message


OF_OTHERS = {"HealthCheckRequest", "HealthCheckResponse", "Status", "Any", "RetryInfo", "Duration"}
"""Messages of gRPC and Google, which tritonclient does not bring."""

_FIELDS_OF_TRITON = """
import json
from tritonclient.grpc import service_pb2

KINDS = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 12: "bytes"}
KINDS[13] = "uint32"
found = {}

def describe(field):
    kind, label = field.type, "repeated " if field.is_repeated else ""
    if kind == 11 and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return f"map {value.message_type.name} {field.name} = {field.number}"
    name = field.message_type.name if kind == 11 else KINDS.get(kind, kind)
    oneof = f"{field.containing_oneof.name}: " if field.containing_oneof else ""
    return f"{oneof}{label}{name} {field.name} = {field.number}"

def collect(message):
    found[message.name] = [describe(field) for field in message.fields]
    for nested in message.nested_types:
        collect(nested)

for message in service_pb2.DESCRIPTOR.message_types_by_name.values():
    collect(message)
print(json.dumps(found))
"""
