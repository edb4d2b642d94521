"""The hyper-parameters of a whole training run, and their defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, get_args

from core.features.spec import FeatureSpec
from core.model_selection.options import CalibrationKind, CalibrationRule, ThresholdRule
from core.model_selection.tuning_spec import TuningSpec
from core.packed.calibration import Calibration
from core.parameters import Doc, Ge, Gt, Le, Lt, check_parameters
from core.students.spec import CompactSpec, Method, StudentSpec
from core.types import BoolArray, FloatArray

SSVM = "ssvm"
"""Name of the teacher that is trained (Eq. 1)."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """What ``train`` and ``prepare`` do. Raises InvalidProblem naming every wrong field.

    features: the map φ. student: of every class. comparisons: further methods trained beside it with the same
        hyper-parameters, to be measured only.
    compact: budget of compact students, which are then trained in place of ``student``; a method of
        ``comparisons`` may be the full student beside them.
    tuning: search for the C, ε and ϵ of every full student; None takes those of ``student``.
    teacher: ``"ssvm"`` is trained; any other name is that of an imported teacher, an argument of ``prepare``.
    """

    features: FeatureSpec = field(default_factory=FeatureSpec)
    teacher_C: Annotated[  # noqa: N815
        float, Ge(1e-6), Le(1e8), Doc("Loss weight; the loss of one example weighs C/n.")
    ] = 3e4
    teacher_tolerance: Annotated[float, Gt(0), Lt(1), Doc("Stop at this relative duality gap.")] = 1e-3
    teacher_max_epochs: Annotated[
        int, Ge(1), Le(100_000), Doc("At most this many passes over the examples.")
    ] = 5000
    student: StudentSpec = field(default_factory=StudentSpec)
    comparisons: Annotated[
        tuple[Method, ...], Doc("Methods trained beside the student's own, for comparison only.")
    ] = ()
    compact: CompactSpec | None = None
    tuning: TuningSpec | None = None
    threshold: Annotated[
        ThresholdRule, Doc("0 as in the paper, or chosen on held-out folds for this metric.")
    ] = "zero"
    budget: Annotated[
        float, Ge(0), Lt(1), Doc("The largest false-positive rate, for the rule fpr; ignored by the others.")
    ] = 0.01
    calibration: Annotated[
        CalibrationRule,
        Doc("auto: a sigmoid where tuning or threshold.rule give held-out scores anyway, else none."),
    ] = "auto"
    folds: Annotated[
        int, Ge(2), Le(20), Doc("Stratified folds for the held-out scores, of a calibration too.")
    ] = 5
    seed: Annotated[
        int, Ge(0), Le(2**32 - 1), Doc("Of all that is random; the same seed repeats the run.")
    ] = 0
    teacher: str = SSVM

    def __post_init__(self) -> None:
        check_parameters(self, "")

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
        # Imported here because a configuration is also read by processes that must not load scikit-learn.
        from core.model_selection.calibration import fit_calibration
        from core.model_selection.threshold import choose_threshold

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
