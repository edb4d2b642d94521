"""Cutting planes against Clarabel with all label vectors as constraints, and brute force in 1000 cases."""

from __future__ import annotations

import pytest

from studies.learners.oracles import agrees, measure_difference


@pytest.mark.parametrize("seed", range(48))
def test_the_objective_is_that_of_clarabel_with_all_constraints(seed):
    assert measure_difference(seed) <= 1e-6


@pytest.mark.long
def test_the_most_violated_vector_is_that_of_brute_force_in_1000_cases():
    assert all(agrees(seed) for seed in range(1000))
