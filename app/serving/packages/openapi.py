"""The OpenAPI description of packages, which FastAPI does not route."""

from __future__ import annotations

from typing import Any, Final

from app.serving.decision import MAX_CLASSES
from app.serving.packages.paths import MEDIA_TYPES

Json = dict[str, Any]

_REPORT_DOC: Final = (
    "The version that the caller evaluates, and how many queries it answered with it since it last said so; "
    "they are added to `stms_local_queries_total`."
)
_PARAMETERS: Final = [
    {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": {"type": "string"} | more,
    }
    for name, place, description, more in (
        ("model", "path", "`name`, `name@alias` or `name@3`.", {"minLength": 1}),
        ("class", "path", "The target class; percent-encode what a path cannot hold.", {"minLength": 1}),
        ("If-None-Match", "header", "The ETag that the caller has: then the answer is 304.", {}),
        (
            "X-STMS-Local",
            "header",
            _REPORT_DOC,
            {"pattern": "^[0-9]{1,9}:[0-9]{1,9}$"},
        ),
    )
]
_HEADERS: Final[Json] = {
    name: {"description": description, "schema": {"type": "string"}}
    for name, description in {
        "ETag": 'The version and the SHA-256 of the bytes: `"3-9f86…"`.',
        "X-Model": "The model.",
        "X-Model-Version": "Its version.",
        "X-Encoder": "The SHA-256 of the encoder, where rows of the version are records or texts.",
        "X-Index-Base": "Where the indices of the svmlight file of the training rows began, if it was one.",
    }.items()
}


def _operation(part: str, summary: str, description: str) -> Json:
    content = {MEDIA_TYPES[part].decode(): {"schema": {"type": "string", "format": "binary"}}}
    return {
        "tags": ["queries"],
        "summary": summary,
        "description": description,
        "operationId": f"get_{part}",
        "parameters": _PARAMETERS,
        "responses": {
            "200": {"description": "The package.", "headers": _HEADERS, "content": content},
            "304": {"description": "The caller has it already.", "headers": _HEADERS},
        },
    }


def _of_several() -> Json:
    names = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_CLASSES}
    body = {"type": "object", "required": ["classes"], "additionalProperties": False}
    body["properties"] = {"classes": names | {"uniqueItems": True}}
    return {
        "tags": ["queries"],
        "summary": "The students of several classes, for local evaluation.",
        "description": (
            "The packages of the classes, all of one version, as an uncompressed tar file with a member for "
            "each, `0.safetensors` and so on, in the order of the request. Together they have at most "
            "`STMS_MAX_PACKAGE_BYTES`. Needs the scope `download`."
        ),
        "operationId": "get_packages",
        "parameters": [_PARAMETERS[0], _PARAMETERS[2]],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {
                "description": "The packages.",
                "headers": _HEADERS,
                "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
            },
            "304": {"description": "The caller has them already.", "headers": _HEADERS},
        },
    }


PATHS: Final[Json] = {
    "/v1/models/{model}:packages": {"post": _of_several()},
    "/v1/models/{model}/classes/{class}/package": {
        "get": _operation(
            "package",
            "The student of a class, for local evaluation.",
            "The bytes that decide about rows without the service. Needs the scope `download`. Ask again "
            "with `If-None-Match` to learn of new versions and of a revoked key.",
        )
    },
    "/v1/models/{model}/classes/{class}/map": {
        "get": _operation(
            "map",
            "The map that the student of a class names, for local evaluation.",
            "Students of one version share it: fetch it once for all packages that name the same digest. 404 "
            "`map_not_found` where the package holds its map. Needs the scope `download`.",
        )
    },
    "/v1/models/{model}/classes/{class}/encoder": {
        "get": _operation(
            "encoder",
            "What makes numbers of records and texts, for local evaluation.",
            "The encoder of the version, where it has one. Needs the scope `download`.",
        )
    },
}
"""The operations by path and method."""
