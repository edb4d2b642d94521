"""Hyper-parameters of Gaussian process students; ``core.students.gaussian_fit`` has the fit."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.students.base import Need, StudentSpec
from core.students.privileged import Source, privileged_columns, privileged_needs

if TYPE_CHECKING:
    from core.run import Run
    from core.students.base import Problem
    from core.students.gaussian_fit import GaussianStudent
    from core.types import FloatArray

_DENSE: Final[frozenset[Need]] = frozenset({"dense"})


@dataclass(frozen=True, slots=True)
class GaussianSpec(StudentSpec):
    """What GPC and GPC+ share. Raises InvalidProblem naming every wrong field.

    Widths, mean and noise are chosen by type-II maximum likelihood, so that there is no grid. A query costs
    the kernel values of the landmarks and a product with a square matrix, for the variance.
    """

    needs: ClassVar[frozenset[Need]] = _DENSE

    n_landmarks: Annotated[
        int,
        Ge(2),
        Le(1000),
        Doc(
            "Landmarks at most: the rows themselves where these are no more, otherwise k-means centres, up to"
            " half of them of rows of the class."
        ),
    ] = 100
    max_rows: Annotated[
        int,
        Ge(10),
        Le(100_000),
        Doc("Rows that the posterior learns from, at most; drawn at random, the class by its share."),
    ] = 5000
    evidence_rows: Annotated[
        int,
        Ge(10),
        Le(10_000),
        Doc("Rows of these by whose evidence widths, mean and noise are chosen, at most; drawn likewise."),
    ] = 500
    max_iterations: Annotated[
        int, Ge(0), Le(1000), Doc("Iterations of L-BFGS on the evidence at most; 0 keeps the first values.")
    ] = 30
    tolerance: Annotated[
        float,
        Gt(0),
        Lt(1),
        Doc("Expectation propagation stops when no site moves by more posterior standard deviations."),
    ] = 1e-5

    def __post_init__(self) -> None:
        check_parameters(self, "student")

    def fit(self, problem: Problem, run: Run) -> GaussianStudent:
        """Fit the student. run: reports stage ``"evidence"`` in iterations.

        Raises InvalidProblem, Cancelled.
        """
        from core.students.gaussian_fit import fit_gaussian

        return fit_gaussian(
            problem,
            self.privileged_columns(problem),
            n_landmarks=self.n_landmarks,
            max_rows=self.max_rows,
            evidence_rows=self.evidence_rows,
            max_iterations=self.max_iterations,
            tolerance=self.tolerance,
            run=run,
        )

    @abstractmethod
    def privileged_columns(self, problem: Problem) -> tuple[str, FloatArray] | None:
        """What the noise depends on: a name and columns (n, p); None for constant noise."""


@dataclass(frozen=True, slots=True)
class GPC(GaussianSpec):
    """A Gaussian process classifier: a probability by itself, without a teacher, from dense rows.

    Probit likelihood, squared exponential kernel, expectation propagation (Rasmussen and Williams 2006,
    Chapter 3). The teacher has no part in it.
    """

    name: ClassVar[str] = "gpc"

    def privileged_columns(self, problem: Problem) -> tuple[str, FloatArray] | None:
        """None."""
        del problem
        return None


@dataclass(frozen=True, slots=True)
class GPCPlus(GaussianSpec):
    """GPC+, Gaussian process classification with privileged noise (Hernández-Lobato et al., NIPS 2014).

    Columns that are known in training only say how noisy the label of each row is; a query needs x alone. The
    teacher's scores are no gate here but such columns: a row that the teacher finds difficult counts less.
    """

    name: ClassVar[str] = "gpc+"

    privileged: Source = "auto"

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """Dense rows; also privileged columns, if ``privileged`` asks for them."""
        return privileged_needs(self.privileged)

    def privileged_columns(self, problem: Problem) -> tuple[str, FloatArray] | None:
        """The columns of the data set, or (S^y, r, d) from the teacher."""
        return privileged_columns(problem, self.privileged)
