"""The checker of histories accepts what the service promises, and finds every kind of planted violation."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from lab.verification.consistency import EXISTENCE, ORDER, OWN_CHANGES, STALENESS, Change, Query, check

BOUND = 2.0
# Process 1 confirms the change to 2 at 11, process 0 the way back to 1 at 21.
CHANGES = (Change(1, 0.0, 0.0), Change(2, 10.0, 11.0, 1), Change(1, 20.0, 21.0, 0), Change(3, 30.0, 31.0))


def query(process: int, value: int, invoked: float, seconds: float = 0.1) -> Query:
    return Query("alias", process, value, invoked, invoked + seconds)


def broken(*queries: Query, changes: Sequence[Change] = CHANGES) -> list[str]:
    verdict = check({"alias": changes}, queries, BOUND)
    assert len(verdict.staleness) + len(verdict.violations) == len(queries)
    return [violation.promise for violation in verdict.violations]


@pytest.mark.parametrize(
    "queries",
    [
        [query(0, 1, 5.0), query(0, 1, 12.5), query(0, 2, 12.6), query(0, 1, 22.0), query(0, 3, 31.0)],
        [query(0, 2, 10.5), query(1, 1, 10.6), query(1, 2, 11.1)],
        [query(0, 2, 10.0, 5.0), query(0, 1, 11.0, 0.1)],
        [query(1, 2, 22.9), query(0, 1, 21.5)],
        [query(0, 1, 12.9), query(0, 1, 20.1), query(0, 1, 32.9)],
    ],
    ids=["in order", "while a change is under way", "overlapping", "behind within the bound", "set twice"],
)
def test_what_is_promised_is_accepted(queries: list[Query]):
    assert broken(*queries) == []


@pytest.mark.parametrize(
    ("promise", "queries"),
    [
        (EXISTENCE, [query(0, 3, 25.0)]),
        (EXISTENCE, [query(0, 7, 25.0)]),
        (STALENESS, [query(2, 2, 23.1)]),
        (STALENESS, [query(0, 1, 13.1)]),
        (ORDER, [query(0, 2, 11.5), query(0, 1, 12.0)]),
        (ORDER, [query(2, 1, 20.5), query(2, 3, 30.5), query(2, 1, 31.0)]),
        (OWN_CHANGES, [query(1, 1, 11.1)]),
        (OWN_CHANGES, [query(0, 2, 21.5)]),
    ],
)
def test_a_planted_violation_is_found(promise: str, queries: list[Query]):
    assert broken(*queries) == [promise]


def test_a_revoked_key_that_is_still_accepted_is_found():
    refused, accepted = 0, 1
    key = [Change(refused, 0.0, 0.0), Change(accepted, 1.0, 1.1, 0), Change(refused, 5.0, 5.1, 0)]
    on_time = [
        query(0, accepted, 1.2),
        query(1, refused, 1.2),
        query(1, accepted, 5.5),
        query(0, refused, 5.2),
    ]
    assert broken(*on_time, changes=key) == []
    assert broken(query(0, accepted, 5.2), changes=key) == [OWN_CHANGES]
    assert broken(query(1, accepted, 7.2), changes=key) == [STALENESS]
    assert broken(query(1, refused, 5.2), query(1, accepted, 5.4), changes=key) == [ORDER]
    assert broken(query(1, refused, 4.0), changes=key) == [STALENESS]


def test_the_staleness_is_that_of_the_best_explanation():
    verdict = check({"alias": CHANGES}, [query(2, 2, 22.5), query(2, 1, 22.7), query(2, 1, 31.5)], BOUND)
    assert verdict.staleness == pytest.approx([1.5, 0.0, 0.5])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_the_checker_agrees_with_all_assignments_of_small_histories(seed: int):
    random_ = random.Random(seed)
    for _ in range(30):
        times = sorted(random_.uniform(0, 10) for _ in range(8))
        changes = [Change(0, -1.0, -1.0)] + [
            Change(
                random_.randrange(3), times[2 * number], times[2 * number + 1], random_.choice([0, 1, None])
            )
            for number in range(4)
        ]
        queries = [
            query(0, random_.randrange(3), random_.uniform(0, 10), random_.uniform(0, 2)) for _ in range(4)
        ]
        is_valid = any(
            _keeps_all_promises(changes, queries, assigned)
            for assigned in itertools.product(range(len(changes)), repeat=len(queries))
        )
        assert (broken(*queries, changes=changes) == []) is is_valid


def _keeps_all_promises(changes: Sequence[Change], queries: Sequence[Query], assigned: Sequence[int]) -> bool:
    own = [(change.answered, number) for number, change in enumerate(changes) if change.process == 0]
    ended = own + [(query.answered, number) for query, number in zip(queries, assigned, strict=True)]
    for query_, number in zip(queries, assigned, strict=True):
        change = changes[number]
        if change.value != query_.value or change.invoked > query_.answered:
            return False
        if number + 1 < len(changes) and query_.invoked - changes[number + 1].answered > BOUND:
            return False
        if any(answered < query_.invoked and earlier > number for answered, earlier in ended):
            return False
    return True
