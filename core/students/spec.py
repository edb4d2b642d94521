"""The hyper-parameters of students; apart from the code that fits them, which loads Numba and SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from core.errors import Fault
from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters

Method: TypeAlias = Literal["gsvm", "gsvm0", "svm"]
Solver: TypeAlias = Literal["dual_cd", "mm_irls"]

MAX_LANDMARKS = 1000
DEFAULT_LANDMARKS = 100


@dataclass(frozen=True, slots=True)
class StudentSpec:
    """The gated SVM (Eq. 12) and its baselines. Raises InvalidProblem naming every wrong field."""

    method: Annotated[
        Method, Doc("gsvm: with difficulty; gsvm0: without (d = 1); svm: no teacher, the margin is 1.")
    ] = "gsvm"
    C: Annotated[float, Ge(1e-6), Le(1e8), Doc("Loss weight; the loss of one example weighs C/(n d).")] = 1e5
    margin: Annotated[float, Ge(0), Le(100), Doc("ε of Eq. 6: how far past the gate is wanted.")] = 1.0
    difficulty_floor: Annotated[
        float, Gt(0), Le(1), Doc("ϵ of Eq. 11: the difficulty of the easiest examples; gsvm only.")
    ] = 0.3
    solver: Annotated[Solver, Doc("Dual coordinate descent, or the paper's MM/IRLS (Algorithm 2).")] = (
        "dual_cd"
    )
    tolerance: Annotated[float, Gt(0), Lt(1), Doc("Stop at this relative duality gap.")] = 1e-3
    max_epochs: Annotated[
        int, Ge(1), Le(100_000), Doc("At most this many passes (dual_cd) or iterations (mm_irls).")
    ] = 2000

    def __post_init__(self) -> None:
        check_parameters(self, "student")


@dataclass(frozen=True, slots=True)
class CompactSpec:
    """Students with few landmarks of their own, cheaper to ask than the teacher's features; dense rows only.

    One budget at most; without any it is 100 landmarks. Raises InvalidProblem naming every wrong field.
    """

    n_landmarks: Annotated[
        int | None, Ge(1), Le(MAX_LANDMARKS), Doc("Budget: this many landmarks a student.")
    ] = None
    relative_cost: Annotated[
        float | None, Gt(0), Le(1), Doc("Budget: the cost of a query as a share of the teacher's.")
    ] = None
    max_f1_loss: Annotated[
        float | None,
        Ge(0),
        Le(100),
        Doc("Budget: the fewest landmarks at most so many points of held-out F below the full student's."),
    ] = None
    difficulty_floor: Annotated[
        float, Gt(0), Le(1), Doc("ϵ of Eq. 11: the difficulty of the easiest examples; 1 makes all equal.")
    ] = 0.3
    gate_weight: Annotated[
        float, Ge(0), Le(1e3), Doc("μ: weight of the distillation of the gate beside the loss.")
    ] = 0.02
    jitter: Annotated[
        float,
        Ge(0),
        Le(1e3),
        Doc("σ: noise on each column, as a multiple of the distance between neighbours."),
    ] = 0.6
    steps: Annotated[int, Ge(1), Le(1_000_000), Doc("Steps of the descent.")] = 3000

    @property
    def method(self) -> Literal["compact"]:
        """Name of the method, beside those of ``StudentSpec``."""
        return "compact"

    def __post_init__(self) -> None:
        budgets = [
            name
            for name in ("n_landmarks", "relative_cost", "max_f1_loss")
            if getattr(self, name) is not None
        ]
        message = f"only one budget may be set, not {' and '.join(budgets)}"
        too_many = Fault("compact", "two_budgets", message) if len(budgets) > 1 else None
        check_parameters(self, "compact", too_many)
