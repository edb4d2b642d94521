"""Students of trees: exactly the teacher's scores, their rivals, and thresholds from held-out scores."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.errors import InvalidProblem
from core.features.examples import Examples
from core.model_selection.threshold import choose_threshold
from core.model_selection.tuning_spec import TuningSpec
from core.packed.head import RIVALS
from core.packed.leaf_index import bytes_of_bits
from core.run import Run
from core.students.gated import GSVM
from core.students.polytope import Polytope
from core.students.tree_copy import Cut, class_copy
from core.students.trees import Trees
from core.teachers.boosting import Boosting
from core.teachers.forest import Forest
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import prepare, train
from core.training.preparation import Preparation
from core.training.student_training import train_student
from tests.core.teachers.test_forest import clouds
from tests.reference.trees import random_trees, rows

FOREST = Forest(trees=25)
BOOSTING = Boosting(iterations=8, leaves=5, min_leaf=3)
DEFAULT = Trees()
FRESH = clouds(500, classes=5, seed=1)[0]


def data(n: int = 200, classes: int = 5, seed: int = 0) -> LabelledData:
    X, codes = clouds(n, classes, seed)
    return LabelledData.from_arrays(X, [f"c{code}" for code in codes])


def prepared(teacher=FOREST, student=DEFAULT, **fields) -> Preparation:
    return prepare(data(), TrainingConfig(teacher=teacher, students=(student,), **fields))


@pytest.mark.parametrize("classes", [[1], [0, 2], [2, 0, 1]])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_copy_of_some_classes_has_their_sums_bit_for_bit(classes: list[int], wide: bool, seed: int):
    trees, X = random_trees(seed, trees=30, wide=wide), rows(200)
    copy = class_copy(trees, np.array(classes))
    np.testing.assert_array_equal(copy.block(X), trees.block(X)[:, classes])
    np.testing.assert_array_equal([copy.row(x) for x in X], trees.block(X)[:, classes])
    assert len(copy.test) <= len(trees.test)


@pytest.mark.parametrize("teacher", [FOREST, replace(FOREST, splits="random", min_leaf=3), BOOSTING])
def test_copies_of_fitted_trees_have_their_scores_bit_for_bit(teacher):
    fitted = prepared(teacher).teacher
    scores = fitted.scores(Examples.of_features(FRESH), Run())
    for target in range(5):
        copy = class_copy(fitted.trees, np.array([target]))
        np.testing.assert_array_equal(copy.block(FRESH)[:, 0], scores[:, target])
        assert len(copy.test) < 0.8 * len(fitted.trees.test)


@pytest.mark.parametrize("classes", [[1], [2, 0], [3]])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_size_of_a_copys_index_is_known_before_it_is_made(classes: list[int], wide: bool, seed: int):
    cut = Cut.of(random_trees(seed, trees=30, sums=4, wide=wide), np.array(classes))
    assert cut.index_bytes == bytes_of_bits(cut.copy())


def test_everything_that_is_equal_for_the_classes_is_one_leaf():
    trees = prepared().teacher.trees
    copy = class_copy(trees, np.array([3]))
    values = copy.values[:, 0]
    first, second = copy.children.T
    both = (first < 0) & (second < 0)
    assert both.any()
    assert (values[~first[both]] != values[~second[both]]).all()
    assert len(np.unique(values)) == len(values)


def test_a_copy_of_a_class_in_no_leaf_is_a_single_leaf():
    X, codes = clouds(90, 3)
    labels = LabelledData.from_arrays(X, [f"c{code}" for code in codes])
    task = prepare(labels, TrainingConfig(teacher=FOREST, students=(Trees(),))).task
    fitted = FOREST.fit(replace(task, n_classes=4), Run())
    copy = class_copy(fitted.trees, np.array([3]))
    assert (len(copy.roots), len(copy.test)) == (1, 0)
    np.testing.assert_array_equal(copy.block(FRESH), 0.0)
    np.testing.assert_array_equal(copy.row(FRESH[0]), [0.0])


@pytest.mark.parametrize("teacher", [FOREST, replace(FOREST, trees=4), BOOSTING])
def test_with_all_rivals_students_give_the_teachers_answer_and_share_their_trees(teacher):
    model = train(data(), TrainingConfig(teacher=teacher, students=(Trees(rivals=9999),)))
    predicted = model.teacher.predict(FRESH)
    for target, student in enumerate(model.students.values()):
        np.testing.assert_array_equal(student.decide(FRESH), predicted == target)
        np.testing.assert_array_equal([student.score(x) >= 0.0 for x in FRESH], predicted == target)
    assert len({student.map.digest for student in model.students.values()}) == 1
    scores = model.teacher.scores(FRESH)
    if teacher.name == "forest":
        tied = np.sort(scores, axis=1)[:, -1] == np.sort(scores, axis=1)[:, -2]
        assert tied.any()


@pytest.mark.long
def test_a_million_rows_have_the_teachers_scores_bit_for_bit_and_its_answers():
    """Scores of copies of one class, and answers of students with all rivals; some rows are ties."""
    model = train(data(600), TrainingConfig(teacher=Forest(trees=50), students=(Trees(rivals=9999),)))
    trees = model.preparation.teacher.trees
    copies = [class_copy(trees, np.array([target])) for target in range(5)]
    rng, ties = np.random.default_rng(0), 0
    for _ in range(10):
        X = rng.normal(size=(100_000, 5)) + np.outer(
            rng.integers(5, size=100_000), [1.5, -1.0, 0.0, 0.0, 0.0]
        )
        scores = model.teacher.scores(X)
        predicted = model.teacher.predict(X)
        for target, (copy, student) in enumerate(zip(copies, model.students.values(), strict=True)):
            np.testing.assert_array_equal(copy.block(X)[:, 0], scores[:, target])
            np.testing.assert_array_equal(student.decide(X), predicted == target)
        falling = np.sort(scores, axis=1)
        ties += np.count_nonzero(falling[:, -1] == falling[:, -2])
    assert ties > 1000


@pytest.mark.parametrize("rest", [0.5, 1.0])
@pytest.mark.parametrize(("teacher", "p"), [(FOREST, 0), (FOREST, 2), (BOOSTING, 0), (BOOSTING, 2)])
def test_the_score_is_the_margin_over_rivals_and_of_forests_over_the_rest(teacher, p: int, rest: float):
    preparation = prepared(teacher, Trees(rivals=p, rest=rest))
    scores = preparation.teacher.scores(Examples.of_features(FRESH), Run())
    for target in range(5):
        trained = train_student(preparation, target)
        rivals = [
            preparation.classes.index(name) for name in json.loads(trained.packed.metadata.get(RIVALS, "[]"))
        ]
        assert len(rivals) == p
        assert target not in rivals
        own = scores[:, target]
        margins = [own - scores[:, rival] for rival in rivals]
        if teacher is FOREST:
            margins.append(own - rest * (1.0 - own - scores[:, rivals].sum(axis=1)))
        expected = np.min(margins or [own], axis=0)
        np.testing.assert_allclose(trained.packed.scores(FRESH), expected, rtol=0.0, atol=2e-12)
        np.testing.assert_array_equal(trained.packed.gate(FRESH), own)
        assert trained.packed.metadata["rivals"] == p
        if p:
            pieces = trained.packed.pieces(FRESH)
            np.testing.assert_array_equal(pieces, np.argmin(margins, axis=0))


def test_rivals_are_the_classes_whose_rows_have_most_of_the_score():
    preparation = prepared(FOREST, Trees(rivals=3))
    for target in range(5):
        gate = preparation.scores[:, target]
        mass = [gate[preparation.labels == code].sum() for code in range(5)]
        order = [code for code in np.argsort(np.negative(mass), kind="stable") if code != target]
        assert train_student(preparation, target).fitted.rivals == tuple(order[:3])


def test_the_default_are_as_many_rivals_of_a_forest_as_have_an_index_and_all_of_boosted_trees(monkeypatch):
    assert len(train_student(prepared(BOOSTING), 0).fitted.rivals) == 4
    preparation = prepared(FOREST)
    monkeypatch.setattr("core.students.trees.RIVALS_OF_A_FOREST", (3, 2, 1))
    sizes = []
    for p in (3, 2, 1):
        copy = train_student(preparation, 0, Trees(rivals=p)).packed.map
        sizes.append(bytes_of_bits(copy))
        assert sizes[-1] == copy.index.bits.nbytes
    assert sizes == sorted(sizes, reverse=True)
    for limit, expected in ((sizes[0], 3), (sizes[0] - 1, 2), (sizes[2], 1), (0, 3)):
        monkeypatch.setattr("core.students.trees.INDEX_BYTES", limit)
        assert len(train_student(preparation, 0).fitted.rivals) == expected


@pytest.mark.parametrize("teacher", [FOREST, BOOSTING])
@pytest.mark.parametrize("rule", ["f1", "expected_f1", "fpr"])
def test_thresholds_and_calibrations_follow_from_held_out_scores_without_folds(teacher, rule: str):
    preparation = prepared(teacher, threshold=rule, budget=0.1, calibration="sigmoid", guard="repair")
    assert preparation.fold_teachers == ()
    trained = train_student(preparation, 2)
    held_out = trained.fitted.of_teacher(preparation.teacher.held_out)
    known = ~np.isnan(held_out)
    truth = preparation.labels == 2
    assert trained.packed.threshold == choose_threshold(truth[known], held_out[known], rule, 0.1)
    assert trained.packed.calibration is not None
    assert trained.verdict is None
    assert (trained.promise is not None) == (rule == "fpr")


def test_rows_that_every_tree_has_seen_are_left_out_of_the_threshold():
    preparation = prepared(replace(FOREST, trees=3), threshold="f1")
    unseen = ~np.isnan(preparation.teacher.held_out[:, 0])
    assert 0.5 < unseen.mean() < 1.0
    trained = train_student(preparation, 1)
    held_out = trained.fitted.of_teacher(preparation.teacher.held_out)[unseen]
    assert trained.packed.threshold == choose_threshold((preparation.labels == 1)[unseen], held_out, "f1")


def test_students_of_trees_train_beside_others_that_need_folds():
    students = (Trees(), GSVM(C=100.0), Polytope(C=100.0))
    config = TrainingConfig(teacher=FOREST, students=students, threshold="f1", folds=3, guard="check")
    model = train(data(), config, test=data(300, seed=2))
    assert len(model.preparation.fold_teachers) == 3
    assert model.evaluation.mean("trees").f1 > 0.6
    assert model.evaluation.mean("gsvm").f1 > 0.5
    folds = {one.method: one.packed.metadata["threshold_folds"] for one in model.trained}
    assert folds == {"trees": 0, "gsvm": 3, "polytope": 3}


def test_a_search_leaves_students_of_trees_as_they_are():
    config = TrainingConfig(teacher=FOREST, students=(Trees(),), tuning=TuningSpec(), threshold="f1")
    trained = train_student(prepare(data(), config), 0)
    assert trained.search is None
    assert trained.chosen == trained.fitted.facts()


def test_rows_without_labels_have_no_part_in_the_threshold():
    X, codes = clouds(200, 5)
    labels = [f"c{code}" if row % 3 else None for row, code in enumerate(codes)]
    config = TrainingConfig(teacher=FOREST, students=(Trees(),), threshold="f1")
    with_rest = prepare(LabelledData.from_arrays(X, labels, unlabelled=True), config)
    known = [row for row in range(200) if row % 3]
    alone = prepare(LabelledData.from_arrays(X[known], [labels[row] for row in known]), config)
    assert with_rest.examples.n == 200
    threshold = train_student(with_rest, 0, Trees(rivals=4)).packed.threshold
    assert threshold == train_student(alone, 0, Trees(rivals=4)).packed.threshold


def test_a_teacher_without_trees_is_refused_before_any_fit():
    config = TrainingConfig(teacher=SSVM(), students=(Trees(),))
    with pytest.raises(InvalidProblem) as refused:
        prepare(data(), config)
    assert [fault.code for fault in refused.value.faults] == ["no_trees"]
    problem = prepare(data(), replace(config, students=(GSVM(),))).problem(0)
    assert "trees" not in problem.offers
    with pytest.raises(InvalidProblem, match="teacher of trees"):
        Trees().fit(problem, Run())
