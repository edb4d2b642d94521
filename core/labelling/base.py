"""The protocol of labellers, which take rows with few or no labels and give each row a label.

A new labeller is one module: a frozen dataclass that derives from ``LabellerSpec``, whose annotated fields
are its hyper-parameters (``core.parameters``), and one line in ``core.learners``. The module imports NumPy at
most; solvers are imported inside ``label``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from core.errors import Fault, InvalidProblem
from core.packed.codec import Buffer, decode, encode, take, take_array

if TYPE_CHECKING:
    from core.data.dataset import LabelledData
    from core.encoding.labelled_table import LabelledTable
    from core.run import Run
    from core.solvers.solution import Summary
    from core.types import FloatArray, IntArray

Rows = TypeVar("Rows", bound="LabelledData | LabelledTable")

_FORMAT = "stms.labels.1"
_MAX_COUNTED = 1000

Space: TypeAlias = Literal["graph", "kernel", "both", "linear"]
"""The features in which a labeller looks for classes; see ``core.labelling.space``."""


@dataclass(frozen=True, slots=True, eq=False)
class Labelling:
    """Labels of n rows. codes: (n,) int32 in 0..K−1. classes: K names.

    certainty: (n,) float32 from 0 to 1; NaN for given labels. It is 0 if another class explains the row as
    well or if the conditions decided, and 1 if the row's margins are those of a typical row.
    summary: how the solver ended; details: further figures about it, JSON-ready.
    """

    codes: NDArray[np.int32]
    certainty: FloatArray
    classes: tuple[str, ...]
    summary: Summary
    details: dict[str, Any]

    def report(self) -> dict[str, Any]:
        """How the labels were found, and the number of rows of each of the first 1000 classes, JSON-ready."""
        counts = np.bincount(self.codes, minlength=len(self.classes)).tolist()
        sure = self.certainty[~np.isnan(self.certainty)]
        return {
            "rows": len(self.codes),
            "labelled": len(sure),
            "class_counts": dict(zip(self.classes[:_MAX_COUNTED], counts, strict=False)),
            "mean_certainty": float(sure.mean()) if len(sure) else None,
            **self.summary.as_dict(),
            **self.details,
        }

    def to_bytes(self) -> bytes:
        """Everything except the classes as safetensors; equal labellings give equal bytes."""
        header = {
            "format": _FORMAT,
            "summary": replace(self.summary, seconds=0.0).as_dict(),
            "details": self.details,
        }
        return encode(header, {"codes": self.codes.astype(np.int64), "certainty": self.certainty})

    @classmethod
    def from_bytes(cls, stored: Buffer, classes: Sequence[str]) -> Labelling:
        """The labelling that ``to_bytes`` stored, with its classes. Raises InvalidPackage."""
        from core.solvers.solution import Summary

        header, arrays = decode(stored, _FORMAT)
        return cls(
            take_array(arrays, "codes").astype(np.int32),
            take_array(arrays, "certainty"),
            tuple(classes),
            Summary(**take(header, "summary", dict)),
            take(header, "details", dict),
        )

    def of_rows(self, rows: IntArray, data: LabelledData | LabelledTable) -> Labelling:
        """The labelling of ``data`` with these labels for ``rows``; the other rows keep their own labels."""
        codes, certainty = data.y.copy(), np.full(data.n, np.nan, dtype=np.float32)
        codes[rows], certainty[rows] = self.codes, self.certainty
        return replace(self, codes=codes, certainty=certainty)

    def applied_to(self, data: Rows) -> Rows:
        """The same rows with these labels. Raises InvalidProblem if the number of rows differs."""
        if len(self.codes) != data.n:
            message = f"there are {len(self.codes)} labels for {data.n} rows"
            raise InvalidProblem(Fault("labelling", "other_data", message))
        return replace(data, y=self.codes, classes=self.classes)


class LabellerSpec(ABC):
    """How rows without a label get one; the fields of the dataclass are the hyper-parameters.

    name: key in the registry and in the API. uses_labels: whether it needs some labels of every class, or
    takes rows that all have no label.
    """

    __slots__ = ()
    name: ClassVar[str]
    uses_labels: ClassVar[bool]

    def classes_of(self, known: Sequence[str]) -> tuple[str, ...]:
        """The classes of the result, given those of the data."""
        return tuple(known)

    @abstractmethod
    def label(self, data: LabelledData, run: Run) -> Labelling:
        """Labels of all rows; given labels stay. Reports stages ``"space"`` and ``"labels"``.

        Raises InvalidProblem, Cancelled.
        """
