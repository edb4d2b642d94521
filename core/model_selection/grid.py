"""The hyper-parameters to try: C, ε and ϵ, and which of them a method uses."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, get_args

from core.data.bounds import out_of_bounds, refuse, unknown_choice
from core.errors import Fault
from core.students import Method

_MAX_VALUES = 200


class Point(NamedTuple):
    """One choice of hyper-parameters. Without difficulty the floor is 1, which makes every d equal 1."""

    C: float
    margin: float
    floor: float


@dataclass(frozen=True, slots=True)
class Grid:
    """All combinations of the values given, which are kept rising and without repetition.

    C: loss weights. margins: ε of Eq. (6). floors: ϵ of Eq. (11), in (0, 1].
    Raises InvalidProblem naming every value out of bounds.
    """

    C: tuple[float, ...]
    margins: tuple[float, ...] = (1.0,)
    floors: tuple[float, ...] = (0.3,)

    def __post_init__(self) -> None:
        refuse(
            *(_wrong_number(name, getattr(self, name)) for name in ("C", "margins", "floors")),
            *(out_of_bounds("grid.C", value, 0.0, 1e12, open_low=True) for value in self.C),
            *(out_of_bounds("grid.margins", value, 0.0, 1e6) for value in self.margins),
            *(out_of_bounds("grid.floors", value, 0.0, 1.0, open_low=True) for value in self.floors),
        )
        for name in ("C", "margins", "floors"):
            values = tuple(sorted({float(value) for value in getattr(self, name)}))
            object.__setattr__(self, name, values)

    def points(self, method: Method) -> tuple[Point, ...]:
        """The points that differ for ``method``: C for the baseline, C × ε for gSVM-0, C × ε × ϵ for gSVM."""
        refuse(unknown_choice("method", method, get_args(Method)))
        margins = (1.0,) if method == "svm" else self.margins
        floors = self.floors if method == "gsvm" else (1.0,)
        return tuple(Point(*values) for values in product(self.C, margins, floors))


def _wrong_number(name: str, values: tuple[float, ...]) -> Fault | None:
    if 1 <= len(values) <= _MAX_VALUES:
        return None
    message = f"grid.{name} must hold 1 to {_MAX_VALUES} values, got {len(values)}"
    return Fault(f"grid.{name}", "out_of_bounds", message)


PAPER_GRID = Grid(
    C=tuple(10.0**power for power in range(-3, 4)),
    margins=tuple(tenths / 10 for tenths in range(16)),
    floors=tuple(tenths / 10 for tenths in range(1, 6)),
)
"""The paper's: C 1e-3 to 1e3, ε 0 to 1.5, ϵ 0.1 to 0.5; 560, 112 and 7 points for gSVM, gSVM-0 and SVM."""

OPEN_GRID = Grid(
    C=tuple(10.0**power for power in range(7)),
    margins=(0.0, 0.1, 0.3, 0.6, 1.0, 1.5),
    floors=(0.1, 0.3, 0.5),
)
"""Further and coarser: C 1 to 1e6. Below C = 1 a student is its teacher's hyperplane; 126 points for gSVM."""
