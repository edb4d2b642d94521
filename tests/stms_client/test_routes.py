"""Every route of the service has a method of the client."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.settings import Settings
from stms_client import Client
from tests.stms_client.test_calls import Waiting

ANSWER = {
    "id": "x",
    "state": "succeeded",
    "revision": 1,
    "counts": {},
    "label": "a",
    "data": [],
    "classes": [],
    "match": True,
    "score": 1.0,
    "threshold": 0.5,
    "results": [{"match": True, "score": 1.0, "threshold": 0.5}],
    "model": "m",
    "version": 1,
    "progress_done": 1,
    "progress_total": 1,
}
VALUES = {
    "alias": "latest",
    "choose": {"a": {"recall": 0.9}},
    "class_index": 0,
    "corrections": {3: "a"},
    "dataset_id": "ds_1",
    "delivery_id": "del_1",
    "evaluation_id": "ev_1",
    "expects": "image:32x32:rgb:unit",
    "issuer": "https://issuer.example.com",
    "job_id": "job_1",
    "key_id": "key_1",
    "label": "a",
    "labels": ["a", "b"],
    "method": "gsvm",
    "model": "m",
    "name": "n",
    "quotas": {"keys": 3},
    "rows": [[1.0, 2.0]],
    "sha256": "0" * 64,
    "size": 10,
    "tenant": "t",
    "url": "https://hooks.example.com/x",
    "webhook_id": "wh_1",
    "table": {"x": [1.0, 2.0], "a": ["u", "v"]},
    "thresholds": {"a": 0.5},
    "version": 1,
    "x": [1.0, 2.0],
    "X": [[1.0, 2.0]],
    "y": ["a"],
    "feedback": [{"sample": "smp_0", "correct": True}],
}
"""What the methods are called with, by the name of the parameter."""
ONE_OF_TWO = {"x", "rows"}
"""Parameters of which a text may take the place."""
NO_ROUTE = {"close", "pages", "do", "once", "save", "streaming", "address", "local", "follow_audit"}
"""Methods without a route of their own; the last one asks for that of `audit` without an end."""


def routes(folder: Path) -> set[tuple[str, str]]:
    document = create_app(Settings(data_dir=folder)).openapi()
    return {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
        if path.startswith("/v1/")
    }


class Recorder:
    """Answers every request, and keeps its method and path."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append((request.method, request.url.raw_path.decode().partition("?")[0]))
        is_stream = request.headers.get("accept") == "text/event-stream"
        if request.url.path.endswith(":packages"):
            return packages(json.loads(request.content)["classes"])
        return httpx.Response(200, text="") if is_stream else httpx.Response(200, json=ANSWER)


def calls(values: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of the methods of a client, each with values for the parameters that it needs."""
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_") and name not in NO_ROUTE:
            parameters = list(inspect.signature(method).parameters.values())[1:]
            needed = [
                one.name
                for one in parameters
                if one.default is inspect.Parameter.empty or one.name in ONE_OF_TWO
            ]
            yield name, {parameter: values[parameter] for parameter in needed}


def packages(labels: list[str]) -> httpx.Response:
    """An answer with an empty package for each class."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for place in range(len(labels)):
            archive.addfile(tarfile.TarInfo(f"{place}.safetensors"))
    digests = hashlib.sha256().hexdigest() * len(labels)
    tag = f'"1-{hashlib.sha256(digests.encode()).hexdigest()}"'
    return httpx.Response(200, content=file.getvalue(), headers={"etag": tag, "x-model-version": "1"})


def requested(kind: Any, values: dict[str, Any]) -> list[tuple[str, str]]:
    """Method and path of every request that the methods of a client make."""
    recorder = Recorder()
    with kind("http://stms.test", "key") as client:
        asking = client.asynchronous if kind is Waiting else client
        of_httpx = httpx.AsyncClient if kind is Waiting else httpx.Client
        transport = httpx.MockTransport(recorder)
        asking._pools = type(asking._pools)(
            lambda: of_httpx(base_url="http://stms.test", transport=transport)
        )
        for name, arguments in calls(values):
            result = getattr(client, name)(**arguments)
            if isinstance(result, Iterator):
                list(result)
    return recorder.seen


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "rows.csv"
    file.write_text("x,y\n1,a\n", encoding="utf-8")
    return VALUES | {"file": file}


def test_every_route_has_a_method_of_the_client(tmp_path: Path, values: dict[str, Any]):
    known = routes(tmp_path)
    # A path without parameters is meant before one with them: /counts is no id of a job.
    patterns = sorted(
        ((verb, path, re.compile(re.sub(r"\{\w+\}", "[^/:]+", path))) for verb, path in known),
        key=lambda known: known[1].count("{"),
    )
    asked = set()
    for verb, path in requested(Client, values):
        fitting = [(one, two) for one, two, pattern in patterns if one == verb and pattern.fullmatch(path)]
        assert fitting, f"the service has no route {verb} {path}"
        asked.add(fitting[0])
    assert len(known) > 30
    assert known - asked == set(), "write a method in stms_client/aio, then run: make client"


def test_the_asynchronous_client_makes_the_same_requests(values: dict[str, Any]):
    assert requested(Waiting, values) == requested(Client, values)
