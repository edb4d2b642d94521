"""Decisions of students on records, one record after the other, so that each has the same bits in any query.

Students of the same feature map share the basis values of a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

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


_OfRecord: TypeAlias = tuple[list[RowDecision], RecordNote | None, list[bytes] | None]
"""What each student decided, what is said of the record, and of each student what explains it."""


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
    gathered = _Gathered(students)
    some = range(len(source)) if rows is None else rows
    for first in range(0, len(some), _BLOCK):
        block = some[first : first + _BLOCK]
        one_by_one = explain or source.single or not isinstance(block, range)
        at_once = None if one_by_one else _by_columns(by_columns, source, block[0], block[-1] + 1)
        if at_once is None:
            gathered.add_records(source.each(decide, block))
        else:
            scores, notes = at_once
            gathered.add_scores(scores, notes or [None] * len(block))
    return gathered.decided()


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
    answered: list[_OfRecord] = []
    for number in range(len(source)):
        try:
            answered += source.each(decide, [number])
            left_out.numbers.append(number)
        except InvalidRequest as error:
            left_out.add(number, error)
    left_out.check()
    gathered = _Gathered(students)
    gathered.add_records(answered)
    return gathered.decided(), left_out


class _Gathered:
    """What students decided on blocks of records, one block after the other."""

    def __init__(self, students: Sequence[ServableStudent]) -> None:
        self._students = students
        self._blocks: list[list[Decisions]] = []
        self._notes: list[RecordNote | None] = []
        self._effects: list[list[bytes]] = []

    def add_records(self, records: Sequence[_OfRecord]) -> None:
        """Add a block of records that were decided one after the other."""
        self._blocks.append(
            [
                _of_rows(served, [decisions[place] for decisions, _, _ in records])
                for place, served in enumerate(self._students)
            ]
        )
        self._notes += [note for _, note, _ in records]
        self._effects += [effects for _, _, effects in records if effects is not None]

    def add_scores(self, scores: Sequence[Sequence[float]], notes: Sequence[RecordNote | None]) -> None:
        """Add a block of records by the scores of each student."""
        pairs = zip(self._students, scores, strict=True)
        self._blocks.append([of_scores(served, of_student) for served, of_student in pairs])
        self._notes += notes

    def decided(self) -> Decided:
        """All blocks as one."""
        blocks = self._blocks
        joined = len(blocks) > 1
        of_students = (
            [Decisions.joined(parts) for parts in zip(*blocks, strict=True)] if joined else blocks[0]
        )
        notes = self._notes if any(note is not None for note in self._notes) else None
        effects = [list(of_student) for of_student in zip(*self._effects, strict=True)]
        return Decided(of_students, notes, effects or None)


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
) -> Callable[[Values], _OfRecord]:
    """From the values of a record to the decisions of some students, and on request to what explains them.

    It raises InvalidProblem.
    """
    decide = record_decider([served.student for served in students], records.rows, explain=explain)

    def decided(values: Values) -> _OfRecord:
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
