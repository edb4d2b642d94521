"""What the framework cannot know about the API: the query path, the errors, the keys."""

from __future__ import annotations

from typing import Any, Final

from app.api.problem import CONTENT_TYPE

Json = dict[str, Any]

DESCRIPTION: Final = (
    "STMS turns one multiclass teacher into many tiny binary students, one per class, and answers "
    '"is this the target class?" at the cost of one student.'
)

_NUMBERS: Final[Json] = {"type": "array", "items": {"type": "number"}, "minItems": 1}
_ROW: Final[Json] = {
    "oneOf": [{"$ref": "#/components/schemas/DenseRow"}, {"$ref": "#/components/schemas/SparseRow"}]
}
_ROWS: Final[Json] = {"type": "array", "items": _ROW, "minItems": 1}
_ORIGIN: Final[Json] = {"model": {"type": "string"}, "version": {"type": "integer"}}
_DECISION: Final[Json] = {
    "match": {"type": "boolean", "description": "score ≥ threshold"},
    "score": {"type": "number"},
    "threshold": {"type": "number"},
}
_GUESS: Final[Json] = {
    "label": {"type": "string"},
    "scores": {"type": "object", "additionalProperties": {"type": "number"}},
    "match": {"type": "boolean"},
    "classes_evaluated": {"type": "integer"},
}


def _object(properties: Json, *required: str, closed: bool = False) -> Json:
    described: Json = {"type": "object", "properties": properties}
    if required:
        described["required"] = list(required)
    if closed:
        described["additionalProperties"] = False
    return described


def _one_or_many(result: Json, origin: Json, *required: str) -> Json:
    one = _object({**result, **origin}, *required, "model", "version")
    many = {"type": "array", "items": _object(result, *required)}
    return {"oneOf": [one, _object({"results": many, **origin}, "results", "model", "version")]}


_REQUEST_DOC: Final = (
    "One row as `x`, or many as `rows`; a row is dense, or sparse with 0 in all other columns."
)

SCHEMAS: Final[Json] = {
    "DenseRow": _NUMBERS,
    "SparseRow": _object(
        {"indices": {"type": "array", "items": {"type": "integer", "minimum": 0}}, "values": _NUMBERS},
        "indices",
        "values",
        closed=True,
    ),
    "QueryRequest": {**_object({"x": _ROW, "rows": _ROWS}, closed=True), "description": _REQUEST_DOC},
    "QueryAnswer": _one_or_many(_DECISION, _ORIGIN, *_DECISION),
    "PredictRequest": {
        **_object(
            {"x": _ROW, "rows": _ROWS, "scores": {"type": "boolean"}, "target": {"type": ["string", "null"]}},
            closed=True,
        ),
        "description": f"{_REQUEST_DOC} `target` asks for a yes or no on one class.",
    },
    "PredictAnswer": _one_or_many(_GUESS, {**_ORIGIN, "target": {"type": "string"}}),
    "InputFault": _object(
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
    "Problem": _object(
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


def _path_parameter(name: str, description: str) -> Json:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string", "minLength": 1},
    }


def _json(schema: str) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


QUERY_OPERATION: Final[Json] = {
    "tags": ["queries"],
    "summary": "Is this the target class?",
    "description": "Asks one student. What cannot be used is named by row and column; no answer holds NaN.",
    "operationId": "query",
    "parameters": [
        _path_parameter("model", "`name`, `name@alias` or `name@3`."),
        _path_parameter("class", "The target class; percent-encode what a path cannot hold."),
    ],
    "requestBody": {"required": True, "content": _json("QueryRequest")},
    "responses": {"200": {"description": "One decision, or a list.", "content": _json("QueryAnswer")}},
}
_SECURITY: Final[Json] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, `stms_…`."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def complete(document: Json) -> Json:
    """Add to the framework's document what it does not know, and take out what is not so."""
    document["paths"]["/v1/models/{model}/classes/{class}:query"] = {"post": QUERY_OPERATION}
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(SCHEMAS)
    components["responses"] = {"Problem": _PROBLEM}
    components["securitySchemes"] = _SECURITY
    # The empty alternative: a server without keys asks for none.
    document["security"] = [{"bearer": []}, {"apiKey": []}, {}]
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = _PROBLEM_REF
    return document
