"""One query, from its body to its answer: without HTTP, event loop or database.

Everything here may run in a thread: it only reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.http.types import Body
from app.serving.decision import Decisions, decide_all, decide_row
from app.serving.query import responses
from app.serving.query.negotiation import DEFAULT_FORMAT, MediaType, RequestFormat
from app.serving.query.requests import CLASS, QueryRequest, RequestLimits, parse_request, request_of
from app.serving.query.responses import JSON_HEADERS, Answer
from app.serving.query.rows import SparseRow, decode, dense_row, row_error
from app.serving.servable import ServableStudent
from core.errors import InvalidProblem
from core.packed import PackedStudent


def answer_single_row(served: ServableStudent, data: Body, limits: RequestLimits) -> Answer:
    """The answer of one class to a JSON body. Raises InvalidRequest and TooLarge."""
    body = decode(CLASS, data, limits.max_rows)
    if not isinstance(body.x, list) or body.explain:
        return answer([served], request_of(body, DEFAULT_FORMAT), MediaType.JSON, named=False)
    # One row of numbers, what most queries are: the shortest way.
    try:
        score = served.score(body.x)
    except InvalidProblem as error:
        raise row_error(error) from error
    return responses.encode_row(served, score), 1, JSON_HEADERS


def answer_class(
    served: ServableStudent, data: Body, format_: RequestFormat, limits: RequestLimits
) -> Answer:
    """The answer of one class. Raises InvalidRequest and TooLarge."""
    return answer([served], parse_request(CLASS, data, format_, limits), format_.answer, named=False)


def answer_classes(
    students: Sequence[ServableStudent], request: QueryRequest, format_: RequestFormat
) -> Answer:
    """The answer of several classes of one model version. Raises InvalidRequest."""
    return answer(students, request, format_.answer, named=True)


def answer(
    students: Sequence[ServableStudent], request: QueryRequest, media_type: MediaType, *, named: bool
) -> Answer:
    """The decisions of students of one model version, written down.

    named: each with the name of its class. Raises InvalidRequest.
    """
    if request.single and media_type is MediaType.JSON:
        body = _answer_row(students, request, named=named)
        return body, 1, JSON_HEADERS
    decided = _decide(students, request)
    if media_type is not MediaType.JSON:
        body, headers = responses.encode_tensor(
            students, decided, media_type, single=request.single, named=named
        )
        return body, request.n_rows, headers
    if named:
        return responses.encode_rows_of_classes(students, decided), request.n_rows, JSON_HEADERS
    return responses.encode_rows(students[0], decided[0]), request.n_rows, JSON_HEADERS


def _answer_row(students: Sequence[ServableStudent], request: QueryRequest, *, named: bool) -> bytes:
    packed = [served.student for served in students]
    try:
        found = _decide_row(packed, request)
    except InvalidProblem as error:
        raise row_error(error) from error
    if not named:
        return responses.encode_row(students[0], *found[0])
    return responses.encode_row_of_classes(
        [(served, score, gate) for served, (score, gate) in zip(students, found, strict=True)]
    )


def _decide_row(students: Sequence[PackedStudent], request: QueryRequest) -> list[tuple[float, float | None]]:
    x = request.x
    if isinstance(x, SparseRow):
        if not request.explain and all(student.map.kind == "linear" for student in students):
            # Costs the stored entries only, however many columns there are.
            return [(float(student.scores_sparse(x.indices, x.values)[0]), None) for student in students]
        x = dense_row(x, students[0].map.n_columns)
    assert x is not None  # noqa: S101 - without rows there is one
    return decide_row(students, x, explain=request.explain)


def _decide(students: Sequence[ServableStudent], request: QueryRequest) -> list[Decisions]:
    """The decisions on all rows of each student."""
    packed = [served.student for served in students]
    parts: list[list[Decisions]] = []
    for rows, table in request.blocks(packed[0].map.n_columns):
        try:
            parts.append(decide_all(packed, table, explain=request.explain))
        except InvalidProblem as error:
            raise request.error(error, rows.start) from error
    return parts[0] if len(parts) == 1 else [Decisions.joined(of_one) for of_one in zip(*parts, strict=True)]
