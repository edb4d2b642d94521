"""Hyper-parameters of a training job: defaults, bounds and what each means.

The names and the defaults follow the paper (You, Xu, Xu, Tao, AAAI 2018) and `core.pipeline.TrainingConfig`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
AliasName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,99}$")]
"""Begins with a letter: ``model@3`` is version 3 and can be nothing else."""
Method = Literal["gsvm", "gsvm0", "svm"]


class _Spec(BaseModel):
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
    scaling: Literal["zscore", "minmax", "none"] = Field(
        "zscore", description="Scaling of the raw columns, learnt on the training part."
    )


class TeacherParameters(_Spec):
    """The multiclass structural SVM (Eq. 1)."""

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


class ThresholdParameters(_Spec):
    """Where the decision is cut."""

    rule: Literal["zero", "accuracy", "f1", "fpr"] = Field(
        "zero", description="0 as in the paper, or chosen on held-out folds for this metric."
    )
    max_false_positive_rate: float = Field(
        0.01, gt=0, lt=1, description="The budget of the rule fpr; ignored by the others."
    )
    folds: int = Field(5, ge=2, le=20, description="Stratified folds for the held-out scores.")


class EvaluationParameters(_Spec):
    """What the students are measured on."""

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


class TrainingSpec(_Spec):
    """All hyper-parameters of a job. Every field has a default."""

    features: FeatureParameters = FeatureParameters()
    teacher: TeacherParameters = TeacherParameters()
    student: StudentParameters = StudentParameters()
    threshold: ThresholdParameters = ThresholdParameters()
    evaluation: EvaluationParameters = EvaluationParameters()
    classes: tuple[Annotated[str, StringConstraints(min_length=1, max_length=400)], ...] | None = Field(
        None, min_length=1, max_length=1_000_000, description="Train students for these only; null: for all."
    )
    seed: int = Field(
        0, ge=0, le=2**32 - 1, description="Of all that is random; the same seed repeats the run."
    )
    publish: bool = Field(True, description="Publish a version when the job ends well.")
    alias: AliasName | None = Field("latest", description="Alias moved to the published version; null: none.")
