"""Computes the bytes of a response from the bytes of a request and the loaded students, without any I/O.

Everything here is thread-safe, because it only reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest
from app.http.types import Body
from app.serving.columns.base import Decided
from app.serving.columns.explanations import check_explained
from app.serving.columns.faults import refusal
from app.serving.columns.faulty_rows import FaultyRows
from app.serving.columns.notes import RecordNote
from app.serving.columns.table_rows import SparseRow
from app.serving.decision import Decisions
from app.serving.query import responses
from app.serving.query.bodies import Given, decode
from app.serving.query.negotiation import DEFAULT_FORMAT, MediaType, RequestFormat
from app.serving.query.requests import CLASS, Question, check_scores, parse_class, question_of
from app.serving.query.responses import JSON_HEADERS, NO_NOTES, Answer, Notes
from app.serving.servable import ServableStudent
from app.serving.watch import Noted
from app.serving.work import RequestLimits, check_work
from core.errors import InvalidProblem


def answer_class(
    student: ServableStudent,
    data: Body,
    format_: RequestFormat,
    limits: RequestLimits,
    noted: Noted | None = None,
) -> Answer:
    """The answer of one class. noted: gets its scores, if given. Raises InvalidRequest and TooLarge."""
    if format_ is not DEFAULT_FORMAT:
        question = parse_class(data, format_, limits)
        return answer([student], question, format_.answer, limits, noted, named=False)
    # One row, the most frequent query, takes the fastest path.
    if student.score_body is not None:
        score = student.score_body(data)
        if score is not None:
            return _row_answer(student, score, noted)
        decided = student.columns.at_once(student, data, limits)
        if decided is not None:
            decisions = decided.of_students[0]
            _note(noted, student, decisions.scores)
            body = responses.encode_rows(student, decisions, _notes(decided, explained=False))
            return body, len(decisions.scores), JSON_HEADERS
    try:
        given, fields = decode(CLASS, data, limits.max_rows)
    except InvalidRequest as error:
        if error.reason != "wrong_body":
            raise
        text = f"{error.message} For example: {student.columns.example}"
        raise refusal(error.reason, text, "body") from error
    score = None if fields.explain else _score_quickly(student, given)
    if score is not None:
        return _row_answer(student, score, noted)
    question = question_of(given, fields, format_)
    return answer([student], question, MediaType.JSON, limits, noted, named=False)


def _row_answer(student: ServableStudent, score: float, noted: Noted | None) -> Answer:
    _note(noted, student, score)
    return responses.encode_row(student, score), 1, JSON_HEADERS


def _note(
    noted: Noted | None,
    student: ServableStudent,
    scores: float | NDArray[np.float64],
    numbers: Sequence[int] | None = None,
) -> None:
    if noted is not None and student.watch.is_on:
        noted.append((student.watch, scores, numbers))


def _score_quickly(student: ServableStudent, given: Given) -> float | None:
    """The score of one row of numbers in the order of the columns; None for others and for faulty rows."""
    x, columns, score_sparse = given.content, student.columns, student.score_sparse
    if given.form != "x" or given.names is not None or not columns.takes_lists:
        return None
    try:
        if isinstance(x, list):
            return student.score(cast(list[float], x))
        if isinstance(x, SparseRow) and x.index_base is None and not columns.index_base and score_sparse:
            return score_sparse(cast(list[int], x.indices), x.values)
    except InvalidProblem:
        # Other code reports the faults of the row.
        return None
    return None


def answer_classes(
    students: Sequence[ServableStudent],
    question: Question,
    format_: RequestFormat,
    limits: RequestLimits,
    noted: Noted | None = None,
) -> Answer:
    """The answer of several classes of one model version. Raises InvalidRequest and TooLarge."""
    return answer(students, question, format_.answer, limits, noted, named=True)


def answer(
    students: Sequence[ServableStudent],
    question: Question,
    media_type: MediaType,
    limits: RequestLimits,
    noted: Noted | None = None,
    *,
    named: bool,
) -> Answer:
    """The encoded decisions of students of one model version.

    noted: gets the scores to note, if given. named: whether each decision names its class. Raises
    InvalidRequest and TooLarge.
    """
    is_json, explain = media_type is MediaType.JSON, question.explain
    check_explained(explain, limits, is_json=is_json)
    _check_reported(question, is_json=is_json)
    rows = question.given.of(students[0].columns, limits.max_rows)
    check_scores(len(students), len(rows))
    if len(rows) * len(students) > 1:
        check_work(len(rows), rows.work(students, explain), limits.max_work, classes=len(students))
    if rows.single and is_json:
        decisions, note, effects = rows.one(students, explain, limits)
        for student, decision in zip(students, decisions, strict=True):
            _note(noted, student, decision.score)
        of_row = Decided(
            [],
            None if note is None else [note],
            None if effects is None else [[explained] for explained in effects],
        )
        notes = _notes(of_row, explained=bool(explain))
        if named:
            return responses.encode_row_of_classes(students, decisions, notes), 1, JSON_HEADERS
        of_only = notes.of_only_class()
        body = responses.encode_row(students[0], *decisions[0], note=None if of_only is None else of_only[0])
        return body, 1, JSON_HEADERS
    left_out = None
    try:
        decided = rows.decide(students, explain, limits)
    except InvalidRequest:
        if rows.single or not question.reports_faults:
            raise
        decided, left_out = rows.decide_others(students, explain, limits)
    for student, of_student in zip(students, decided.of_students, strict=True):
        _note(noted, student, of_student.scores, None if left_out is None else left_out.numbers)
    return encode_all(
        students,
        decided.of_students,
        _notes(decided, explained=bool(explain)),
        media_type,
        single=rows.single,
        named=named,
        left_out=left_out,
    )


def _notes(decided: Decided, *, explained: bool) -> Notes:
    of_rows: list[RecordNote | None] | None = decided.notes
    if of_rows is None and decided.effects is None:
        return NO_NOTES
    encoded = None if of_rows is None else [responses.note_of(note, explained=explained) for note in of_rows]
    return Notes(encoded, decided.effects)


def _check_reported(question: Question, *, is_json: bool) -> None:
    """Refuse to leave rows out of an answer that is a tensor."""
    if question.reports_faults and not is_json:
        text = "faulty_rows: report is answered in JSON, and the request accepts none."
        fault = InputFault("faulty_rows", "bad_parameter", text)
        raise InvalidRequest(text, code="bad_parameter", faults=[fault])


def encode_all(
    students: Sequence[ServableStudent],
    decisions: Sequence[Decisions],
    notes: Notes,
    media_type: MediaType,
    *,
    single: bool,
    named: bool,
    left_out: FaultyRows | None = None,
) -> Answer:
    """The answer of the decisions of each student. notes: for JSON. left_out: rows without decisions."""
    n_rows = len(decisions[0].scores)
    if media_type is not MediaType.JSON:
        body, headers = responses.encode_tensor(students, decisions, media_type, single=single, named=named)
        return body, n_rows, headers
    if named:
        body = responses.encode_rows_of_classes(students, decisions, notes, left_out)
    else:
        body = responses.encode_rows(students[0], decisions[0], notes, left_out)
    return body, n_rows, JSON_HEADERS
