"""Decisions of students on records, one record after the other, so that each has the same bits in any query.

Students of the same feature map share the basis values of a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from app.domain.errors import InvalidRequest
from app.http.types import Body
from app.serving.columns.base import Decided, RowAnswer, Scored, Students
from app.serving.columns.decoders import REFUSED
from app.serving.columns.explanations import record_explainer
from app.serving.columns.faulty_rows import FaultyRows
from app.serving.columns.notes import RecordNote
from app.serving.columns.reading import Records
from app.serving.columns.records import CellRecords, JsonRecords, RecordRows, TextRecords
from app.serving.decision import COLUMNS, Decisions, Explain, RowDecision
from app.serving.work import RequestLimits, check_work
from core.packed.record_rows import Values, record_decider

_BLOCK: Final = 256
"""Records that are read and scored together."""


class _ByRecords(RecordRows):
    """Records that an encoder makes numbers of."""

    named: Records

    def work(self, students: Students, explain: Explain) -> int:
        return self.columns.work([served.student for served in students], explain=bool(explain))

    def one(self, students: Students, explain: Explain, limits: RequestLimits) -> RowAnswer:
        [answer] = self.each(self._decider(students, explain, limits), [0])
        return answer

    def decide(
        self, students: Students, explain: Explain, limits: RequestLimits, some: Sequence[int] | None = None
    ) -> Decided:
        decide = self._decider(students, explain, limits)
        gathered = _Gathered(students)
        numbers = range(len(self)) if some is None else some
        for first in range(0, len(numbers), _BLOCK):
            block = numbers[first : first + _BLOCK]
            one_by_one = explain or self.single or not isinstance(block, range)
            at_once = None if one_by_one else self._by_columns(students, block[0], block[-1] + 1)
            if at_once is None:
                gathered.add_records(self.each(decide, block))
            else:
                scores, notes = at_once
                gathered.add_scores(scores, notes or [None] * len(block))
        return gathered.decided()

    def decide_others(
        self, students: Students, explain: Explain, limits: RequestLimits
    ) -> tuple[Decided, FaultyRows]:
        decide, left_out = self._decider(students, explain, limits), FaultyRows()
        answered: list[RowAnswer] = []
        for number in range(len(self)):
            try:
                answered += self.each(decide, [number])
                left_out.numbers.append(number)
            except InvalidRequest as error:
                left_out.add(number, error)
        left_out.check()
        gathered = _Gathered(students)
        gathered.add_records(answered)
        return gathered.decided(), left_out

    def _by_columns(
        self, students: Students, first: int, stop: int
    ) -> tuple[list[list[float]], list[RecordNote | None] | None] | None:
        """The scores of some records by each student, and their notes; None if each must be read alone."""
        scorers = [served.score_columns for served in students if served.score_columns is not None]
        if len(scorers) != len(students):
            return None
        try:
            lists, unsure = self.lists(first, stop)
            scores = [score(lists) for score in scorers]
        except REFUSED:
            return None
        self.named.count.add(lists, unsure)
        return scores, self.named.notes.unusual_of_columns(lists, unsure)

    def _decider(
        self, students: Students, explain: Explain, limits: RequestLimits
    ) -> Callable[[Values], RowAnswer]:
        """From the values of a record to the answer. It raises InvalidProblem. Raises TooLarge."""
        named = self.named
        decide = record_decider([served.student for served in students], named.rows, explain=bool(explain))
        effects = record_explainer(students, named, len(self), limits) if explain == COLUMNS else None

        def answer(values: Values) -> RowAnswer:
            decisions = [RowDecision(*decision) for decision in decide(values)]
            explained = None if effects is None else effects(values)
            note = named.note(values) if explain else named.notes.unusual(values)
            return RowAnswer(decisions, note, explained)

        return answer


class EncodedJson(_ByRecords, JsonRecords):
    """Objects of JSON."""


class EncodedTexts(_ByRecords, TextRecords):
    """Texts."""


class EncodedCells(_ByRecords, CellRecords):
    """Lists of values by the names of columns."""


class _Gathered:
    """What students decided on blocks of records, one block after the other."""

    def __init__(self, students: Students) -> None:
        self._students = students
        self._blocks: list[list[Decisions]] = []
        self._notes: list[RecordNote | None] = []
        self._effects: list[list[bytes]] = []

    def add_records(self, answers: Sequence[RowAnswer]) -> None:
        """Add a block of records that were decided one after the other."""
        self._blocks.append(
            [
                _of_rows(served, [answer.decisions[place] for answer in answers])
                for place, served in enumerate(self._students)
            ]
        )
        self._notes += [answer.note for answer in answers]
        self._effects += [answer.effects for answer in answers if answer.effects is not None]

    def add_scores(self, scores: Sequence[Sequence[float]], notes: Sequence[RecordNote | None]) -> None:
        """Add a block of records by the scores of each student."""
        pairs = zip(self._students, scores, strict=True)
        self._blocks.append([of_scores(served, of_student) for served, of_student in pairs])
        self._notes += notes

    def decided(self) -> Decided:
        """All blocks as one."""
        blocks = self._blocks
        of_students = (
            [Decisions.joined(parts) for parts in zip(*blocks, strict=True)] if len(blocks) > 1 else blocks[0]
        )
        notes = self._notes if any(note is not None for note in self._notes) else None
        effects = [list(of_student) for of_student in zip(*self._effects, strict=True)]
        return Decided(of_students, notes, effects or None)


def decide_at_once(served: Scored, records: Records, data: Body, limits: RequestLimits) -> Decided | None:
    """The decisions of a student that scores by columns on the records of a body; None for any other body.

    Raises TooLarge.
    """
    if served.score_columns is None:
        return None
    try:
        lists, unsure = records.read_columns(lambda decoders: decoders.decode_many(data))
    except REFUSED:
        return None
    n = len(lists[0])
    if n > limits.max_rows:
        return None
    check_work(n, records.work([served.student], explain=False), limits.max_work)
    try:
        scores = served.score_columns(lists)
    except REFUSED:
        return None
    records.count.add(lists, unsure)
    return Decided([of_scores(served, scores)], records.notes.unusual_of_columns(lists, unsure), None)


def of_scores(served: Scored, scores: Sequence[float]) -> Decisions:
    """The decisions of a student by its scores."""
    array = np.array(scores, dtype=np.float64)
    calibration = served.student.calibration
    probabilities = None if calibration is None else calibration.probabilities(array)
    return Decisions(array, array >= served.student.threshold, probabilities)


def _of_rows(served: Scored, rows: Sequence[RowDecision]) -> Decisions:
    decisions = of_scores(served, [row.score for row in rows])
    if rows[0].gate is None:
        return decisions
    gate = np.array([row.gate for row in rows], dtype=np.float64)
    pieces = None if rows[0].piece is None else np.array([row.piece for row in rows], dtype=np.int64)
    return replace(decisions, gate=gate, rejection=gate - decisions.scores, pieces=pieces)
