"""The protocol of teachers: what a teacher is fitted to, and what a fitted teacher can do.

A new teacher is one module: a frozen dataclass that derives from ``TeacherSpec``, whose annotated fields are
its hyper-parameters (``core.parameters``), a class that derives from ``Teacher``, and one line in
``core.learners``. The module of the specification imports NumPy at most; solvers are imported inside ``fit``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.packed import PackedTeacher, TreesBasis
    from core.packed.codec import Arrays
    from core.run import Run
    from core.solvers.solution import Summary
    from core.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What a teacher learns: examples with their classes.

    labels: codes (n,) in 0..n_classes−1. n_classes: K ≥ 2; some classes may have no examples.
    """

    examples: Examples
    labels: IntArray
    n_classes: int

    def take(self, rows: IntArray) -> Task:
        """The same task on some of the rows."""
        return Task(self.examples.take(rows), self.labels[rows], self.n_classes)


class Teacher(ABC):
    """A fitted teacher: scores of all classes for every row.

    summary: how the fit ended; None if nothing was fitted, or if the teacher was restored without it.
    """

    summary: Summary | None = None

    @abstractmethod
    def scores(self, examples: Examples, run: Run) -> FloatArray:
        """S, (n, K), float64; the class with the largest score is the answer. Raises Cancelled."""

    @property
    def class_weights(self) -> FloatArray | None:
        """W with S = Φ Wᵀ, (K, m); None if the scores are not linear in φ."""
        return None

    @property
    def own_scores(self) -> FloatArray | None:
        """S of the rows of the fit, (n, K), if students shall learn from other scores than ``scores`` gives.

        A teacher that repeats the labels of its training rows would tell students nothing about them.
        """
        return None

    @property
    def trees(self) -> TreesBasis | None:
        """The trees, whose K sums are the scores, from which students are copied; None for other teachers."""
        return None

    @property
    def held_out(self) -> FloatArray | None:
        """S of the rows of the fit by trees that were not fitted to the row, (n, K); NaN for other rows.

        None for a teacher without such scores; held-out scores then need fits in folds.
        """
        return None

    @abstractmethod
    def pack(
        self, examples: Examples, classes: tuple[str, ...], metadata: Mapping[str, Any]
    ) -> PackedTeacher | None:
        """The teacher for queries. examples: for their feature map. classes: K names.

        None for a teacher that only its own library can evaluate: its distilled weights are packed instead.
        """

    @abstractmethod
    def arrays(self) -> Arrays:
        """The arrays from which ``TeacherSpec.restore`` makes the same teacher again."""

    def without_solver_state(self) -> Teacher:
        """The same teacher without the values that only a warm start needs."""
        return self


@dataclass(frozen=True, slots=True)
class FitShape:
    """What the memory of a fit depends on. rows: n. columns: d, of raw rows. features: m. classes: K.

    threads: number of threads of the run. is_sparse: whether features are sparse; solvers do not copy these.
    """

    rows: int
    columns: int
    features: int
    classes: int
    threads: int = 1
    is_sparse: bool = False

    @property
    def cells(self) -> int:
        """Number of scores of all rows, n K."""
        return self.rows * self.classes

    @property
    def values(self) -> int:
        """Number of values of dense features, n m; 0 for sparse ones."""
        return 0 if self.is_sparse else self.rows * self.features

    @property
    def weights(self) -> int:
        """Number of weights of a linear teacher, K m."""
        return self.classes * self.features


class TeacherSpec(ABC):
    """Hyper-parameters of a teacher: the fields of a frozen dataclass.

    name: key in ``core.learners.TEACHERS`` and in the API. needs: what the data set must have, see
    ``core.training.needs``. grows_trees: whether its teachers have ``trees`` and ``held_out``.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Literal["teacher_scores", "dense"]]] = frozenset()
    grows_trees: ClassVar[bool] = False

    @abstractmethod
    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> Teacher:
        """Fit the teacher; the same arguments give the same bits.

        start: a teacher of the same rows to start from, usually with other hyper-parameters; may be ignored.
        Raises InvalidProblem, Cancelled.
        """

    def fit_bytes(self, shape: FitShape) -> int:
        """Estimated peak of the bytes that ``fit`` allocates, besides rows and features; rather too many.

        By default twice the scores and three times the weights.
        """
        return 16 * shape.cells + 24 * shape.weights

    @abstractmethod
    def restore(self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None) -> Teacher:
        """The teacher whose ``arrays`` were stored. Raises InvalidPackage."""

    def params(self) -> dict[str, Any]:
        """The hyper-parameters, JSON-ready."""
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]

    def metadata(self) -> dict[str, str | float | int]:
        """How the teacher was made, for the metadata of the packed teacher."""
        return {"method": self.name, **self.params()}
