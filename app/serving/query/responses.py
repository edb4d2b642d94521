"""Encoding of answers: JSON assembled from pre-rendered parts, or scores as a tensor.

one row:    {"match": …, "score": …, "threshold": …, "model": …, "version": …}
many rows:  {"results": [{"match": …, "score": …, "threshold": …}, …], "model": …, "version": …}
classes:    {"classes": [{"class": …, …}, …], "model": …, "version": …}, each as one class answers

"outside" and "outside_count" are present on request if the version knows the ranges of its columns: the
first columns of the row that are outside, and their number. With several classes they are present once per
row, in "rows" if there are many rows. Records also have "missing", "unseen", "cut" and "known_terms", see
`RecordNote`; without a request, each except the last is present if it names a column. Rows that are explained
by columns have the fields of ``app.serving.columns.explanations`` in each decision.
Rows that cannot be answered have null instead of a decision if "faulty_rows" is "report", and an entry of
"errors", as in problem documents.
"probability" is present for calibrated students; on request "gate" and "rejection", and for students with
several rejections "piece", the number of the largest one from 0, with "rival" if it is a class's score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.http.problem import NO_STORE
from app.serving.columns.faulty_rows import FaultyRows
from app.serving.columns.notes import RecordNote
from app.serving.decision import Decisions, RowDecision
from app.serving.query.negotiation import MediaType
from app.serving.query.tensors import write_tensor
from app.serving.servable import ServableStudent

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
Answer: TypeAlias = tuple[bytes, int, Headers]
"""(body, rows decided, headers)."""

JSON_HEADERS: Final[Headers] = ((b"content-type", MediaType.JSON.value), NO_STORE)

# For finite floats: the shortest text that parses to the same number, ten times as fast as repr.
_text: Final = msgspec.json.Encoder().encode
_DECISION_START: Final = (b'{"match":false,"score":', b'{"match":true,"score":')


class Notes(NamedTuple):
    """Notes about rows besides their decisions. of_rows: of each row, for all classes; may be empty.

    effects: of each class and row. Both are None if there are no notes.
    """

    of_rows: Sequence[bytes] | None = None
    effects: Sequence[Sequence[bytes]] | None = None

    def of_only_class(self) -> list[bytes] | None:
        """Note and effects of each row together, in a query for one class."""
        of_class = None if self.effects is None else self.effects[0]
        parts = [part for part in (self.of_rows, of_class) if part is not None]
        return [b",".join(filter(None, of_row)) for of_row in zip(*parts, strict=True)] or None

    def of_class(self, place: int) -> Sequence[bytes] | None:
        """The effects of each row, in a query for several classes."""
        return None if self.effects is None else self.effects[place]


NO_NOTES: Final = Notes()


def encode_row(
    servable: ServableStudent,
    score: float,
    gate: float | None = None,
    piece: int | None = None,
    *,
    note: bytes | None = None,
) -> bytes:
    """The answer for one row and one class. gate, piece, note: None unless requested."""
    if servable.student.calibration is None and gate is None and not note:
        start = _DECISION_START[score >= servable.student.threshold]
        return b"%s%s%s" % (start, _text(score), servable.json_suffix)
    fields = b"," + note if note else b""
    return _decision(servable, score, gate, piece) + fields + servable.json_model_fields


def encode_row_of_classes(
    students: Sequence[ServableStudent],
    decided: Sequence[RowDecision],
    notes: Notes = NO_NOTES,
) -> bytes:
    """The answer for one row and several classes."""
    parts = [
        servable.json_class + _decision(servable, *decision)[1:] + _fields(notes.of_class(place)) + b"}"
        for place, (servable, decision) in enumerate(zip(students, decided, strict=True))
    ]
    fields = _fields(notes.of_rows)
    return b'{"classes":[' + b",".join(parts) + b"]" + fields + students[0].json_model_fields


def encode_rows(
    servable: ServableStudent,
    decisions: Decisions,
    notes: Notes = NO_NOTES,
    left_out: FaultyRows | None = None,
) -> bytes:
    """The answer for many rows and one class. left_out: rows without decisions."""
    results = _results(servable, decisions, notes.of_only_class(), left_out)
    return b"{" + results + _errors(left_out) + servable.json_model_fields


def encode_rows_of_classes(
    students: Sequence[ServableStudent],
    decided: Sequence[Decisions],
    notes: Notes = NO_NOTES,
    left_out: FaultyRows | None = None,
) -> bytes:
    """The answer for many rows and several classes. left_out: rows without decisions."""
    parts = [
        servable.json_class + _results(servable, decisions, notes.of_class(place), left_out) + b"}"
        for place, (servable, decisions) in enumerate(zip(students, decided, strict=True))
    ]
    rows = b""
    if notes.of_rows is not None:
        of_rows = list(notes.of_rows) if left_out is None else left_out.spread([*notes.of_rows], b"")
        rows = b',"rows":[{' + b"},{".join(of_rows) + b"}]"
    return (
        b'{"classes":[' + b",".join(parts) + b"]" + rows + _errors(left_out) + students[0].json_model_fields
    )


def encode_tensor(
    students: Sequence[ServableStudent],
    decided: Sequence[Decisions],
    media_type: MediaType,
    *,
    single: bool,
    named: bool,
) -> tuple[bytes, Headers]:
    """The scores as a float64 tensor (rows, classes, columns), with the headers that describe it.

    Axes without information are dropped: rows if ``single``, classes unless ``named``, and columns if there
    is only the score. With ``explain`` the columns are score, probability (if all students are calibrated),
    gate, rejection, and piece (if all students have several rejections).
    """
    columns = {"score": [decisions.scores for decisions in decided]}
    gates = [decisions.gate for decisions in decided if decisions.gate is not None]
    rejections = [decisions.rejection for decisions in decided if decisions.rejection is not None]
    if gates:
        probabilities = [d.probabilities for d in decided if d.probabilities is not None]
        if len(probabilities) == len(decided):
            columns["probability"] = probabilities
        columns |= {"gate": gates, "rejection": rejections}
        pieces = [d.pieces.astype(np.float64) for d in decided if d.pieces is not None]
        if len(pieces) == len(decided):
            columns["piece"] = pieces
    # (columns, classes, rows) becomes (rows, classes, columns).
    table: NDArray[np.float64] = np.array(list(columns.values())).transpose(2, 1, 0)
    shape = [
        size for size, kept in zip(table.shape, (not single, named, len(columns) > 1), strict=True) if kept
    ]
    table = np.ascontiguousarray(table.reshape(shape or [1]))
    thresholds = b",".join(_text(servable.student.threshold) for servable in students)
    headers = (
        (b"content-type", media_type.value),
        NO_STORE,
        (b"x-tensor-shape", ",".join(map(str, table.shape)).encode()),
        (b"x-tensor-dtype", b"float64"),
        (b"x-tensor-columns", ",".join(columns).encode()),
        (b"x-model", students[0].model.encode("ascii")),
        (b"x-model-version", b"%d" % students[0].version),
        (b"x-threshold", thresholds),
    )
    return write_tensor(table, media_type), headers


def _decision(servable: ServableStudent, score: float, gate: float | None, piece: int | None) -> bytes:
    """The JSON object of one decision, without its closing brace."""
    student = servable.student
    text = _DECISION_START[score >= student.threshold] + _text(score) + servable.json_threshold
    if student.calibration is not None:
        text += b',"probability":' + _text(student.calibration.probability(score))
    if gate is not None:
        text += b',"gate":%s,"rejection":%s' % (_text(gate), _text(gate - score))
    if piece is not None:
        text += servable.json_pieces[piece]
    return text


def _fields(notes: Sequence[bytes] | None) -> bytes:
    """The note of the only row, as further fields."""
    return b"," + notes[0] if notes and notes[0] else b""


def note_of(note: RecordNote | None, *, explained: bool) -> bytes:
    """The fields about one row; unless it is explained, only fields that name a column."""
    if note is None:
        return b""
    fields = {
        "missing": note.missing,
        "unseen": note.unseen,
        "cut": note.cut,
        "known_terms": note.known_terms,
    }
    outside = b'"outside":%s,"outside_count":%d' % (_text(note.outside.columns), note.outside.total)
    parts = [outside] if explained or note.outside.total else []
    parts += [
        b'"%s":%s' % (name.encode(), _text(value))
        for name, value in fields.items()
        if (value is not None if explained else value)
    ]
    return b",".join(parts)


def _errors(left_out: FaultyRows | None) -> bytes:
    return b"" if left_out is None else b',"errors":' + left_out.errors


def _results(
    servable: ServableStudent,
    decisions: Decisions,
    notes: Sequence[bytes] | None = None,
    left_out: FaultyRows | None = None,
) -> bytes:
    """The JSON list of all decisions of one student, with its name; null for rows that were left out."""
    texts = [
        _DECISION_START[match] + score
        for match, score in zip(decisions.match.tolist(), _texts(decisions.scores), strict=True)
    ]
    optional = {
        b"probability": decisions.probabilities,
        b"gate": decisions.gate,
        b"rejection": decisions.rejection,
    }
    start = servable.json_threshold
    for name, values in optional.items():
        if values is not None:
            start += b',"%s":' % name
            texts = [text + start + value for text, value in zip(texts, _texts(values), strict=True)]
            start = b""
    if decisions.pieces is not None:
        pieces = servable.json_pieces
        texts = [text + pieces[piece] for text, piece in zip(texts, decisions.pieces.tolist(), strict=True)]
    if notes is not None:
        texts = [
            text + start + b"," + note if note else text + start
            for text, note in zip(texts, notes, strict=True)
        ]
        start = b""
    close = start + b"}"
    if left_out is not None:
        return b'"results":[' + b",".join(left_out.spread([text + close for text in texts])) + b"]"
    return b'"results":[' + (close + b",").join(texts) + close + b"]"


def _texts(values: NDArray[np.float64]) -> list[bytes]:
    return _text(values.tolist())[1:-1].split(b",")
