"""Results of the client's methods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from stms_client.cards import Facts, Shown, html_table
from stms_client.errors import Json

if TYPE_CHECKING:
    from numpy.typing import NDArray


Explain: TypeAlias = bool | Literal["columns"]
FaultyRows: TypeAlias = Literal["refuse", "report"]
"""Whether an answer has its parts, or also what each column adds to its score."""
NOTES = ("outside", "outside_count", "unseen", "cut", "known_terms", "missing")
"""What an answer says of a row besides its decision, by the names of the fields."""
_SHOWN_ROWS = 10
EFFECTS = ("base", "exact", "columns", "rest")
"""What an answer explained by columns says, by the names of the fields."""


@dataclass(frozen=True, slots=True, repr=False)
class Decision(Shown):
    """The decision whether a row belongs to the target class. match: score ≥ threshold.

    probability: of the class; None if the student is not calibrated. gate, rejection: S^y(x) and φ(x; θ), the
    score is their difference; None without ``explain``. piece: of a student with several rejections, which of
    them is the largest and decides, from 0; otherwise None. rival: of a head with rivals, the class whose
    score this rejection is. model, version: the version that decided. outside: the first columns of the row,
    by name, whose values are outside the range of the training rows. outside_count: how many columns are
    outside. unseen, cut: of a record, the columns whose category no training row had, and those whose text
    was cut; known_terms: how many words of each text training had, by column; missing: the columns without
    a value, of which every training row had one. Without ``explain`` they are None where they name no
    column, as known_terms and what is not known of a model always is. effects: with ``explain="columns"``
    base, exact, columns and rest, as the service answers them. sample_id: of an answer that people are asked
    about, for `give_feedback`.
    """

    match: bool
    score: float
    threshold: float
    model: str
    version: int
    probability: float | None = None
    gate: float | None = None
    rejection: float | None = None
    piece: int | None = None
    rival: str | None = None
    outside: Sequence[str | int] | None = None
    outside_count: int | None = None
    unseen: Sequence[str] | None = None
    cut: Sequence[str] | None = None
    known_terms: Mapping[str, int] | None = None
    missing: Sequence[str] | None = None
    effects: Mapping[str, Any] | None = field(default=None, repr=False)
    sample_id: str | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any], origin: Mapping[str, Any]) -> Decision:
        """From JSON. origin: the object that contains model and version, and of several classes the notes."""
        noted = document if any(name in document for name in NOTES) else origin
        return cls(
            document["match"],
            document["score"],
            document["threshold"],
            origin["model"],
            origin["version"],
            document.get("probability"),
            document.get("gate"),
            document.get("rejection"),
            document.get("piece"),
            document.get("rival"),
            **{name: noted.get(name) for name in NOTES},
            effects=_effects(document),
        )


@dataclass(frozen=True, slots=True, repr=False)
class Decisions(Shown, Sequence[Decision]):
    """Decisions on n rows by one version of a student.

    scores, probabilities, gates, rejections, pieces: (n,), arrays if the rows were an array, otherwise lists.
    rivals: of a head with rivals, the classes of the deciding pieces; None for arrays.
    probabilities: None if the student is not calibrated, and for arrays without ``explain``. outside,
    outside_counts: of each row as in `Decision`; None for arrays. notes: of each record what `Decision` has
    as unseen, cut, known_terms and missing. effects: of each row as in `Decision`; None without
    ``explain="columns"``. errors: where ``faulty_rows="report"`` was asked for, the first fault of each row
    that cannot be answered, with its number as ``row``; its score is NaN.
    """

    scores: Sequence[float] | NDArray[Any]
    threshold: float
    model: str
    version: int
    probabilities: Sequence[float] | NDArray[Any] | None = None
    gates: Sequence[float] | NDArray[Any] | None = None
    rejections: Sequence[float] | NDArray[Any] | None = None
    pieces: Sequence[int] | NDArray[Any] | None = None
    rivals: Sequence[str | None] | None = None
    outside: Sequence[Sequence[str | int] | None] | None = None
    outside_counts: Sequence[int | None] | None = None
    notes: Sequence[Mapping[str, Any]] | None = None
    effects: Sequence[Mapping[str, Any] | None] | None = None
    errors: Sequence[Mapping[str, Any]] = ()

    @property
    def matches(self) -> Any:
        """score ≥ threshold: a list of bool, or an array."""
        if isinstance(self.scores, list):
            return [score >= self.threshold for score in self.scores]
        return self.scores >= self.threshold  # type: ignore[operator]

    def __len__(self) -> int:
        return len(self.scores)

    def _facts(self) -> Facts:
        counts = {"rows": len(self), "matches": int(sum(self.matches))}
        return counts | {"threshold": self.threshold, "model": self.model, "version": self.version}

    def _repr_html_(self) -> str:
        heads = ("", "match", "score") + (() if self.probabilities is None else ("probability",))
        rows = [
            [number, *(getattr(self[number], name) for name in heads[1:])]
            for number in range(min(len(self), _SHOWN_ROWS))
        ]
        return html_table(repr(self), heads, rows)

    @overload
    def __getitem__(self, index: int) -> Decision: ...
    @overload
    def __getitem__(self, index: slice) -> list[Decision]: ...
    def __getitem__(self, index: int | slice) -> Decision | list[Decision]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        score = float(self.scores[index])
        probability, gate, rejection = (
            None if column is None else float(column[index])
            for column in (self.probabilities, self.gates, self.rejections)
        )
        piece = None if self.pieces is None else int(self.pieces[index])
        rival = None if self.rivals is None else self.rivals[index]
        match = score >= self.threshold
        outside = None if self.outside is None else self.outside[index]
        count = None if self.outside_counts is None else self.outside_counts[index]
        note: Mapping[str, Any] = {} if self.notes is None else self.notes[index]
        odd: Any = [note.get(name) for name in NOTES[2:]]
        effects = None if self.effects is None else self.effects[index]
        parts = (probability, gate, rejection, piece, rival, outside, count, *odd, effects)
        return Decision(match, score, self.threshold, self.model, self.version, *parts)

    def __iter__(self) -> Iterator[Decision]:
        return (self[index] for index in range(len(self)))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Decisions:
        """From JSON."""
        first = next(result for result in document["results"] if result is not None)
        faulty: Json = dict.fromkeys(("score", "probability", "gate", "rejection"), math.nan) | {"piece": -1}
        results = [faulty if result is None else result for result in document["results"]]
        probabilities, gates, rejections, pieces = (
            [result[name] for result in results] if name in first else None
            for name in ("probability", "gate", "rejection", "piece")
        )
        outside, counts = (
            [result.get(name) for result in results] if any(name in result for result in results) else None
            for name in NOTES[:2]
        )
        scores = [result["score"] for result in results]
        rivals = [result.get("rival") for result in results]
        named = rivals if any(rival is not None for rival in rivals) else None
        notes = [{name: result[name] for name in NOTES[2:] if name in result} for result in results]
        effects = [_effects(result) for result in results]
        columns = (
            probabilities,
            gates,
            rejections,
            pieces,
            named,
            outside,
            counts,
            notes if any(notes) else None,
            effects if any(effects) else None,
        )
        errors = document.get("errors", ())
        return cls(scores, first["threshold"], document["model"], document["version"], *columns, errors)


def _effects(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return {name: document[name] for name in EFFECTS if name in document} or None


@dataclass(frozen=True, slots=True)
class Package:
    """The student of a class as bytes. etag: of the answer, with its quotation marks. encoder: the SHA-256 of
    the encoder of its version, None if its rows are numbers. index_base: where the indices of the svmlight
    file of its training rows began, None if there was none.
    """

    content: bytes = field(repr=False)
    etag: str
    model: str
    version: int
    encoder: str | None
    index_base: int | None


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job. id: its number, from which a stream can resume."""

    id: str
    type: str
    data: Json
