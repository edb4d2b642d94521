"""The description of the queries: their rows and answers in every form."""

from __future__ import annotations

from typing import Any, Final

from app.serving.query.negotiation import DTYPES, MediaType
from app.serving.query.paths import MAX_LABEL
from app.serving.query.requests import MAX_CLASSES
from core.data.checks import MAX_MAGNITUDE

Json = dict[str, Any]


def object_of(properties: Json, *required: str, closed: bool = False) -> Json:
    """The schema of an object."""
    described: Json = {"type": "object", "properties": properties}
    if required:
        described["required"] = list(required)
    if closed:
        described["additionalProperties"] = False
    return described


_NUMBER: Final[Json] = {"type": "number", "minimum": -MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE}
_NUMBERS: Final[Json] = {"type": "array", "items": _NUMBER}
_ROW: Final[Json] = {
    "oneOf": [{"$ref": "#/components/schemas/DenseRow"}, {"$ref": "#/components/schemas/SparseRow"}]
}
_ROWS: Final[Json] = {"type": "array", "items": _ROW, "minItems": 1}
_NOTHING: Final[Json] = {"type": "null"}
_ORIGIN: Final[Json] = {"model": {"type": "string"}, "version": {"type": "integer"}}
_DECISION: Final[Json] = {
    "match": {"type": "boolean", "description": "score ≥ threshold"},
    "score": {"type": "number", "description": "S^y(x) − θ·φ(x)"},
    "threshold": {"type": "number"},
}
_MORE: Final[Json] = {
    "probability": {"type": "number", "description": "Of the class; where the student is calibrated."},
    "gate": {"type": "number", "description": "S^y(x), the teacher's score of the class; on request."},
    "rejection": {"type": "number", "description": "θ·φ(x), what the gate is held against; on request."},
}
_GUESS: Final[Json] = {
    "label": {"type": "string"},
    "scores": {"type": "object", "additionalProperties": {"type": "number"}},
    "match": {"type": "boolean"},
    "classes_evaluated": {"type": "integer"},
}


def _one_or_many(result: Json, origin: Json, *required: str) -> Json:
    one = object_of({**result, **origin, "results": False}, *required, "model", "version")
    many = {"type": "array", "items": object_of(result, *required)}
    return {"oneOf": [one, object_of({"results": many, **origin}, "results", "model", "version")]}


def _class_answer() -> Json:
    """Of one class among several: its name, and what it would have answered alone."""
    name = {"class": {"type": "string"}}
    result = object_of({**_DECISION, **_MORE}, *_DECISION)
    one = object_of({**name, **_DECISION, **_MORE}, "class", *_DECISION)
    return {
        "oneOf": [one, object_of({**name, "results": {"type": "array", "items": result}}, "class", "results")]
    }


_REQUEST_DOC: Final = (
    "Either one row as `x`, or many as `rows`; a row is dense, with a number for each column of the model, "
    "or sparse with 0 in all other columns."
)
_EXPLAIN: Final[Json] = {
    "type": "boolean",
    "default": False,
    "description": "Give the gate and the rejection, too.",
}


def _request(fields: Json, description: str) -> Json:
    """The body of a query: one row or many, and what else may be said."""
    one = object_of({"x": _ROW, "rows": _NOTHING, **fields}, "x", closed=True)
    many = object_of({"rows": _ROWS, "x": _NOTHING, **fields}, "rows", closed=True)
    return {
        "oneOf": [{"title": "One row", **one}, {"title": "Many rows", **many}],
        "description": description,
    }


_CLASS: Final[Json] = {"type": "string", "minLength": 1, "maxLength": MAX_LABEL}
_CLASSES: Final[Json] = {
    "type": "array",
    "items": _CLASS,
    "minItems": 1,
    "maxItems": MAX_CLASSES,
    "uniqueItems": True,
}

SCHEMAS: Final[Json] = {
    "DenseRow": {**_NUMBERS, "minItems": 1},
    "SparseRow": object_of(
        {"indices": {"type": "array", "items": {"type": "integer", "minimum": 0}}, "values": _NUMBERS},
        "indices",
        "values",
        closed=True,
    ),
    "QueryRequest": _request({"explain": _EXPLAIN}, _REQUEST_DOC),
    "QueryAnswer": _one_or_many({**_DECISION, **_MORE}, _ORIGIN, *_DECISION),
    "ClassesQueryRequest": _request(
        {"classes": {"oneOf": [_CLASSES, _NOTHING]}, "explain": _EXPLAIN}, _REQUEST_DOC
    ),
    "ClassesQueryAnswer": object_of(
        {"classes": {"type": "array", "items": _class_answer()}, **_ORIGIN}, "classes", "model", "version"
    ),
    "PredictRequest": _request(
        {"scores": {"type": "boolean"}, "target": {"type": ["string", "null"]}},
        f"{_REQUEST_DOC} `target` asks for a yes or no on one class.",
    ),
    "PredictAnswer": _one_or_many(_GUESS, {**_ORIGIN, "target": {"type": "string"}}),
}


def _parameter(name: str, place: str, description: str, schema: Json | None = None) -> Json:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": schema or {"type": "string", "minLength": 1},
    }


TENSOR_PARAMETERS: Final = [
    _parameter(
        "X-Tensor-Shape",
        "header",
        "Of a raw tensor: its columns (one row), or rows and columns, `10000,64`.",
        {"type": "string", "pattern": "^ *[0-9]{1,12} *(, *[0-9]{1,12} *)?$"},
    ),
    _parameter(
        "X-Tensor-Dtype",
        "header",
        "Of a raw tensor.",
        {"type": "string", "enum": [name.decode() for name in DTYPES]},
    ),
    _parameter(
        "Content-Encoding",
        "header",
        "How the body is packed.",
        {"type": "string", "enum": ["gzip", "deflate", "identity"]},
    ),
]
"""Headers of every operation that takes rows."""

_ROW_EXAMPLES: Final[Json] = {
    "one": {"summary": "One row", "value": {"x": [0.5, -1.25, 3]}},
    "many": {"summary": "Many rows", "value": {"rows": [[0.5, -1.25, 3], [1, 0, 2]]}},
    "sparse": {
        "summary": "A sparse row: its columns that are not 0",
        "value": {"x": {"indices": [0, 2], "values": [0.5, 3]}, "explain": True},
    },
}
_TENSOR_HEADERS: Final[Json] = {
    name: {"description": description, "schema": {"type": "string"}}
    for name, description in {
        "X-Tensor-Shape": "Of a binary answer: rows (if many), classes (if several), columns (if several).",
        "X-Tensor-Dtype": "Of a binary answer: float64, little-endian.",
        "X-Tensor-Columns": "Of a binary answer: score, or score, probability, gate and rejection.",
        "X-Model": "Of a binary answer: the model.",
        "X-Model-Version": "Of a binary answer: the version that decided.",
        "X-Threshold": "Of a binary answer: the threshold of each class asked, with commas between.",
    }.items()
}


def _json(schema: str) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _bytes(kind: MediaType) -> Json:
    return {"type": "string", "format": "binary", "contentMediaType": kind.value.decode()}


def body_of(schema: str, examples: Json | None = None) -> Json:
    """A request body of rows: JSON of ``schema``, a raw tensor, or an .npy file."""
    content = _json(schema)
    if examples is not None:
        content["application/json"]["examples"] = examples
    for kind in (MediaType.TENSOR, MediaType.NPY):
        content[kind.value.decode()] = {"schema": _bytes(kind)}
    return {"required": True, "content": content}


def _answer_of(schema: str, description: str) -> Json:
    content = _json(schema)
    for kind in (MediaType.TENSOR, MediaType.NPY):
        content[kind.value.decode()] = {"schema": _bytes(kind)}
    return {"200": {"description": description, "headers": _TENSOR_HEADERS, "content": content}}


_MODEL: Final = _parameter("model", "path", "`name`, `name@alias` or `name@3`.")
_EXPLAINED: Final = _parameter("explain", "query", _EXPLAIN["description"], {"type": "boolean"})
_FORMS_DOC: Final = (
    "Rows come as JSON, as raw little-endian numbers (`application/octet-stream` with `X-Tensor-Shape` and "
    "`X-Tensor-Dtype`) or as an `.npy` file (`application/x-npy`); `Accept` chooses among the same for the "
    "answer. What cannot be used is named by row and column; no answer holds NaN."
)

QUERY_OPERATION: Final[Json] = {
    "tags": ["queries"],
    "summary": "Is this the target class?",
    "description": f"Asks one student. {_FORMS_DOC}",
    "operationId": "query",
    "parameters": [
        _MODEL,
        _parameter("class", "path", "The target class; percent-encode what a path cannot hold."),
        _EXPLAINED,
        *TENSOR_PARAMETERS,
    ],
    "requestBody": body_of("QueryRequest", _ROW_EXAMPLES),
    "responses": _answer_of("QueryAnswer", "One decision, or a list."),
}
CLASSES_OPERATION: Final[Json] = {
    "tags": ["queries"],
    "summary": "Which of these classes is this?",
    "description": (
        f"Asks the students of several classes about the same rows; the rows are mapped once where students "
        f"share a map. The classes are in the JSON body, or in the query string. {_FORMS_DOC}"
    ),
    "operationId": "query_classes",
    "parameters": [
        _MODEL,
        _parameter(
            "class",
            "query",
            "A target class; once for each, where the body does not name them.",
            _CLASSES,
        ),
        _EXPLAINED,
        *TENSOR_PARAMETERS,
    ],
    "requestBody": body_of(
        "ClassesQueryRequest",
        {"two": {"summary": "One row, two classes", "value": {"classes": ["A", "B"], "x": [0.5, -1.25, 3]}}},
    ),
    "responses": _answer_of("ClassesQueryAnswer", "What each class answers, in the order asked."),
}
PATHS: Final[Json] = {
    "/v1/models/{model}/classes/{class}:query": {"post": QUERY_OPERATION},
    "/v1/models/{model}:query": {"post": CLASSES_OPERATION},
}
"""The operations that the framework does not see."""
