"""Every route that names a class says which there are, and which one may be meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

Check = Callable[..., dict[str, Any]]

X = {"x": [1, 2, 3]}
V2_ROW = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}]}


@pytest.fixture(scope="module")
def model(standing) -> Callable[[str], str]:
    """The name of a model of the kind: trained, or an imported head of 4 or of 2000 classes."""

    def make(kind: str) -> str:
        if kind == "pets":
            return kind
        labels = ["cat", "dog", "größe/1:x", "日本"]
        if kind == "large":
            labels += [f"class {i}" for i in range(1996)]
        weights = np.ones((len(labels), 3), dtype=np.float32)
        content = save({"weights": weights}, metadata={"labels": json.dumps(labels)})
        made = standing.post(f"/v1/teachers?model={kind}", content=content)
        assert made.status_code in (200, 201), made.text
        return kind

    return make


@pytest.mark.parametrize("kind", ["pets", "head", "large"])
@pytest.mark.parametrize("label", ["Cat", "CAT", " cat"])
@pytest.mark.parametrize("way", ["query", "classes", "predict", "v2", "v2 class", "ready", "load"])
def test_the_class_that_may_be_meant_is_named(standing, model, kind: str, label: str, way: str):
    name = model(kind)
    path, body = {
        "query": (f"/v1/models/{name}/classes/{label}:query", X),
        "classes": (f"/v1/models/{name}:query", X | {"classes": [label]}),
        "predict": (f"/v1/models/{name}:predict", X | {"target": label}),
        "v2": (f"/v2/models/{name}:{label}/infer", V2_ROW),
        "v2 class": (f"/v2/models/{name}/infer", V2_ROW | {"parameters": {"class": label}}),
        "ready": (f"/v2/models/{name}:{label}/ready", None),
        "load": (f"/v2/repository/models/{name}:{label}/load", {}),
    }[way]
    response = standing.get(path) if body is None else standing.post(path, json=body)
    assert response.status_code == 404, response.text
    count = 2000 if kind == "large" else 4
    assert f"it has {count} classes: 'cat', 'dog'" in response.text
    assert "Is 'cat' meant?" in response.text


def test_an_unknown_alias_says_which_there_are(standing, problem: Check):
    for path in ("/v1/models/pets@Latest/classes/cat:query", "/v1/models/pets@Latest:predict"):
        detail = problem(standing.post(path, json=X), 404, "alias_not_found")["detail"]
        assert "it has 1 aliases: 'latest'. Is 'latest' meant?" in detail
    detail = problem(standing.get("/v1/models/pets/aliases/Latest"), 404, "alias_not_found")["detail"]
    assert "Is 'latest' meant?" in detail
    detail = problem(standing.get("/v1/models/pets/versions/7"), 404, "version_not_found")["detail"]
    assert "newest version is 1" in detail
