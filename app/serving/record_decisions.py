"""Decisions of students on records, one record after the other, so that each has the same bits in any query.

Students of the same feature map share the basis values of a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from app.domain.errors import InvalidRequest
from app.http.types import Body
from app.serving.decision import Decisions, RowDecision
from app.serving.faulty_rows import FaultyRows
from app.serving.record_notes import RecordNote
from app.serving.record_sources import RecordSource
from app.serving.records import REFUSED, Records
from app.serving.servable import ServableStudent
from app.serving.work import check_work
from core.packed.record_rows import Values, record_decider

_BLOCK: Final = 256
"""Records that are read and scored together."""


class Decided(NamedTuple):
    """of_students: what each student decides on all records. notes: of each record; None where nothing is
    said, of all records if there are none.

    effects: of each student and record what ``effects`` has given; None without it.
    """

    of_students: list[Decisions]
    notes: list[RecordNote | None] | None
    effects: list[list[bytes]] | None


def decide_records(
    students: Sequence[ServableStudent],
    source: RecordSource,
    *,
    explain: bool = False,
    effects: Callable[[Values], list[bytes]] | None = None,
    rows: Sequence[int] | None = None,
) -> Decided:
    """The decisions of students of one version. rows: which records; None for all.

    effects: of explained records, from their values to what is said of them for each student.
    Raises InvalidRequest naming rows and columns.
    """
    by_columns = [served.score_columns for served in students]
    decide = _decider(students, source.records, explain=explain, effects=effects)
    parts: list[list[Decisions]] = []
    notes: list[RecordNote | None] = []
    said: list[list[bytes]] = []
    some = range(len(source)) if rows is None else rows
    for first in range(0, len(some), _BLOCK):
        block = some[first : first + _BLOCK]
        one_by_one = explain or source.single or not isinstance(block, range)
        at_once = None if one_by_one else _by_columns(by_columns, source, block[0], block[-1] + 1)
        if at_once is None:
            found = source.each(decide, block)
            parts.append(
                [
                    _of_rows(served, [one[place] for one, _, _ in found])
                    for place, served in enumerate(students)
                ]
            )
            notes += [note for _, note, _ in found]
            said += [of_record for _, _, of_record in found if of_record is not None]
        else:
            scores, of_rows = at_once
            parts.append([of_scores(served, own) for served, own in zip(students, scores, strict=True)])
            notes += of_rows or [None] * len(block)
    joined = (
        parts[0] if len(parts) == 1 else [Decisions.joined(of_one) for of_one in zip(*parts, strict=True)]
    )
    said_of_rows = notes if any(note is not None for note in notes) else None
    return Decided(joined, said_of_rows, [list(of_one) for of_one in zip(*said, strict=True)] or None)


def decide_others(
    students: Sequence[ServableStudent],
    source: RecordSource,
    *,
    explain: bool = False,
    effects: Callable[[Values], list[bytes]] | None = None,
) -> tuple[Decided, FaultyRows]:
    """As `decide_records`, on the records that can be answered.

    Raises InvalidRequest where none can be, and for very many that cannot.
    """
    decide, left_out = _decider(students, source.records, explain=explain, effects=effects), FaultyRows()
    found = []
    for number in range(len(source)):
        try:
            found += source.each(decide, [number])
            left_out.numbers.append(number)
        except InvalidRequest as error:
            left_out.add(number, error)
    left_out.check()
    decisions = [
        _of_rows(served, [one[place] for one, _, _ in found]) for place, served in enumerate(students)
    ]
    notes = [note for _, note, _ in found]
    said = [of_record for _, _, of_record in found if of_record is not None]
    of_classes = [list(of_one) for of_one in zip(*said, strict=True)] or None
    has_notes = any(note is not None for note in notes)
    return Decided(decisions, notes if has_notes else None, of_classes), left_out


def decide_at_once(
    served: ServableStudent, records: Records, data: Body, *, max_rows: int, max_work: int
) -> Decided | None:
    """The decisions of a student that scores by columns on the records of a body; None for any other body.

    Raises TooLarge.
    """
    if served.score_columns is None:
        return None
    try:
        columns, unsure = records.read_columns(lambda decoders: decoders.decode_many(data))
    except REFUSED:
        return None
    n = len(columns[0])
    if n > max_rows:
        return None
    check_work(n, served.work, max_work)
    try:
        scores = served.score_columns(columns)
    except REFUSED:
        return None
    records.tally.add(columns, unsure)
    return Decided([of_scores(served, scores)], records.notes.unusual_of_columns(columns, unsure), None)


def _by_columns(
    scorers: Sequence[Callable[[Sequence[Sequence[Any]]], list[float]] | None],
    source: RecordSource,
    first: int,
    stop: int,
) -> tuple[list[list[float]], list[RecordNote | None] | None] | None:
    """The scores of some records by each student, and their notes; None if each must be looked at alone."""
    known = [score for score in scorers if score is not None]
    if len(known) != len(scorers):
        return None
    try:
        columns, unsure = source.columns(first, stop)
        scores = [score(columns) for score in known]
    except REFUSED:
        return None
    source.records.tally.add(columns, unsure)
    return scores, source.records.notes.unusual_of_columns(columns, unsure)


def _decider(
    students: Sequence[ServableStudent],
    records: Records,
    *,
    explain: bool,
    effects: Callable[[Values], list[bytes]] | None,
) -> Callable[[Values], tuple[list[RowDecision], RecordNote | None, list[bytes] | None]]:
    """From the values of a record to the decisions of some students, and on request to what explains them.

    It raises InvalidProblem.
    """
    decide = record_decider([served.student for served in students], records.rows, explain=explain)

    def decided(values: Values) -> tuple[list[RowDecision], RecordNote | None, list[bytes] | None]:
        found = [RowDecision(*one) for one in decide(values)]
        said = None if effects is None else effects(values)
        return found, records.note(values) if explain else records.notes.unusual(values), said

    return decided


def of_scores(served: ServableStudent, scores: Sequence[float]) -> Decisions:
    """The decisions of a student by its scores."""
    array = np.array(scores, dtype=np.float64)
    calibration = served.student.calibration
    probabilities = None if calibration is None else calibration.probabilities(array)
    return Decisions(array, array >= served.student.threshold, probabilities)


def _of_rows(served: ServableStudent, rows: Sequence[RowDecision]) -> Decisions:
    decisions = of_scores(served, [row.score for row in rows])
    if rows[0].gate is None:
        return decisions
    gate = np.array([row.gate for row in rows], dtype=np.float64)
    pieces = None if rows[0].piece is None else np.array([row.piece for row in rows], dtype=np.int64)
    return replace(decisions, gate=gate, rejection=gate - decisions.scores, pieces=pieces)
