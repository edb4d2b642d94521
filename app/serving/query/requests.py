"""Parsing of query requests in all their formats. The values of rows are validated where they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest, NotFound, TooLarge
from app.domain.names import MAX_CLASS_NAME, is_class_label
from app.http.decompression import decompress
from app.http.types import Body
from app.serving.decision import MAX_CLASSES, Explain
from app.serving.faulty_rows import FaultyRows
from app.serving.inputs import Inputs
from app.serving.query.negotiation import MediaType, RequestFormat
from app.serving.query.rows import (
    Block,
    QueryBody,
    Row,
    arranged_row,
    block_error,
    decode,
    dense_blocks,
    dense_row,
    row_error,
)
from app.serving.query.tensors import read_tensor
from app.serving.work import RequestLimits
from core.data.validation import row_blocks
from core.errors import InvalidProblem

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
class QueryRequest:
    """A parsed request whose rows are not yet validated.

    x: a single row (d,). rows: many rows, as JSON texts or as a table (n, d) of float32 or float64. columns:
    names of the numbers in lists, if they are not in the order of the model. reports_faults: whether faulty
    rows are left out. numbers: of the rows in the request, if some were.
    """

    x: Row | NDArray[Any] | None
    rows: list[msgspec.Raw] | NDArray[Any] | None
    explain: Explain
    classes: tuple[str, ...] = ()
    columns: Sequence[str] | None = None
    reports_faults: bool = False
    numbers: Sequence[int] | None = None

    @property
    def single(self) -> bool:
        """Whether the request has a single row."""
        return self.rows is None

    @property
    def n_rows(self) -> int:
        return 1 if self.rows is None else len(self.rows)

    def row(self, inputs: Inputs) -> Row | NDArray[Any]:
        """The single row in the order of the model; raises as `rows.arranged_row`."""
        assert self.x is not None  # noqa: S101 - a request without rows has x
        return arranged_row(self.x, inputs, self.columns)

    def blocks(self, inputs: Inputs, width: int = 1) -> Iterator[Block]:
        """Tables (block, d) of all rows; see `rows.dense_blocks`. Raises InvalidRequest and Unprocessable."""
        if isinstance(self.rows, list):
            yield from dense_blocks(self.rows, inputs, width, self.columns)
        elif self.rows is not None:
            for part in row_blocks(len(self.rows), max(inputs.n_columns, width)):
                yield part, self.rows[part]
        else:
            yield slice(0, 1), np.atleast_2d(dense_row(self.row(inputs), inputs.n_columns))

    def error(self, error: InvalidProblem, first: int = 0) -> InvalidRequest:
        """The request error for an error of the core in a block that begins at row ``first``."""
        if self.single:
            return row_error(error)
        return block_error(error, (self.numbers or range(self.n_rows))[first:])

    def without_faults(self, inputs: Inputs) -> tuple[QueryRequest, FaultyRows]:
        """The request without the rows that cannot be read.

        Raises InvalidRequest where none is left, and for very many.
        """
        rows, left_out = self.rows if isinstance(self.rows, list) else [], FaultyRows()
        for number, row in enumerate(rows):
            try:
                for _ in dense_blocks([row], inputs, 1, self.columns, first=number):
                    left_out.numbers.append(number)
            except InvalidRequest as error:
                left_out.add(number, error)
        left_out.check()
        kept = [rows[number] for number in left_out.numbers]
        return replace(self, rows=kept, numbers=left_out.numbers), left_out


def parse_request(
    decoder: msgspec.json.Decoder[Any], data: Body, format_: RequestFormat, limits: RequestLimits
) -> QueryRequest:
    """Parse the body ``data``. Raises InvalidRequest and TooLarge."""
    data = decompressed(data, format_, limits)
    if format_.body is not MediaType.JSON:
        return parse_tensor(data, format_, limits)
    return request_of(decode(decoder, data, limits.max_rows), format_)


def decompressed(data: Body, format_: RequestFormat, limits: RequestLimits) -> Body:
    """The body without its Content-Encoding. Raises InvalidRequest and TooLarge."""
    return data if format_.encoding is None else decompress(data, limits.max_bytes)


def request_of(body: ClassQuery, format_: RequestFormat) -> QueryRequest:
    """The request of a decoded JSON body."""
    named = body.classes if isinstance(body, ClassesQuery) else None
    classes = format_.classes if named is None else tuple(named)
    explain = body.explain or format_.explain
    return QueryRequest(body.x, body.rows, explain, classes, body.columns, body.faulty_rows == "report")


def parse_tensor(data: Body, format_: RequestFormat, limits: RequestLimits) -> QueryRequest:
    """Parse a raw tensor or an .npy body. Raises InvalidRequest and TooLarge."""
    table = read_tensor(data, format_)
    if table.ndim == 1:
        return QueryRequest(table, None, format_.explain, format_.classes)
    if len(table) == 0:
        message = "The tensor has no rows; at least one is needed."
        raise InvalidRequest(message, code="empty", faults=[InputFault("rows", "empty", message)])
    if len(table) > limits.max_rows:
        message = f"The query has {len(table)} rows; at most {limits.max_rows} are taken."
        raise TooLarge(message, code="too_many_rows")
    return QueryRequest(None, table, format_.explain, format_.classes)


def parse_classes(data: Body, format_: RequestFormat, limits: RequestLimits) -> QueryRequest:
    """Parse a query for several distinct classes. Raises InvalidRequest and TooLarge."""
    check_classes(format_.classes)
    request = parse_request(CLASSES, data, format_, limits)
    if request.classes is not format_.classes:
        check_classes(request.classes)
    check_named(request.classes, request.n_rows)
    return request


def check_named(classes: Sequence[str], n_rows: int) -> None:
    """Raise InvalidRequest if no class is named, and TooLarge if the answer had too many scores."""
    if not classes:
        raise _bad_classes("missing", 'Name the target classes: "classes", or ?class=a&class=b.')
    if len(classes) * n_rows > MAX_SCORES:
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


def _bad_classes(code: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, code=code, faults=[InputFault("classes", code, message)])
