"""What the framework cannot know about the API: the queries, the errors, the keys."""

from __future__ import annotations

from typing import Any, Final

from app.http.problem import CONTENT_TYPE
from app.serving.query import openapi
from app.serving.query.openapi import object_of

Json = dict[str, Any]

DESCRIPTION: Final = (
    "STMS turns one multiclass teacher into many tiny binary students, one per class, and answers "
    '"is this the target class?" at the cost of one student.'
)

_SCHEMAS: Final[Json] = {
    "InputFault": object_of(
        {
            "field": {"type": "string"},
            "row": {"type": ["integer", "null"]},
            "column": {"type": ["integer", "null"]},
            "code": {"type": "string"},
            "message": {"type": "string"},
        },
        "field",
        "code",
        "message",
    ),
    "Problem": object_of(
        {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "instance": {"type": "string"},
            "code": {"type": "string"},
            "request_id": {"type": "string"},
            "errors": {"type": "array", "items": {"$ref": "#/components/schemas/InputFault"}},
        },
        *("type", "title", "status", "detail", "instance", "code", "request_id"),
    ),
}

_PROBLEM: Final[Json] = {
    "description": "What went wrong (RFC 9457).",
    "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_PROBLEM_REF: Final[Json] = {"$ref": "#/components/responses/Problem"}


_SECURITY: Final[Json] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, `stms_…`."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def complete(document: Json) -> Json:
    """Add to the framework's document what it does not know, and take out what is not so."""
    document["paths"] |= openapi.PATHS
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= openapi.SCHEMAS | _SCHEMAS
    components["responses"] = {"Problem": _PROBLEM}
    components["securitySchemes"] = _SECURITY
    # The empty alternative: a server without keys asks for none.
    document["security"] = [{"bearer": []}, {"apiKey": []}, {}]
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _written(parameter["schema"])
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = _PROBLEM_REF
    return document


def _written(schema: Json) -> Json:
    """The schema of a parameter that may be left out: what stands in its place is text, and never null."""
    given = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(given) != 1:
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**given[0], **rest}
