"""Iteration loop of all solvers with a duality gap: stopping rule, trace, progress and cancellation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from core.errors import Fault, InvalidProblem
from core.run import Run
from core.solvers.solution import Solution, Status
from core.types import FloatArray


@dataclass(frozen=True, slots=True)
class Certificate:
    """Bounds of the optimum after an iteration: dual_objective <= optimum <= objective.

    recorded: the value for the trace; ``None`` means the primal objective.
    scale: least size of the objective for the relative gap, for problems whose objective may tend to 0.
    stalled: floating point allows no further progress.
    """

    objective: float
    dual_objective: float
    recorded: float | None = None
    stalled: bool = False
    scale: float = 1e-12

    @property
    def relative_gap(self) -> float:
        """Gap over the larger of ``scale`` and the primal objective's size."""
        return (self.objective - self.dual_objective) / max(abs(self.objective), self.scale)


class Method(Protocol):
    """Solver state: current iterate and one ``advance`` step.

    value, dual: current primal and dual point. iterations: epochs or steps completed.
    """

    value: FloatArray
    dual: FloatArray
    iterations: int

    def advance(self, run: Run) -> Certificate:
        """Do one round of work, with frequent cancel checks, and return the bounds after it."""
        ...


def iterate(
    method: Method,
    *,
    stage: str,
    tolerance: float,
    max_iterations: int,
    run: Run,
) -> Solution:
    """Advance ``method`` until its relative duality gap is at most ``tolerance``.

    Raises InvalidProblem for limits out of range and Cancelled when ``run`` is cancelled.
    """
    _check_limits(tolerance, max_iterations)

    started = time.perf_counter()
    trace: list[float] = []
    while True:
        run.check_cancel()
        certificate = method.advance(run)
        trace.append(certificate.objective if certificate.recorded is None else certificate.recorded)
        gap = certificate.objective - certificate.dual_objective
        run.report(stage, method.iterations, max_iterations, certificate.objective, gap)
        status = _outcome(certificate, tolerance, method.iterations >= max_iterations)
        if status is not None:
            break
    return Solution(
        value=method.value,
        dual=method.dual,
        objective=certificate.objective,
        dual_objective=certificate.dual_objective,
        status=status,
        iterations=method.iterations,
        seconds=time.perf_counter() - started,
        trace=tuple(trace),
    )


def _outcome(certificate: Certificate, tolerance: float, exhausted: bool) -> Status | None:
    if certificate.relative_gap <= tolerance:
        return Status.CONVERGED
    if certificate.stalled:
        return Status.STALLED
    return Status.MAX_ITERATIONS if exhausted else None


def _check_limits(tolerance: float, max_iterations: int) -> None:
    faults = []
    if not 0 < tolerance < 1:
        faults.append(
            Fault("tolerance", "out_of_range", f"tolerance must be between 0 and 1, got {tolerance}")
        )
    if max_iterations < 1:
        faults.append(
            Fault("max_iterations", "out_of_range", f"at least one iteration is needed, got {max_iterations}")
        )
    if faults:
        raise InvalidProblem(*faults)
