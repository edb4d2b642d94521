"""Grids of values to try for the hyper-parameters C, ε, ϵ and β."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from core.errors import Fault, InvalidProblem
from core.parameters import Doc, Ge, Gt, Le, MaxLen, MinLen, check_parameters

MAX_POINTS = 2000
MIN_C = 1e-6
MAX_C = 1e8


class Point(NamedTuple):
    """C; ε of Eq. (6); ϵ of Eq. (11); and β, the exponent of the class balance."""

    C: float
    margin: float
    floor: float
    balance: float


@dataclass(frozen=True, slots=True)
class Grid:
    """All combinations of its values, at most 2000; each axis is kept rising and without repetition.

    Raises InvalidProblem naming every wrong axis.
    """

    C: Annotated[
        tuple[Annotated[float, Ge(MIN_C), Le(MAX_C)], ...], MinLen(1), MaxLen(50), Doc("Loss weights.")
    ] = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
    margins: Annotated[
        tuple[Annotated[float, Ge(0), Le(100)], ...], MinLen(1), MaxLen(50), Doc("Values of ε, Eq. 6.")
    ] = (1.0,)
    floors: Annotated[
        tuple[Annotated[float, Gt(0), Le(1)], ...], MinLen(1), MaxLen(50), Doc("Values of ϵ, Eq. 11.")
    ] = (0.3,)

    balances: Annotated[
        tuple[Annotated[float, Ge(0), Le(1)], ...],
        MaxLen(50),
        Doc("Values of β, the exponent of the class balance; none: that of the student."),
    ] = ()

    def __post_init__(self) -> None:
        check_parameters(self, "grid")
        for name in ("C", "margins", "floors", "balances"):
            values = tuple(sorted({float(value) for value in getattr(self, name)}))
            object.__setattr__(self, name, values)
        points = len(self.C) * len(self.margins) * len(self.floors) * max(1, len(self.balances))
        if points > MAX_POINTS:
            message = f"the grid has {points} points, more than {MAX_POINTS}"
            raise InvalidProblem(Fault("grid", "too_many_points", message))


PAPER_GRID = Grid(
    C=tuple(10.0**power for power in range(-3, 4)),
    margins=tuple(tenths / 10 for tenths in range(16)),
    floors=tuple(tenths / 10 for tenths in range(1, 6)),
)
"""The paper's grid: C 1e-3 to 1e3, ε 0 to 1.5, ϵ 0.1 to 0.5; 560, 112, 7 points for gSVM, gSVM-0, SVM."""

OPEN_GRID = Grid(
    C=tuple(10.0**power for power in range(7)),
    margins=(0.0, 0.1, 0.3, 0.6, 1.0, 1.5),
    floors=(0.1, 0.3, 0.5),
)
"""Wider and coarser: C 1 to 1e6; 126 points for gSVM.

Below C = 1 a student equals its teacher's hyperplane.
"""

GRIDS = {"paper": PAPER_GRID, "open": OPEN_GRID}


_NEAR = (0.1, 10.0**-0.5, 1.0, 10.0**0.5)


def near_grid(C: float) -> Grid:
    """Four values of C around a good estimate, two of ε, and two of ϵ up to 1: 16 points for gSVM."""
    around = (min(max(C * factor, MIN_C), MAX_C) for factor in _NEAR)
    return Grid(C=tuple(around), margins=(0.3, 1.0), floors=(0.3, 1.0))


def grid_of(choice: Any) -> Grid:
    """The ``Grid``, or the grid with this name. Raises InvalidProblem for anything else."""
    grid = GRIDS.get(choice) if isinstance(choice, str) else choice
    if not isinstance(grid, Grid):
        message = f"the grid must be one of {', '.join(GRIDS)} or a Grid, got {choice!r}"
        raise InvalidProblem(Fault("tuning.grid", "no_grid", message))
    return grid
