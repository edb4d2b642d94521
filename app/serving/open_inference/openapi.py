"""The protocol in the OpenAPI document, which the framework does not see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from app.serving.open_inference.requests import CLASS, OUTPUTS
from app.serving.open_inference.tensors import DTYPES
from core.data.checks import MAX_MAGNITUDE, largest_value

Json = dict[str, Any]

_TAG: Final = "open inference protocol"
_SAFE_TEXT: Final[Json] = {"type": "string"}
_COUNT: Final[Json] = {"type": "integer", "minimum": 0}
_FREE: Final[Json] = {"type": ["object", "null"]}
_SHAPE: Final[Json] = {"type": "array", "items": {"type": "integer"}}


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_NOT_WITH_JSON: Final = ("binary_data_size", "shared_memory_region", "classification")


def _parameters(*never: str, **known: Json) -> Json:
    """What may be said beside: free, but for what is known and what is never taken."""
    return {"type": ["object", "null"], "properties": {**known, **dict.fromkeys(never, False)}}


def _input(datatypes: Iterable[str], value: Json, name: Json, *, nested: bool = True) -> Json:
    """An input in JSON, its data of one kind: a flat list, or one of rows."""
    flat = _list(value)
    data = {"oneOf": [flat, _list({**flat, "minItems": 1}, minItems=1)]} if nested else flat
    described = {
        "name": name,
        "shape": _list({"type": "integer", "minimum": 1, "maximum": 2**31}, minItems=1, maxItems=2),
        "datatype": {"type": "string", "enum": list(datatypes)},
        "parameters": _parameters(*_NOT_WITH_JSON),
        "data": data,
    }
    return _object(described, "name", "shape", "datatype", "data")


def _bounds(dtype: np.dtype[Any]) -> Json:
    """Of the numbers that are usable once they are rounded to a float ``dtype``."""
    largest = largest_value(dtype)
    if float(largest) >= MAX_MAGNITUDE:
        return {"minimum": -MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE}
    # Half a step beyond the largest number rounding gives infinity.
    beyond = float(largest) + (float(largest) - float(np.nextafter(largest, largest / 2))) / 2
    return {"exclusiveMinimum": -beyond, "exclusiveMaximum": beyond}


def _numbers() -> Json:
    """The input of rows: row-major, flat or nested as its shape, each datatype within its bounds."""
    bounds: dict[str, Json] = {"BOOL": {"type": "boolean"}}
    for name, dtype in DTYPES.items():
        if dtype.kind in "iu":
            most = np.iinfo(dtype)
            bounds[name] = {"type": "integer", "minimum": int(most.min), "maximum": int(most.max)}
        elif dtype.kind == "f":
            bounds[name] = {"type": "number", **_bounds(dtype)}
    return {"oneOf": [_input([name], value, _SAFE_TEXT) for name, value in bounds.items()]}


_TARGET: Final = _input(["BYTES"], {"type": "string", "minLength": 1}, {"const": CLASS}, nested=False)
_OUTPUT: Final = _object(
    {
        "name": {"type": "string", "enum": list(OUTPUTS)},
        "shape": _SHAPE,
        "datatype": {"type": "string", "enum": ["BOOL", "FP64"]},
        "parameters": _object({"binary_data_size": _COUNT}),
        "data": _list({"type": ["number", "boolean"]}),
    },
    *("name", "shape", "datatype"),
)
_TENSOR: Final = _object(
    {"name": _SAFE_TEXT, "datatype": _SAFE_TEXT, "shape": _SHAPE, "parameters": {"type": "object"}},
    *("name", "datatype", "shape"),
)
_DURATION: Final = _object({"count": _COUNT, "ns": _COUNT}, "count", "ns")
_PARTS: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")

_CLASS: Final[Json] = {"type": "string", "minLength": 1, "description": "The target class."}


def _request(known: Json, inputs: list[Json], *required: str) -> Json:
    """A request with these inputs, in this order. required: parameters."""
    parameters = _parameters(**known, binary_data_output={"type": "boolean"})
    if required:
        parameters |= {"type": "object", "required": list(required)}
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
            "description": "Each name once; null: the usual.",
        },
    }
    return _object(described, "inputs", *(["parameters"] if required else []))


SCHEMAS: Final[Json] = {
    "InferenceError": _object({"error": _SAFE_TEXT}, "error"),
    "InferenceServer": _object(
        {"name": _SAFE_TEXT, "version": _SAFE_TEXT, "extensions": _list(_SAFE_TEXT)},
        *("name", "version", "extensions"),
    ),
    "InferenceLive": _object({"live": {"type": "boolean"}}, "live"),
    "InferenceReady": _object({"ready": {"type": "boolean"}, "live": {"type": "boolean"}}, "ready", "live"),
    "InferenceModelReady": _object({"name": _SAFE_TEXT, "ready": {"type": "boolean"}}, "name", "ready"),
    "InferenceModel": _object(
        {
            "name": _SAFE_TEXT,
            "versions": _list(_SAFE_TEXT),
            "platform": _SAFE_TEXT,
            "inputs": _list(_TENSOR),
            "outputs": _list(_TENSOR),
            "parameters": _object(
                {
                    "class": {"type": "string", "description": "The class, or how a request names one."},
                    "classes": _list(_SAFE_TEXT),
                    "class_count": _COUNT,
                    "datatypes": _list(_SAFE_TEXT),
                },
                *("class", "classes", "class_count", "datatypes"),
            ),
        },
        *("name", "versions", "platform", "inputs", "outputs", "parameters"),
    ),
    "InferenceRows": _numbers(),
    "InferenceTarget": {**_TARGET, "description": "The target class, one for all rows or one for each."},
    "InferenceRequest": {
        "description": "The class is named once: in the path, by a parameter or by an input.",
        "anyOf": [
            _request({CLASS: False}, [_ref("InferenceRows")]),
            _request({CLASS: _CLASS}, [_ref("InferenceRows")], CLASS),
            _request({CLASS: False}, [_ref("InferenceRows"), _ref("InferenceTarget")]),
        ],
    },
    "InferenceAnswer": _object(
        {
            "model_name": _SAFE_TEXT,
            "model_version": _SAFE_TEXT,
            "id": _SAFE_TEXT,
            "outputs": _list(_OUTPUT),
        },
        *("model_name", "model_version", "outputs"),
    ),
    "InferenceRepositoryOptions": _object({"parameters": _FREE}),
    "InferenceLoadOptions": {
        **_object({"parameters": {**_FREE, "maxProperties": 0}}),
        "description": "A model is loaded as it was published: there is nothing to choose.",
    },
    "InferenceRepositoryIndex": _list(
        _object(
            {"name": _SAFE_TEXT, "version": _SAFE_TEXT, "state": _SAFE_TEXT, "reason": _SAFE_TEXT},
            *("name", "version", "state", "reason"),
        )
    ),
    "InferenceStatistics": _object(
        {
            "model_stats": _list(
                _object(
                    {
                        "name": _SAFE_TEXT,
                        "version": _SAFE_TEXT,
                        "last_inference": {**_COUNT, "description": "Milliseconds since the epoch."},
                        "inference_count": {**_COUNT, "description": "Rows decided."},
                        "execution_count": _COUNT,
                        "inference_stats": _object(dict.fromkeys(_PARTS, _DURATION), *_PARTS),
                        "batch_stats": {"type": "array"},
                    },
                    *("name", "version", "inference_count", "execution_count", "inference_stats"),
                )
            )
        },
        "model_stats",
    ),
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
    return {"application/json": {"schema": _ref(schema)}}


def _operation(name: str, summary: str, schema: str | None, path: str, **more: Any) -> Json:
    described = {
        "model": {"description": _MODEL},
        "version": {"description": "Number of a version, or an alias."},
    }
    answer = {"application/json": {"schema": _ref(schema) if schema else {"type": "object"}}}
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
            "default": {"description": "What went wrong.", "content": _json("InferenceError")},
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
    ready["responses"]["503"] = {"description": "They should not.", "content": _json("InferenceReady")}
    server = _operation("server", "Name, version and extensions.", "InferenceServer", "/v2")
    live = _operation("live", "Whether the process answers.", "InferenceLive", "/v2/health/live")
    every = _operation("stats", "Statistics of this process.", "InferenceStatistics", "/v2/models/stats")
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
        ("load", "Read a model's students ahead.", nothing),
        ("unload", "Free what is loaded.", options),
    ):
        path = f"/v2/repository/models/{{model}}/{operation}"
        paths[path] = {"post": _operation(operation, summary, None, path, requestBody=body)}
    for suffix, where in (("", "/v2/models/{model}"), ("_version", "/v2/models/{model}/versions/{version}")):
        about = _operation(f"model{suffix}", "Inputs, outputs and classes.", "InferenceModel", where)
        paths[where] = {"get": about}
        paths[f"{where}/infer"] = {"post": _infer(f"infer{suffix}", where)}
        for operation, summary, schema in (
            ("ready", "Whether the model can answer.", "InferenceModelReady"),
            ("stats", "Its statistics in this process.", "InferenceStatistics"),
        ):
            paths[f"{where}/{operation}"] = {
                "get": _operation(f"model_{operation}{suffix}", summary, schema, where)
            }
    return paths


PATHS: Final[Json] = _paths()


def complete(document: Json) -> Json:
    """Add the protocol to the API's description."""
    document["paths"].update(PATHS)
    document["components"]["schemas"].update(SCHEMAS)
    return document
