"""Learners get the extras of the data set, and are refused before any fit where it has none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.data.extras import RawExtras
from core.errors import InvalidProblem
from core.students.gated import GSVM, SVM
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import prepare, train
from core.training.preparation import Preparation

RNG = np.random.default_rng(3)
MEANS = np.repeat(np.eye(3) * 3.0, 20, axis=0)
X = RNG.normal(size=(60, 3)) + MEANS
LABELS = np.repeat(["a", "b", "c"], 20)
PRIVILEGED = np.column_stack([X[:, 0] * 10.0, X[:, 1]])
EXTRAS = RawExtras(privileged=PRIVILEGED, views=[("first", 0, 1), ("rest", 1, 3)])

SEEN: list[tuple[np.ndarray, tuple]] = []


@dataclass(frozen=True, slots=True)
class Curious(SVM):
    """A baseline that notes which extras it was given."""

    name: ClassVar[str] = "curious"
    needs: ClassVar[frozenset] = frozenset({"privileged", "views"})

    def fit(self, problem, run):
        examples = problem.examples
        SEEN.append((examples.privileged, examples.views))
        assert np.array_equal(examples.privileged[:, 0], examples.X[:, 0] * 10.0)
        return SVM.fit(self, problem, run)

    @classmethod
    def walk(cls, specs, fold, budget, run):
        from core.students.base import fit_each

        return fit_each(specs, fold, run)


@dataclass(frozen=True, slots=True)
class Scored(SSVM):
    name: ClassVar[str] = "scored"
    needs: ClassVar[frozenset] = frozenset({"teacher_scores"})


CONFIG = TrainingConfig(students=(Curious(C=10.0),), threshold="f1", folds=3)


def test_students_see_the_extras_of_their_rows_also_in_folds_and_in_another_process():
    data = LabelledData.from_arrays(X, LABELS, extras=EXTRAS)
    SEEN.clear()
    made = prepare(data, CONFIG)
    restored = Preparation.from_bytes(made.to_bytes(), data, CONFIG)
    train(data, CONFIG, test=data)

    assert {len(privileged) for privileged, _ in SEEN} == {40, 60}
    assert all(views == data.views for _, views in SEEN)
    np.testing.assert_array_equal(restored.examples.privileged, PRIVILEGED)
    assert restored.examples.views == data.views


def test_a_preparation_does_not_fit_data_with_other_extras():
    data = LabelledData.from_arrays(X, LABELS, extras=EXTRAS)
    stored = prepare(data, CONFIG).to_bytes()
    other = replace(data, extras=replace(data.extras, privileged=PRIVILEGED + 1.0))

    with pytest.raises(InvalidProblem, match="other data"):
        Preparation.from_bytes(stored, other, CONFIG)


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (TrainingConfig(students=(Curious(),)), ["privileged", "views"]),
        (TrainingConfig(students=(GSVM(), Curious())), ["privileged", "views"]),
        (TrainingConfig(teacher=Scored()), ["teacher_scores"]),
    ],
)
def test_a_learner_that_needs_what_the_data_lack_is_refused_by_field(config, fields, monkeypatch):
    monkeypatch.setattr(SSVM, "fit", lambda *_: pytest.fail("a teacher was fitted"))

    with pytest.raises(InvalidProblem) as caught:
        prepare(LabelledData.from_arrays(X, LABELS), config)

    assert [fault.field for fault in caught.value.faults] == fields
    assert {fault.code for fault in caught.value.faults} == {"missing"}
