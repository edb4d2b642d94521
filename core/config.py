"""The hyper-parameters of a whole training run, and their defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

from core.bounds import not_whole, out_of_bounds, refuse, unknown_choice
from core.features import FeatureSpec
from core.selection import ThresholdRule
from core.students import Method, StudentSpec


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """What ``train`` and ``prepare`` do. Raises InvalidProblem naming every field out of bounds.

    features: the map φ. teacher_C, teacher_tolerance, teacher_max_epochs: see ``fit_ssvm``.
    student: of every class. comparisons: further methods trained beside it with the same hyper-parameters, to
        be measured only.
    threshold: rule for the decision threshold; budget: the largest false-positive rate, for the rule
        ``"fpr"``;
        folds: for the held-out scores that every rule but ``"zero"`` needs.
    seed: of everything random, in [0, 2³² − 1].
    """

    features: FeatureSpec = field(default_factory=FeatureSpec)
    teacher_C: float = 3e4  # noqa: N815
    teacher_tolerance: float = 1e-3
    teacher_max_epochs: int = 5000
    student: StudentSpec = field(default_factory=StudentSpec)
    comparisons: tuple[Method, ...] = ()
    threshold: ThresholdRule = "zero"
    budget: float = 0.01
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        refuse(
            out_of_bounds("teacher_C", self.teacher_C, 0.0, 1e12, open_low=True),
            out_of_bounds(
                "teacher_tolerance", self.teacher_tolerance, 0.0, 1.0, open_low=True, open_high=True
            ),
            not_whole("teacher_max_epochs", self.teacher_max_epochs, 1, 2**31 - 1),
            *(unknown_choice("comparisons", method, get_args(Method)) for method in self.comparisons),
            unknown_choice("threshold", self.threshold, get_args(ThresholdRule)),
            out_of_bounds("budget", self.budget, 0.0, 1.0, open_high=True),
            not_whole("folds", self.folds, 2, 1000),
            not_whole("seed", self.seed, 0, 2**32 - 1),
        )

    def specs(self) -> tuple[StudentSpec, ...]:
        """The student's spec first, then one for each other method to compare with."""
        others = dict.fromkeys(method for method in self.comparisons if method != self.student.method)
        return (self.student, *(replace(self.student, method=method) for method in others))

    def recipe(self) -> dict[str, Any]:
        """What map and teacher depend on, JSON-ready: equal recipes on equal data give equal preparations."""
        return {
            "features": asdict(self.features),
            "teacher": "ssvm",
            "teacher_C": float(self.teacher_C),
            "teacher_tolerance": float(self.teacher_tolerance),
            "teacher_max_epochs": int(self.teacher_max_epochs),
            "seed": int(self.seed),
        }
