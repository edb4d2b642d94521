"""The whole teacher, packed: scores of all classes on one basis."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.data.validation import QUIET, query_row, query_rows, row_blocks
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.packed.codec import (
    Arrays,
    Buffer,
    Header,
    check_digest,
    decode,
    encode,
    package_errors,
    refuse_extra,
    take,
    take_array,
)
from core.packed.map_packages import map_from
from core.packed.maps import Floats, PackedMap, frozen_array
from core.packed.student import MetadataValue, checked_metadata, finite_scores


@final
@dataclass(frozen=True, eq=False)
class PackedTeacher:
    """S(x) = coef b(x) + intercept, one score a class; the teacher predicts that of the largest (Eq. 2).

    map: the basis b, of size p. coef: (K, p), intercept: (K,), read-only float64. classes: K different names.
    The first class wins among equal scores. Raises InvalidProblem if the parts do not fit.
    """

    FORMAT: ClassVar[str] = "stms.teacher.1"

    map: PackedMap
    coef: Floats
    intercept: Floats
    classes: tuple[str, ...]
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        classes = tuple(self.classes)
        if not classes or not all(isinstance(name, str) for name in classes):
            raise InvalidProblem(Fault("classes", "not_text", "The classes of a teacher must be names."))
        if len(set(classes)) != len(classes):
            raise InvalidProblem(Fault("classes", "duplicate", "Two classes of the teacher share a name."))
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "coef", frozen_array(self.coef, "coef", (len(classes), self.map.n_basis)))
        object.__setattr__(self, "intercept", frozen_array(self.intercept, "intercept", (len(classes),)))
        object.__setattr__(self, "metadata", checked_metadata(self.metadata))

    @QUIET
    def scores(self, X: ArrayLike) -> Floats:
        """S (n, K) of rows (n, d)."""
        table = query_rows(X, self.map.n_columns)
        scores = np.empty((len(table), len(self.classes)))
        for rows in row_blocks(len(table), self.map.n_basis):
            scores[rows] = self.map.block(table[rows]) @ self.coef.T
        scores += self.intercept
        return finite_scores(scores)

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Codes (n,) of the classes with the largest score; ``classes[code]`` is the name."""
        table = query_rows(X, self.map.n_columns)
        codes = np.empty(len(table), dtype=np.int64)
        for rows in row_blocks(len(table), max(self.map.n_columns, len(self.classes))):
            codes[rows] = self.scores(table[rows]).argmax(axis=1)
        return codes

    @QUIET
    def class_score(self, X: ArrayLike, y: int) -> Floats:
        """S^y (n,), the score of class code ``y`` of rows (n, d)."""
        self._check_class(y)
        table = query_rows(X, self.map.n_columns)
        scores = np.empty(len(table))
        for rows in row_blocks(len(table), self.map.n_basis):
            scores[rows] = self.map.block(table[rows]) @ self.coef[y]
        scores += self.intercept[y]
        return finite_scores(scores)

    @QUIET
    def is_class(self, x: ArrayLike, y: int) -> tuple[bool, int]:
        """Whether the teacher assigns one row (d,) to class code ``y``, and how many classes it had to score.

        By Remark 2 it scores y, then the others in order, and stops at the first that beats y. A yes needs
        all K.
        """
        self._check_class(y)
        basis = self.map.row(query_row(x, self.map.n_columns))
        target = self.coef[y].dot(basis) + self.intercept[y]
        finite_scores(np.atleast_1d(target))
        evaluated = 1
        for k in range(len(self.classes)):
            if k == y:
                continue
            evaluated += 1
            score = self.coef[k].dot(basis) + self.intercept[k]
            # argmax prefers the first class among equal scores.
            if score > target or (score == target and k < y):
                return False, evaluated
        return True, evaluated

    def _check_class(self, y: int) -> None:
        if not 0 <= y < len(self.classes):
            message = f"Class code {y} is outside 0 to {len(self.classes) - 1}."
            raise InvalidProblem(Fault("y", "unknown_class", message))

    def to_bytes(self) -> bytes:
        """The teacher as safetensors; the same teacher always gives the same bytes."""
        header: Header = {"format": self.FORMAT, "metadata": dict(self.metadata), **self.map.header()}
        names = json.dumps(self.classes, separators=(",", ":")).encode()
        arrays: Arrays = {"coef": self.coef, "intercept": self.intercept, **self.map.arrays()}
        return encode(header, arrays | {"classes": np.frombuffer(names, dtype=np.uint8)})

    @classmethod
    def from_bytes(cls, data: Buffer, *, digest: str | None = None) -> PackedTeacher:
        """The teacher that ``to_bytes`` stored; its arrays are views of ``data``.

        digest: if given, the SHA-256 that ``data`` must have. Raises InvalidPackage.
        """
        check_digest(data, digest)
        header, arrays = decode(data, cls.FORMAT)
        with package_errors("teacher"):
            packed = map_from(header, arrays)
            teacher = cls(
                map=packed,
                coef=take_array(arrays, "coef"),
                intercept=take_array(arrays, "intercept"),
                classes=_class_names(take_array(arrays, "classes")),
                metadata=take(header, "metadata", dict),
            )
        refuse_extra(arrays, {"coef", "intercept", "classes"})
        return teacher

    @cached_property
    def digest(self) -> str:
        """SHA-256 of ``to_bytes()``, 64 hexadecimal digits."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def _class_names(stored: NDArray[np.uint8]) -> tuple[str, ...]:
    try:
        names = json.loads(stored.tobytes())
    except (ValueError, RecursionError) as error:
        raise InvalidPackage("The class names of the package are not a JSON document.") from error
    if not isinstance(names, list):
        raise InvalidPackage("The class names of the package are not a list.")
    return tuple(names)
