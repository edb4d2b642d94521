"""Trees beside texts: which columns they test, and that sparse rows have the scores of dense ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.column_layout import ColumnLayout
from core.data.dataset import LabelledData
from core.errors import InvalidProblem
from core.features import tree_columns
from core.features.examples import Examples
from core.features.spec import FeatureSpec
from core.features.tree_columns import has_tree_columns, tree_rows
from core.packed import TreesBasis
from core.run import Run
from core.students.trees import Trees
from core.teachers.base import TeacherSpec
from core.teachers.boosting import Boosting
from core.teachers.forest import Forest
from core.training.config import AUTOMATIC_STUDENT, TrainingConfig
from core.training.pipeline import prepare, train

LAYOUT = ColumnLayout(columns=43, dense=3, numbers=(0, 1))
TEACHERS: list[TeacherSpec] = [
    Forest(trees=15),
    Forest(trees=15, splits="random", sample="all"),
    Boosting(iterations=8, min_leaf=5),
]


def table(n: int = 240, seed: int = 0) -> LabelledData:
    """Two numbers, a truth value and 40 terms; the class is a rule of a number and term 7."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, 43))
    X[:, :2] = rng.normal(size=(n, 2))
    X[:, 2] = rng.random(n) < 0.5
    X[:, 3:] = np.where(rng.random((n, 40)) < np.linspace(0.01, 0.3, 40), 0.5, 0.0)
    X[:, 10] = np.where(rng.random(n) < 0.5, 0.4, 0.0)
    y = np.where((X[:, 10] > 0) & (X[:, 0] > -0.5), "a", np.where(X[:, 1] > 0.4, "b", "c"))
    return replace(LabelledData.from_arrays(sp.csr_array(X), y), layout=LAYOUT)


def examples(data: LabelledData) -> Examples:
    return Examples(data.X, np.empty((data.n, 0)), None, FeatureSpec(layout=data.layout))


def test_trees_test_the_columns_beside_texts_and_the_terms_that_most_rows_have(monkeypatch):
    data = table()
    monkeypatch.setattr(tree_columns, "TERMS", 10)
    columns, values = tree_rows(examples(data))
    counts = (data.X.toarray()[:, 3:] > 0).sum(axis=0)
    assert columns[:3].tolist() == [0, 1, 2]
    assert sorted(counts[columns[3:] - 3]) == sorted(counts)[-10:]
    assert (np.diff(columns) > 0).all()
    np.testing.assert_array_equal(values, data.X.toarray()[:, columns])
    monkeypatch.setattr(tree_columns, "TERMS", 1000)
    assert (tree_rows(examples(data))[0][3:] - 3).tolist() == np.flatnonzero(counts >= 5).tolist()


def test_rows_of_nothing_but_texts_and_sparse_rows_without_a_layout_are_refused():
    data = table()
    for layout in (None, ColumnLayout(43, 0, ())):
        assert not has_tree_columns(data.X, layout)
        with pytest.raises(InvalidProblem, match="beside those of texts"):
            tree_rows(examples(replace(data, layout=layout)))
        with pytest.raises(InvalidProblem, match="dense rows"):
            prepare(replace(data, layout=layout), TrainingConfig(teacher=Forest(), students=(Trees(),)))


@pytest.mark.parametrize("teacher", TEACHERS)
def test_sparse_rows_have_the_scores_of_dense_ones_in_training_and_in_queries(teacher: TeacherSpec):
    data, test = table(), table(100, seed=1)
    config = TrainingConfig(teacher=teacher, students=(Trees(),), threshold="expected_f1")
    model = train(data, config, test=test, run=Run(n_threads=1))
    assert model.evaluation is not None
    assert model.evaluation.mean("trees").f1 > 0.7
    rows = test.X.toarray()
    for student in model.trained:
        packed = student.packed
        assert isinstance(packed.map, TreesBasis)
        assert packed.map.columns == 43
        expected = student.fitted.scores(examples(test))
        np.testing.assert_array_equal(packed.scores(rows), expected)
        np.testing.assert_allclose([packed.score(row) for row in rows], expected, rtol=0, atol=1e-12)
        sparse = packed.scores_sparse(test.X.indices, test.X.data, test.X.indptr)
        np.testing.assert_array_equal(sparse, expected)


@pytest.mark.long
def test_families_are_compared_beside_texts_and_the_choice_is_the_same_again():
    data = table(500)
    config = TrainingConfig(
        students=(AUTOMATIC_STUDENT,),
        automatic=True,
        threshold="expected_f1",
        calibration="sigmoid",
        folds=3,
    )
    first = prepare(data, config)
    assert first.choice is not None
    assert [one["family"] for one in first.choice.families][1:] == [
        "forest, best splits",
        "forest, random splits",
        "boosting",
    ]
    assert first.config.teacher.grows_trees
    assert prepare(data, config).to_bytes() == first.to_bytes()
