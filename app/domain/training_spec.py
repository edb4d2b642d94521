"""Hyper-parameters of a training job, as they are read from JSON.

Names, defaults, bounds and descriptions are those that core declares (``core.parameters``); this module says
how they are grouped, and adds what only the service knows: imported teachers, test parts, publishing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from app.domain.entities import AUTO
from app.domain.input_parameters import InputParameters
from app.domain.names import AliasName, Reference
from app.domain.parameter_fields import AsJson, NameOf, OneOf, SpecModel, declared, model_of
from app.domain.remote_teacher import RemoteScores
from core.features.spec import FeatureSpec
from core.labelling.base import LabellerSpec
from core.labelling.ssodm import SsODM
from core.learners import LABELLERS, STUDENTS, TEACHERS
from core.model_selection.options import CalibrationRule, GuardRule, ThresholdRule
from core.model_selection.tuning_spec import TuningSpec
from core.monitoring.suspects import MOST as MOST_SUSPECTS
from core.parameters import parameters_of
from core.students.automatic import Automatic
from core.students.base import StudentSpec
from core.students.compact import Compact as CompactSpec
from core.students.gated import GSVM
from core.students.grid import Grid
from core.students.trees import Trees
from core.teachers.base import TeacherSpec
from core.teachers.forest import Forest
from core.teachers.ssvm import SSVM
from core.training.config import (
    AUTOMATIC_CALIBRATION,
    AUTOMATIC_FOLDS,
    AUTOMATIC_STUDENT,
    AUTOMATIC_THRESHOLD,
    TrainingConfig,
)


def _either(*schemas: dict[str, Any]) -> ConfigDict:
    """For a rule that binds several fields: what the JSON schema of the whole says of it."""
    return ConfigDict(json_schema_extra={"anyOf": list(schemas)})


def _absent(*names: str) -> dict[str, Any]:
    """Schema of an object in which these fields are null or left out."""
    return {"properties": {name: {"type": "null"} for name in names}}


def _declared_to_json(spec: Any) -> dict[str, Any]:
    spec_class: Any = type(spec)
    return {one.name: getattr(spec, one.name) for one in parameters_of(spec_class)}


Features: TypeAlias = Annotated[
    FeatureSpec, AsJson(FeatureSpec, model_of(FeatureSpec, "FeatureParameters"), _declared_to_json)
]


def _students_by_name() -> dict[str, type[StudentSpec]]:
    """The students that the group ``student`` may name; compact ones have a group of their own."""
    return {name: one for name, one in STUDENTS.items() if one is not CompactSpec}


_STUDENT = OneOf(_students_by_name, GSVM.name, "StudentParameters")
Student: TypeAlias = Annotated[StudentSpec, _STUDENT]


@dataclass(frozen=True, slots=True)
class TeacherChoice:
    """The teacher of a job.

    model: an imported head, which is then taken in place of a trained teacher. spec: of the trained one.
    """

    model: str | None = None
    spec: TeacherSpec = field(default_factory=SSVM)


class _TeacherAsJson(OneOf):
    def make(self, spec_class: type, values: dict[str, Any]) -> TeacherChoice:
        if spec_class is RemoteScores:
            return TeacherChoice(spec=spec_class(**values))
        return TeacherChoice(values.pop("model"), spec_class(**values))

    def write(self, value: TeacherChoice) -> dict[str, Any]:
        # A remote teacher has a model of its own.
        return {"model": value.model, **super().write(value.spec)}


_MODEL_FIELD = Field(
    None,
    description="An imported head (`name`, `name@alias`, `name@3`) instead of a teacher that is trained;"
    " needs linear features.",
)
_TEACHER = _TeacherAsJson(
    lambda: {**TEACHERS, RemoteScores.name: RemoteScores},
    SSVM.name,
    "TeacherParameters",
    {"model": (Reference | None, _MODEL_FIELD)},
)
LIKE_NOTHING: Final = "none"
"""As ``like``: a job takes the columns of its data set as they are."""

Teacher: TypeAlias = Annotated[TeacherChoice, _TEACHER]

Labelling: TypeAlias = Annotated[LabellerSpec, OneOf(lambda: LABELLERS, SsODM.name, "LabellingParameters")]

_ONE_BUDGET = _either(
    _absent("relative_cost", "max_f1_loss"),
    _absent("n_landmarks", "max_f1_loss"),
    _absent("n_landmarks", "relative_cost"),
)


Compact: TypeAlias = Annotated[
    CompactSpec,
    AsJson(CompactSpec, model_of(CompactSpec, "CompactParameters", config=_ONE_BUDGET), _declared_to_json),
]


def _grid_tag(value: object) -> str:
    return "name" if isinstance(value, str) else "values"


_GridChoice: TypeAlias = Annotated[
    Annotated[Literal["paper", "open"], Tag("name")]
    | Annotated[Grid, AsJson(Grid, model_of(Grid, "GridParameters")), Tag("values")],
    Discriminator(_grid_tag),
]


_GRID_FIELD = Field(
    "paper",
    description="Points to try: the paper's 560 (C ≤ 1e3), 126 up to C = 1e6, or a grid of one's own.",
)
Tuning: TypeAlias = Annotated[
    TuningSpec,
    AsJson(TuningSpec, model_of(TuningSpec, "TuningParameters", fields={"grid": (_GridChoice, _GRID_FIELD)})),
]


class AutomaticParameters(SpecModel):
    """An automatic job, within a budget of time."""

    seconds: float | None = declared(TrainingConfig, "automatic_seconds")


def _automatic_tag(value: object) -> str:
    is_object = isinstance(value, dict | AutomaticParameters)
    return "budget" if is_object else "null" if value is None else "value"


_AutomaticChoice: TypeAlias = Annotated[
    Annotated[bool, Tag("value")]
    | Annotated[AutomaticParameters, Tag("budget")]
    | Annotated[None, Tag("null")],
    Discriminator(_automatic_tag),
]


class CalibrationParameters(SpecModel):
    """From scores to probabilities, fitted on the held-out scores of tuning or of threshold.folds."""

    kind: CalibrationRule = declared(TrainingConfig, "calibration")


class ThresholdParameters(SpecModel):
    """Where the decision is cut."""

    rule: ThresholdRule = declared(TrainingConfig, "threshold")
    max_false_positive_rate: float = declared(TrainingConfig, "budget")
    confidence: float | None = declared(TrainingConfig, "confidence")
    folds: int = declared(TrainingConfig, "folds")


class GuardParameters(SpecModel):
    """Each student that answers queries is compared with its teacher on held-out rows before publication.

    One that is clearly worse in F or ROC area is replaced or named by a warning: in the job, the version and
    the events.
    """

    kind: GuardRule | None = Field(
        None,
        description="check: warn of such a student. repair: first try students with more rejections, then"
        " a copy of a linear teacher. off:"
        " compare nothing. null: repair if `student` is left out, otherwise check.",
    )
    on_failure: Literal["warn", "partial"] = Field(
        "warn", description="Whether a job with warnings ends as succeeded, or as partially_succeeded."
    )


class SuspectParameters(SpecModel):
    """Rows whose labels are probably wrong, found by scores of teachers that have not seen them."""

    limit: int = Field(
        MOST_SUSPECTS,
        ge=0,
        le=MOST_SUSPECTS,
        description="How many of the most suspect rows the job stores; 0: none, and none are looked for.",
    )


_TestFraction: TypeAlias = Annotated[
    Annotated[float, Field(gt=0, lt=0.9), Tag("value")]
    | Annotated[Literal["auto"], Tag("name")]
    | Annotated[None, Tag("null")],
    Discriminator(lambda value: {str: "name", type(None): "null"}.get(type(value), "value")),
]

_NO_FRACTION: dict[str, Any] = {
    "properties": {"test_fraction": {"anyOf": [{"type": "null"}, {"const": AUTO}]}}
}


class EvaluationParameters(SpecModel):
    """What the students are measured on."""

    model_config = _either(_absent("dataset_id"), _NO_FRACTION)

    dataset_id: str | None = Field(
        None, max_length=71, description="A data set to test on; null: the data set's own test part, if any."
    )
    unknown_classes: Literal["refuse", "drop"] = Field(
        "refuse",
        description="What becomes of rows of dataset_id of classes that the training data does not have: the"
        " job is refused, or they are left out.",
    )
    class_names: dict[str, str] = Field(
        {},
        max_length=10_000,
        description='Classes that dataset_id writes in another way, by their names there: {"<=50K.":'
        ' "<=50K"}.',
    )
    test_fraction: _TestFraction = Field(
        AUTO,
        description="Hold out this stratified share of the training rows instead. auto: a fifth of each"
        " class, if there is no other test part and 100 rows or more have labels; each class keeps two rows,"
        " and equal rows stay together. null: hold out nothing.",
    )
    baselines: tuple[Annotated[str, NameOf(_students_by_name)], ...] = Field(
        (), max_length=8, description="Methods trained beside the student's own, for comparison only."
    )

    @model_validator(mode="after")
    def _one_test_part(self) -> EvaluationParameters:
        if self.dataset_id is not None and self.given_fraction is not None:
            raise ValueError("give dataset_id or test_fraction, not both")
        return self

    @property
    def given_fraction(self) -> float | None:
        """The share of the training rows that the job was told to hold out; None if none was named."""
        return None if self.test_fraction == AUTO else self.test_fraction

    def holds_out(self, *, has_test_part: bool) -> bool:
        """Whether training rows are held out. has_test_part: whether the data set has one of its own."""
        if self.test_fraction == AUTO:
            return self.dataset_id is None and not has_test_part
        return self.test_fraction is not None


def _distinct(labels: tuple[str, ...] | None) -> tuple[str, ...] | None:
    places: dict[str, int] = {}
    for place, label in enumerate(labels or ()):
        if places.setdefault(label, place) != place:
            raise ValueError(f"class {label!r:.100} is repeated at position {place}: name each class once")
    return labels


LEARNERS = frozenset({"features", "teacher", "student", "compact", "tuning"})
"""A job that names one of these is not automatic, unless it says so."""

_LINEAR_FEATURES: dict[str, Any] = {"properties": {"features": {"properties": {"kind": {"const": "linear"}}}}}
_NO_HEAD: dict[str, Any] = {"properties": {"teacher": _absent("model")}}
_GIVEN_FEATURES: dict[str, Any] = {
    "properties": {
        "automatic": {"anyOf": [{"type": "null"}, {"const": False}]},
        "tuning": {"anyOf": [{"type": "null"}, {"properties": {"scope": {"not": {"const": "job"}}}}]},
    }
}
_NO_BUDGET: dict[str, Any] = {
    "properties": {
        "automatic": {
            "anyOf": [{"type": "null"}, {"type": "boolean"}, {"type": "object"} | _absent("seconds")]
        }
    }
}
_LEFT_OPEN: dict[str, Any] = {
    "properties": {
        **_absent("compact", "tuning")["properties"],
        "teacher": {"properties": {"method": {"const": "ssvm"}}},
        "student": {"required": ["method"], "properties": {"method": {"const": "automatic"}}},
        "evaluation": {"properties": {"baselines": {"maxItems": 0}}},
    }
}
_BASELINES: dict[str, Any] = {
    "required": ["evaluation"],
    "properties": {"evaluation": {"required": ["baselines"], "properties": {"baselines": {"minItems": 1}}}},
}


class TrainingSpec(SpecModel):
    """All hyper-parameters of a job. Every field has a default."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                {"anyOf": [_LINEAR_FEATURES, _NO_HEAD]},
                {"anyOf": [_absent("compact"), _absent("tuning"), _BASELINES]},
                {"anyOf": [_GIVEN_FEATURES, _NO_HEAD]},
                {"anyOf": [_NO_BUDGET, _LEFT_OPEN]},
            ]
        }
    )

    labelling: Labelling | None = Field(
        None,
        description="A stage before training that labels the rows without a label; null: students learn the"
        " teacher's answers on them.",
    )
    inputs: InputParameters | None = Field(
        None, description="What is said of the columns of records; null: as the data set has them."
    )
    features: Features = FeatureSpec()
    teacher: Teacher = Field(TeacherChoice(), json_schema_extra={"default": _TEACHER.write(TeacherChoice())})
    student: Student = Field(GSVM(), json_schema_extra={"default": _STUDENT.write(GSVM())})
    compact: Compact | None = Field(
        None,
        description="null: students on the teacher's features; {}: compact students, 100 landmarks each.",
    )
    automatic: _AutomaticChoice = Field(
        None,
        description="Choose features and C by the training part, compare with trees on held-out rows, and"
        " take calibrated students of 8 rejections, or copies of the trees, unless student, calibration and"
        " threshold are given. null: true if features, teacher, student, compact and tuning are left out,"
        " otherwise false: what is left out is as listed here. An object: true, within its budget.",
    )
    tuning: Tuning | None = Field(
        None,
        description="null: train at the given hyper-parameters; {}: search the paper's grid by halving;"
        ' {"scope": "job"}: search features, teacher and students, and take what is better than automatic.',
    )
    threshold: ThresholdParameters = ThresholdParameters()
    calibration: CalibrationParameters = CalibrationParameters()
    guard: GuardParameters = GuardParameters()
    suspects: SuspectParameters = SuspectParameters()
    evaluation: EvaluationParameters = EvaluationParameters()
    classes: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=400)], ...] | None,
        AfterValidator(_distinct),
    ] = Field(
        None,
        min_length=1,
        max_length=1_000_000,
        description="Train students for these only, each named once; null: for all. All hyper-parameters"
        " together are at most 64 KiB of JSON.",
        json_schema_extra={"uniqueItems": True},
    )
    time_limit_seconds: float | None = Field(
        None,
        gt=0,
        le=31 * 86_400,
        description="End the job as failed when it has run for so long; null: no limit.",
    )
    seed: int = declared(TrainingConfig, "seed")
    publish: bool = Field(True, description="Publish a version when the job ends well.")
    alias: AliasName | None = Field("latest", description="Alias moved to the published version; null: none.")
    allow_schema_change: bool = Field(
        False,
        description="Move the alias also to a version that refuses questions which the present one answers.",
    )
    like: Reference | None = Field(
        None,
        description="Version (`name`, `name@alias`, `name@3`) whose used columns and their kinds the job"
        " takes; null: the version of this model with the alias production, otherwise the newest one; `none`:"
        " those of the data set. A bare name means the same of another model.",
    )

    @property
    def automatic_seconds(self) -> float | None:
        """The budget of an automatic job; None without one."""
        return self.automatic.seconds if isinstance(self.automatic, AutomaticParameters) else None

    @property
    def served_method(self) -> str:
        """The method of the students that answer queries."""
        return self.student.name if self.compact is None else self.compact.name

    @property
    def students(self) -> tuple[StudentSpec, ...]:
        """The student that answers queries, then the baselines, each once, with the same hyper-parameters.

        Raises InvalidProblem.
        """
        full = self.student
        served = full if self.compact is None else replace(self.compact, reference=full)
        others = dict.fromkeys(name for name in self.evaluation.baselines if name != served.name)
        return (served, *(_alike(full, STUDENTS[name]) for name in others))

    @model_validator(mode="after")
    def _automatic_choices(self) -> TrainingSpec:
        given = self.model_fields_set
        if self.automatic is None:
            named = any(getattr(self, name) is not None for name in LEARNERS & given)
            self._settled({"automatic": not named})
        searches = self.tuning is not None and self.tuning.scope == "job"
        has_trees = self._settle_trees()
        if not (self.automatic or searches or has_trees):
            return self
        if self.teacher.model is not None and (self.automatic or searches):
            what = "tuning of scope job" if searches else "automatic"
            raise ValueError(f"{what} chooses the features, and those of teacher.model are given")
        left_open: dict[str, Any] = {
            "student": Trees() if has_trees else AUTOMATIC_STUDENT,
            "calibration": CalibrationParameters(kind=AUTOMATIC_CALIBRATION),
            "threshold": ThresholdParameters(rule=AUTOMATIC_THRESHOLD, folds=AUTOMATIC_FOLDS),
        }
        return self._settled({name: value for name, value in left_open.items() if name not in given})

    def _settle_trees(self) -> bool:
        """Whether teacher and students are trees, of which the one that is left out follows the other."""
        given = self.model_fields_set
        if "trees" in self.student.needs and "teacher" not in given:
            self._settled({"teacher": TeacherChoice(spec=Forest())})
        grows_trees = self.teacher.model is None and self.teacher.spec.grows_trees
        if "student" not in given:
            return grows_trees and self.compact is None
        if "trees" in self.student.needs and not grows_trees:
            name = self.student.name
            raise ValueError(f"student.method {name} needs a teacher of trees: forest or boosting")
        return "trees" in self.student.needs

    def _settled(self, values: dict[str, Any]) -> TrainingSpec:
        """Fields that follow from others, set by a validator: the model is frozen for its users only."""
        for name, value in values.items():
            self.__dict__[name] = value
        return self

    @model_validator(mode="after")
    def _guard_of_what_is_left_open(self) -> TrainingSpec:
        if self.guard.kind is None:
            kind = "check" if "student" in self.model_fields_set else "repair"
            return self._settled({"guard": self.guard.model_copy(update={"kind": kind})})
        return self

    @model_validator(mode="after")
    def _linear_with_a_head(self) -> TrainingSpec:
        if self.teacher.model is not None and self.features.kind != "linear":
            raise ValueError("teacher.model is linear in the columns: features.kind must be linear")
        return self

    @model_validator(mode="after")
    def _what_a_budget_is_for(self) -> TrainingSpec:
        others = self.compact is not None or self.tuning is not None or self.evaluation.baselines
        is_open = isinstance(self.student, Automatic) and isinstance(self.teacher.spec, SSVM)
        if self.automatic_seconds is not None and (others or not is_open):
            raise ValueError(
                "automatic.seconds is a budget for jobs that leave teacher and student open: leave out"
                " compact, tuning and evaluation.baselines, and teacher and student of other methods"
            )
        return self

    @model_validator(mode="after")
    def _something_to_tune(self) -> TrainingSpec:
        if self.compact is not None and self.tuning is not None and not self.evaluation.baselines:
            raise ValueError(
                "tuning has nothing to do: compact students have no grid; leave tuning out,"
                " or name a full student to compare with in evaluation.baselines"
            )
        if self.tuning is not None and self.student.copies_teacher and not self.evaluation.baselines:
            raise ValueError(f"tuning has nothing to do: {self.student.name} copies its teacher")
        return self


def _alike(student: StudentSpec, spec_class: type[StudentSpec]) -> StudentSpec:
    """A student of another class, with all the hyper-parameters of ``student`` that it has, too."""
    declared_here = {parameter.name for parameter in parameters_of(type(student))}
    values = {
        parameter.name: getattr(student, parameter.name)
        for parameter in parameters_of(spec_class)
        if parameter.name in declared_here
        and not list(parameter.faults(getattr(student, parameter.name), ""))
    }
    return spec_class(**values)
