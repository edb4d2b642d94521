"""Hyper-parameters of a training job, as they are read from JSON.

Names, defaults, bounds and descriptions are those that core declares (``core.parameters``); this module says
how they are grouped, and adds what only the service knows: imported teachers, test parts, publishing.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import ConfigDict, Discriminator, Field, StringConstraints, Tag, model_validator

from app.domain.names import AliasName, Reference
from app.domain.parameter_fields import AsJson, SpecModel, declared, model_of
from core.features.spec import FeatureSpec
from core.model_selection.options import CalibrationRule, ThresholdRule
from core.model_selection.tuning_spec import TuningSpec
from core.parameters import parameters_of
from core.students.compact import Compact as CompactSpec
from core.students.gated import GATED, GSVM, GatedSpec, Method
from core.students.grid import Grid
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig

ServedMethod: TypeAlias = Literal["gsvm", "gsvm0", "svm", "compact"]


def _either(*schemas: dict[str, Any]) -> ConfigDict:
    """For a rule that binds several fields: what the JSON schema of the whole says of it."""
    return ConfigDict(json_schema_extra={"anyOf": list(schemas)})


def _absent(*names: str) -> dict[str, Any]:
    """Schema of an object in which these fields are null or left out."""
    return {"properties": {name: {"type": "null"} for name in names}}


Features: TypeAlias = Annotated[FeatureSpec, AsJson(FeatureSpec, model_of(FeatureSpec, "FeatureParameters"))]


class _StudentAsJson(AsJson):
    """A gated SVM: the kind is a field in JSON."""

    def _read(self, values: SpecModel) -> GatedSpec:
        fields = {name: getattr(values, name) for name in type(values).model_fields}
        return GATED[fields.pop("method")](**fields)


def _student_to_json(spec: GatedSpec) -> dict[str, Any]:
    return {"method": spec.name, **asdict(spec)}


_METHOD_FIELD = Field(
    "gsvm", description="gsvm: with difficulty; gsvm0: without (d = 1); svm: no teacher, the margin is 1."
)
Student: TypeAlias = Annotated[
    GatedSpec,
    _StudentAsJson(
        GatedSpec,
        model_of(GatedSpec, "StudentParameters", fields={"method": (Method, _METHOD_FIELD)}),
        _student_to_json,
    ),
]

_ONE_BUDGET = _either(
    _absent("relative_cost", "max_f1_loss"),
    _absent("n_landmarks", "max_f1_loss"),
    _absent("n_landmarks", "relative_cost"),
)


def _compact_to_json(spec: CompactSpec) -> dict[str, Any]:
    return {one.name: getattr(spec, one.name) for one in parameters_of(CompactSpec)}


Compact: TypeAlias = Annotated[
    CompactSpec,
    AsJson(CompactSpec, model_of(CompactSpec, "CompactParameters", config=_ONE_BUDGET), _compact_to_json),
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


class TeacherParameters(SpecModel):
    """The multiclass structural SVM (Eq. 1), or an imported head in its place."""

    model: Reference | None = Field(
        None,
        description="An imported head (`name`, `name@alias`, `name@3`) instead of a teacher that is trained;"
        " needs linear features.",
    )
    C: float = declared(SSVM, "C")
    tolerance: float = declared(SSVM, "tolerance")
    max_epochs: int = declared(SSVM, "max_epochs")


class CalibrationParameters(SpecModel):
    """From scores to probabilities, fitted on the held-out scores of tuning or of threshold.folds."""

    kind: CalibrationRule = declared(TrainingConfig, "calibration")


class ThresholdParameters(SpecModel):
    """Where the decision is cut."""

    rule: ThresholdRule = declared(TrainingConfig, "threshold")
    max_false_positive_rate: float = declared(TrainingConfig, "budget")
    folds: int = declared(TrainingConfig, "folds")


class EvaluationParameters(SpecModel):
    """What the students are measured on."""

    model_config = _either(_absent("dataset_id"), _absent("test_fraction"))

    dataset_id: str | None = Field(
        None, max_length=64, description="A data set to test on; null: the data set's own test part, if any."
    )
    test_fraction: float | None = Field(
        None, gt=0, lt=0.9, description="Hold out this stratified share of the training rows instead."
    )
    baselines: tuple[Method, ...] = Field(
        (), max_length=3, description="Methods trained beside the student's own, for comparison only."
    )

    @model_validator(mode="after")
    def _one_test_part(self) -> EvaluationParameters:
        if self.dataset_id is not None and self.test_fraction is not None:
            raise ValueError("give dataset_id or test_fraction, not both")
        return self


_LINEAR_FEATURES: dict[str, Any] = {"properties": {"features": {"properties": {"kind": {"const": "linear"}}}}}
_NO_HEAD: dict[str, Any] = {"properties": {"teacher": _absent("model")}}
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
            ]
        }
    )

    features: Features = FeatureSpec()
    teacher: TeacherParameters = TeacherParameters()
    student: Student = GSVM()
    compact: Compact | None = Field(
        None,
        description="null: students on the teacher's features; {}: compact students, 100 landmarks each.",
    )
    tuning: Tuning | None = Field(
        None, description="null: train at the given hyper-parameters; {}: search the paper's grid by halving."
    )
    threshold: ThresholdParameters = ThresholdParameters()
    calibration: CalibrationParameters = CalibrationParameters()
    evaluation: EvaluationParameters = EvaluationParameters()
    classes: tuple[Annotated[str, StringConstraints(min_length=1, max_length=400)], ...] | None = Field(
        None, min_length=1, max_length=1_000_000, description="Train students for these only; null: for all."
    )
    seed: int = declared(TrainingConfig, "seed")
    publish: bool = Field(True, description="Publish a version when the job ends well.")
    alias: AliasName | None = Field("latest", description="Alias moved to the published version; null: none.")

    @property
    def served_method(self) -> ServedMethod:
        """The method of the students that answer queries."""
        return cast(ServedMethod, self.student.name if self.compact is None else "compact")

    @model_validator(mode="after")
    def _linear_with_a_head(self) -> TrainingSpec:
        if self.teacher.model is not None and self.features.kind != "linear":
            raise ValueError("teacher.model is linear in the columns: features.kind must be linear")
        return self

    @model_validator(mode="after")
    def _something_to_tune(self) -> TrainingSpec:
        if self.compact is not None and self.tuning is not None and not self.evaluation.baselines:
            raise ValueError(
                "tuning has nothing to do: compact students have no grid; leave tuning out,"
                " or name a full student to compare with in evaluation.baselines"
            )
        return self
