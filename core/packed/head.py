"""The last layer of a network, packed: any number of classes on one linear map, read row by row.

    S^c(x) = w_c·x + b_c        row c of weights and bias

It is made for files larger than memory: a query to a class reads only the bytes of its row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias, final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.data.validation import QUIET, query_row, query_rows, row_blocks
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.packed.codec import Buffer, Header, Reader, decode, encode_front, reader_of, take, take_array
from core.packed.forms import LinearForm, PolytopeForm
from core.packed.labels import PackedLabels
from core.packed.maps import Floats, LinearBasis
from core.packed.student import MetadataValue, PackedStudent, finite_scores

Kind: TypeAlias = Literal["head", "linear"]
_F64 = np.dtype("<f8")
_I64 = np.dtype("<i8")
MAX_RIVALS = 64
"""Largest number of rivals of a class."""
RIVALS = "head.rivals"
"""Name in a student's metadata: a JSON list of the classes that its first rejections stand for, in order."""
_NO_METADATA: Mapping[str, MetadataValue] = MappingProxyType({})


@final
@dataclass(frozen=True, eq=False)
class PackedHead:
    """K linear decisions on d columns.

    kind: "head": the rows are a teacher's scores S^c, and an untrained student of class c uses that score
        alone: decision +1 iff S^c(x) ≥ threshold_c, gate S^c, rejection 0. "linear": the rows are students
        that were trained elsewhere, without a teacher: gate 0.
    weights: (K, d), float32 or float64. bias: (K,). threshold: (K,); None: 0 for all. labels: K names.
    rivals: (K, p), rows of other classes of a "head", or None. With rivals the student also rejects a row
        whose S^c(x) is below the score of one of them. Its rejections are these scores and, if there are
        thresholds, the class's own threshold; the decision is +1 iff S^c(x) reaches all of them.
    places: slices of these arrays in the package. read: returns bytes of the package; for a class only those
        of its row are read. Methods that read numbers raise InvalidPackage when ``read`` does.

    Scores are computed in float64. ``map``, ``classes``, ``scores``, ``predict`` and ``is_class`` work as in
    a PackedTeacher, so that the whole head can be queried for comparison.
    """

    FORMAT: ClassVar[str] = "stms.head.1"

    kind: Kind
    weights: NDArray[Any]
    bias: Floats
    threshold: Floats | None
    rivals: NDArray[np.int64] | None
    labels: PackedLabels
    places: dict[str, slice]
    read: Reader

    @cached_property
    def map(self) -> LinearBasis:
        """b(x) = x, shared by all students."""
        return LinearBasis(int(self.weights.shape[1]))

    @property
    def classes(self) -> PackedLabels:
        """Names of the classes by row."""
        return self.labels

    def student(self, row: int) -> PackedStudent:
        """The decision of class ``row``, with its own arrays. Raises InvalidPackage for damaged bytes."""
        coef = self._row("weights", row).astype(np.float64)
        coef.setflags(write=False)
        bias = float(self._row("bias", row)[0])
        is_gate = self.kind == "head"
        threshold = None if self.threshold is None else float(self._row("threshold", row)[0])
        # All numbers were checked when the head was packed; checking them again would take most of the time.
        form: LinearForm | PolytopeForm
        metadata = _NO_METADATA
        if self.rivals is None:
            form = object.__new__(LinearForm)
            form.__dict__.update(coef=coef, intercept=bias)
        else:
            form, metadata = self._against_rivals(row, coef, bias, threshold)
            threshold = None
        form.__dict__.update(
            gate_coef=coef if is_gate else self._no_gate, gate_intercept=bias if is_gate else 0.0
        )
        student = object.__new__(PackedStudent)
        student.__dict__.update(
            map=self.map,
            form=form,
            threshold=0.0 if threshold is None else threshold,
            label=self.labels[row],
            metadata=metadata,
            calibration=None,
            gaps=None,
            shares_map=False,
        )
        if self.weights.dtype.itemsize < _F64.itemsize:
            # Sums of float32 numbers cannot exceed float64, so they need no check.
            student.__dict__["is_tame"] = True
        return student

    def _against_rivals(
        self, row: int, coef: Floats, bias: float, threshold: float | None
    ) -> tuple[PolytopeForm, Mapping[str, MetadataValue]]:
        """The form of a class with rivals, without its gate, and the rivals' names as metadata."""
        rivals = self._row("rivals", row).tolist()
        if not all(0 <= rival < len(self.labels) for rival in rivals):
            raise InvalidPackage("The packed head names rivals that it does not have.")
        faces, intercepts = self.linear(rivals)
        np.subtract(coef, faces, out=faces)
        np.subtract(bias, intercepts, out=intercepts)
        if threshold is not None:
            faces, intercepts = np.vstack([faces, coef]), np.append(intercepts, bias - threshold)
        form = object.__new__(PolytopeForm)
        for array in (faces, intercepts):
            array.setflags(write=False)
        form.__dict__.update(coef=faces, intercept=intercepts)
        return form, {RIVALS: json.dumps([self.labels[rival] for rival in rivals], ensure_ascii=False)}

    def linear(self, rows: Sequence[int]) -> tuple[Floats, Floats]:
        """Weights (n, d) and bias (n,) of some classes, float64. Raises InvalidPackage for damaged bytes."""
        weights = np.empty((len(rows), self.map.n_columns))
        bias = np.empty(len(rows))
        for place, row in enumerate(rows):
            weights[place], bias[place] = self._row("weights", row), self._row("bias", row)[0]
        return weights, bias

    def _row(self, name: str, row: int) -> NDArray[Any]:
        """The numbers of one class in an array."""
        dtype, start, stride = self._strides[name]
        return np.frombuffer(self.read(start + row * stride, start + (row + 1) * stride), dtype=dtype)

    @cached_property
    def _strides(self) -> dict[str, tuple[np.dtype[Any], int, int]]:
        """Type, first byte, and bytes per class of every array."""
        K = len(self.labels)
        return {
            name: (
                {"weights": self.weights.dtype, "rivals": _I64}.get(name, _F64),
                place.start,
                (place.stop - place.start) // K,
            )
            for name, place in self.places.items()
        }

    @cached_property
    def _no_gate(self) -> Floats:
        zeros = np.zeros(self.map.n_columns)
        zeros.setflags(write=False)
        return zeros

    @QUIET
    def scores(self, X: ArrayLike) -> Floats:
        """S (n, K) of rows (n, d). It reads the whole head."""
        table = query_rows(X, self.map.n_columns)
        scores = np.empty((len(table), len(self.labels)))
        for rows in row_blocks(len(self.labels), self.map.n_columns):
            scores[:, rows] = table @ self._rows("weights", rows).T + self._rows("bias", rows)
        return finite_scores(scores)

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Rows (n,) of the classes with the largest score; the first of equal ones."""
        table = query_rows(X, self.map.n_columns)
        codes = np.empty(len(table), dtype=np.int64)
        for rows in row_blocks(len(table), len(self.labels)):
            codes[rows] = self.scores(table[rows]).argmax(axis=1)
        return codes

    @QUIET
    def is_class(self, x: ArrayLike, y: int) -> tuple[bool, int]:
        """Whether the head assigns one row (d,) to class ``y``, and how many classes it had to score.

        By Remark 2 it scores y, then the others in order, in blocks, and stops at the first that beats y.
        """
        if not 0 <= y < len(self.labels):
            message = f"Class code {y} is outside 0 to {len(self.labels) - 1}."
            raise InvalidProblem(Fault("y", "unknown_class", message))
        row = query_row(x, self.map.n_columns)
        target = self._block_scores(row, slice(y, y + 1))[0]
        for rows in row_blocks(len(self.labels), self.map.n_columns):
            scores = self._block_scores(row, rows)
            own = y - rows.start
            # argmax prefers the first class among equal scores.
            beats = scores > target
            beats[: max(0, own)] |= scores[: max(0, own)] == target
            if 0 <= own < len(beats):
                beats[own] = False
            if beats.any():
                k = rows.start + int(beats.argmax())
                return False, k + 1 + (k < y)
        return True, len(self.labels)

    def _block_scores(self, row: Floats, rows: slice) -> Floats:
        # Unlike a matrix product, this sums each row in the same order for any number of rows: ties
        # stay ties.
        scores: Floats = np.einsum("ij,j->i", self._rows("weights", rows), row) + self._rows("bias", rows)
        return finite_scores(scores)

    def _rows(self, name: str, rows: slice) -> Floats:
        """The numbers of some classes in an array, float64."""
        dtype, start, stride = self._strides[name]
        data = self.read(start + rows.start * stride, start + rows.stop * stride)
        numbers = np.frombuffer(data, dtype=dtype).astype(np.float64, copy=False)
        return numbers.reshape(-1, self.map.n_columns) if name == "weights" else numbers

    @classmethod
    def from_bytes(cls, data: Buffer, labels: PackedLabels, *, read: Reader | None = None) -> PackedHead:
        """The head in ``data``, with arrays that are views; it reads the header only. Raises InvalidPackage.

        read: reads the same bytes, if they must be checked before they are used.
        """
        read = reader_of(data) if read is None else read
        header, arrays = decode(data, cls.FORMAT, read=read)
        kind = take(header, "kind", str)
        weights, bias = take_array(arrays, "weights"), take_array(arrays, "bias")
        threshold, rivals = arrays.get("threshold"), arrays.get("rivals")
        p = 0 if rivals is None else rivals.shape[-1]
        shapes = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        known = head_shapes(len(labels), weights.shape[-1], weights.dtype, threshold is not None, p)
        if (
            kind not in get_args(Kind)
            or (p and kind != "head")
            or weights.dtype.kind != "f"
            or shapes != known
        ):
            raise InvalidPackage("The parts of the packed head do not fit.")
        _, places = encode_front(header, shapes)
        return cls(kind, weights, bias, threshold, rivals, labels, places, read)


def head_header(kind: Kind) -> Header:
    """The header of a package that `PackedHead.from_bytes` reads."""
    return {"format": PackedHead.FORMAT, "kind": kind}


def head_shapes(
    K: int, columns: int, dtype: np.dtype[Any], with_threshold: bool, rivals: int = 0
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Types and shapes of the arrays of such a package. rivals: number of rivals of each class."""
    shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        "weights": (dtype, (K, columns)),
        "bias": (_F64, (K,)),
    }
    if with_threshold:
        shapes["threshold"] = (_F64, (K,))
    if rivals:
        shapes["rivals"] = (_I64, (K, rivals))
    return shapes
