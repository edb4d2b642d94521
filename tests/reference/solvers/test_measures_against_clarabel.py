"""Cutting planes against Clarabel with all label vectors as constraints, and brute force in 1000 cases."""

from __future__ import annotations

import pytest

from tests.reference import measures
from tests.reference.measures import agrees, measure_difference


@pytest.mark.parametrize("seed", range(48))
def test_the_objective_is_that_of_clarabel_with_all_constraints(seed):
    assert measure_difference(seed) <= 1e-6


@pytest.mark.long
def test_the_most_violated_vector_is_that_of_brute_force_in_1000_cases():
    assert all(agrees(seed) for seed in range(1000))


def test_a_wrong_vector_is_no_match(monkeypatch):
    right = measures.most_violated

    class Wrong:
        def value(self, scores):
            return -1.0

    assert all(agrees(seed) for seed in range(12))
    monkeypatch.setattr(measures, "most_violated", lambda *args: Wrong())
    assert not any(agrees(seed) for seed in range(12))
    assert right is not measures.most_violated
