"""Health, metadata, the repository, statistics, keys and metrics over the protocol."""

from __future__ import annotations

import time
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.errors import Unavailable
from app.domain.names import DEFAULT_TENANT
from app.processes.scoreboard import Scoreboard
from app.services import models
from app.services.keys import create_key
from app.serving.open_inference import repository
from app.serving.open_inference.statistics import Durations, Statistics
from app.store.tables import job_students
from core.packed import SigmoidCalibration

CAT = "/v2/models/pets:cat/infer"
ROW = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}]}


def loaded(client: Any) -> set[tuple]:
    return set(client.context.cache._loaded.newest_first(DEFAULT_TENANT))


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_server_metadata_name_program_version_and_extensions(client, path: str):
    response = client.get(path)
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert document["name"] == "stms"
    assert document["version"] == client.get("/version").json()["version"]
    assert "binary_tensor_data" in document["extensions"]


def raise_locked(_revision):
    raise Unavailable("The database is locked.")


def test_the_server_is_ready_for_queries_while_the_registry_cannot_be_read(client, monkeypatch):
    assert client.get("/v2/health/live").json() == {"live": True}
    ready = client.get("/v2/health/ready")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "live": True})
    registry = client.context.refresher._registry
    monkeypatch.setattr(registry, "changes", raise_locked)
    monkeypatch.setattr(registry, "is_at", lambda _revision: False)
    client.refresh()
    assert client.get("/readyz").status_code == 503
    ready = client.get("/v2/health/ready")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "live": True})
    monkeypatch.setattr(client.context.settings, "max_stale_seconds", 1e-9)
    ready = client.get("/v2/health/ready")
    assert (ready.status_code, ready.json()) == (503, {"ready": False, "live": True})


def test_metadata_contain_inputs_outputs_and_classes(client, publish_pets):
    publish_pets()
    publish_pets()
    document = client.get("/v2/models/pets").json()
    assert document["name"] == "pets"
    assert document["versions"] == ["1", "2"]
    assert document["platform"] == "stms_student"
    assert document["inputs"] == [
        {"name": "x", "datatype": "FP64", "shape": [-1, 3]},
        {"name": "class", "datatype": "BYTES", "shape": [-1], "parameters": {"optional": True}},
    ]
    outputs = {output["name"]: (output["datatype"], output["shape"]) for output in document["outputs"]}
    assert outputs == {
        name: ("BOOL" if name == "match" else "FP64", [-1])
        for name in ("match", "score", "threshold", "gate", "rejection")
    }
    assert document["parameters"]["classes"] == ["cat", "dog", "größe/1:x", "日本"]
    assert document["parameters"]["class_count"] == 4
    assert '"pets:CLASS"' in document["parameters"]["class"]


def test_metadata_of_a_student_have_no_class_input(client, calibrated):
    for path in ("/v2/models/pets:cat", "/v2/models/pets:cat/versions/1", "/v2/models/pets@latest:cat"):
        document = client.get(path).json()
        assert [given["name"] for given in document["inputs"]] == ["x"]
        assert document["parameters"]["class"] == "cat"
        assert "probability" in [output["name"] for output in document["outputs"]]
    assert "probability" in [output["name"] for output in client.get("/v2/models/pets").json()["outputs"]]


@pytest.mark.parametrize("name", ["pets", "pets@latest", "pets/versions/1", "pets%401"])
def test_the_configuration_says_what_the_metadata_say(make_client, publish_pets, name: str):
    publish_pets()
    client = make_client(max_query_rows=64)
    metadata, config = (client.get(f"/v2/models/{name}{end}").json() for end in ("", "/config"))
    assert config["name"] == metadata["name"]
    assert (config["platform"], config["max_batch_size"]) == (metadata["platform"], 64)
    rows, target = config["input"]
    assert rows == {"name": "x", "data_type": "TYPE_FP64", "dims": [3]}
    assert target == {
        "name": "class",
        "data_type": "TYPE_STRING",
        "dims": [1],
        "reshape": {"shape": []},
        "optional": True,
    }
    assert [tensor["name"] for tensor in config["output"]] == [one["name"] for one in metadata["outputs"]]
    assert {tensor["data_type"] for tensor in config["output"]} == {"TYPE_BOOL", "TYPE_FP64"}


def test_the_configuration_of_a_student_has_one_input(client, pets):
    config = client.get("/v2/models/pets:cat/config").json()
    assert config["name"] == "pets:cat"
    assert [tensor["name"] for tensor in config["input"]] == ["x"]
    # The class is named so, and no configuration of another one is meant.
    assert client.get("/v2/models/pets:gr%C3%B6%C3%9Fe%2F1%3Ax/config").status_code == 200
    response = client.post("/v2/models/pets/config")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("path", "lacks"),
    [
        ("/v2/trace/setting", "traces"),
        ("/v2/models/pets/trace/setting", "traces"),
        ("/v2/models/pets:cat/trace/setting", "traces"),
        ("/v2/logging", "log"),
        ("/v2/systemsharedmemory/status", "shared memory"),
        ("/v2/cudasharedmemory/region/a/register", "shared memory"),
        ("/v2/models/pets:cat/generate", "generated text"),
        ("/v2/models/pets/versions/1/generate_stream", "generated text"),
    ],
)
def test_what_other_servers_have_is_no_class(client, pets, path: str, lacks: str):
    for response in (client.get(path), client.post(path, json={})):
        assert response.status_code == 404
        assert lacks in response.json()["error"]


def test_metadata_contain_a_bounded_number_of_classes(client, pets, monkeypatch):
    monkeypatch.setattr(repository, "MAX_NAMED", 2)
    parameters = client.get("/v2/models/pets").json()["parameters"]
    assert (parameters["classes"], parameters["class_count"]) == (["cat", "dog"], 4)


def test_classes_that_are_too_many_to_list_are_read_from_their_table(client, publish_pets, monkeypatch):
    monkeypatch.setattr(models, "LISTED_CLASSES", 2)
    version = publish_pets()
    assert version.classes == ()
    monkeypatch.setattr(repository, "MAX_NAMED", 3)
    parameters = client.get("/v2/models/pets").json()["parameters"]
    assert (parameters["classes"], parameters["class_count"]) == (["cat", "dog", "größe/1:x"], 4)
    assert client.post("/v2/repository/models/pets/load").status_code == 200
    assert len(loaded(client)) == 4


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/cats",
        "/v2/models/pets:bird",
        "/v2/models/pets/versions/9",
        "/v2/models/pets/versions/none/ready",
        "/v2/models/cats/ready",
        "/v2/models/pets:bird/ready",
        "/v2/models/cats/stats",
        "/v2/models/cats/config",
        "/v2/models/pets:bird/config",
        "/v2/models/pets/versions/9/config",
    ],
)
def test_unknown_names_get_404(client, pets, path: str):
    response = client.get(path)
    assert response.status_code == 404
    assert list(response.json()) == ["error"]


@pytest.mark.parametrize(
    "name", ["pets", "pets@latest", "pets:cat", "pets/versions/1", "pets:cat/versions/latest"]
)
def test_a_model_is_ready_when_it_is_published(client, pets, name: str):
    answer = client.get(f"/v2/models/{name}/ready").json()
    assert answer == {"name": name.partition("/")[0], "ready": True}


@pytest.mark.parametrize("body", [b"", b" ", b"{}", b'{"ready": true}', b'{"parameters": null}'])
def test_the_index_lists_every_version(client, publish_pets, body: bytes):
    publish_pets()
    publish_pets()
    assert client.post("/v2/repository/index", content=body).json() == [
        {"name": "pets", "version": version, "state": "READY", "reason": ""} for version in ("1", "2")
    ]


def test_an_index_may_be_empty_and_is_bounded(client, publish_pets, monkeypatch):
    assert client.post("/v2/repository/index").json() == []
    for _ in range(3):
        publish_pets()
    monkeypatch.setattr(repository, "MAX_LISTED", 2)
    assert len(client.post("/v2/repository/index").json()) == 2


@pytest.mark.parametrize("operation", ["index", "models/pets/load", "models/pets/unload"])
@pytest.mark.parametrize("body", [b"{", b"[]", b'{"parameters": 3}', b"\xff"])
def test_a_body_that_is_no_object_is_refused(client, pets, operation: str, body: bytes):
    response = client.post(f"/v2/repository/{operation}", content=body)
    assert response.status_code == 400
    assert list(response.json()) == ["error"]


def test_load_fills_the_cache_and_unload_empties_it(client, pets):
    assert client.post("/v2/repository/models/pets/load").json() == {}
    assert loaded(client) == {("default", "pets", 1, label) for label in pets.classes}
    assert client.post("/v2/repository/models/pets:cat/unload", json={"parameters": {}}).json() == {}
    assert loaded(client) == {("default", "pets", 1, label) for label in pets.classes[1:]}
    assert client.post("/v2/repository/models/pets@1/unload").status_code == 200
    assert loaded(client) == set()
    assert client.context.cache.size == 0
    assert client.post("/v2/repository/models/pets:dog/load", json={}).status_code == 200
    assert loaded(client) == {("default", "pets", 1, "dog")}
    assert client.post(CAT, json=ROW).status_code == 200, "what was unloaded is loaded again"


def test_unload_of_a_version_leaves_the_others(client, publish_pets):
    publish_pets()
    publish_pets()
    for version in ("1", "2"):
        client.post(f"/v2/repository/models/pets@{version}/load")
    assert len(loaded(client)) == 8
    client.post("/v2/repository/models/pets@2/unload")
    assert {version for _, _, version, _ in loaded(client)} == {1}
    client.post("/v2/repository/models/pets@2/load")
    client.post("/v2/repository/models/pets/unload")
    assert loaded(client) == set()


def test_load_is_bounded(client, pets, monkeypatch):
    monkeypatch.setattr(repository, "MAX_LOADED", 2)
    client.post("/v2/repository/models/pets/load")
    assert len(loaded(client)) == 2


def test_load_skips_classes_without_a_student(client, store, pets):
    with store.engine.begin() as connection:
        gone = job_students.c.label == "cat"
        connection.execute(sa.update(job_students).where(gone).values(digest=None))
    assert client.post("/v2/repository/models/pets/load").status_code == 200
    assert len(loaded(client)) == 3
    assert client.post("/v2/repository/models/pets:cat/load").status_code == 404
    # The first class is asked for its calibration; without a student it has none.
    names = [output["name"] for output in client.get("/v2/models/pets").json()["outputs"]]
    assert "probability" not in names


def test_load_fails_when_students_cannot_be_read(client, pets, monkeypatch):
    def fail(*_arguments: Any) -> None:
        raise Unavailable("The database cannot be reached.")

    monkeypatch.setattr(client.context.cache._source, "student", fail)
    response = client.post("/v2/repository/models/pets/load")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert response.json() == {"error": "The database cannot be reached."}


def test_load_refuses_parameters(client, pets):
    response = client.post("/v2/repository/models/pets/load", json={"parameters": {"config": "{}"}})
    assert response.status_code == 400


@pytest.mark.parametrize("operation", ["load", "unload"])
def test_unknown_models_cannot_be_loaded_or_unloaded(client, pets, operation: str):
    for name in ("cats", "pets@9"):
        assert client.post(f"/v2/repository/models/{name}/{operation}").status_code == 404


def test_statistics_count_requests_rows_and_time(client, publish_pets):
    publish_pets()
    publish_pets()
    assert client.get("/v2/models/stats").json() == {"model_stats": []}
    fresh = client.get("/v2/models/pets/versions/1/stats").json()["model_stats"]
    assert [(entry["name"], entry["version"], entry["inference_count"]) for entry in fresh] == [
        ("pets", "1", 0)
    ]
    two_rows = {"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP64", "data": [0] * 6}]}
    before = time.time() * 1000
    assert client.post(CAT, json=ROW).status_code == 200
    assert client.post("/v2/models/pets:dog/infer", json=two_rows).status_code == 200
    assert client.post("/v2/models/pets:cat/versions/1/infer", json=ROW).status_code == 200
    assert client.post(CAT, json={"inputs": []}).status_code == 400
    [first, second] = client.get("/v2/models/stats").json()["model_stats"]
    assert (first["version"], first["inference_count"], first["execution_count"]) == ("1", 1, 1)
    assert (second["version"], second["inference_count"], second["execution_count"]) == ("2", 3, 2)
    assert second["last_inference"] >= int(before)
    parts = second["inference_stats"]
    assert parts["success"]["count"] == parts["compute_infer"]["count"] == 2
    assert parts["fail"]["count"] == 1
    spent = sum(parts[part]["ns"] for part in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert 0 < spent <= parts["success"]["ns"]
    assert client.get("/v2/models/pets/stats").json()["model_stats"] == [second]


def known(statistics: Statistics, tenant: str = "default") -> list[tuple[str, str, int]]:
    """Name, version and rows of the versions of a tenant."""
    found = statistics.of_tenant(tenant, ())
    return [(entry["name"], entry["version"], entry["inference_count"]) for entry in found]


def test_statistics_keep_a_bounded_number_of_versions(monkeypatch):
    monkeypatch.setattr("app.serving.open_inference.statistics.MAX_VERSIONS", 2)
    scoreboard = Scoreboard.private()
    statistics = Statistics(scoreboard, scoreboard.slots[0])
    for version, rows in ((1, 1), (2, 5), (1, 1), (3, 1)):
        statistics.succeeded(("default", "pets", version), rows, 10, Durations())
    assert known(statistics) == [("pets", "1", 2), ("pets", "3", 1)]
    statistics.failed(("default", "pets", 2), 10)
    assert known(statistics) == [("pets", "2", 0), ("pets", "3", 1)], "the numbers of 2 were forgotten"


def test_statistics_are_the_sums_of_all_processes_and_outlive_them():
    scoreboard = Scoreboard.shared(3)
    first, second = (Statistics(scoreboard, slot) for slot in scoreboard.slots[:2])
    pets, cats = ("default", "pets", 1), ("other", "cats", 7)
    for statistics, rows in ((first, 2), (second, 3)):
        statistics.succeeded(pets, rows, 10, Durations(1, 2, 3, 4))
    second.note(cats, 1, (5, 6, 8, 11))
    assert known(first, "other") == [], "it is counted later"
    second.count_noted()
    assert known(first, "other") == [("cats", "7", 1)]
    assert known(first) == known(second) == [("pets", "1", 5)]
    assert first.of_tenant("default", ["cats"]) == []
    parts = first.of_version(pets)["inference_stats"]
    assert (parts["success"], parts["compute_output"]) == ({"count": 2, "ns": 20}, {"count": 2, "ns": 8})
    parts = first.of_version(cats)["inference_stats"]
    assert (parts["success"], parts["compute_infer"]) == ({"count": 1, "ns": 6}, {"count": 1, "ns": 2})
    successor = Statistics(scoreboard, scoreboard.slots[0])
    successor.succeeded(pets, 1, 10, Durations())
    assert known(successor) == [("pets", "1", 6)]
    scoreboard.close()


def test_all_classes_of_a_request_use_one_version(client, publish_pets):
    publish_pets()
    publish_pets(sign=-1.0, calibration=SigmoidCalibration(1.0, 0.0))
    document = {
        "inputs": [
            {"name": "x", "shape": [2, 3], "datatype": "FP64", "data": [1, 0, 0, 0, 1, 0]},
            {"name": "class", "shape": [2], "datatype": "BYTES", "data": ["cat", "dog"]},
        ]
    }
    answer = client.post("/v2/models/pets/infer", json=document).json()
    assert answer["model_version"] == "2"
    assert [output["name"] for output in answer["outputs"]] == ["match", "score", "probability", "threshold"]
    assert answer["outputs"][1]["data"] == [-1.0, -1.0]


def test_inferences_count_in_the_metrics_of_queries(client, pets):
    client.post(CAT, json=ROW)
    client.post(CAT, json={"inputs": []})
    client.post("/v2/models/cats:cat/infer", json=ROW)
    text = client.get("/metrics").text
    assert 'stms_queries_total{model="pets",status="200"} 1.0' in text
    assert 'stms_queries_total{model="pets",status="400"} 1.0' in text
    assert 'stms_queries_total{model="",status="404"} 1.0' in text
    assert 'stms_query_rows_total{model="pets"} 1.0' in text


def test_keys_are_required_and_limited_to_their_models(make_client, store, publish_pets, pets):
    secrets = {
        name: create_key(store, name, {scope}, models)[1]
        for name, scope, models in (
            ("all", "query", set()),
            ("cats", "query", {"cats"}),
            ("train", "train", set()),
        )
    }
    client = make_client(require_keys=True)

    def status(method: str, path: str, key: str | None, **options: Any) -> int:
        headers = {} if key is None else {"x-api-key": secrets[key]}
        return int(client.request(method, path, headers=headers, **options).status_code)

    for path in ("/v2", "/v2/health/live", "/v2/health/ready"):
        assert status("GET", path, None) == 200
    for path in ("/v2/models/pets", "/v2/models/pets/ready", "/v2/models/pets/stats", "/v2/models/stats"):
        assert status("GET", path, None) == 401
        assert status("GET", path, "all") == 200
    assert status("GET", "/v2/models/pets", "cats") == 403
    assert [status("POST", CAT, key, json=ROW) for key in (None, "cats", "all", "train")] == [
        401,
        403,
        200,
        200,
    ]
    for operation in ("load", "unload"):
        keys = (None, "all", "train")
        assert [status("POST", f"/v2/repository/models/pets/{operation}", key) for key in keys] == [
            401,
            403,
            200,
        ]
    headers = {"authorization": f"Bearer {secrets['cats']}"}
    assert client.post("/v2/repository/index", headers=headers).json() == []
    assert client.get("/v2/models/stats", headers=headers).json() == {"model_stats": []}
    refused = client.post(CAT, json=ROW, headers={"authorization": "Basic x"})
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert refused.headers["content-type"] == "application/json"


def test_the_openapi_document_describes_the_protocol(client):
    paths = client.get("/openapi.json").json()["paths"]
    for path in ("/v2", "/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/stats"):
        assert path in paths
    infer = paths["/v2/models/{model}/versions/{version}/infer"]["post"]
    parameters = [parameter["name"] for parameter in infer["parameters"]]
    assert parameters == ["model", "version", "Inference-Header-Content-Length"]
    assert set(infer["requestBody"]["content"]) == {"application/json", "application/octet-stream"}
    identifiers = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(identifiers) == len(set(identifiers))
