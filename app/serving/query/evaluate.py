"""One query, from its body to its answer: without HTTP, event loop or database.

Everything here may run in a thread: it only reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.http.body import Body
from app.serving.decision import Decisions, decide_all, decide_row
from app.serving.query import responses
from app.serving.query.negotiation import PLAIN, Form, Manner
from app.serving.query.requests import CLASS, Limits, Question, question_of, read_question
from app.serving.query.responses import JSON_HEADERS, Answer
from app.serving.query.rows import SparseRow, decode, dense_row, row_error
from app.serving.servable import ServedStudent
from core.errors import InvalidProblem
from core.packed import PackedStudent


def ask_plain(served: ServedStudent, data: Body, limits: Limits) -> Answer:
    """The answer of one class to a JSON body. Raises InvalidRequest and TooLarge."""
    body = decode(CLASS, data, limits.max_rows)
    if not isinstance(body.x, list) or body.explain:
        return answer([served], question_of(body, PLAIN), Form.JSON, named=False)
    # One row of numbers, what most queries are: the shortest way.
    try:
        score = served.score(body.x)
    except InvalidProblem as error:
        raise row_error(error) from error
    return responses.one_row(served, score), 1, JSON_HEADERS


def ask_class(served: ServedStudent, data: Body, manner: Manner, limits: Limits) -> Answer:
    """The answer of one class. Raises InvalidRequest and TooLarge."""
    return answer([served], read_question(CLASS, data, manner, limits), manner.answer, named=False)


def ask_classes(students: Sequence[ServedStudent], question: Question, manner: Manner) -> Answer:
    """The answer of several classes of one model version. Raises InvalidRequest."""
    return answer(students, question, manner.answer, named=True)


def answer(students: Sequence[ServedStudent], question: Question, form: Form, *, named: bool) -> Answer:
    """The decisions of students of one model version, written down.

    named: each with the name of its class. Raises InvalidRequest.
    """
    if question.single and form is Form.JSON:
        body = _answer_row(students, question, named=named)
        return body, 1, JSON_HEADERS
    decided = _decide(students, question)
    if form is not Form.JSON:
        body, headers = responses.numbers(students, decided, form, single=question.single, named=named)
        return body, question.n_rows, headers
    if named:
        return responses.many_rows_of_classes(students, decided), question.n_rows, JSON_HEADERS
    return responses.many_rows(students[0], decided[0]), question.n_rows, JSON_HEADERS


def _answer_row(students: Sequence[ServedStudent], question: Question, *, named: bool) -> bytes:
    packed = [served.student for served in students]
    try:
        found = _decide_row(packed, question)
    except InvalidProblem as error:
        raise row_error(error) from error
    if not named:
        return responses.one_row(students[0], *found[0])
    return responses.one_row_of_classes(
        [(served, score, gate) for served, (score, gate) in zip(students, found, strict=True)]
    )


def _decide_row(students: Sequence[PackedStudent], question: Question) -> list[tuple[float, float | None]]:
    x = question.x
    if isinstance(x, SparseRow):
        if not question.explain and all(student.map.kind == "linear" for student in students):
            # Costs the stored entries only, however many columns there are.
            return [(float(student.scores_sparse(x.indices, x.values)[0]), None) for student in students]
        x = dense_row(x, students[0].map.n_columns)
    assert x is not None  # noqa: S101 - without rows there is one
    return decide_row(students, x, explain=question.explain)


def _decide(students: Sequence[ServedStudent], question: Question) -> list[Decisions]:
    """The decisions on all rows of each student."""
    packed = [served.student for served in students]
    parts: list[list[Decisions]] = []
    for rows, table in question.blocks(packed[0].map.n_columns):
        try:
            parts.append(decide_all(packed, table, explain=question.explain))
        except InvalidProblem as error:
            raise question.error(error, rows.start) from error
    return parts[0] if len(parts) == 1 else [Decisions.joined(of_one) for of_one in zip(*parts, strict=True)]
