"""Copies of a forest have no rivals where the score of their class alone predicts it better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.students.trees import Trees
from core.teachers.boosting import Boosting
from core.teachers.forest import Forest
from core.training.config import TrainingConfig
from core.training.pipeline import train

CONFIG = TrainingConfig(
    teacher=Forest(trees=60), students=(Trees(),), threshold="expected_f1", calibration="sigmoid"
)


def overlapping(n: int = 400, seed: int = 0) -> LabelledData:
    """Class "a" grows likely with a column; the four others are drawn at random."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    is_first = rng.random(n) < 1.0 / (1.0 + np.exp(-2.0 * X[:, 0]))
    return LabelledData.from_arrays(X, np.where(is_first, "a", rng.choice(list("bcde"), n)))


def parted(n: int = 300) -> LabelledData:
    """Three classes in a row, with a wide gap between two."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 3
    return LabelledData.from_arrays((2.0 * labels + rng.random(n))[:, None], labels)


def rivals_of(data: LabelledData, config: TrainingConfig = CONFIG) -> list[int]:
    """Numbers of rivals of the students, by class."""
    return [int(student.metadata["rivals"]) for student in train(data, config).students.values()]


def test_where_classes_overlap_the_score_alone_is_taken_and_ranks_better():
    data, test = overlapping(), overlapping(600, 1)
    found, kept = (
        train(data, replace(CONFIG, students=(spec,)), test=test) for spec in (Trees(), Trees(rivals=8))
    )
    assert found.students["a"].metadata["rivals"] == 0
    assert kept.students["a"].metadata["rivals"] == 4
    first, second = (
        next(one for one in model.evaluation.results if (one.label, one.method) == ("a", "trees"))
        for model in (found, kept)
    )
    assert first.metrics.auc > second.metrics.auc + 0.005
    assert first.reliability.brier < second.reliability.brier


def test_rivals_stay_where_the_margin_is_as_good_or_they_were_given():
    assert rivals_of(parted()) == [2, 2, 2]
    data = overlapping()
    assert rivals_of(data, replace(CONFIG, students=(Trees(rivals=3),))) == [3] * 5
    assert rivals_of(data, replace(CONFIG, threshold="zero")) == [4] * 5
    assert rivals_of(data, replace(CONFIG, teacher=Boosting(iterations=3))) == [4] * 5
    two = LabelledData.from_arrays(data.X, data.y > 0)
    assert rivals_of(two) == [1, 1]


@pytest.mark.long
def test_the_choice_is_repeatable_bit_for_bit():
    first, second = (train(overlapping(), CONFIG) for _ in range(2))
    assert [one.digest for one in first.students.values()] == [one.digest for one in second.students.values()]
