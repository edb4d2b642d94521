"""Hyper-parameters of a training job: defaults, bounds and what each means.

The names and the defaults follow the paper (You, Xu, Xu, Tao, AAAI 2018) and ``core.TrainingConfig``.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from app.domain.strict_json import StrictModel

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
Name = Annotated[str, StringConstraints(pattern=NAME)]
ALIAS = r"^[A-Za-z][A-Za-z0-9._-]{0,99}$"
AliasName = Annotated[str, StringConstraints(pattern=ALIAS)]
"""Begins with a letter: ``model@3`` is version 3 and can be nothing else."""
Reference = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@[A-Za-z0-9._-]{1,100})?$")
]
Method = Literal["gsvm", "gsvm0", "svm"]
ServedMethod = Literal["gsvm", "gsvm0", "svm", "compact"]


def _either(*schemas: dict[str, Any]) -> ConfigDict:
    """For a rule that binds several fields: what the JSON schema of the whole says of it."""
    return ConfigDict(json_schema_extra={"anyOf": list(schemas)})


def _absent(*names: str) -> dict[str, Any]:
    """Schema of an object in which these fields are null or left out."""
    return {"properties": {name: {"type": "null"} for name in names}}


class _Spec(StrictModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FeatureParameters(_Spec):
    """How raw rows become feature vectors φ(x)."""

    kind: Literal["linear", "nystroem", "fourier"] = Field(
        "linear", description="Linear features, or an RBF kernel by Nyström or random Fourier features."
    )
    n_components: int = Field(
        500, ge=1, le=20_000, description="Landmarks (Nyström) or frequencies (Fourier); ignored for linear."
    )
    gamma: float | None = Field(
        None, gt=0, le=1e6, description="RBF width, exp(−γ‖x−x'‖²) on scaled data; null: from the data."
    )
    scaling: Literal["zscore", "minmax", "idf", "none"] = Field(
        "zscore",
        description="Scaling of the raw columns, learnt on the training part; idf is for terms of texts.",
    )


class TeacherParameters(_Spec):
    """The multiclass structural SVM (Eq. 1), or an imported head in its place."""

    model: Reference | None = Field(
        None,
        description="An imported head (`name`, `name@alias`, `name@3`) instead of a teacher that is trained;"
        " needs linear features.",
    )
    C: float = Field(3e4, ge=1e-6, le=1e8, description="Loss weight; the loss of one example weighs C/n.")
    tolerance: float = Field(1e-3, ge=1e-9, le=0.1, description="Stop at this relative duality gap.")
    max_epochs: int = Field(5000, ge=1, le=100_000, description="At most this many passes over the examples.")


class StudentParameters(_Spec):
    """The gated SVM (Eq. 12) and its baselines."""

    method: Method = Field(
        "gsvm", description="gsvm: with difficulty; gsvm0: without (d = 1); svm: no teacher."
    )
    C: float = Field(1e5, ge=1e-6, le=1e8, description="Loss weight; the loss of one example weighs C/(n d).")
    margin: float = Field(1.0, ge=0, le=100, description="ε of Eq. 6: how far past the gate is wanted.")
    difficulty_floor: float = Field(
        0.3, gt=0, le=1, description="ϵ of Eq. 11: the difficulty of the easiest examples."
    )
    solver: Literal["dual_cd", "mm_irls"] = Field(
        "dual_cd", description="Dual coordinate descent, or the paper's MM/IRLS (Algorithm 2)."
    )
    tolerance: float = Field(1e-3, ge=1e-9, le=0.1, description="Stop at this relative duality gap.")
    max_epochs: int = Field(2000, ge=1, le=100_000, description="At most this many passes over the examples.")


class CompactParameters(_Spec):
    """Students with few landmarks of their own, cheaper to ask than the teacher's features; dense rows only.

    One budget at most; without any it is 100 landmarks.
    """

    model_config = _either(
        _absent("relative_cost", "max_f1_loss"),
        _absent("n_landmarks", "max_f1_loss"),
        _absent("n_landmarks", "relative_cost"),
    )

    n_landmarks: int | None = Field(None, ge=1, le=1000, description="Budget: this many landmarks a student.")
    relative_cost: float | None = Field(
        None, gt=0, le=1, description="Budget: the cost of a query as a share of the teacher's."
    )
    max_f1_loss: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Budget: the fewest landmarks at most so many points of F below the full student's.",
    )

    @model_validator(mode="after")
    def _one_budget(self) -> CompactParameters:
        if sum(value is not None for value in (self.n_landmarks, self.relative_cost, self.max_f1_loss)) > 1:
            raise ValueError("give one of n_landmarks, relative_cost and max_f1_loss, not several")
        return self


MAX_GRID_POINTS = 2000

_GRID_VALUES = Field(min_length=1, max_length=50)


class GridParameters(_Spec):
    """A grid of one's own: all combinations of its values, at most 2000."""

    C: Annotated[tuple[Annotated[float, Field(ge=1e-6, le=1e8)], ...], _GRID_VALUES] = Field(
        (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3), description="Loss weights, each in [1e-6, 1e8]."
    )
    margins: Annotated[tuple[Annotated[float, Field(ge=0, le=100)], ...], _GRID_VALUES] = Field(
        (1.0,), description="Values of ε, each in [0, 100]."
    )
    floors: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], _GRID_VALUES] = Field(
        (0.3,), description="Values of ϵ, each in (0, 1]."
    )

    @model_validator(mode="after")
    def _not_too_many(self) -> GridParameters:
        points = prod(len(set(values)) for values in (self.C, self.margins, self.floors))
        if points > MAX_GRID_POINTS:
            raise ValueError(f"the grid has {points} points, more than {MAX_GRID_POINTS}")
        return self


def _kind_of_grid(given: object) -> str:
    return "name" if isinstance(given, str) else "values"


GridChoice = Annotated[
    Annotated[Literal["paper", "open"], Tag("name")] | Annotated[GridParameters, Tag("values")],
    Discriminator(_kind_of_grid),
]


class TuningParameters(_Spec):
    """A search for C, ε and ϵ of every student by cross-validation; `{}` searches the paper's grid."""

    grid: GridChoice = Field(
        "paper",
        description="Points to try: the paper's 560 (C ≤ 1e3), 126 up to C = 1e6, or a grid of one's own.",
    )
    strategy: Literal["halving", "exhaustive"] = Field(
        "halving", description="Drop poor points early, or measure every point on every fold."
    )
    folds: int = Field(5, ge=2, le=20, description="Stratified folds, each with a teacher of its own.")
    metric: Literal["f1", "accuracy", "auc"] = Field(
        "f1", description="What is maximised, at the threshold that threshold.rule chooses."
    )


class CalibrationParameters(_Spec):
    """From scores to probabilities, fitted on the held-out scores of tuning or of threshold.folds."""

    kind: Literal["auto", "none", "sigmoid", "isotonic"] = Field(
        "auto",
        description="auto: a sigmoid where tuning or threshold.rule give held-out scores anyway, else none.",
    )


class ThresholdParameters(_Spec):
    """Where the decision is cut."""

    rule: Literal["zero", "accuracy", "f1", "fpr"] = Field(
        "zero", description="0 as in the paper, or chosen on held-out folds for this metric."
    )
    max_false_positive_rate: float = Field(
        0.01, gt=0, lt=1, description="The budget of the rule fpr; ignored by the others."
    )
    folds: int = Field(
        5, ge=2, le=20, description="Stratified folds for the held-out scores, of a calibration too."
    )


class EvaluationParameters(_Spec):
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


class TrainingSpec(_Spec):
    """All hyper-parameters of a job. Every field has a default."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                {"anyOf": [_LINEAR_FEATURES, _NO_HEAD]},
                {"anyOf": [_absent("compact"), _absent("tuning"), _BASELINES]},
            ]
        }
    )

    features: FeatureParameters = FeatureParameters()
    teacher: TeacherParameters = TeacherParameters()
    student: StudentParameters = StudentParameters()
    compact: CompactParameters | None = Field(
        None,
        description="null: students on the teacher's features; {}: compact students, 100 landmarks each.",
    )
    tuning: TuningParameters | None = Field(
        None, description="null: train at the given hyper-parameters; {}: search the paper's grid by halving."
    )
    threshold: ThresholdParameters = ThresholdParameters()
    calibration: CalibrationParameters = CalibrationParameters()
    evaluation: EvaluationParameters = EvaluationParameters()
    classes: tuple[Annotated[str, StringConstraints(min_length=1, max_length=400)], ...] | None = Field(
        None, min_length=1, max_length=1_000_000, description="Train students for these only; null: for all."
    )
    seed: int = Field(
        0, ge=0, le=2**32 - 1, description="Of all that is random; the same seed repeats the run."
    )
    publish: bool = Field(True, description="Publish a version when the job ends well.")
    alias: AliasName | None = Field("latest", description="Alias moved to the published version; null: none.")

    @property
    def served_method(self) -> ServedMethod:
        """The method of the students that answer queries."""
        return self.student.method if self.compact is None else "compact"

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
