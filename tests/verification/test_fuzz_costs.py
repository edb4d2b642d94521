"""The questions whose costs are counted, and that fuzzing finds a count that is wrong."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

from core.packed.trees import TreesBasis
from tests.compiled import compiled
from tests.reference.random_students import FORMS, MAPS, deepest_row, random_student
from verification.fuzz import costs
from verification.fuzz.targets import TARGETS

KINDS = [(kind, form) for kind in MAPS for form in FORMS]


@pytest.mark.parametrize(("kind", "form"), KINDS)
def test_random_students_answer_every_question(kind: str, form: str):
    student = random_student(np.random.default_rng(1), kind, form, 3000.0)
    for ask in costs.QUESTIONS.values():
        answer, counted = ask(student)
        answer()
        assert counted > 0


@pytest.mark.parametrize("kind", [kind for kind in MAPS if kind.startswith("trees")])
def test_the_deepest_row_takes_every_step_that_is_counted(kind: str):
    for seed in range(20):
        trees = random_student(np.random.default_rng(seed), kind, "linear", 20_000.0).map
        assert isinstance(trees, TreesBasis)
        node = trees.roots[trees.roots >= 0]
        steps = 0
        while len(node):
            assert (
                deepest_row_of(trees)[trees.feature[trees.test[node]]] <= trees.threshold[trees.test[node]]
            ).all()
            steps += len(node)
            node = trees.children[node, 0]
            node = node[node >= 0]
        assert steps == trees.steps


def deepest_row_of(trees: TreesBasis) -> np.ndarray:
    return np.full(trees.columns, deepest_row_value())


def deepest_row_value() -> float:
    student = random_student(np.random.default_rng(0), "linear", "linear", 10.0)
    return float(deepest_row(student)[0])


def test_leaves_that_are_not_counted_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Trees x sums additions, of which an earlier count had nothing."""
    steps_only = property(lambda trees: trees.columns + 16 * trees.steps + trees.sums)
    monkeypatch.setattr(TreesBasis, "work", steps_only)
    kind = MAPS.index("trees of all sums")
    inputs = [bytes([kind, 0, 200, seed]) for seed in range(8)]

    def search() -> None:
        for data in inputs:
            TARGETS["cost"].run(data, tmp_path)

    with pytest.raises(AssertionError, match="trees of all sums"):
        search()


@compiled
def test_the_worst_input_of_an_earlier_count_is_counted_now(tmp_path: Path):
    """Calls of NumPy for each level of deep and narrow trees, which were not counted once for a face."""
    TARGETS["cost"].run(base64.b64decode("qKh+"), tmp_path)
