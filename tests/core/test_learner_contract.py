"""What every learner of the registry does: packs, answers alike, is tuned, stored and cancelled; faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.data.extras import Extras, View
from core.errors import Cancelled, InvalidProblem
from core.features.spec import FeatureSpec
from core.learners import LABELLERS, STUDENTS, TEACHERS
from core.model_selection.tuning_spec import TuningSpec
from core.packed import PackedStudent, PackedTeacher
from core.run import Run
from core.students.grid import Grid
from core.teachers.base import TeacherSpec
from core.teachers.forest import Forest
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import Preparation, prepare, train
from core.training.student_training import train_student

LINEAR, KERNEL = FeatureSpec("linear"), FeatureSpec("nystroem", 20)
GRID = Grid(C=(10.0, 1e3))
TEACHER = SSVM(C=1e3)


@dataclass(frozen=True)
class Case:
    """A learner in one use.

    values: of its specification. gate: that of a student is the score of the "teacher", "none" or its "own".
    searched: whether a search tries settings of it. tolerance: of what was packed, beside what was fitted.
    gap: largest relative duality gap. auc: least mean area under the curves.
    """

    name: str
    values: dict[str, Any]
    features: FeatureSpec = KERNEL
    teacher: TeacherSpec = TEACHER
    gate: str = "teacher"
    searched: bool = True
    tolerance: float = 1e-9
    gap: float = 1e-3
    auc: float = 0.9

    @property
    def id(self) -> str:
        return "-".join([self.name, *map(str, self.values.values())])


STUDENT_CASES = [
    *(Case(name, {"C": 1e3}) for name in ("gsvm", "gsvm0")),
    Case("svm", {"C": 1e3}, gate="none"),
    Case("polytope", {"pieces": 3}),
    Case("polytope", {"pieces": 2}, features=LINEAR),
    Case("odm", {"gate": "teacher"}),
    Case("odm", {"gate": "none"}, gate="none"),
    *(
        Case("svm+", {"privileged": privileged, "kernel": kernel}, gate="none")
        for privileged in ("columns", "teacher")
        for kernel in ("linear", "rbf")
    ),
    Case("multiview", {}, gate="none", gap=1e-2),
    Case("multiview", {}, features=LINEAR, gate="none", gap=1e-2),
    Case("compact", {"n_landmarks": 8, "steps": 60}, searched=False, gate="own", tolerance=1e-4, auc=0.7),
    Case("gpc", {"n_landmarks": 30}, searched=False, gate="none"),
    Case("gpc+", {"n_landmarks": 30}, searched=False, gate="none"),
    Case("rivals", {"rivals": 2}, features=LINEAR, searched=False),
    Case("trees", {}, teacher=Forest(trees=25), searched=False),
    Case("auto", {"families": ("gsvm", "odm")}, searched=False, gate="own"),
    Case("automatic", {}, searched=False, gate="own"),
]
TEACHER_CASES = [
    Case("ssvm", {"C": 1e3}),
    Case("mcodm", {"C": 1e3}),
    Case("interpolation", {"gamma": 0.05}, tolerance=1e-7),
    Case("forest", {"trees": 25}),
    Case("boosting", {"iterations": 8, "leaves": 5, "min_leaf": 3}),
    Case("scores", {}),
]
by_id = {"ids": lambda case: case.id}


def test_every_learner_has_a_case():
    assert {case.name for case in STUDENT_CASES} == set(STUDENTS)
    assert {case.name for case in TEACHER_CASES} == set(TEACHERS)


@pytest.fixture(scope="module")
def data(training_part: LabelledData) -> LabelledData:
    """The rows, with the same rows with less noise as privileged columns, two views, and scores."""
    rng = np.random.default_rng(0)
    centres = np.stack([training_part.X[training_part.y == k].mean(axis=0) for k in range(training_part.K)])
    clean = centres[training_part.y] + 0.3 * rng.normal(size=training_part.X.shape)
    scores = -((training_part.X[:, None] - centres) ** 2).sum(axis=2)
    views = (View("left", 0, 2), View("right", 3, 5))
    return replace(training_part, extras=Extras(privileged=clean, views=views, teacher_scores=scores))


def config_of(case: Case, **changes: Any) -> TrainingConfig:
    students = (STUDENTS[case.name](**case.values),)
    common = {"features": case.features, "teacher": case.teacher, "threshold": "f1", "folds": 3}
    return TrainingConfig(**common | {"students": students} | changes)


@pytest.mark.parametrize("case", STUDENT_CASES, **by_id)
def test_packages_answer_like_the_students_and_come_back_as_they_were(case: Case, data, test_part):
    config = config_of(case)
    model = train(data, config, test=test_part)
    evaluator = Evaluator.of(model.preparation, test_part)
    for target, trained in enumerate(model.trained):
        packed, fitted = model.students[trained.label], trained.fitted.scores(evaluator.examples)
        np.testing.assert_allclose(
            packed.scores(test_part.X), fitted, rtol=case.tolerance, atol=case.tolerance
        )
        np.testing.assert_allclose([packed.score(x) for x in test_part.X[:5]], fitted[:5], atol=1e-4)
        if case.gate != "own":
            gate = evaluator.scores[:, target] if case.gate == "teacher" else np.zeros(test_part.n)
            np.testing.assert_allclose(packed.gate(test_part.X), gate, rtol=1e-9, atol=1e-9)
        assert PackedStudent.from_bytes(packed.to_bytes()).digest == packed.digest
        assert packed.metadata.get("status", "converged") == "converged" or case.name == "compact"
        assert packed.metadata.get("relative_gap", 0.0) <= case.gap
    assert model.evaluation.mean(trained.method).auc > case.auc
    again = Preparation.from_bytes(model.preparation.to_bytes(), data, config)
    assert train_student(again, 1).packed.digest == model.trained[1].packed.digest


@pytest.mark.parametrize("case", [case for case in STUDENT_CASES if case.searched], **by_id)
def test_students_are_tuned_and_calibrated(case: Case, data):
    config = config_of(case, tuning=TuningSpec(grid=GRID, folds=3), calibration="sigmoid")
    preparation = prepare(data, config)
    trained = train_student(preparation, 1)
    points = config.students[0].grid(GRID)
    assert trained.chosen["C"] in GRID.C
    assert trained.chosen["points"] == len(points) == len(trained.trace["points"])
    assert trained.spec in points
    assert trained.packed.calibration is not None


@pytest.mark.parametrize(
    "case", [case for case in STUDENT_CASES if case.name not in ("trees", "rivals")], **by_id
)
def test_a_cancelled_student_stops(case: Case, data):
    preparation = prepare(data, config_of(case, threshold="zero"))
    with pytest.raises(Cancelled):
        train_student(preparation, 0, run=Run(should_cancel=lambda: True))


@pytest.mark.parametrize("case", TEACHER_CASES, **by_id)
def test_packed_and_stored_teachers_answer_like_the_fitted_ones(case: Case, data, test_part):
    student = STUDENTS["trees" if case.name in ("forest", "boosting") else "gsvm"]()
    config = config_of(Case("gsvm", {}), teacher=TEACHERS[case.name](**case.values), students=(student,))
    preparation = prepare(data, config)
    packed = preparation.packed_teacher()
    assert packed.metadata["method"] == case.name
    again = PackedTeacher.from_bytes(packed.to_bytes(), digest=packed.digest)
    expected = Evaluator.of(preparation, test_part).scores
    np.testing.assert_allclose(again.scores(test_part.X), expected, rtol=case.tolerance, atol=case.tolerance)
    np.testing.assert_array_equal(again.predict(test_part.X), expected.argmax(axis=1))
    assert (again.predict(test_part.X) == test_part.y).mean() > 0.6
    stored = preparation.to_bytes()
    restored = Preparation.from_bytes(stored, data, config)
    assert restored.to_bytes() == stored
    np.testing.assert_array_equal(restored.scores, preparation.scores)


@pytest.mark.parametrize("case", [case for case in TEACHER_CASES if case.name != "scores"], **by_id)
def test_a_cancelled_teacher_stops(case: Case, data):
    student = STUDENTS["trees" if case.name in ("forest", "boosting") else "gsvm"]()
    with pytest.raises(Cancelled):
        prepare(
            data,
            config_of(case=Case("gsvm", {}), teacher=TEACHERS[case.name](**case.values), students=(student,)),
            run=Run(should_cancel=lambda: True),
        )


@pytest.mark.parametrize("name", ["compact", "gpc", "interpolation", "forest", "boosting"])
def test_learners_of_dense_rows_refuse_sparse_ones(name: str, training_part):
    sparse = replace(training_part, X=sp.csr_array(training_part.X))
    chosen = {"teacher": TEACHERS[name]()} if name in TEACHERS else {"students": (STUDENTS[name](),)}
    with pytest.raises(InvalidProblem, match="dense"):
        prepare(sparse, TrainingConfig(features=LINEAR, **chosen))


NAN = float("nan")
WRONG = [
    *((STUDENTS, "gsvm", {"C": value}, "student.C", "out_of_bounds") for value in (0.0, NAN, "1")),
    *(
        (STUDENTS, "gsvm", {"margin": value}, "student.margin", "out_of_bounds")
        for value in (-0.1, float("inf"))
    ),
    *(
        (STUDENTS, "gsvm", {"difficulty_floor": value}, "student.difficulty_floor", "out_of_bounds")
        for value in (0.0, 1.1)
    ),
    *((STUDENTS, "gsvm", {"tolerance": value}, "student.tolerance", "out_of_bounds") for value in (0.0, 1.0)),
    *(
        (STUDENTS, "gsvm", {"max_epochs": value}, "student.max_epochs", "out_of_bounds")
        for value in (0, 10.0, True)
    ),
    (STUDENTS, "gsvm", {"solver": "newton"}, "student.solver", "unknown_choice"),
    *(
        (STUDENTS, "compact", {"n_landmarks": value}, "compact.n_landmarks", "out_of_bounds")
        for value in (0, 1001)
    ),
    *(
        (STUDENTS, "compact", {"relative_cost": value}, "compact.relative_cost", "out_of_bounds")
        for value in (0.0, 1.5)
    ),
    (STUDENTS, "compact", {"max_f1_loss": -1.0}, "compact.max_f1_loss", "out_of_bounds"),
    (STUDENTS, "compact", {"n_landmarks": 5, "max_f1_loss": 1.0}, "compact", "two_budgets"),
    (STUDENTS, "compact", {"difficulty_floor": 0.0}, "compact.difficulty_floor", "out_of_bounds"),
    (STUDENTS, "compact", {"gate_weight": -1.0}, "compact.gate_weight", "out_of_bounds"),
    (STUDENTS, "compact", {"jitter": NAN}, "compact.jitter", "out_of_bounds"),
    (STUDENTS, "compact", {"steps": 0}, "compact.steps", "out_of_bounds"),
    (STUDENTS, "gpc", {"n_landmarks": 1}, "student.n_landmarks", "out_of_bounds"),
    (STUDENTS, "gpc", {"tolerance": 0.0}, "student.tolerance", "out_of_bounds"),
    (STUDENTS, "gpc", {"max_rows": 5}, "student.max_rows", "out_of_bounds"),
    (STUDENTS, "gpc", {"max_iterations": -1}, "student.max_iterations", "out_of_bounds"),
    (STUDENTS, "gpc+", {"privileged": "labels"}, "student.privileged", "unknown_choice"),
    (STUDENTS, "multiview", {"measure": "f2"}, "student.measure", "unknown_choice"),
    (STUDENTS, "multiview", {"k": 0}, "student.k", "out_of_bounds"),
    (STUDENTS, "multiview", {"consistency": -1}, "student.consistency", "out_of_bounds"),
    (STUDENTS, "odm", {"band": 1.0}, "student.band", "out_of_bounds"),
    (STUDENTS, "odm", {"excess": 0.0}, "student.excess", "out_of_bounds"),
    (STUDENTS, "odm", {"gate": "both"}, "student.gate", "unknown_choice"),
    (STUDENTS, "svm+", {"correction": 0.0}, "student.correction", "out_of_bounds"),
    (STUDENTS, "svm+", {"kernel": "poly"}, "student.kernel", "unknown_choice"),
    *((TEACHERS, "ssvm", {"C": value}, "teacher.C", "out_of_bounds") for value in (0.0, float("inf"))),
    *((TEACHERS, "ssvm", {"tolerance": value}, "teacher.tolerance", "out_of_bounds") for value in (0.0, 1.0)),
    *((TEACHERS, "ssvm", {"max_epochs": value}, "teacher.max_epochs", "out_of_bounds") for value in (0, 1.5)),
    (TEACHERS, "mcodm", {"C": 0.0}, "teacher.C", "out_of_bounds"),
    (TEACHERS, "mcodm", {"band": 1.0}, "teacher.band", "out_of_bounds"),
    (TEACHERS, "mcodm", {"excess": 0.0}, "teacher.excess", "out_of_bounds"),
    (TEACHERS, "mcodm", {"max_outer": 0}, "teacher.max_outer", "out_of_bounds"),
    (LABELLERS, "odmc", {"clusters": 1}, "labelling.clusters", "out_of_bounds"),
    (LABELLERS, "odmc", {"must_link": ("1,2",)}, "labelling.must_link", "bad_pair"),
    (LABELLERS, "odmc", {"cannot_link": (3,)}, "labelling.cannot_link", "wrong_type"),
    (LABELLERS, "odmc", {"space": "torus"}, "labelling.space", "unknown_choice"),
]


@pytest.mark.parametrize(("registry", "name", "values", "field", "code"), WRONG)
def test_a_wrong_hyper_parameter_is_named(registry, name: str, values: dict[str, Any], field: str, code: str):
    with pytest.raises(InvalidProblem) as caught:
        registry[name](**values)
    assert {fault.field for fault in caught.value.faults} == {field}
    assert caught.value.faults[0].code == code
    assert code != "out_of_bounds" or repr(next(iter(values.values()))) in str(caught.value)
