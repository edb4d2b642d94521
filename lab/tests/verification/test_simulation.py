"""The simulated cluster: a few schedules hold, each planted bug is found, and a seed tells all."""

from __future__ import annotations

import logging

import pytest

from lab.verification.simulation import BUGS, first_violation, run, violations
from tests.lanes import first_short


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_few_schedules_violate_nothing():
    assert violations(range(40)) == []


@pytest.mark.parametrize("bug", first_short(sorted(BUGS), 2))
def test_a_planted_bug_is_found(bug: str):
    found = first_violation(range(1500), [bug])
    assert found is not None
    assert violations([found[0]]) == [], "it is the bug that the schedule finds"


def test_a_seed_repeats_its_schedule():
    assert run(11) == run(11)
    assert run(11) != run(12)
