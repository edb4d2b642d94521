"""Queries in all their formats, as `Question`. The values of rows are validated where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from app.domain.errors import InputFault, InvalidRequest, NotFound, TooLarge
from app.domain.names import MAX_CLASS_NAME, is_class_label
from app.http.decompression import decompress
from app.http.types import Body
from app.serving.columns.faults import check_count
from app.serving.decision import MAX_CLASSES, Explain
from app.serving.query.bodies import Given, QueryBody, decode
from app.serving.query.negotiation import MediaType, RequestFormat
from app.serving.query.tensors import read_tensor
from app.serving.work import RequestLimits

EXPLAIN_DOC: Final = (
    "Include the gate, the rejection and its piece; with `columns` also what each column adds to the score."
)
FAULTY_DOC: Final = (
    "Of many rows, where some cannot be answered: `report` answers the others, with null and an entry of"
    " `errors` for each of these; `refuse` answers none. Only in JSON."
)
MAX_SCORES: Final = 2_000_000
"""Largest number of scores, rows times classes, in one answer."""


ClassName = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_CLASS_NAME})]
CLASSES_SCHEMA: Final = {"minItems": 1, "maxItems": MAX_CLASSES, "uniqueItems": True}


class ClassQuery(QueryBody):
    """JSON body of a query for one class."""

    explain: Annotated[Explain, Meta(description=EXPLAIN_DOC)] = False
    faulty_rows: Annotated[Literal["refuse", "report"], Meta(description=FAULTY_DOC)] = "refuse"


class ClassesQuery(ClassQuery):
    """JSON body of a query for several classes. `parse_classes` checks the bounds in its schema."""

    classes: Annotated[list[ClassName], Meta(extra_json_schema=CLASSES_SCHEMA)] | None = None


CLASS: Final = msgspec.json.Decoder(ClassQuery)
CLASSES: Final = msgspec.json.Decoder(ClassesQuery)


@dataclass(frozen=True, slots=True)
class Question:
    """The contents of a query, before its version is known.

    reports_faults: whether to leave out faulty rows.
    """

    given: Given
    explain: Explain
    classes: tuple[str, ...] = ()
    reports_faults: bool = False


def parse_class(data: Body, format_: RequestFormat, limits: RequestLimits) -> Question:
    """Parse a query for one class. Raises InvalidRequest and TooLarge."""
    return _parse(CLASS, data, format_, limits)


def parse_classes(data: Body, format_: RequestFormat, limits: RequestLimits) -> Question:
    """Parse a query for several distinct classes. Raises InvalidRequest and TooLarge."""
    check_classes(format_.classes)
    question = _parse(CLASSES, data, format_, limits)
    if question.classes is not format_.classes:
        check_classes(question.classes)
    check_named(question.classes)
    check_scores(len(question.classes), question.given.least)
    return question


def _parse(
    decoder: msgspec.json.Decoder[Any], data: Body, format_: RequestFormat, limits: RequestLimits
) -> Question:
    data = decompressed(data, format_, limits)
    if format_.body is not MediaType.JSON:
        return Question(given_tensor(data, format_, limits), format_.explain, format_.classes)
    return question_of(*decode(decoder, data, limits.max_rows), format_)


def question_of(given: Given, fields: ClassQuery, format_: RequestFormat) -> Question:
    """The question in a decoded JSON body."""
    # Bodies with undecoded rows have another type with the same fields.
    named = getattr(fields, "classes", None)
    classes = format_.classes if named is None else tuple(named)
    return Question(given, fields.explain or format_.explain, classes, fields.faulty_rows == "report")


def decompressed(data: Body, format_: RequestFormat, limits: RequestLimits) -> Body:
    """The body without its Content-Encoding. Raises InvalidRequest and TooLarge."""
    return data if format_.encoding is None else decompress(data, limits.max_bytes)


def given_tensor(data: Body, format_: RequestFormat, limits: RequestLimits) -> Given:
    """The rows of a raw tensor or an .npy body. Raises InvalidRequest and TooLarge."""
    table = read_tensor(data, format_)
    if table.ndim == 1:
        return Given("x", table)
    check_count(len(table), "rows", limits.max_rows)
    return Given("rows", table)


def check_scores(classes: int, n_rows: int) -> None:
    """Raise TooLarge if the answer had too many scores."""
    if classes * n_rows > MAX_SCORES:
        raise TooLarge(f"At most {MAX_SCORES} scores are given in one answer.", code="too_many_scores")


def check_classes(classes: Sequence[str]) -> None:
    """Raise for impossible names, duplicates, and too many classes."""
    if len(set(classes)) != len(classes):
        raise _bad_classes("duplicate", "A class is named twice.")
    unknown = next((label for label in classes if not is_class_label(label)), None)
    if unknown is not None:
        raise NotFound(f"There is no class {unknown!r:.80}.", code="class_not_found")
    if len(classes) > MAX_CLASSES:
        message = f"The query names {len(classes)} classes; at most {MAX_CLASSES} are taken."
        raise TooLarge(message, code="too_many_classes")


def check_named(classes: Sequence[str]) -> None:
    """Raise InvalidRequest if no class is named."""
    if not classes:
        raise _bad_classes("missing", 'Name the target classes: "classes", or ?class=a&class=b.')


def _bad_classes(code: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, code=code, faults=[InputFault("classes", code, message)])
