"""A student that chooses, for each class, the family that is best on held-out rows within a time budget."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from core.errors import Fault, InvalidProblem
from core.parameters import Doc, Gt, Le, MaxLen, check_parameters
from core.students.base import HeldOutScorer, MetadataValue, Need, Selection, StudentSpec
from core.students.compact import Compact
from core.students.gated import GSVM
from core.students.gaussian import GPC, GPCPlus
from core.students.multiview import MultiView
from core.students.odm import ODM
from core.students.polytope import Polytope
from core.students.svm_plus import SVMPlus

if TYPE_CHECKING:
    from core.run import Run
    from core.students.base import Problem, Student
    from core.types import FloatArray

CANDIDATES: Final[tuple[StudentSpec, ...]] = (
    GSVM(C=1e3),
    GSVM(C=1e5),
    Polytope(C=1e3),
    Polytope(C=1e5, pieces=8),
    ODM(C=1e3),
    ODM(C=1e5),
    GPC(),
    GPCPlus(privileged="columns"),
    SVMPlus(privileged="columns"),
    MultiView(),
    Compact(),
)
"""The candidates in the order of comparison: families with few settings each.

The first of equal ones wins.
"""

_NEEDED: Final[dict[Need, str]] = {
    "gate_weights": "a teacher that is linear in the features",
    "dense": "dense rows",
    "privileged": "privileged columns",
    "views": "named views of the columns",
}

FAMILIES: Final = tuple(dict.fromkeys(spec.name for spec in CANDIDATES))


@dataclass(frozen=True, slots=True)
class Auto(StudentSpec):
    """Compare families of students on held-out rows, and train the best one of each class.

    Every candidate is fitted in the folds, with teachers that have not seen the held-out rows, and the one
    with the largest F at the threshold of the run's rule is fitted to all rows. A candidate that needs what
    the data or the teacher lack is left out, and so are those that remain when the time is over. So the
    choice, unlike that of other students, can depend on the speed of the machine.

    Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "auto"

    seconds: Annotated[
        float, Gt(0), Le(86_400), Doc("Begin no further comparison of a class after so many seconds.")
    ] = 60.0
    families: Annotated[
        tuple[str, ...], MaxLen(16), Doc(f"Families to compare, of {', '.join(FAMILIES)}; none: all.")
    ] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.families if name not in FAMILIES]
        message = f"families must be of {', '.join(FAMILIES)}, got {', '.join(unknown)}"
        check_parameters(
            self, "student", Fault("student.families", "unknown_choice", message) if unknown else None
        )

    @property
    def selects(self) -> bool:
        """True: held-out rows choose the family."""
        return True

    def fit(self, problem: Problem, run: Run) -> Student:
        """Raise InvalidProblem: only the specification that ``select`` returns can be fitted."""
        del problem, run
        message = "auto needs held-out rows to choose a family; fit the chosen family instead"
        raise InvalidProblem(Fault("student", "no_held_out_rows", message))

    def select(self, scorer: HeldOutScorer, run: Run) -> Selection:
        """The candidate with the largest held-out F.

        run: reports stage ``"families"`` in candidates. Raises InvalidProblem if no candidate fits the data,
        Cancelled.
        """
        started = time.perf_counter()
        wanted = [spec for spec in CANDIDATES if not self.families or spec.name in self.families]
        tried: list[Candidate] = []
        best: tuple[Candidate, FloatArray] | None = None
        for done, spec in enumerate(wanted):
            run.report("families", done, len(wanted))
            begun = time.perf_counter()
            missing = [_NEEDED[need] for need in _NEEDED if need in spec.needs - scorer.offers]
            if missing:
                tried.append(Candidate(spec, left_out=f"it needs {' and '.join(missing)}"))
                continue
            if best is not None and begun - started > self.seconds:
                tried.append(Candidate(spec, left_out=f"the time of {self.seconds:g} s was over"))
                continue
            scores = scorer.scores(spec)
            one = Candidate(spec, scorer.f1(scores), time.perf_counter() - begun)
            tried.append(one)
            if best is None or one.f1 > best[0].f1:
                best = one, scores
        run.report("families", len(wanted), len(wanted))
        if best is None:
            reasons = "; ".join(f"{one.spec.name}: {one.left_out}" for one in tried)
            message = f"no family of students fits the data: {reasons}"
            raise InvalidProblem(Fault("student.families", "nothing_fits", message))
        chosen, held_out = best
        return Selection(chosen.spec, held_out, FamilyChoice(chosen, tuple(tried)))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A specification. f1: F on held-out rows, in [0, 1]. left_out: why it was not compared, or None."""

    spec: StudentSpec
    f1: float = 0.0
    seconds: float = 0.0
    left_out: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        params = {
            name: value
            for name, value in self.spec.metadata().items()
            if isinstance(value, str | int | float) and name != "method"
        }
        return {
            "family": self.spec.name,
            "params": params,
            "f1": None if self.left_out else self.f1,
            "seconds": self.seconds,
            "left_out": self.left_out,
        }


@dataclass(frozen=True, slots=True)
class FamilyChoice:
    """Which family was chosen, and what it was compared with."""

    chosen: Candidate
    candidates: tuple[Candidate, ...]

    def summary(self) -> dict[str, Any]:
        """Family and F of the choice and of the best other family; numbers of those compared and left out."""
        compared = [one for one in self.candidates if one.left_out is None]
        others = [one for one in compared if one.spec.name != self.chosen.spec.name]
        second = max(others, key=lambda one: one.f1, default=None)
        return {
            "family": self.chosen.spec.name,
            "score": self.chosen.f1,
            "second_family": None if second is None else second.spec.name,
            "second_score": None if second is None else second.f1,
            "points": len(compared),
            "left_out": len(self.candidates) - len(compared),
        }

    def trace(self) -> list[dict[str, Any]]:
        """All candidates, JSON-ready."""
        return [one.as_dict() for one in self.candidates]

    def metadata(self) -> dict[str, MetadataValue]:
        """``chosen_by`` names this kind of student; ``chosen_f1`` is the held-out F."""
        return {"chosen_by": Auto.name, "chosen_f1": float(self.chosen.f1)}
