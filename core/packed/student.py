"""One class's student, packed: is this the target class?

A student decides +1 iff S^y(x) ≥ θ·φ(x), the teacher's score of class y against a learnt rejection (gated
SVM, Eq. 8). With S^y linear in the same φ this is one vector, v = w_y − θ: a query costs one map and one dot
product, independent of the number of classes. Other decision forms are in ``core.packed.forms``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import hypot, isfinite
from operator import mul
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.data.validation import MAX_MAGNITUDE, QUIET, out_of_range, query_row
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.packed.calibration import Calibration, calibration_from, calibration_header
from core.packed.codec import (
    Buffer,
    Header,
    check_digest,
    decode,
    encode,
    package_errors,
    refuse_extra,
    take,
)
from core.packed.evaluation import Output, evaluate, rows_for
from core.packed.forms import Form, PolytopeForm, finite_number, form_from
from core.packed.map_packages import map_from
from core.packed.maps import Floats, PackedMap, frozen_array
from core.packed.sparse import StoredBasis, densified_blocks, sparse_rows

MetadataValue = str | int | float

_FAR = MAX_MAGNITUDE**2
_FEW = 256
"""Up to this many stored entries, lists of numbers are faster than arrays."""


@final
@dataclass(frozen=True, eq=False)
class PackedStudent:
    """The decision function of one class and the teacher's score of that class, on one basis b(x) of size p.

    score(x) = form(b(x)), decision +1 iff score ≥ threshold. For a student that is linear in the features,
    score(x) = v·φ(x) = coef·b(x) + intercept.
    gate(x) = S^y(x), zero if there is no gate; rejection(x) = θ·φ(x) = gate(x) − score(x).
    map: the basis. form: computes score and gate from its values. label: name of the target class.
    metadata: free text and numbers that are stored with the student (versions, digests, seed).
    calibration: from scores to probabilities of the class; None if there is none.
    gaps: a and c of the correction for gaps in a record, see ``with_gaps``; None if not measured.
    shares_map: whether its package only names the map by its digest, and other students share the map in its
    own package, ``map.to_bytes()``; otherwise the package of the student contains the map.

    Safe for use from several threads. Raises InvalidProblem if parts do not fit or a number is not finite.
    """

    FORMAT: ClassVar[str] = "stms.student.1"
    """Format of a package that contains the map."""
    SHARING: ClassVar[str] = "stms.student.2"
    """Format of a package that names the map."""

    map: PackedMap
    form: Form
    threshold: float
    label: str
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    calibration: Calibration | None = None
    gaps: tuple[float, float] | None = None
    shares_map: bool = False

    def __post_init__(self) -> None:
        for coef in np.atleast_2d(self.form.coef):
            frozen_array(coef, "coef", (self.map.n_basis,))
        frozen_array(self.form.gate[0], "gate_coef", (self.map.n_basis,))
        object.__setattr__(self, "threshold", finite_number(self.threshold, "threshold"))
        if not isinstance(self.label, str):
            raise InvalidProblem(Fault("label", "not_text", "The label of a student must be text."))
        if self.gaps is not None:
            slope, offset = (finite_number(value, "gaps") for value in self.gaps)
            if not -1.0 <= slope <= 0.0:
                raise InvalidProblem(Fault("gaps", "out_of_range", "gaps can only flatten the scores"))
            object.__setattr__(self, "gaps", (slope, offset))
        object.__setattr__(self, "metadata", checked_metadata(self.metadata))

    def with_gaps(self, score: float, filled: float) -> float:
        """The corrected score of a record with filled gaps and score s: s + f · (a · s + c), a in [−1, 0].

        filled: f, the share of the gap-filling columns in which the record has a gap. Threshold and
        calibration apply to the corrected score, see ``core.training.rehearsal``.
        """
        if self.gaps is None:
            return score
        slope, offset = self.gaps
        return _checked_value(score + filled * (slope * score + offset))

    def score(self, x: ArrayLike) -> float:
        """The score of one dense row (d,). Raises InvalidProblem naming the wrong column."""
        basis = self.map.row(self.checked_row(x))
        return self.form.at(basis) if self.is_tame else self.score_at(basis)

    @QUIET
    def score_at(self, basis: Floats) -> float:
        """The score from the basis values (p,) of a checked row. Raises InvalidProblem beyond float64."""
        return _checked_value(self.form.at(basis))

    @QUIET
    def gate_at(self, basis: Floats) -> float:
        """S^y(x) from the basis values (p,) of a checked row. Raises InvalidProblem beyond float64."""
        coef, intercept = self.form.gate
        return _checked_value(float(coef.dot(basis)) + intercept)

    @QUIET
    def score_stored(self, basis: StoredBasis) -> float:
        """The score from basis values that are mostly 0. Raises InvalidProblem beyond float64."""
        return _checked_value(self.form.at_stored(basis))

    @QUIET
    def explain_stored(self, basis: StoredBasis) -> tuple[float, int | None]:
        """S^y(x), and the number of the deciding one of several rejections. Raises InvalidProblem."""
        coef, intercept = self.form.gate
        gate = _checked_value(float(basis.dot(coef)) + intercept)
        if not isinstance(self.form, PolytopeForm) or self.form.functions == 1:
            return gate, None
        return gate, int((basis.dot(self.form.coef) + self.form.intercept).argmin())

    def checked_row(self, x: ArrayLike) -> Floats:
        """``x`` as a float64 row (d,) of usable numbers. Raises InvalidProblem naming the wrong column.

        NaN, infinite and huge values show in the norm; values are checked one by one only if the norm is
        unusable. A list is packed and its norm computed in half the time that NumPy takes to convert a list.
        """
        row: Floats
        if isinstance(x, list):
            try:
                row = np.frombuffer(_packer(self._n_columns)(*x))
                usable = hypot(*x) < MAX_MAGNITUDE
            except (TypeError, ValueError, OverflowError, struct.error):
                usable = False
        else:
            row = np.asarray(x)
            with np.errstate(over="ignore", invalid="ignore"):
                usable = row.dtype == np.float64 and row.shape == (self._n_columns,) and row.dot(row) < _FAR
        return row if usable else query_row(x, self._n_columns)

    @cached_property
    def _n_columns(self) -> int:
        return self.map.n_columns

    @cached_property
    def is_tame(self) -> bool:
        """Whether the score is finite for every usable row: |b_j(x)| never exceeds MAX_MAGNITUDE."""
        return self.form.is_bounded

    def scores(self, X: ArrayLike) -> Floats:
        """Scores of many dense rows (n, d), shape (n,). Raises InvalidProblem naming row and column."""
        return self._values(X, self.form.linear or self.form.block)

    def probability(self, x: ArrayLike) -> float:
        """Probability that one dense row (d,) is of the class. Raises InvalidProblem, see ``calibrated``."""
        return self.calibrated().probability(self.score(x))

    def probabilities(self, X: ArrayLike) -> Floats:
        """Probabilities of many dense rows (n, d), shape (n,). Raises InvalidProblem, see ``calibrated``."""
        return self.calibrated().probabilities(self.scores(X))

    def calibrated(self) -> Calibration:
        """The calibration. Raises InvalidProblem if the student has none: a score is not a probability."""
        if self.calibration is None:
            message = f"The student for {self.label!r:.80} is not calibrated: it has no probabilities."
            raise InvalidProblem(Fault("calibration", "not_calibrated", message))
        return self.calibration

    def gate(self, X: ArrayLike) -> Floats:
        """S^y(x), the teacher's score of the target class, of rows (n, d), shape (n,)."""
        return self._values(X, self.form.gate)

    def rejection(self, X: ArrayLike) -> Floats:
        """θ·φ(x), which the gate must reach, of rows (n, d), shape (n,)."""
        linear, gate = self.form.linear, self.form.gate
        if linear is None:
            return self.gate(X) - self.scores(X)
        return self._values(X, (gate[0] - linear[0], gate[1] - linear[1]))

    def pieces(self, X: ArrayLike) -> NDArray[np.int64] | None:
        """The number of the largest rejection, which decides, for rows (n, d), shape (n,), from 0.

        None if the student has one rejection only.
        """
        piece = self.form.piece
        return None if piece is None else self._values(X, piece).astype(np.int64)

    def decide(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Whether each row (n, d) is accepted as the target class: score ≥ threshold."""
        return self.scores(X) >= self.threshold

    @QUIET
    def scores_sparse(self, indices: ArrayLike, values: ArrayLike, indptr: ArrayLike | None = None) -> Floats:
        """Scores of sparse rows, shape (n,).

        indices, values: (nnz,), columns and values of the stored entries; entries of the same place add up.
        indptr: (n + 1,), where the rows begin, as in CSR; None means that there is one row.
        Linear functions on a linear map take time for the stored entries only; for others the rows are
        made dense in blocks.
        """
        rows = sparse_rows(indices, values, indptr, self.map.n_columns)
        stored = self.form.on_stored(rows) if self.map.kind == "linear" else None
        if stored is not None:
            return finite_scores(stored)
        parts = [self.scores(block) for block in densified_blocks(rows)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _values(self, X: ArrayLike, output: Output) -> Floats:
        return evaluate(self.map, rows_for(self.map, X), [output])[0]

    def to_bytes(self) -> bytes:
        """The student as safetensors; the same student always gives the same bytes."""
        header: Header = {
            "format": self.SHARING if self.shares_map else self.FORMAT,
            "label": self.label,
            "threshold": self.threshold,
            "metadata": dict(self.metadata),
            **self.form.header(),
            **({"map": self.map.digest} if self.shares_map else self.map.header()),
            **calibration_header(self.calibration),
            **({} if self.gaps is None else {"gaps": [*self.gaps]}),
        }
        arrays = {**self.form.arrays(), **({} if self.shares_map else self.map.arrays())}
        if self.calibration is not None:
            arrays |= self.calibration.arrays()
        return encode(header, arrays)

    @classmethod
    def from_bytes(
        cls, data: Buffer, *, digest: str | None = None, maps: Mapping[str, PackedMap] | None = None
    ) -> PackedStudent:
        """The student that ``to_bytes`` stored; its arrays are views of ``data``.

        digest: if given, the SHA-256 that ``data`` must have. maps: by digest, for a package that names its
        map, see `named_map`. Raises InvalidPackage.
        """
        check_digest(data, digest)
        header, arrays = decode(data, cls.FORMAT, cls.SHARING)
        shares_map = header["format"] == cls.SHARING
        with package_errors("student"):
            student = cls(
                map=_shared(header, maps or {}) if shares_map else map_from(header, arrays),
                form=form_from(header, arrays),
                threshold=take(header, "threshold", float),
                label=take(header, "label", str),
                metadata=take(header, "metadata", dict),
                calibration=calibration_from(header, arrays),
                gaps=_gaps_from(header),
                shares_map=shares_map,
            )
        refuse_extra(arrays, set())
        return student

    @cached_property
    def digest(self) -> str:
        """SHA-256 of ``to_bytes()``, 64 hexadecimal digits."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def named_map(data: Buffer) -> str | None:
    """The digest of the map that a student's package names; None if it contains the map.

    Raises InvalidPackage.
    """
    header, _ = decode(data, PackedStudent.FORMAT, PackedStudent.SHARING)
    return None if header["format"] == PackedStudent.FORMAT else str(take(header, "map", str))


def _shared(header: Header, maps: Mapping[str, PackedMap]) -> PackedMap:
    """The map that a package names. Raises InvalidPackage."""
    digest = take(header, "map", str)
    if digest not in maps:
        raise InvalidPackage(f"The package names the map {digest!r:.80}, which is not there.")
    if maps[digest].digest != digest:
        raise InvalidPackage(f"The map {digest} is not packed as maps are.")
    return maps[digest]


def row_scorer(student: PackedStudent) -> Callable[[list[float]], float]:
    """``student.score`` for lists of numbers; binding attributes beforehand saves a third of the time."""
    score, pack = packed_row_scorer(student), _packer(student.map.n_columns)

    def scored(x: list[float]) -> float:
        try:
            if hypot(*x) < MAX_MAGNITUDE:
                return score(pack(*x))
        except (TypeError, ValueError, OverflowError, struct.error):
            return student.score(x)
        return student.score(x)

    return scored


def packed_row_scorer(student: PackedStudent) -> Callable[[bytes], float]:
    """``student.score`` for packed rows of d float64 numbers with a norm below MAX_MAGNITUDE.

    Raises InvalidProblem for scores beyond float64.
    """
    value = _form_scorer(student.form) if student.is_tame else student.score_at
    unpack, map_row = np.frombuffer, student.map.row
    if student.map.kind != "linear" or not student.is_tame:
        return lambda row: value(map_row(unpack(row)))
    if student.form.linear is None:
        return lambda row: value(unpack(row))
    dot, intercept = student.form.linear[0].dot, student.form.linear[1]
    return lambda row: float(dot(unpack(row))) + intercept


def _form_scorer(form: Form) -> Callable[[Floats], float]:
    """``form.at`` for finite scores; attributes are bound beforehand if that saves time."""
    if form.linear is not None:
        coef, intercept = form.linear
        dot = coef.dot
        return lambda basis: float(dot(basis)) + intercept
    if isinstance(form, PolytopeForm):
        dots, intercepts = form.coef.dot, form.intercept
        # For so few numbers Python's minimum takes a fraction of the time of NumPy's.
        return lambda basis: min((dots(basis) + intercepts).tolist())
    return form.at


def sparse_scorer(student: PackedStudent) -> Callable[[list[int], list[float]], float] | None:
    """A function from columns and values of a row's stored entries to its score; None for other maps.

    It raises InvalidProblem as ``student.scores_sparse``, and is faster for a few numbers in lists.
    """
    if student.map.kind != "linear":
        return None
    coef, intercept = student.form.linear or (np.zeros(0), 0.0)
    item: Callable[[int], Any] = coef.item

    def checked(columns: list[int], values: list[float]) -> float:
        return float(student.scores_sparse(columns, values)[0])

    def stored(columns: list[int], values: list[float]) -> float:
        usable = len(columns) == len(values) <= _FEW and min(columns, default=0) >= 0
        if not usable or hypot(*values) >= MAX_MAGNITUDE:
            return checked(columns, values)
        try:
            return sum(map(mul, map(item, columns), values), intercept)
        except (IndexError, OverflowError):
            return checked(columns, values)

    return stored if student.form.linear is not None and student.is_tame else checked


@lru_cache(maxsize=256)
def _packer(n: int) -> Callable[..., bytes]:
    """A function that packs n numbers as float64."""
    return struct.Struct(f"{n}d").pack


def _gaps_from(header: Header) -> tuple[float, float] | None:
    if "gaps" not in header:
        return None
    given = take(header, "gaps", list)
    if len(given) != 2 or not all(type(value) is float for value in given):
        raise InvalidPackage("What gaps change in the package is unusable.")
    return given[0], given[1]


def _checked_value(value: float) -> float:
    if not isfinite(value):
        raise out_of_range("x")
    return value


def finite_scores(scores: Floats) -> Floats:
    """``scores`` (n, …) if all are finite. Raises InvalidProblem naming the first row that is too large."""
    finite = np.isfinite(scores)
    if not finite.all():
        row = int(np.argwhere(~finite)[0][0])
        fault = out_of_range("X").faults[0]
        raise InvalidProblem(Fault(fault.field, fault.code, f"Row {row}: {fault.message}", row))
    return scores


def checked_metadata(metadata: Any) -> dict[str, MetadataValue]:
    """A copy of ``metadata``, which must map texts to texts, finite floats and 64-bit whole numbers."""
    if not isinstance(metadata, Mapping):
        raise InvalidProblem(Fault("metadata", "not_a_mapping", "Metadata must map names to values."))
    for name, value in metadata.items():
        kind = type(value)
        usable = kind is str or (kind is int and abs(value) < 2**63) or (kind is float and isfinite(value))
        if type(name) is not str or not usable:
            message = f"Metadata {name!r:.80} must be text, a finite number or a 64-bit whole number."
            raise InvalidProblem(Fault("metadata", "bad_value", message))
    return dict(metadata)
