"""Completes FastAPI's OpenAPI document with the queries, the problem documents and the API keys."""

from __future__ import annotations

from typing import Final

from app.domain.entities import Json
from app.http.json_schema import ref, schemas_of
from app.http.problem import CONTENT_TYPE, ProblemDocument
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


def complete(document: Json) -> Json:
    """Add the parts that FastAPI does not know, and remove its own error responses, which are never sent."""
    document["paths"] |= openapi.PATHS
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


def _without_null(schema: Json) -> Json:
    """The schema of an optional parameter without its null: parameters are text, and cannot be null."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**choices[0], **rest}
