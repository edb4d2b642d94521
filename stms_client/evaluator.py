"""Decisions of downloaded students, by the same arithmetic as the service's. Needs NumPy and safetensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stms_client._packed.encoder import Encoder
from stms_client._packed.errors import InvalidPackage, InvalidProblem
from stms_client._packed.map_packages import map_from_bytes
from stms_client._packed.maps import PackedMap
from stms_client._packed.record_rows import RecordRows, record_scorers
from stms_client._packed.student import PackedStudent, named_map, row_scorer, sparse_scorer
from stms_client._packed.validation import row_blocks
from stms_client.arrays import ClassName, class_name, is_array, is_record, numbers, question, row_values
from stms_client.errors import InvalidInput, StmsError
from stms_client.results import Decision, Decisions, Package
from stms_client.tables import is_table, records_of

_SHOWN = 20
_PLAIN = frozenset({int, float})
"""Types of numbers of JSON."""


class _Student:
    """A student with what scores rows and records. of_record: None if its version takes numbers only."""

    def __init__(self, student: PackedStudent, rows: RecordRows | None) -> None:
        self.student = student
        self.threshold = student.threshold
        self.of_numbers: Callable[[list[float]], float] | None = None
        if rows is None or rows.are_numbers:
            self.of_numbers = row_scorer(student)
        self.of_stored = sparse_scorer(student)
        self.of_record = None if rows is None else record_scorers(student, rows).one


class Evaluator:
    """Students of one version by class. Safe for use from several threads.

    packages: by class, of one version. encoder: of the version, if it has one; kept as encoder_bytes. maps:
    by digest, those of `named_maps`; kept as maps. etag: of the first package. Raises StmsError for bytes
    that are damaged or of another version.
    """

    def __init__(
        self, packages: Mapping[str, Package], encoder: bytes | None, maps: Mapping[str, bytes] | None = None
    ) -> None:
        first = next(iter(packages.values()))
        self.model, self.version, self.etag = first.model, first.version, first.etag
        self.encoder_digest, self.encoder_bytes = first.encoder, encoder
        self._index_base = first.index_base
        if encoder is not None and hashlib.sha256(encoder).hexdigest() != first.encoder:
            raise StmsError("The encoder that was sent is not that of the version.")
        self.maps = dict(maps or {})
        try:
            self._rows = None if encoder is None else RecordRows(Encoder.from_bytes(encoder))
            read = {digest: map_from_bytes(content, digest=digest) for digest, content in self.maps.items()}
            self._students = {
                label: _Student(_student_of(package, first.version, read), self._rows)
                for label, package in packages.items()
            }
        except InvalidPackage as error:
            raise StmsError(f"What was sent cannot be evaluated: {error}") from error
        self._names = frozenset() if self._rows is None else self._known_names(self._rows)

    def match(self, label: ClassName, x: Any, text: str | None) -> bool:
        """Whether a row or text belongs to a class. Raises InvalidInput."""
        known = self._student(label)
        return self._score(known, x, text) >= known.threshold

    def decision(self, label: ClassName, x: Any, text: str | None) -> Decision:
        """The decision on a row or text. Raises InvalidInput."""
        known = self._student(label)
        score, calibration = self._score(known, x, text), known.student.calibration
        probability = None if calibration is None else calibration.probability(score)
        threshold = known.threshold
        return Decision(score >= threshold, score, threshold, self.model, self.version, probability)

    def decisions(self, label: ClassName, rows: Any, texts: Sequence[str] | None) -> Decisions:
        """The decisions on many rows or texts. Raises InvalidInput."""
        known = self._student(label)
        if (rows is None) == (texts is None):
            raise InvalidInput("A query is about rows or about texts: give one of them.")
        try:
            scores = self._scores(known, rows, texts)
        except InvalidProblem as error:
            raise InvalidInput(str(error), code=error.faults[0].code) from error
        listed: Any = scores.tolist() if isinstance(scores, np.ndarray) else scores
        calibration, probabilities = known.student.calibration, None
        if rows is not None and is_array(rows):
            listed = scores
        elif calibration is not None:
            probabilities = calibration.probabilities(np.array(listed, dtype=np.float64)).tolist()
        return Decisions(listed, known.threshold, self.model, self.version, probabilities)

    def _student(self, label: ClassName) -> _Student:
        known = self._students.get(label if type(label) is str else class_name(label))
        if known is None:
            text = (
                f"Class {label!r:.80} is none of those that are evaluated: {list(self._students)[:_SHOWN]}."
            )
            raise InvalidInput(text)
        return known

    def _score(self, known: _Student, x: Any, text: str | None) -> float:
        try:
            is_plain = type(x) is list and text is None and _PLAIN.issuperset(map(type, x))
            if is_plain and known.of_numbers is not None:
                return known.of_numbers(x)
            return self._score_of(known, question(x, text))
        except InvalidProblem as error:
            raise InvalidInput(str(error), code=error.faults[0].code) from error

    def _score_of(self, known: _Student, asked: Mapping[str, Any]) -> float:
        """The score of what `question` made of a row or text. Raises InvalidProblem and InvalidInput."""
        if "x" not in asked:
            return self._of_record(known, asked.get("record"), asked.get("text"))
        x = asked["x"]
        if known.of_numbers is None:
            raise InvalidInput("Rows of this model are records: values by the names of their columns.")
        if not isinstance(x, dict):
            return known.of_numbers(_plain(x))
        indices, values = self._stored(x)
        if known.of_stored is not None:
            return known.of_stored(indices, values)
        return known.student.score(self._dense(x, known))

    def _scores(self, known: _Student, rows: Any, texts: Sequence[str] | None) -> NDArray[Any] | list[float]:
        """Scores (n,). Raises InvalidProblem and InvalidInput."""
        if texts is not None:
            return [self._of_record(known, None, text) for text in texts]
        if is_table(rows):
            if self._rows is None:
                text = "The columns of this model have no names here: give an array in their order."
                raise InvalidInput(text)
            return [self._of_record(known, record, None) for record in records_of(rows)]
        if is_array(rows):
            return self._of_table(known, numbers(rows, 2))
        values = [row_values(row) for row in rows]
        if known.of_numbers is None or (values and all(map(is_record, values))):
            return [self._of_record(known, record, None) for record in values]
        dense = [self._dense(row, known) if isinstance(row, dict) else _plain(row) for row in values]
        if any(len(row) != known.student.map.n_columns for row in dense):
            raise InvalidInput(f"Rows of {known.student.map.n_columns} numbers are needed.")
        scores: list[float] = self._of_table(known, np.array(dense, dtype=np.float64)).tolist()
        return scores

    def _of_table(self, known: _Student, table: NDArray[Any]) -> NDArray[Any]:
        """Scores of rows (n, d), in the blocks of the service, so that sums have the same bits."""
        if known.of_numbers is None:
            raise InvalidInput("Rows of this model are records: values by the names of their columns.")
        width = known.student.map.n_columns
        blocks = [known.student.scores(table[part]) for part in row_blocks(len(table), width)]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def _of_record(self, known: _Student, record: Any, text: str | None) -> float:
        rows = self._rows
        if rows is None or known.of_record is None:
            raise InvalidInput(
                "Rows of this model are numbers: a list or an array in the order of the columns."
            )
        if text is not None:
            name = rows.encoder.text_column
            if name is None:
                raise InvalidInput("The columns of this model are not one text: ask about a record.")
            record = {name: text}
        if not isinstance(record, Mapping):
            raise InvalidInput("A record is a mapping of values by the names of their columns.")
        return known.of_record(self._values(rows, record))

    def _values(self, rows: RecordRows, record: Mapping[str, Any]) -> list[Any]:
        """The values of a record in the order of ``rows``. Raises InvalidInput."""
        unknown = [name for name in record if name not in self._names]
        if unknown:
            text = f"The record has columns that the model does not know: {unknown[:_SHOWN]}."
            raise InvalidInput(text, code="unknown_column")
        values, faults = rows.read(record)
        if faults:
            column = f"{faults[0].field!r:.100}" if faults[0].field else "The record"
            raise InvalidInput(f"{column} {faults[0].message}.", code=faults[0].code)
        return values

    def _stored(self, row: Mapping[str, Any]) -> tuple[list[int], list[float]]:
        """Columns from 0, and values, of a sparse row. Raises InvalidInput."""
        base = row.get("index_base")
        if base is None and self._index_base == 1:
            text = (
                "Say whether the indices of the row count from 1, as those of the svmlight file of the "
                'training rows do ("index_base": 1), or are numbers of columns from 0 ("index_base": 0).'
            )
            raise InvalidInput(text)
        if base == 1 and self._index_base == 0:
            raise InvalidInput("The svmlight file of the training rows counts from 0, and the row from 1.")
        indices, values = row.get("indices"), row.get("values")
        if not isinstance(indices, list) or not isinstance(values, list) or len(indices) != len(values):
            raise InvalidInput("A sparse row has two lists of the same length, indices and values.")
        if not all(type(index) is int for index in indices):
            raise InvalidInput("The indices of a sparse row must be whole numbers.")
        return [index - (base or 0) for index in indices], _plain(values)

    def _dense(self, row: Mapping[str, Any], known: _Student) -> list[float]:
        """All numbers of a sparse row. Raises InvalidInput."""
        full = [0.0] * known.student.map.n_columns
        for index, value in zip(*self._stored(row), strict=True):
            if not 0 <= index < len(full):
                raise InvalidInput(
                    f"The model has {len(full)} columns; there is none with the index {index}."
                )
            full[index] += value
        return full

    @staticmethod
    def _known_names(rows: RecordRows) -> frozenset[str]:
        return frozenset([*rows.encoder.names, *rows.encoder.ignored])


def _plain(values: list[Any]) -> list[float]:
    """The values of a row if all are numbers. Raises InvalidInput, as the service refuses others."""
    wrong = next((place for place, value in enumerate(values) if type(value) not in _PLAIN), None)
    if wrong is not None:
        raise InvalidInput(f"x[{wrong}] is {values[wrong]!r:.80}, which is not a number.")
    return values


def named_maps(packages: Mapping[str, bytes]) -> dict[str, str]:
    """The digests of the maps that packages of students name, each with the class of one of them.

    packages: by class. Raises StmsError for bytes that are no package.
    """
    try:
        named = {label: named_map(content) for label, content in packages.items()}
    except InvalidPackage as error:
        raise StmsError(f"What was sent cannot be evaluated: {error}") from error
    return {digest: label for label, digest in named.items() if digest is not None}


def _student_of(package: Package, version: int, maps: Mapping[str, PackedMap]) -> PackedStudent:
    """The student in a package, whose bytes must have the digest in its ETag. Raises InvalidPackage."""
    if package.version != version:
        raise InvalidPackage("The packages are of different versions.")
    digest = package.etag.strip('"').rpartition("-")[2]
    return PackedStudent.from_bytes(package.content, digest=digest, maps=maps)
