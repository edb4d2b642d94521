"""The interpolating teacher: its scores, its choice of a kernel, its package, and students that follow it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF
from sklearn.preprocessing import normalize

from core.data.dataset import LabelledData
from core.errors import InvalidPackage, InvalidProblem
from core.features.examples import Examples
from core.features.spec import FeatureSpec
from core.packed import PackedTeacher
from core.run import Run
from core.students.compact import Compact
from core.students.gated import GSVM
from core.students.polytope import Polytope
from core.teachers.interpolation import KernelInterpolation
from core.training.config import TrainingConfig
from core.training.pipeline import prepare, train
from core.training.preparation import Preparation
from tests.refusals import at_fault

SPEC = KernelInterpolation(gamma=0.5, scaling="none", jitter=1e-2, tolerance=1e-9)


def rings(n: int = 240, seed: int = 0) -> LabelledData:
    """Three rings around each other, which no linear teacher tells apart, and a column of noise."""
    rng = np.random.default_rng(seed)
    codes, angles = np.arange(n) % 3, rng.uniform(0, 2 * np.pi, n)
    radius = 1.0 + codes + 0.15 * rng.normal(size=n)
    X = np.column_stack([radius * np.cos(angles), radius * np.sin(angles), rng.normal(size=n)])
    return LabelledData.from_arrays(X, codes)


def prepared(data: LabelledData, spec: KernelInterpolation = SPEC, **fields) -> Preparation:
    config = TrainingConfig(
        features=FeatureSpec("nystroem", n_components=60), teacher=spec, students=(GSVM(C=100.0),), **fields
    )
    return prepare(data, config)


def test_the_scores_are_those_of_the_linear_system():
    data, fresh = rings(), rings(50, 1)
    teacher = prepared(data).teacher
    kernel = RBF(length_scale=1.0)  # exp(−‖x − x'‖²/2) is γ = ½
    K = kernel(data.X) + 1e-2 * np.eye(data.n)
    expected = kernel(fresh.X, data.X) @ np.linalg.solve(K, np.eye(3)[data.y])
    np.testing.assert_allclose(teacher.scores(Examples.of_features(fresh.X), Run()), expected, atol=1e-4)


def test_students_learn_from_scores_of_teachers_without_the_row():
    data = rings(60)
    preparation = prepared(data)
    for left_out in (0, 17):
        others = np.delete(np.arange(60), left_out)
        kernel = RBF(length_scale=1.0)
        K = kernel(data.X[others]) + 1e-2 * np.eye(59)
        alone = kernel(data.X[[left_out]], data.X[others]) @ np.linalg.solve(K, np.eye(3)[data.y[others]])
        np.testing.assert_allclose(preparation.scores[left_out], alone[0], atol=1e-3)
    fitted = prepared(data, replace(SPEC, left_out=0)).scores
    expected = preparation.teacher.scores(preparation.examples, Run())
    np.testing.assert_allclose(fitted, expected, atol=1e-4)


def test_the_kernel_is_chosen_and_said():
    data = rings()
    far = LabelledData.from_arrays(data.X * [1.0, 1.0, 1e3], data.y)  # unscaled, the noise drowns the rings
    teacher = prepared(far, KernelInterpolation()).packed_teacher()
    assert teacher.metadata["scaling"] in ("zscore", "minmax")
    assert teacher.metadata["gamma"] > 0.0
    assert teacher.metadata["left_out_error"] < 0.1
    assert teacher.metadata["condition"] > 1.0
    assert teacher.metadata["method"] == "interpolation"
    fresh = rings(300, 1)
    assert (teacher.predict(fresh.X * [1.0, 1.0, 1e3]) == fresh.y).mean() > 0.9


def test_the_package_answers_as_the_teacher_does():
    data, fresh = rings(), rings(30, 1)
    preparation = prepared(data)
    packed = preparation.packed_teacher()
    again = PackedTeacher.from_bytes(packed.to_bytes(), digest=packed.digest)
    expected = preparation.teacher.scores(Examples.of_features(fresh.X), Run())
    np.testing.assert_allclose(again.scores(fresh.X), expected, atol=1e-8)
    match, evaluated = again.is_class(fresh.X[0], int(fresh.y[0]))
    assert match
    assert evaluated == 3


@pytest.mark.parametrize(
    "student", [GSVM(C=100.0), Polytope(C=100.0, pieces=2), Compact(n_landmarks=20, steps=200)]
)
def test_students_follow_it(student):
    data, fresh = rings(), rings(300, 1)
    config = TrainingConfig(
        features=FeatureSpec("nystroem", n_components=60),
        teacher=KernelInterpolation(gamma=0.5, scaling="none"),
        students=(student,),
        threshold="f1",
        calibration="sigmoid",
        folds=3,
        guard="check",
    )
    model = train(data, config, test=fresh, run=Run(n_threads=2))
    assert model.evaluation.mean("teacher").f1 > 0.9
    assert model.evaluation.mean(student.name).f1 > 0.8


def test_fold_teachers_and_their_gates_see_the_rows_of_their_fold_only():
    data = rings()
    changed = data.y.copy()
    preparation = prepared(data, threshold="f1", folds=3)
    folds = preparation.folds()
    held_out = folds.fold_of == 0
    changed[held_out] = (changed[held_out] + 1) % 3
    teacher = SPEC.fit(replace(preparation.task, labels=changed).take(np.flatnonzero(~held_out)), Run())
    np.testing.assert_array_equal(teacher.alpha, preparation.fold_teachers[0].alpha)
    again = folds.of(replace(preparation.task, labels=changed), data.classes, folds.fold_of, folds.teacher)
    np.testing.assert_array_equal(again.weights[0], folds.weights[0])


def directions(n: int = 240, seed: int = 0) -> LabelledData:
    """Three directions in the plane, in rows of very different lengths."""
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % 3
    angles = np.pi / 8 * (1 + codes) + 0.1 * rng.normal(size=n)
    lengths = np.exp(rng.uniform(0.0, 8.0, n))
    X = lengths[:, None] * np.abs(np.column_stack([np.cos(angles), np.sin(angles)]))
    return LabelledData.from_arrays(X, codes)


@pytest.mark.parametrize("method", ["unit", "hellinger"])
def test_rows_are_scaled_before_they_are_compared(method):
    data, fresh = directions(), directions(50, 1)
    spec = replace(SPEC, gamma=20.0, row_scaling=method)
    preparation = prepared(data, spec)
    if method == "unit":
        X, rows = normalize(data.X), normalize(fresh.X)
    else:
        X, rows = np.sqrt(normalize(data.X, norm="l1")), np.sqrt(normalize(fresh.X, norm="l1"))
    kernel = RBF(length_scale=40.0**-0.5)  # exp(−20‖x − x'‖²)
    expected = kernel(rows, X) @ np.linalg.solve(kernel(X) + 1e-2 * np.eye(data.n), np.eye(3)[data.y])
    scores = preparation.teacher.scores(Examples.of_features(fresh.X), Run())
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    packed = preparation.packed_teacher()
    assert packed.metadata["row_scaling"] == method
    again = PackedTeacher.from_bytes(packed.to_bytes(), digest=packed.digest)
    np.testing.assert_allclose(again.scores(fresh.X), scores, atol=1e-8)
    one = [again.class_score(fresh.X[:1], code)[0] for code in range(3)]
    np.testing.assert_allclose(one, scores[0], atol=1e-8)
    assert again.map.digest != prepared(data, SPEC).packed_teacher().map.digest


def test_the_scaling_of_rows_is_chosen_where_proportions_matter():
    data, fresh = directions(), directions(300, 1)
    teacher = prepared(data, KernelInterpolation()).packed_teacher()
    assert teacher.metadata["row_scaling"] in ("unit", "hellinger")
    assert teacher.metadata["scaling"] == "none"
    plain = prepared(data, KernelInterpolation(row_scaling="none")).packed_teacher()
    right = [(packed.predict(fresh.X) == fresh.y).mean() for packed in (teacher, plain)]
    assert right[0] > right[1] + 0.02
    # The rings of the other tests have negative values.
    with at_fault(InvalidProblem, "negative"):
        prepared(rings(30), KernelInterpolation(row_scaling="hellinger"))


@pytest.mark.parametrize("facts", [b"[1, 2", b"3", b'{"row_scaling": "other"}'])
def test_a_stored_teacher_that_is_damaged_is_refused(facts):
    arrays = prepared(rings(30)).teacher.arrays()
    with pytest.raises(InvalidPackage):
        SPEC.restore({**arrays, "facts": np.frombuffer(facts, dtype=np.uint8)}, 3, 61, None)
    with pytest.raises(InvalidPackage):
        SPEC.restore({**arrays, "landmarks": np.zeros(3)}, 3, 61, None)
