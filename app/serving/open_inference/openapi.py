"""The OpenAPI description of the protocol, which FastAPI does not route.

Requests are described by hand: what their decoder leaves as raw JSON is most of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from app.domain.entities import Json
from app.http.json_schema import ref, schemas_of
from app.serving.open_inference.requests import CLASS, OUTPUTS
from app.serving.open_inference.responses import (
    InferenceAnswer,
    InferenceError,
    InferenceIndexEntry,
    InferenceLive,
    InferenceModel,
    InferenceModelConfig,
    InferenceModelReady,
    InferenceReady,
    InferenceServer,
    InferenceStatistics,
)
from app.serving.open_inference.tensors import DTYPES
from core.data.validation import MAX_MAGNITUDE, largest_value

_TAG: Final = "open inference protocol"
_SAFE_TEXT: Final[Json] = {"type": "string"}
_ANY_PARAMETERS: Final[Json] = {"type": ["object", "null"]}


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


_NOT_WITH_JSON: Final = ("binary_data_size", "shared_memory_region", "classification")


def _parameters(*never: str, required: tuple[str, ...] = (), **known: Json) -> Json:
    """The schema of parameters: any but those in ``never``, with the schemas of the known ones.

    They may be null unless one is required.
    """
    parameters = _object({**known, **dict.fromkeys(never, False)}, *required)
    return parameters if required else {"anyOf": [parameters, {"type": "null"}]}


def _input(datatypes: Iterable[str], value: Json, name: Json, *, nested: bool = True) -> Json:
    """An input in JSON. Its data are a flat list of ``value`` or, if ``nested``, a list of rows."""
    flat = _list(value)
    data = {"oneOf": [flat, _list({**flat, "minItems": 1}, minItems=1)]} if nested else flat
    fields = {
        "name": name,
        "shape": _list({"type": "integer", "minimum": 1, "maximum": 2**31}, minItems=1, maxItems=2),
        "datatype": {"type": "string", "enum": list(datatypes)},
        "parameters": _parameters(*_NOT_WITH_JSON),
        "data": data,
    }
    return _object(fields, "name", "shape", "datatype", "data")


def _bounds(dtype: np.dtype[Any]) -> Json:
    """Bounds of the numbers that stay within the limits when they are rounded to the float ``dtype``."""
    largest = largest_value(dtype)
    if float(largest) >= MAX_MAGNITUDE:
        return {"minimum": -MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE}
    # Numbers half a step beyond the largest one are rounded to infinity.
    beyond = float(largest) + (float(largest) - float(np.nextafter(largest, largest / 2))) / 2
    return {"exclusiveMinimum": -beyond, "exclusiveMaximum": beyond}


def _numbers() -> Json:
    """The input with the rows: row-major, flat or nested, and exactly one datatype with its bounds."""
    bounds: dict[str, Json] = {"BOOL": {"type": "boolean"}}
    for name, dtype in DTYPES.items():
        if dtype.kind in "iu":
            most = np.iinfo(dtype)
            bounds[name] = {"type": "integer", "minimum": int(most.min), "maximum": int(most.max)}
        elif dtype.kind == "f":
            bounds[name] = {"type": "number", **_bounds(dtype)}
    choices = [_input([name], value, _SAFE_TEXT) for name, value in bounds.items()]
    return {**_input(bounds, {}, _SAFE_TEXT), "oneOf": choices}


_TARGET: Final = _input(["BYTES"], {"type": "string", "minLength": 1}, {"const": CLASS}, nested=False)
_CLASS: Final[Json] = {"type": "string", "minLength": 1, "description": "The target class."}


def _request(known: Json, inputs: list[Json], *required: str) -> Json:
    """A request with these inputs, in this order. required: names of required parameters."""
    parameters = _parameters(required=required, **known, binary_data_output={"type": "boolean"})
    requested = _object(
        {
            "name": {"type": "string", "enum": list(OUTPUTS)},
            "parameters": _parameters(*_NOT_WITH_JSON[1:], binary_data={"type": "boolean"}),
        },
        "name",
    )
    described = {
        "id": {"type": ["string", "null"]},
        "parameters": parameters,
        "inputs": {"type": "array", "prefixItems": inputs, "minItems": len(inputs), "maxItems": len(inputs)},
        "outputs": {
            "type": ["array", "null"],
            "items": requested,
            "description": "Each name once; null: the default outputs.",
        },
    }
    return _object(described, "inputs", *(["parameters"] if required else []))


SCHEMAS: Final[Json] = {
    **schemas_of(InferenceServer, InferenceLive, InferenceReady, InferenceModelReady, InferenceModel),
    **schemas_of(InferenceModelConfig),
    **schemas_of(InferenceError, InferenceAnswer, InferenceIndexEntry, InferenceStatistics),
    "InferenceRows": _numbers(),
    "InferenceTarget": {**_TARGET, "description": "The target class, one for all rows or one for each."},
    "InferenceRequest": {
        "description": (
            "The class is named once: in the path, by a parameter or by an input. Models whose metadata list"
            " several inputs take one for each column, of the shape [rows] or [rows, 1]; null, NaN and empty"
            " texts are gaps, and an input that is not there has only gaps."
        ),
        **_object(
            {
                "id": {"type": "string"},
                "parameters": {"type": "object"},
                "inputs": _list({"anyOf": [ref("InferenceRows"), ref("InferenceTarget")]}),
                "outputs": _list({"type": "object", "properties": {"name": {"type": "string"}}}),
            },
            "inputs",
        ),
        "anyOf": [
            _request({CLASS: False}, [ref("InferenceRows")]),
            _request({CLASS: _CLASS}, [ref("InferenceRows")], CLASS),
            _request({CLASS: False}, [ref("InferenceRows"), ref("InferenceTarget")]),
        ],
    },
    "InferenceRepositoryOptions": _object({"parameters": _ANY_PARAMETERS}),
    "InferenceLoadOptions": {
        **_object({"parameters": {**_ANY_PARAMETERS, "maxProperties": 0}}),
        "description": "A model is loaded as it was published, without options.",
    },
    "InferenceRepositoryIndex": _list(ref("InferenceIndexEntry")),
}

_MODEL: Final = (
    "`name`, `name@alias`, `name@3`, or with a class, `name:CLASS`; percent-encode what a path cannot hold."
)
_BINARY: Final[Json] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
}
_HEADER_LENGTH: Final[Json] = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "description": "Bytes of JSON at the front of the body; 0: none, the body is rows of FP64.",
    "schema": {"type": "integer", "minimum": 0},
}
_INFER_DOC: Final = (
    "Asks for the class in the model's name, in the parameter `class`, or in the BYTES input `class`, which "
    "may name one for each row. With Inference-Header-Content-Length, tensors follow the JSON in binary."
)


def _json(schema: str) -> Json:
    return {"application/json": {"schema": ref(schema)}}


def _operation(name: str, summary: str, schema: str | None, path: str, **more: Any) -> Json:
    described = {
        "model": {"description": _MODEL},
        "version": {"description": "Number of a version, or an alias."},
    }
    answer = {"application/json": {"schema": ref(schema) if schema else {"type": "object"}}}
    return {
        "tags": [_TAG],
        "summary": summary,
        "operationId": f"v2_{name}",
        "parameters": [
            {
                "name": part,
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1},
                **about,
            }
            for part, about in described.items()
            if f"{{{part}}}" in path
        ],
        "responses": {
            "200": {"description": summary, "content": answer},
            "default": {"description": "The error.", "content": _json("InferenceError")},
        },
        **more,
    }


def _infer(name: str, path: str) -> Json:
    body = {"required": True, "content": {**_json("InferenceRequest"), **_BINARY}}
    operation = _operation(
        name, "Is it the class?", "InferenceAnswer", path, description=_INFER_DOC, requestBody=body
    )
    operation["parameters"] = [*operation["parameters"], _HEADER_LENGTH]
    operation["responses"]["200"]["content"].update(_BINARY)
    return operation


def _paths() -> Json:
    options = {"required": False, "content": _json("InferenceRepositoryOptions")}
    ready = _operation("ready", "Whether requests should be sent here.", "InferenceReady", "/v2/health/ready")
    ready["responses"]["503"] = {
        "description": "They should not.",
        "content": _json("InferenceReady"),
    }
    server = _operation("server", "Name, version and extensions.", "InferenceServer", "/v2")
    live = _operation("live", "Whether the process answers.", "InferenceLive", "/v2/health/live")
    every = _operation(
        "stats", "Statistics of all versions that were asked.", "InferenceStatistics", "/v2/models/stats"
    )
    index = "All published versions."
    paths: Json = {
        "/v2": {"get": server},
        "/v2/health/live": {"get": live},
        "/v2/health/ready": {"get": ready},
        "/v2/models/stats": {"get": every},
        "/v2/repository/index": {
            "post": _operation("index", index, "InferenceRepositoryIndex", "", requestBody=options)
        },
    }
    nothing = {"required": False, "content": _json("InferenceLoadOptions")}
    for operation, summary, body in (
        ("load", "Load a model's students in advance.", nothing),
        ("unload", "Free the memory of loaded students.", options),
    ):
        path = f"/v2/repository/models/{{model}}/{operation}"
        paths[path] = {"post": _operation(operation, summary, None, path, requestBody=body)}
    for suffix, where in (("", "/v2/models/{model}"), ("_version", "/v2/models/{model}/versions/{version}")):
        about = _operation(f"model{suffix}", "Inputs, outputs and classes.", "InferenceModel", where)
        paths[where] = {"get": about}
        paths[f"{where}/infer"] = {"post": _infer(f"infer{suffix}", where)}
        for operation, summary, schema in (
            ("ready", "Whether the model can answer.", "InferenceModelReady"),
            ("stats", "Its statistics.", "InferenceStatistics"),
            ("config", "The metadata as a configuration of Triton.", "InferenceModelConfig"),
        ):
            paths[f"{where}/{operation}"] = {
                "get": _operation(f"model_{operation}{suffix}", summary, schema, where)
            }
    return paths


PATHS: Final[Json] = _paths()


def complete(document: Json) -> Json:
    """Add the protocol to the OpenAPI document."""
    document["paths"].update(PATHS)
    document["components"]["schemas"].update(SCHEMAS)
    return document
