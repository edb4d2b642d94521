"""The hyper-parameters of a whole training run, and their defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

from core.data.bounds import not_whole, out_of_bounds, refuse, unknown_choice
from core.features.maps import FeatureSpec
from core.model_selection.calibration import CalibrationKind, CalibrationRule, fit_calibration
from core.model_selection.threshold import ThresholdRule, choose_threshold
from core.model_selection.tuning_spec import TuningSpec
from core.packed.calibration import Calibration
from core.students import Method, StudentSpec
from core.students.compact import CompactSpec
from core.types import BoolArray, FloatArray

SSVM = "ssvm"
"""Name of the teacher that is trained (Eq. 1)."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """What ``train`` and ``prepare`` do. Raises InvalidProblem naming every field out of bounds.

    features: the map φ. teacher_C, teacher_tolerance, teacher_max_epochs: see ``fit_ssvm``.
    student: of every class. comparisons: further methods trained beside it with the same hyper-parameters, to
        be measured only.
    compact: budget of compact students, which are then trained in place of ``student``; a method of
        ``comparisons`` may be the full student beside them.
    tuning: search for the C, ε and ϵ of every full student; None takes those of ``student``.
    threshold: rule for the decision threshold; budget: the largest false-positive rate, for the rule
        ``"fpr"``.
    calibration: of scores to probabilities; ``"auto"`` is a sigmoid where there are held-out scores anyway.
    folds: for the held-out scores that every rule but ``"zero"``, and a calibration, needs. Those of a search
        are taken where there is one.
    seed: of everything random, in [0, 2³² − 1].
    teacher: ``"ssvm"`` is trained, any other name is of one from outside, which is given to ``prepare``.
    """

    features: FeatureSpec = field(default_factory=FeatureSpec)
    teacher_C: float = 3e4  # noqa: N815
    teacher_tolerance: float = 1e-3
    teacher_max_epochs: int = 5000
    student: StudentSpec = field(default_factory=StudentSpec)
    comparisons: tuple[Method, ...] = ()
    compact: CompactSpec | None = None
    tuning: TuningSpec | None = None
    threshold: ThresholdRule = "zero"
    budget: float = 0.01
    calibration: CalibrationRule = "none"
    folds: int = 5
    seed: int = 0
    teacher: str = SSVM

    def __post_init__(self) -> None:
        refuse(
            out_of_bounds("teacher_C", self.teacher_C, 0.0, 1e12, open_low=True),
            out_of_bounds(
                "teacher_tolerance", self.teacher_tolerance, 0.0, 1.0, open_low=True, open_high=True
            ),
            not_whole("teacher_max_epochs", self.teacher_max_epochs, 1, 2**31 - 1),
            *(unknown_choice("comparisons", method, get_args(Method)) for method in self.comparisons),
            unknown_choice("threshold", self.threshold, get_args(ThresholdRule)),
            unknown_choice("calibration", self.calibration, get_args(CalibrationRule)),
            out_of_bounds("budget", self.budget, 0.0, 1.0, open_high=True),
            not_whole("folds", self.folds, 2, 1000),
            not_whole("seed", self.seed, 0, 2**32 - 1),
        )

    def specs(self) -> tuple[StudentSpec | CompactSpec, ...]:
        """The spec of what is shipped first, then one for each other method to compare with."""
        shipped = self.student if self.compact is None else self.compact
        others = dict.fromkeys(method for method in self.comparisons if method != shipped.method)
        return (shipped, *(replace(self.student, method=method) for method in others))

    @property
    def needs_held_out(self) -> bool:
        """Whether threshold or calibration need held-out scores."""
        return self.threshold != "zero" or self.calibration in get_args(CalibrationKind)

    def settle(self, positive: BoolArray, held_out: FloatArray | None) -> tuple[float, Calibration | None]:
        """Threshold and calibration from the truth (n,) and held-out scores (n,); 0 and None without any."""
        if held_out is None:
            return 0.0, None
        threshold = choose_threshold(positive, held_out, self.threshold, self.budget)
        if self.calibration == "none":
            return threshold, None
        kind: CalibrationKind = "sigmoid" if self.calibration == "auto" else self.calibration
        return threshold, fit_calibration(positive, held_out, kind)

    def recipe(self) -> dict[str, Any]:
        """What map and teacher depend on, JSON-ready: equal recipes on equal data give equal preparations."""
        folds = {} if self.tuning is None else {"tuning_folds": int(self.tuning.folds)}
        return {
            "features": asdict(self.features),
            "teacher": self.teacher,
            "teacher_C": float(self.teacher_C),
            "teacher_tolerance": float(self.teacher_tolerance),
            "teacher_max_epochs": int(self.teacher_max_epochs),
            "seed": int(self.seed),
            **folds,
        }
