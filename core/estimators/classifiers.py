"""Students, with the teacher they need, as scikit-learn estimators.

Both take the same feature parameters: ``features`` ("linear", "kernel", "nystroem", "fourier" or
"auto"), ``n_components``, ``gamma`` and ``scaling`` as in ``FeatureSpec``, and ``random_state``, which makes
a fit repeatable. X is dense or CSR, or a data frame, whose texts, categories, dates and gaps are encoded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from core.data.dataset import LabelledData
from core.data.validation import refuse, unknown_choice
from core.errors import Fault, InvalidProblem
from core.estimators.base import (
    Estimator,
    classes_of,
    flat_if_binary,
    given,
    labelled_data,
)
from core.features.examples import Examples
from core.features.spec import FeatureKind
from core.model_selection.options import CalibrationRule, ThresholdRule
from core.model_selection.quick_choice import QuickChoice
from core.model_selection.setting_search import Setting
from core.model_selection.tuning_spec import TuningSpec
from core.packed import PackedStudent, PackedTeacher
from core.run import Run
from core.students.base import StudentSpec
from core.students.gated import GATED, GSVM, GatedSpec, Method, Solver
from core.teachers.base import TeacherSpec
from core.teachers.scikit import Scikit
from core.teachers.ssvm import SSVM
from core.training.config import (
    AUTOMATIC_CALIBRATION,
    AUTOMATIC_FOLDS,
    AUTOMATIC_STUDENT,
    AUTOMATIC_THRESHOLD,
    TrainingConfig,
)
from core.training.pipeline import prepare, train, train_student
from core.types import FloatArray

_STUDENT = ("C", "margin", "difficulty_floor", "solver", "tolerance", "max_epochs")
"""Parameters of the students' specification."""
_LEARNERS = (*_STUDENT, "method", "teacher_C", "features", "n_components", "gamma", "scaling", "tuning")
"""An STMSClassifier with one of these is not automatic, unless it says so."""
_FEWEST_HELD_OUT = 2
"""Rows of a class of which one can be held out."""
_UNSURE = (1e-300, 1.0 - 2.0**-53)
"""Range of probabilities whose log-odds are finite."""


class _StudentEstimator(Estimator):
    """Base of the estimators with students: parameters of ``GatedSpec`` and ``TrainingConfig``."""

    method: Method | StudentSpec | None
    C: float | None
    margin: float | None
    difficulty_floor: float | None
    solver: Solver | None
    tolerance: float | None
    max_epochs: int | None
    teacher_C: float | None  # noqa: N815
    tuning: TuningSpec | None
    threshold: ThresholdRule | None
    budget: float
    calibration: CalibrationRule | None
    teacher: Any = None

    def _config(self) -> TrainingConfig:
        """What the parameters say; the declared default of each that is None."""
        return TrainingConfig(
            features=self._feature_spec(),
            teacher=self._teacher_spec(),
            students=(self._student_spec(),),
            tuning=self.tuning,
            threshold=self.threshold or "zero",
            budget=self.budget,
            calibration=self.calibration or "none",
            seed=self._seed(),
        )

    def _student_spec(self) -> StudentSpec:
        fields = given(**{name: getattr(self, name) for name in _STUDENT})
        if not isinstance(self.method, StudentSpec):
            return _spec_class(self.method or GSVM.name)(**fields)
        if fields:
            message = f"{', '.join(fields)} must be set in the specification that method is"
            raise InvalidProblem(Fault("method", "not_allowed", message))
        return self.method

    def _teacher_spec(self) -> TeacherSpec:
        if self.teacher is None:
            return SSVM(**given(C=self.teacher_C))
        if self.teacher_C is not None:
            message = "teacher_C is of the structural SVM, in whose place a teacher is given"
            raise InvalidProblem(Fault("teacher_C", "not_allowed", message))
        return self.teacher if isinstance(self.teacher, TeacherSpec) else Scikit(self.teacher)


def _spec_class(method: str) -> type[GatedSpec]:
    """Raises InvalidProblem for an unknown method."""
    refuse(unknown_choice("student.method", method, GATED))
    return GATED[cast(Method, method)]


def _check_counts(data: LabelledData, config: TrainingConfig) -> None:
    """Raise InvalidProblem for a class of one row where held-out scores are needed of every class."""
    alone = np.flatnonzero(data.class_counts < _FEWEST_HELD_OUT)
    if config.wants_held_out and len(alone):
        message = (
            f"The class {data.classes[int(alone[0])]!r:.80} has one row, and probabilities and thresholds"
            " need two. Leave the class out, or give calibration='none' and threshold='zero'."
        )
        raise InvalidProblem(Fault("y", "class_too_small", message))


def _is_calibrated(estimator: _StudentEstimator) -> bool:
    """True, since ``predict_proba`` exists. Raises AttributeError for an estimator without a calibration."""
    if estimator.calibration == "none":
        message = "Probabilities need a calibration: fit with calibration='sigmoid', 'isotonic' or 'auto'."
        raise AttributeError(message)
    return True


class GatedSVMClassifier(_StudentEstimator):
    """Binary classifier: one student, which separates the target class from all other classes.

    target_class: the target. y may then have any number of classes; the teacher is fitted to all of them, and
        predictions are True or False. None: y must have two classes, and the second in sorted order is the
        target; the teacher is fitted to the two, and predictions are one of them.
    method: ``"gsvm"``, Eq. (12), ``"gsvm0"``, Eq. (8), or ``"svm"``, the baseline without a teacher.
    C: loss weight; the loss of one example weighs C/(n d). margin: ε of Eq. (6).
    difficulty_floor: ϵ of Eq. (11), used by ``"gsvm"`` only.
    solver: ``"dual_cd"`` or ``"mm_irls"`` (Algorithm 2). tolerance: relative duality gap at which to stop.
    max_epochs: limit of epochs or iterations of the solver. teacher_C: C of the teacher.
    tuning: search for C, margin and difficulty_floor by cross-validation; None uses the values above.
    threshold: rule by which the decision threshold is chosen: ``"zero"`` (None), ``"accuracy"``, ``"f1"``,
        ``"expected_f1"`` or ``"fpr"``. budget: largest false-positive rate of ``"fpr"``.
    calibration: ``"none"``, ``"auto"``, ``"sigmoid"`` or ``"isotonic"``; unless ``"none"``, the estimator has
        ``predict_proba``.

    Attributes: ``classes_`` (2,), ``student_`` PackedStudent, ``packed_teacher_``, ``n_iter_``,
        ``n_features_in_``.
    """

    def __init__(
        self,
        method: Method = "gsvm",
        *,
        target_class: Any = None,
        C: float = 1e5,
        margin: float = 1.0,
        difficulty_floor: float = 0.3,
        solver: Solver = "dual_cd",
        tolerance: float = 1e-3,
        max_epochs: int = 2000,
        teacher_C: float = 3e4,
        features: FeatureKind = "linear",
        n_components: int = 500,
        gamma: float | None = None,
        scaling: str = "zscore",
        tuning: TuningSpec | None = None,
        threshold: ThresholdRule | None = None,
        budget: float = 0.01,
        calibration: CalibrationRule = "none",
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.target_class = target_class
        self.C = C
        self.margin = margin
        self.difficulty_floor = difficulty_floor
        self.solver = solver
        self.tolerance = tolerance
        self.max_epochs = max_epochs
        self.teacher_C = teacher_C
        self.features = features
        self.n_components = n_components
        self.gamma = gamma
        self.scaling = scaling
        self.tuning = tuning
        self.threshold = threshold
        self.budget = budget
        self.calibration = calibration
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from rows X (n, d) and labels y (n,). Raises ValueError."""
        rows, labels = self._labelled(X, y)
        classes, codes = classes_of(labels)
        if self.target_class is None:
            kind = type_of_target(labels, input_name="y", raise_unknown=True)
            if kind != "binary":
                message = (
                    f"Only binary classification is supported. The type of the target is {kind}."
                    " Name the target_class that is to be separated from the others."
                )
                raise InvalidProblem(Fault("y", "not_binary", message))
            target, self.classes_ = 1, classes
        else:
            target, self.classes_ = self._code_of_target(classes), np.array([False, True])
        preparation = prepare(labelled_data(rows, codes, classes, self.encoder_), self._config())
        trained = train_student(preparation, target)
        self.feature_map_ = preparation.feature_map
        self._fitted = trained.fitted
        self.student_: PackedStudent = trained.packed
        self.packed_teacher_: PackedTeacher = preparation.packed_teacher()
        self.n_iter_ = max(1, trained.summary.iterations)
        return self

    def decision_function(self, X: ArrayLike) -> FloatArray:
        """v·φ(x) minus the decision threshold, (n,): at least 0 if the student accepts the row."""
        features = self._mapped(X)
        return self._fitted.scores(Examples.of_features(features)) - self.student_.threshold

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The predicted element of ``classes_`` for each row, (n,)."""
        accepted = self.decision_function(X) >= 0.0
        return self.classes_[accepted.astype(np.intp)]

    @available_if(_is_calibrated)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Probabilities of ``classes_``, (n, 2): the target class is the second.

        Raises InvalidProblem if calibration is ``"auto"`` and training computed no held-out scores.
        """
        features = self._mapped(X)
        yes = self.student_.calibrated().probabilities(self._fitted.scores(Examples.of_features(features)))
        return np.stack([1.0 - yes, yes], axis=1)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy on rows X; y are labels as in ``fit``, or booleans that are true for the target class."""
        truth = np.asarray(y)
        if self.target_class is not None and truth.dtype != np.bool_:
            truth = truth == self.target_class
        return float(super().score(X, truth, sample_weight))

    def _code_of_target(self, classes: NDArray[Any]) -> int:
        codes = np.flatnonzero(classes == self.target_class)
        if len(codes) != 1:
            message = f"target_class {self.target_class!r} is not a class of y"
            raise InvalidProblem(Fault("target_class", "unknown_class", message))
        return int(codes[0])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self.target_class is not None
        return tags


class STMSClassifier(_StudentEstimator):
    """Multi-class classifier: a teacher and one student per class, of which the highest score wins.

    Parameters are those of GatedSVMClassifier, without ``target_class``; None leaves one open.
    method: also a specification of students, such as ``Trees()``, which holds their parameters.
    calibration: as of GatedSVMClassifier; None means ``"sigmoid"``, so that the estimator has
        ``predict_proba``. For it three further fits of two thirds of the rows give held-out scores where
        nothing else needs them; ``"none"`` leaves them out.
    teacher: a classifier of scikit-learn's interface, unfitted, or a specification such as
        ``Forest()``, in place of the structural SVM. Students learn from its scores. A
        classifier is fitted to the raw rows, in every fold anew; ``packed_teacher_`` is distilled from it.
    automatic: choose features and C from the training rows as a job does, and take guarded, calibrated
        students with 8 rejections where their parameters, calibration and threshold are left open. False: the
        defaults of GatedSVMClassifier, calibrated. None: True if features, students, teacher_C and tuning are
        left open.
    automatic_seconds: budget of an automatic fit that leaves method and teacher open (``choice_.budget``).
    n_jobs: number of classes trained concurrently, in threads; None means 1.

    Attributes: ``classes_`` (K,), ``students_`` dict of PackedStudent by ``str(label)``, ``packed_teacher_``,
    ``choice_`` QuickChoice or Setting (what was chosen, and why; None if nothing was), ``n_features_in_``.
    """

    def __init__(
        self,
        method: Method | StudentSpec | None = None,
        *,
        teacher: Any = None,
        automatic: bool | None = None,
        automatic_seconds: float | None = None,
        C: float | None = None,
        margin: float | None = None,
        difficulty_floor: float | None = None,
        solver: Solver | None = None,
        tolerance: float | None = None,
        max_epochs: int | None = None,
        teacher_C: float | None = None,
        features: FeatureKind | None = None,
        n_components: int | None = None,
        gamma: float | None = None,
        scaling: str | None = None,
        tuning: TuningSpec | None = None,
        threshold: ThresholdRule | None = None,
        budget: float = 0.01,
        calibration: CalibrationRule | None = None,
        n_jobs: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.teacher = teacher
        self.automatic = automatic
        self.automatic_seconds = automatic_seconds
        self.C = C
        self.margin = margin
        self.difficulty_floor = difficulty_floor
        self.solver = solver
        self.tolerance = tolerance
        self.max_epochs = max_epochs
        self.teacher_C = teacher_C
        self.features = features
        self.n_components = n_components
        self.gamma = gamma
        self.scaling = scaling
        self.tuning = tuning
        self.threshold = threshold
        self.budget = budget
        self.calibration = calibration
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from rows X (n, d) and labels y (n,). Raises ValueError."""
        if self.n_jobs == 0:
            raise InvalidProblem(Fault("n_jobs", "out_of_bounds", "n_jobs must not be 0"))
        rows, labels = self._labelled(X, y)
        self.classes_, codes = classes_of(labels)
        n_threads = effective_n_jobs(self.n_jobs)
        data = labelled_data(rows, codes, self.classes_, self.encoder_)
        config = self._config()
        _check_counts(data, config)
        model = train(data, config, run=Run(n_threads=n_threads))
        self.feature_map_ = model.preparation.feature_map
        self._trained = [*model.trained]
        self.students_: dict[str, PackedStudent] = model.students
        self.packed_teacher_: PackedTeacher = model.teacher
        self.choice_: QuickChoice | Setting | None = model.preparation.choice
        return self

    def _config(self) -> TrainingConfig:
        config = replace(
            super()._config(),
            automatic_seconds=self.automatic_seconds,
            calibration=self.calibration or AUTOMATIC_CALIBRATION,
            folds=AUTOMATIC_FOLDS,
        )
        automatic = self.automatic
        if automatic is None:
            automatic = all(getattr(self, name) is None for name in _LEARNERS)
        if not automatic:
            return config
        named = any(getattr(self, name) is not None for name in ("method", *_STUDENT))
        return replace(
            config,
            automatic=True,
            students=config.students if named else (AUTOMATIC_STUDENT,),
            threshold=self.threshold or AUTOMATIC_THRESHOLD,
            guard="check" if named else "repair",
        )

    def student_scores(self, X: ArrayLike) -> FloatArray:
        """The score of each student minus its threshold, (n, K), also with two classes."""
        scores: FloatArray = self._raw_scores(X) - np.array([one.packed.threshold for one in self._trained])
        return scores

    def decision_function(self, X: ArrayLike) -> FloatArray:
        """The log-odds of each class (n, K), of students that are calibrated, otherwise ``student_scores``.

        With two classes the second column minus the first, (n,).
        """
        return flat_if_binary(self._decisions(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class, (n,); of students without a calibration the one whose score is highest."""
        return self._with_largest(self._decisions(X))

    @available_if(_is_calibrated)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Probabilities of ``classes_``, (n, K): those of the students, divided by their sum in each row.

        Raises InvalidProblem if calibration is ``"auto"`` and training computed no held-out scores.
        """
        shares = self._probabilities(self._raw_scores(X))
        normalised: FloatArray = shares / shares.sum(axis=1, keepdims=True)
        return normalised

    def _decisions(self, X: ArrayLike) -> FloatArray:
        """What the classes are compared by, (n, K): of one order with ``predict_proba``, if that exists."""
        check_is_fitted(self)
        if any(one.packed.calibration is None for one in self._trained):
            return self.student_scores(X)
        shares = self._probabilities(self._raw_scores(X))
        odds: FloatArray = np.log(shares) - np.log1p(-shares)
        return odds

    def _raw_scores(self, X: ArrayLike) -> FloatArray:
        """The score of each student, (n, K)."""
        rows = self._rows(X)
        examples = Examples(rows, self.feature_map_.transform(rows))
        return np.stack([one.fitted.scores(examples) for one in self._trained], axis=1)

    def _probabilities(self, scores: FloatArray) -> FloatArray:
        """The probability that each student gives its class, (n, K), neither 0 nor 1."""
        columns = [
            one.packed.calibrated().probabilities(column)
            for one, column in zip(self._trained, scores.T, strict=True)
        ]
        return np.clip(np.stack(columns, axis=1), *_UNSURE)

    def student_(self, label: Any) -> PackedStudent:
        """The packed student of a class. Raises InvalidProblem for an unknown one."""
        check_is_fitted(self)
        if str(label) not in self.students_:
            raise InvalidProblem(Fault("label", "unknown_class", f"there is no class {label!r}"))
        return self.students_[str(label)]
