"""Result of a solver: primal and dual solution, duality gap, status and trace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum

from core.types import FloatArray


class Status(Enum):
    """Outcome of a solver. Invalid arguments raise exceptions; numerical outcomes are statuses."""

    CONVERGED = "converged"
    MAX_ITERATIONS = "max_iterations"
    STALLED = "stalled"

    @property
    def message(self) -> str:
        """One sentence for users."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.CONVERGED: "The relative duality gap is below the tolerance.",
    Status.MAX_ITERATIONS: "The iteration limit was reached before the tolerance; see the gap.",
    Status.STALLED: "Rounding errors prevent further progress before the tolerance; see the gap.",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """The scalars of a Solution, which are stored with the model and shown to users.

    gap: primal minus dual objective. relative_gap: gap divided by |objective|. Both are None if the problem
    is not convex. iterations: in the solver's unit (epochs or steps). status: value of a Status; None without
    a gap. seconds: wall time, the only field that differs between two runs with the same seed.
    """

    objective: float
    gap: float | None
    relative_gap: float | None
    iterations: int
    seconds: float
    status: str | None

    def as_dict(self) -> dict[str, float | int | str | None]:
        """JSON-ready, field by field."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Solution:
    """A minimiser with its certificate.

    value: primal solution, shape (m,) or (K, m).
    dual: dual variables, shape (n,) or (n, K); a warm start for a neighbouring problem.
    objective, dual_objective: primal and dual objective at the solution; weak duality gives
        dual_objective <= optimum <= objective.
    trace: objective after each recorded iteration, oldest first.
    """

    value: FloatArray
    dual: FloatArray
    objective: float
    dual_objective: float
    status: Status
    iterations: int
    seconds: float
    trace: tuple[float, ...]

    @property
    def gap(self) -> float:
        """Primal minus dual objective, never negative beyond rounding."""
        return self.objective - self.dual_objective

    @property
    def relative_gap(self) -> float:
        """Gap over the larger of 1e-12 and the primal objective's size."""
        return self.gap / max(abs(self.objective), 1e-12)

    def summary(self) -> Summary:
        """Objective, gap, iterations, time and status, without the arrays."""
        return Summary(
            objective=self.objective,
            gap=self.gap,
            relative_gap=self.relative_gap,
            iterations=self.iterations,
            seconds=self.seconds,
            status=self.status.value,
        )
