"""Completes FastAPI's OpenAPI document with the queries, the problem documents and the API keys."""

from __future__ import annotations

from typing import Any, Final

from app.api.uploads import ANY_FILE
from app.domain.entities import Json
from app.http.json_schema import ref, schemas_of
from app.http.problem import CONTENT_TYPE, ProblemDocument
from app.serving.packages import openapi as packages
from app.serving.query import openapi
from app.serving.query.predict import PredictBody

DESCRIPTION: Final = (
    "STMS turns one multiclass teacher into many tiny binary students, one per class, and answers "
    '"is this the target class?" at the cost of one student.'
)

_PROBLEM: Final[Json] = {
    "description": "The error (RFC 9457).",
    "content": {CONTENT_TYPE: {"schema": ref("Problem")}},
}
_PROBLEM_REF: Final[Json] = {"$ref": "#/components/responses/Problem"}


_SECURITY: Final[Json] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, `stms_…`."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


_PLAIN_CONTENT: Final = {"application/json", ANY_FILE}
_BYTES: Final[Json] = {"type": "string", "format": "binary"}
_EXTENSIONS: Final = ("x-rules", "x-content")


def complete(document: Json) -> Json:
    """Add the parts that FastAPI does not know, and remove its own error responses, which are never sent."""
    document["paths"] |= openapi.PATHS | packages.PATHS
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= openapi.SCHEMAS | schemas_of(ProblemDocument)
    schemas["Problem"] = schemas.pop("ProblemDocument")
    schemas["PredictRequest"] = openapi.request_schema(PredictBody)
    components["responses"] = {"Problem": _PROBLEM}
    components["securitySchemes"] = _SECURITY
    # The empty alternative: a server without API keys requires none.
    document["security"] = [{"bearer": []}, {"apiKey": []}, {}]
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = _PROBLEM_REF
    return document


def move_rules(part: Any) -> None:
    """Move what generators of clients cannot read to extensions, everywhere in the document, in place.

    A schema may say how the properties of an object depend on each other, which no type of another language
    can express: combinations beside the properties become ``x-rules``; the names of properties that must be
    null become ``x-null``, and of those that must be absent ``x-absent``. Defaults that are objects become
    ``x-default``. A request body is described as JSON or as bytes; its further content types, and the form
    with a file, become ``x-content``. So do those of files that are sent, which are described as bytes.
    """
    if isinstance(part, list):
        for item in part:
            move_rules(item)
    if not isinstance(part, dict):
        return
    if isinstance(part.get("properties"), dict):
        _move_object_rules(part)
    if isinstance(part.get("default"), dict) and {"$ref", "type", "anyOf"} & part.keys():
        part["x-default"] = part.pop("default")
    if part.get("type") == "array" and "prefixItems" not in part:
        part.setdefault("items", {})
    if "requestBody" in part:
        content = part["requestBody"]["content"]
        moved = {name: content.pop(name) for name in list(content) if name not in _PLAIN_CONTENT}
        part["requestBody"] |= {"x-content": moved} if moved else {}
    if "operationId" in part:
        for response in part["responses"].values():
            _move_files(response)
    for name, value in part.items():
        if name not in _EXTENSIONS:
            move_rules(value)


def _move_files(response: Json) -> None:
    """As `move_rules`, for the content types of one response."""
    content = response.get("content", {})
    files = {name: value for name, value in content.items() if value.get("schema") == _BYTES}
    if files.keys() - _PLAIN_CONTENT:
        kept = {name: value for name, value in content.items() if name not in files}
        response |= {"content": kept | {ANY_FILE: {"schema": _BYTES}}, "x-content": files}


def _move_object_rules(schema: Json) -> None:
    """As `move_rules`, for one schema with properties."""
    properties = schema["properties"]
    extensions: Json = {
        "x-rules": {name: schema.pop(name) for name in ("anyOf", "allOf", "oneOf") if name in schema},
        "x-null": [name for name, value in properties.items() if value == {"type": "null"}],
        "x-absent": [name for name, value in properties.items() if value is False],
    }
    for name in (*extensions["x-null"], *extensions["x-absent"]):
        del properties[name]
    schema |= {name: value for name, value in extensions.items() if value}


def _without_null(schema: Json) -> Json:
    """The schema of an optional parameter without its null: parameters are text, and cannot be null."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**choices[0], **rest}
