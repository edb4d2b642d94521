"""The hyper-parameters of a whole training run, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args

from core.errors import Fault, InvalidProblem
from core.features.spec import FeatureSpec
from core.model_selection.options import CalibrationKind, CalibrationRule, GuardRule, ThresholdRule
from core.model_selection.tuning_spec import TuningSpec
from core.parameters import Doc, Ge, Le, Lt, check_parameters
from core.students.automatic import Automatic
from core.students.base import StudentSpec
from core.students.gated import GSVM
from core.teachers.base import TeacherSpec
from core.teachers.ssvm import SSVM

if TYPE_CHECKING:
    from core.data.column_layout import ColumnLayout
    from core.model_selection.quick_choice import QuickChoice
    from core.model_selection.setting_search import Setting
    from core.packed.calibration import Calibration
    from core.types import BoolArray, FloatArray

S = TypeVar("S", bound=TeacherSpec | StudentSpec)

AUTOMATIC_STUDENT: Final = Automatic()
"""The student of a job or estimator whose user chose none; its kind and its C are chosen automatically."""
AUTOMATIC_CALIBRATION: Final[CalibrationRule] = "sigmoid"
AUTOMATIC_THRESHOLD: Final[ThresholdRule] = "expected_f1"
AUTOMATIC_FOLDS: Final = 3
_LARGEST_C: Final = 1e8


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """What ``train`` and ``prepare`` do. Raises InvalidProblem naming every wrong field.

    features: the map φ. teacher: one for all students. students: fitted for every class; the first is
        shipped, the others are trained beside it to be measured only. No two have the same name.
    tuning: search for the hyper-parameters of every student that has a grid; None takes those given.
    """

    features: FeatureSpec = field(default_factory=FeatureSpec)
    teacher: TeacherSpec = field(default_factory=SSVM)
    students: tuple[StudentSpec, ...] = (GSVM(),)
    automatic: Annotated[
        bool,
        Doc(
            "Choose kind, scaling and width of the features, and C of teacher and students, by leave-one-out"
            " least squares on some 800 training rows; what is given for these is ignored. With students of"
            " kind automatic and a teacher of kind ssvm, trees are compared with that on held-out rows."
        ),
    ] = False
    automatic_seconds: Annotated[
        float | None,
        Ge(1),
        Le(86_400),
        Doc(
            "Budget of wall seconds for choices, teachers and students of an automatic job. Candidates are"
            " compared from cheap to dear as far as it allows; the job names those that were left out"
            " (provenance.features.budget). What fits depends on the machine, so that such a job is not"
            " repeatable bit for bit. The cheapest candidate is taken even if it takes longer. null: no"
            " budget."
        ),
    ] = None
    tuning: TuningSpec | None = None
    threshold: Annotated[
        ThresholdRule,
        Doc(
            "0 as in the paper, or chosen on held-out folds for this metric. expected_f1: where the F that a"
            " sigmoid fitted to the folds expects is largest, times n/20 with n < 20 rows of the class."
        ),
    ] = "zero"
    budget: Annotated[
        float,
        Ge(0),
        Lt(1),
        Doc(
            "The largest false-positive rate to be expected on further rows, for the rule fpr; ignored by the"
            " others. A rate of 1/n takes n − 1 training rows of other classes: with fewer, the job warns."
        ),
    ] = 0.01
    confidence: Annotated[
        float | None,
        Ge(0.5),
        Lt(1),
        Doc(
            "For the rule fpr: the probability with which the false-positive rate of the student at hand is"
            " within the budget, for example 0.95. It costs some recall, and takes more training rows of"
            " other classes: 299 for 1 % and 0.95. null: the rate is within the budget on average over"
            " training parts, and that of nearly every second student above it."
        ),
    ] = None
    calibration: Annotated[
        CalibrationRule,
        Doc(
            "auto: the probability that a student has by itself; if it has none, a sigmoid where tuning or"
            " threshold.rule give held-out scores anyway."
        ),
    ] = "auto"
    folds: Annotated[
        int, Ge(2), Le(20), Doc("Stratified folds for the held-out scores, of a calibration too.")
    ] = 5
    guard: Annotated[
        GuardRule,
        Doc(
            "Compare every student with its teacher on held-out rows: warn of one that is clearly worse, or"
            " (repair) first try students with more rejections in its place, then a copy of a linear"
            " teacher's scores. It costs one further fit of two thirds of the rows, where held-out scores"
            " are not computed anyway."
        ),
    ] = "off"
    seed: Annotated[
        int, Ge(0), Le(2**32 - 1), Doc("Of all that is random; the same seed repeats the run.")
    ] = 0

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.students]
        message = "students must hold at least one specification, and no two of the same name"
        wrong = Fault("students", "duplicate" if names else "empty", message)
        is_distinct = bool(names) and len(set(names)) == len(names)
        check_parameters(self, "", None if is_distinct else wrong, self._fault_of_budget())

    def _fault_of_budget(self) -> Fault | None:
        """The fault of a budget of seconds that this configuration cannot keep, or None."""
        is_open = self.automatic and self.compares_families
        if self.automatic_seconds is None or (is_open and self.tuning is None and len(self.students) == 1):
            return None
        message = (
            "a budget of seconds is for automatic jobs that leave teacher and student open, without tuning"
            " and without further students to compare"
        )
        return Fault("automatic_seconds", "contradiction", message)

    def student(self, name: str) -> StudentSpec:
        """The specification of that name. Raises InvalidProblem."""
        for spec in self.students:
            if spec.name == name:
                return spec
        raise InvalidProblem(Fault("method", "unknown_choice", f"the run has no student {name!r}"))

    def with_layout(self, layout: ColumnLayout | None) -> TrainingConfig:
        """The same configuration for rows with this column layout."""
        if layout is None:
            return self
        students = self.students
        # A teacher fitted to all rows may give larger scores than the fold teachers; the rule fpr
        # needs both alike.
        if self.automatic and self.tuning is None and layout.terms and self.threshold != "fpr":
            students = tuple(spec.copying() if isinstance(spec, Automatic) else spec for spec in students)
        return replace(self, features=replace(self.features, layout=layout), students=students)

    def with_choice(self, choice: QuickChoice, n: int) -> TrainingConfig:
        """The same configuration with the features, teacher and loss weights chosen for n training rows."""
        C = min(choice.C_per_row * n, _LARGEST_C)
        students = tuple(choice.student(_with_loss_weight(spec, C)) for spec in self.students)
        teacher = choice.tree_teacher or _with_loss_weight(self.teacher, C)
        return replace(
            self,
            features=choice.features,
            teacher=teacher,
            students=students,
            tuning=self._class_tuning,
            automatic_seconds=None,
        )

    def with_setting(self, setting: Setting) -> TrainingConfig:
        """The same configuration with the result of a search of scope ``"job"``; nothing is left open."""
        students = tuple(
            spec.with_point(setting.students.get(spec.suited(self.teacher).name, {}))
            for spec in self.students
        )
        teacher = _with_loss_weight(self.teacher, setting.teacher_C)
        return replace(
            self,
            features=setting.features,
            teacher=teacher,
            students=students,
            automatic=False,
            tuning=None,
        )

    @property
    def compares_families(self) -> bool:
        """Whether trees may replace the teacher, and copies of trees the students."""
        shipped = self.students[0] if self.students else None
        is_open = self.automatic or self.searches_job
        return is_open and isinstance(shipped, Automatic) and isinstance(self.teacher, SSVM)

    @property
    def _class_tuning(self) -> TuningSpec | None:
        """The search that remains once features and teacher are chosen."""
        return None if self.searches_job else self.tuning

    @property
    def searches_job(self) -> bool:
        """Whether features, teacher and students are to be searched for before the first fit."""
        return self.tuning is not None and self.tuning.scope == "job"

    @property
    def wants_held_out(self) -> bool:
        """Whether threshold or calibration need held-out scores of every student."""
        return self.threshold != "zero" or self.calibration in get_args(CalibrationKind)

    @property
    def needs_all_folds(self) -> bool:
        """Whether a search, a threshold, a calibration or a student's own budget needs folds."""
        students = [spec for spec in self.students if not self._copies_teacher(spec)]
        selects = any(spec.selects for spec in students)
        is_needed = self.tuning is not None or self.wants_held_out or selects
        return self.copies_scores or (bool(students) and is_needed)

    @property
    def copies_scores(self) -> bool:
        """Whether a student copies a teacher whose held-out scores are those of folds."""
        return not self.teacher.grows_trees and any(map(self._copies_teacher, self.students))

    @property
    def needs_folds(self) -> bool:
        """Whether anything needs folds; the guard alone takes a single one."""
        return self.needs_all_folds or any(self.is_guarded(spec) for spec in self.students)

    def is_guarded(self, spec: StudentSpec) -> bool:
        """Whether this student is compared with its teacher. Only the shipped one is, unless it is a copy."""
        is_shipped = spec.name == self.students[0].name
        return self.guard != "off" and is_shipped and not self._copies_teacher(spec)

    def holds_out(self, spec: StudentSpec) -> bool:
        """Whether a student needs folds: for search, budget, threshold, calibration or the guard."""
        if self._copies_teacher(spec):
            return False
        searched = self.tuning is not None and bool(spec.suited(self.teacher).grid(self.tuning.grid))
        return searched or spec.selects or self.wants_held_out or self.is_guarded(spec)

    def _copies_teacher(self, spec: StudentSpec) -> bool:
        return spec.suited(self.teacher).copies_teacher

    @property
    def n_folds(self) -> int:
        """Number of folds of the run: that of the search, if there is one."""
        return self.folds if self.tuning is None else self.tuning.folds

    def settle(self, positive: BoolArray, held_out: FloatArray | None) -> tuple[float, Calibration | None]:
        """Threshold and calibration from the truth (n,) and held-out scores (n,).

        Without scores: 0 and None.
        """
        from core.model_selection.calibration import fit_calibration
        from core.model_selection.threshold import choose_threshold

        if held_out is None:
            return 0.0, None
        threshold = choose_threshold(positive, held_out, self.threshold, self.budget, self.confidence)
        if self.calibration == "none":
            return threshold, None
        kind: CalibrationKind = "sigmoid" if self.calibration == "auto" else self.calibration
        return threshold, fit_calibration(positive, held_out, kind)

    def recipe(self) -> dict[str, Any]:
        """What map and teachers depend on, JSON-ready; the same data and recipe give the same preparation."""
        return {
            "features": self.features.as_dict(),
            "teacher": {"name": self.teacher.name, **self.teacher.params()},
            "seed": int(self.seed),
            "folds": int(self.n_folds) if self.needs_all_folds else 0,
            **({"guard": True} if self.needs_folds and not self.needs_all_folds else {}),
        }


def _with_loss_weight(spec: S, C: float) -> S:
    """The specification with this C, if it has one."""
    changed: S = replace(spec, C=C) if hasattr(spec, "C") else spec  # type: ignore[type-var]
    return changed
