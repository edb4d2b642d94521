"""The OpenAPI description of the queries, which FastAPI does not route."""

from __future__ import annotations

from typing import Annotated, Any, Final, NotRequired, TypedDict

from msgspec import Meta

from app.domain.entities import Json
from app.domain.errors import InputFault
from app.http.json_schema import one_of, ref, schema_of, schemas_of
from app.serving.columns.table_rows import Number, SparseRow
from app.serving.decision import COLUMNS
from app.serving.query.bodies import MAX_PICTURES, QueryBody
from app.serving.query.negotiation import DTYPES, MediaType
from app.serving.query.requests import CLASSES_SCHEMA, EXPLAIN_DOC, ClassesQuery, ClassName, ClassQuery

_PIECE_DOC: Final = (
    "Of a student with several rejections, on request: which of them is the largest and decides, from 0."
)


_OUTSIDE_DOC: Final = (
    "The first 10 of these columns by name; by number if they have none, from 0 or as in the svmlight file."
)


class Decision(TypedDict):
    """The decision of one student on one row."""

    match: Annotated[bool, Meta(description="score ≥ threshold")]
    score: Annotated[float, Meta(description="S^y(x) − θ·φ(x)")]
    threshold: float
    probability: NotRequired[Annotated[float, Meta(description="Of the class; of calibrated students only.")]]
    gate: NotRequired[Annotated[float, Meta(description="S^y(x), the teacher's score; on request.")]]
    rejection: NotRequired[Annotated[float, Meta(description="θ·φ(x), compared with the gate; on request.")]]
    piece: NotRequired[Annotated[int, Meta(description=_PIECE_DOC, ge=0)]]
    rival: NotRequired[Annotated[str, Meta(description="Of a head with rivals: the class of this piece.")]]


class AnsweredBy(TypedDict):
    """The version that decided."""

    model: str
    version: int


_MISSING_DOC: Final = (
    "Columns without a value that every training row had; the answer takes what the others say."
)
_UNSEEN_DOC: Final = "Categories with a value that no row of training had."


class OutsideRange(TypedDict):
    """Which columns of a row are outside the range of the training rows: of records always where there are
    some, of other rows on request, where it is known.
    """

    outside: NotRequired[Annotated[list[str | int], Meta(description=_OUTSIDE_DOC)]]
    outside_count: NotRequired[Annotated[int, Meta(description="How many columns are outside.", ge=0)]]


class RecordNotes(TypedDict):
    """What answers say of a record besides; unless it is explained, only what names a column."""

    missing: NotRequired[Annotated[list[str], Meta(description=_MISSING_DOC)]]
    unseen: NotRequired[Annotated[list[str], Meta(description=_UNSEEN_DOC)]]
    cut: NotRequired[
        Annotated[list[str], Meta(description="Texts of which only the first 64 KiB were read.")]
    ]
    known_terms: NotRequired[
        Annotated[dict[str, int], Meta(description="Of each text: how many of its words training had.")]
    ]


class WordEffect(TypedDict):
    """What a word of a text adds to the score."""

    word: str
    effect: float


class ColumnEffect(TypedDict):
    """What a column adds to the score, compared with a typical row."""

    name: str | int
    effect: float
    known: Annotated[bool, Meta(description="Whether training had such a value.")]
    value: NotRequired[Annotated[Any, Meta(description="Of the row; a long text is cut.")]]
    words: NotRequired[Annotated[list[WordEffect], Meta(description="Of a text: the 10 that say most.")]]


class ColumnEffects(TypedDict):
    """What the columns of a row add to the score; only with `explain` = `columns`."""

    base: NotRequired[Annotated[float, Meta(description="The score of a typical row.")]]
    exact: NotRequired[Annotated[bool, Meta(description="Whether base and effects add up to the score.")]]
    columns: NotRequired[Annotated[list[ColumnEffect], Meta(description="The 100 that say most.")]]
    rest: NotRequired[Annotated[float, Meta(description="The sum of all other effects, if there are any.")]]


class NotedRow(OutsideRange, RecordNotes):
    """What is said of one row of a query of several classes."""


class RangedDecision(Decision, OutsideRange, RecordNotes, ColumnEffects):
    """The decision of one student on one row, and where the row is outside the range."""


class RowAnswer(RangedDecision, AnsweredBy):
    """The answer for one row."""


class WithFaults(TypedDict):
    """What is answered where `faulty_rows` is `report` and some rows are faulty."""

    errors: NotRequired[Annotated[list[InputFault], Meta(description="The first fault of each such row.")]]


class RowsAnswer(AnsweredBy, WithFaults):
    """The answer for many rows, in their order; null for a faulty row, which has an entry of `errors`."""

    results: list[RangedDecision | None]


class ExplainedDecision(Decision, ColumnEffects):
    """The decision of one class among several on one row."""


_OfClass = TypedDict("_OfClass", {"class": str})


class ClassRowAnswer(ExplainedDecision, _OfClass):
    """The decision of one class among several on one row."""


class ClassRowsAnswer(_OfClass):
    """The decisions of one class among several on many rows."""

    results: list[ExplainedDecision | None]


class ClassesQueryAnswer(AnsweredBy, OutsideRange, RecordNotes, WithFaults):
    """The answers of several classes, in the order requested. rows: of many rows, what is outside."""

    classes: Annotated[
        list[Any], Meta(extra_json_schema={"items": one_of("ClassRowAnswer", "ClassRowsAnswer")})
    ]
    rows: NotRequired[list[NotedRow]]


class PredictedClass(TypedDict):
    """The teacher's decision on one row."""

    label: str
    scores: NotRequired[Annotated[dict[str, float], Meta(description="Of all classes; on request.")]]


class TargetDecision(TypedDict):
    """The teacher's decision whether one row belongs to a target class."""

    match: bool
    classes_evaluated: int


class _OfTarget(AnsweredBy):
    target: str


class PredictRowAnswer(PredictedClass, AnsweredBy):
    """The teacher's answer for one row."""


class PredictRowsAnswer(AnsweredBy):
    """The teacher's answer for many rows, in their order."""

    results: list[PredictedClass]


class TargetRowAnswer(TargetDecision, _OfTarget):
    """The teacher's answer for one row and a target class."""


class TargetRowsAnswer(_OfTarget):
    """The teacher's answer for many rows and a target class."""

    results: list[TargetDecision]


_ROW: Final = one_of("DenseRow", "SparseRow", "NamedRow")
_NULL: Final[Json] = {"type": "null"}
_REQUEST_DOC: Final = (
    "Either one row as `x`, or many as `rows`; a row is dense, with a number for each column of the model, "
    "sparse with 0 in all other columns, or an object of numbers by the names of the columns. `columns` names"
    " the numbers of dense rows, which are then put into the order of the model. Models whose columns have"
    " names take `record` or `records`, objects of values by these names, and with columns of texts, dates or"
    " gaps nothing else: `GET /v1/models/{model}/versions/{version}/schema` describes them. Such models also"
    " take `columns`, lists of values by names, and a model of one column of texts takes `text` or `texts`,"
    " one of pictures `image`, `images`, `embedding` or `embeddings`."
)
_PICTURE: Final[Json] = {
    "type": "string",
    "minLength": 1,
    "description": "Base64 of a JPEG, PNG or WebP, or a data URL of it.",
}
_VECTOR: Final[Json] = {
    "type": "array",
    "items": {"type": "number"},
    "minItems": 1,
    "description": "The numbers that the encoder of the version makes of a picture.",
}
_RECORDS: Final[Json] = {
    "record": ref("Record"),
    "records": {"type": "array", "items": ref("Record"), "minItems": 1},
    "columns": ref("Columns"),
    "text": {"type": "string", "description": "The text that is asked about."},
    "texts": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "image": _PICTURE,
    "images": {"type": "array", "items": _PICTURE, "minItems": 1, "maxItems": MAX_PICTURES},
    "embedding": _VECTOR,
    "embeddings": {"type": "array", "items": _VECTOR, "minItems": 1},
}
"""The further forms of a query, of which a body has exactly one."""


def request_schema(body: type[QueryBody], description: str = _REQUEST_DOC) -> Json:
    """The schema of a JSON query: the fields of ``body``, with exactly one of ``x`` and ``rows``."""
    schema = schemas_of(body)[body.__name__]
    rows = {"type": "array", "items": _ROW, "minItems": 1}
    one: Json = {
        "title": f"{body.__name__} of one row",
        "required": ["x"],
        "properties": {"x": _ROW, "rows": _NULL},
    }
    many: Json = {
        "title": f"{body.__name__} of many rows",
        "required": ["rows"],
        "properties": {"rows": rows, "x": _NULL},
    }
    shapes = [
        {**schema, **shape, "properties": {**schema["properties"], **shape["properties"]}}
        for shape in (one, many)
    ]
    others = {
        name: kind for name, kind in schema["properties"].items() if name not in ("x", "rows", "columns")
    }
    shapes += [
        {
            **schema,
            "title": f"{body.__name__} with {form}",
            "required": [form],
            "properties": {form: kind, **others},
        }
        for form, kind in _RECORDS.items()
    ]
    return {"oneOf": shapes, "description": description}


SCHEMAS: Final[Json] = {
    **schemas_of(SparseRow, RowAnswer, RowsAnswer, ClassRowAnswer, ClassRowsAnswer, ClassesQueryAnswer),
    **schemas_of(PredictRowAnswer, PredictRowsAnswer, TargetRowAnswer, TargetRowsAnswer),
    "DenseRow": {**schema_of(list[Number]), "minItems": 1},
    "NamedRow": {
        "type": "object",
        "additionalProperties": schema_of(Number),
        "minProperties": 1,
        "description": "A number for each column, by the names in `inputs.columns` of the version.",
    },
    "Record": {
        "type": "object",
        "additionalProperties": {},
        "description": "A value for each column by its name; null or no value is a gap, where it is taken.",
    },
    "Columns": {
        "type": "object",
        "additionalProperties": {"type": "array", "items": {}},
        "minProperties": 1,
        "description": "Values of many records by the names of columns; null is a gap, where it is taken.",
    },
    "QueryRequest": request_schema(ClassQuery),
    "QueryAnswer": one_of("RowAnswer", "RowsAnswer"),
    "ClassesQueryRequest": request_schema(ClassesQuery),
    "PredictAnswer": one_of("PredictRowAnswer", "PredictRowsAnswer", "TargetRowAnswer", "TargetRowsAnswer"),
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
        "How the body is compressed.",
        {"type": "string", "enum": ["gzip", "deflate", "identity"]},
    ),
]
"""Request headers of every operation that takes rows."""

_ROW_EXAMPLES: Final[Json] = {
    "one": {"summary": "One row", "value": {"x": [0.5, -1.25, 3]}},
    "many": {"summary": "Many rows", "value": {"rows": [[0.5, -1.25, 3], [1, 0, 2]]}},
    "sparse": {
        "summary": "A sparse row: its columns that are not 0",
        "value": {"x": {"indices": [0, 2], "values": [0.5, 3]}, "explain": True},
    },
    "named": {"summary": "A row by names", "value": {"x": {"length": 0.5, "width": -1.25, "height": 3}}},
    "record": {"summary": "A record", "value": {"record": {"age": 39, "job": "clerk", "since": None}}},
    "columns": {"summary": "Many records", "value": {"columns": {"age": [39, 28], "job": ["clerk", None]}}},
    "text": {"summary": "A text", "value": {"text": "My card has not arrived."}},
}
_TENSOR_HEADERS: Final[Json] = {
    name: {"description": description, "schema": {"type": "string"}}
    for name, description in {
        "X-Tensor-Shape": "Of a binary answer: rows (if many), classes (if several), columns (if several).",
        "X-Tensor-Dtype": "Of a binary answer: float64, little-endian.",
        "X-Tensor-Columns": "Of a binary answer: score, or score, probability, gate, rejection and piece.",
        "X-Model": "Of a binary answer: the model.",
        "X-Model-Version": "Of a binary answer: the version that decided.",
        "X-Threshold": "Of a binary answer: the thresholds of the requested classes, separated by commas.",
    }.items()
}


def _json(schema: str) -> Json:
    return {"application/json": {"schema": ref(schema)}}


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
_EXPLAINED: Final = _parameter(
    "explain", "query", EXPLAIN_DOC, {"anyOf": [{"type": "boolean"}, {"const": COLUMNS}]}
)
_FORMS_DOC: Final = (
    "Rows come as JSON, as raw little-endian numbers (`application/octet-stream` with `X-Tensor-Shape` and "
    "`X-Tensor-Dtype`) or as an `.npy` file (`application/x-npy`); a picture comes as it is"
    " (`image/jpeg`, `image/png`, `image/webp`), or as the file of a form. `Accept` chooses among the"
    " others for the answer. Errors name row and column; no answer contains NaN."
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
        f"Asks the students of several classes about the same rows, which are transformed once where "
        f"students share a feature map. The classes are in the JSON body or the query string. {_FORMS_DOC}"
    ),
    "operationId": "query_classes",
    "parameters": [
        _MODEL,
        _parameter(
            "class",
            "query",
            "A target class, repeated for several; for bodies that do not name them.",
            {**schema_of(list[ClassName]), **CLASSES_SCHEMA},
        ),
        _EXPLAINED,
        *TENSOR_PARAMETERS,
    ],
    "requestBody": body_of(
        "ClassesQueryRequest",
        {"two": {"summary": "One row, two classes", "value": {"classes": ["A", "B"], "x": [0.5, -1.25, 3]}}},
    ),
    "responses": _answer_of("ClassesQueryAnswer", "The answer of each class, in the order requested."),
}
PATHS: Final[Json] = {
    "/v1/models/{model}/classes/{class}:query": {"post": QUERY_OPERATION},
    "/v1/models/{model}:query": {"post": CLASSES_OPERATION},
}
"""The operations that FastAPI does not route."""
