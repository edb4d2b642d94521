"""From the bytes of a request and the loaded students to the bytes of a response, without any I/O.

Everything here is thread-safe, since it only reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest
from app.http.types import Body
from app.serving.decision import COLUMNS, Decisions, RowDecision, decide_all, decide_row
from app.serving.explanations import (
    check_explained,
    numbers_explainer,
    record_explainer,
)
from app.serving.faulty_rows import FaultyRows
from app.serving.outside import Outside
from app.serving.query import responses
from app.serving.query.negotiation import DEFAULT_FORMAT, MediaType, RequestFormat
from app.serving.query.record_bodies import CLASS_RECORDS
from app.serving.query.record_requests import RecordRequest, parse_records
from app.serving.query.requests import CLASS, QueryRequest, parse_request, request_of
from app.serving.query.responses import JSON_HEADERS, NO_NOTES, Answer, Notes
from app.serving.query.rows import Row, SparseRow, decode, dense_row, row_error
from app.serving.record_decisions import Decided, decide_at_once, decide_others, decide_records
from app.serving.records import Records
from app.serving.servable import ServableStudent
from app.serving.work import RequestLimits, check_work
from core.errors import InvalidProblem
from core.packed import PackedStudent
from core.packed.work import record_work, students_work


def answer_class(
    student: ServableStudent, data: Body, format_: RequestFormat, limits: RequestLimits
) -> Answer:
    """The answer of one class. Raises InvalidRequest and TooLarge."""
    records = student.inputs.records
    if records is not None:
        return answer_record(student, records, data, format_, limits)
    if format_ is not DEFAULT_FORMAT:
        request = parse_request(CLASS, data, format_, limits)
        return answer([student], request, format_.answer, limits, named=False)
    body = decode(CLASS, data, limits.max_rows)
    x, score_sparse = body.x, student.score_sparse
    if (
        x is None
        or body.explain
        or body.columns is not None
        or (
            type(x) is SparseRow
            and (score_sparse is None or x.index_base is not None or student.inputs.index_base)
        )
    ):
        return answer([student], request_of(body, format_), MediaType.JSON, limits, named=False)
    # One row in JSON, the most frequent query, takes the shortest way.
    try:
        if isinstance(x, list):
            score = student.score(x)
        else:
            assert score_sparse is not None  # noqa: S101 - otherwise it was answered above
            score = score_sparse(cast(list[int], x.indices), x.values)
    except InvalidProblem as error:
        raise row_error(error) from error
    return responses.encode_row(student, score), 1, JSON_HEADERS


def answer_record(
    student: ServableStudent, records: Records, data: Body, format_: RequestFormat, limits: RequestLimits
) -> Answer:
    """The answer of one class of a version with an encoder. Raises InvalidRequest and TooLarge."""
    if format_ is DEFAULT_FORMAT:
        # One record or text, the most frequent query, takes the shortest way.
        assert student.score_body is not None  # noqa: S101 - the version has an encoder
        score = student.score_body(data)
        if score is not None:
            return responses.encode_row(student, score), 1, JSON_HEADERS
        decided = decide_at_once(student, records, data, max_rows=limits.max_rows, max_work=limits.max_work)
        if decided is not None:
            decisions = decided.of_students[0]
            body = responses.encode_rows(student, decisions, _notes(decided, explained=False))
            return body, len(decisions.scores), JSON_HEADERS
    request = parse_records(CLASS_RECORDS, data, format_, records, limits)
    return answer_parsed([student], request, format_.answer, limits, named=False)


def answer_classes(
    students: Sequence[ServableStudent],
    request: QueryRequest | RecordRequest,
    format_: RequestFormat,
    limits: RequestLimits,
) -> Answer:
    """The answer of several classes of one model version. Raises InvalidRequest and TooLarge."""
    return answer_parsed(students, request, format_.answer, limits, named=True)


def answer_parsed(
    students: Sequence[ServableStudent],
    request: QueryRequest | RecordRequest,
    media_type: MediaType,
    limits: RequestLimits,
    *,
    named: bool,
) -> Answer:
    """As `answer`, also of records."""
    if isinstance(request, QueryRequest):
        return answer(students, request, media_type, limits, named=named)
    check_explained(request.explain, limits, is_json=media_type is MediaType.JSON)
    _check_reported(request, media_type)
    source, explain = request.source, bool(request.explain)
    if len(source) * len(students) > 1:
        packed = [served.student for served in students]
        per_record = record_work(packed, source.records.rows, explain=explain)
        check_work(len(source), per_record, limits.max_work, classes=len(students))
    explainer = record_explainer(students, source, limits) if request.explain == COLUMNS else None
    left_out = None
    try:
        decided = decide_records(students, source, explain=explain, effects=explainer)
    except InvalidRequest:
        if source.single or not request.reports_faults:
            raise
        decided, left_out = decide_others(students, source, explain=explain, effects=explainer)
    decisions, notes = decided.of_students, _notes(decided, explained=explain)
    if source.single and media_type is MediaType.JSON:
        return _encode_one(students, [one.first for one in decisions], notes, named=named), 1, JSON_HEADERS
    return encode_all(
        students, decisions, notes, media_type, single=source.single, named=named, left_out=left_out
    )


def _notes(decided: Decided, *, explained: bool) -> Notes:
    of_rows = decided.notes
    return Notes(
        None
        if of_rows is None
        else [responses.note_of_record(note, explained=explained) for note in of_rows],
        decided.effects,
    )


def answer(
    students: Sequence[ServableStudent],
    request: QueryRequest,
    media_type: MediaType,
    limits: RequestLimits,
    *,
    named: bool,
) -> Answer:
    """The encoded decisions of students of one model version.

    named: whether each decision names its class. Raises InvalidRequest and TooLarge.
    """
    check_explained(request.explain, limits, is_json=media_type is MediaType.JSON)
    _check_reported(request, media_type)
    if request.n_rows * len(students) > 1:
        packed = [servable.student for servable in students]
        per_row = students_work(packed, explain=bool(request.explain))
        check_work(request.n_rows, per_row, limits.max_work, classes=len(students))
    if request.single and media_type is MediaType.JSON:
        return _answer_row(students, request, limits, named=named), 1, JSON_HEADERS
    left_out = None
    try:
        decisions, outside = _decide(students, request)
    except InvalidRequest:
        if not request.reports_faults:
            raise
        request, left_out = request.without_faults(students[0].inputs)
        decisions, outside = _decide(students, request)
    notes = Notes(
        None if outside is None else [*map(responses.note_of_outside, outside)],
        _effects(students, request, limits) if request.explain == COLUMNS else None,
    )
    return encode_all(
        students, decisions, notes, media_type, single=request.single, named=named, left_out=left_out
    )


def _check_reported(request: QueryRequest | RecordRequest, media_type: MediaType) -> None:
    """Refuse to leave rows out of an answer that is a tensor."""
    if request.reports_faults and media_type is not MediaType.JSON:
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


def _answer_row(
    students: Sequence[ServableStudent], request: QueryRequest, limits: RequestLimits, *, named: bool
) -> bytes:
    inputs = students[0].inputs
    x = request.row(inputs)
    try:
        decided = _decide_row([servable.student for servable in students], x, bool(request.explain))
    except InvalidProblem as error:
        raise row_error(error) from error
    notes = NO_NOTES
    if request.explain:
        outside = inputs.outside(np.atleast_2d(dense_row(x, inputs.n_columns)))
        notes = Notes(
            None if outside is None else [responses.note_of_outside(outside[0])],
            _effects(students, request, limits) if request.explain == COLUMNS else None,
        )
    return _encode_one(students, decided, notes, named=named)


def _encode_one(
    students: Sequence[ServableStudent], decided: Sequence[RowDecision], notes: Notes, *, named: bool
) -> bytes:
    if named:
        return responses.encode_row_of_classes(students, decided, notes)
    of_row = notes.of_only_class()
    return responses.encode_row(students[0], *decided[0], note=None if of_row is None else of_row[0])


def _effects(
    students: Sequence[ServableStudent], request: QueryRequest, limits: RequestLimits
) -> list[list[bytes]]:
    """The explanation by columns of each row by each student."""
    inputs = students[0].inputs
    explain = numbers_explainer(students, inputs, request.n_rows, limits)
    effects: list[list[bytes]] = [[] for _ in students]
    for rows, table in request.blocks(inputs):
        try:
            found = explain(table)
        except InvalidProblem as error:
            raise request.error(error, rows.start) from error
        for of_one, own in zip(effects, found, strict=True):
            of_one += own
    return effects


def _decide_row(students: Sequence[PackedStudent], x: Row | NDArray[Any], explain: bool) -> list[RowDecision]:
    """The decision of each student on one row, whose columns are in order."""
    if isinstance(x, SparseRow):
        if not explain and all(student.map.kind == "linear" for student in students):
            # Costs only the stored entries, however many columns there are.
            return [RowDecision(float(student.scores_sparse(x.indices, x.values)[0])) for student in students]
        x = dense_row(x, students[0].map.n_columns)
    return decide_row(students, x, explain=explain)


def _decide(
    students: Sequence[ServableStudent], request: QueryRequest
) -> tuple[list[Decisions], list[Outside] | None]:
    """The decisions of each student on all rows, and on request the columns outside their range."""
    packed, inputs = [servable.student for servable in students], students[0].inputs
    blocks: list[list[Decisions]] = []
    outside: list[Outside] = []
    for rows, table in request.blocks(inputs):
        try:
            blocks.append(decide_all(packed, table, explain=bool(request.explain)))
        except InvalidProblem as error:
            raise request.error(error, rows.start) from error
        if request.explain:
            outside += inputs.outside(table) or ()
    known = outside or None
    if len(blocks) == 1:
        return blocks[0], known
    return [Decisions.joined(of_student) for of_student in zip(*blocks, strict=True)], known
