"""Students of two jobs, matched by their labels in the database."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.entities import StudentRow, StudentState
from app.store.repositories.comparisons import Overview, PairCounts
from app.store.unit_of_work import Store


@pytest.fixture
def sides(store: Store, add_job: Any) -> tuple[tuple[str, str], tuple[str, str]]:
    """Two jobs with forty classes, in opposite orders; every fourth class was not measured in the second."""
    with store.begin() as uow:
        jobs = [add_job(uow), add_job(uow)]
        for number, job in enumerate(jobs):
            rows = []
            for k in range(40):
                index = k if number == 0 else 39 - k
                f1 = 0.5 if number == 0 else 0.5 + (k - 20) / 100
                metrics = {} if number and k % 4 == 3 else {"f1": f1}
                rows.append(
                    StudentRow(job.id, index, f"c{k}", "svm", StudentState.SUCCEEDED, metrics=metrics)
                )
            rows.append(StudentRow(job.id, 0, "c0", "teacher", StudentState.SUCCEEDED, metrics={"f1": 0.0}))
            uow.students.save_all(rows)
    return (jobs[0].id, "svm"), (jobs[1].id, "svm")


def test_the_largest_changes_come_first_in_both_directions(store: Store, sides: Any) -> None:
    with store.read() as uow:
        up = uow.comparisons.pairs(sides, "f1", limit=3, largest=True)
        down = uow.comparisons.pairs(sides, "f1", limit=3, largest=False)
        rest = uow.comparisons.pairs(sides, "f1", limit=3, largest=False, offset=3)
    assert [pair.label for pair in up] == ["c38", "c37", "c36"]
    assert [pair.label for pair in down] == ["c0", "c1", "c2"]
    assert [pair.label for pair in rest] == ["c4", "c5", "c6"]
    assert (up[0].first, up[0].second) == (38, 1)
    assert up[0].change == pytest.approx(0.18)


def test_counts_tell_directions_and_what_only_one_job_has(store: Store, sides: Any) -> None:
    with store.read() as uow:
        found = uow.comparisons.overview(sides, "f1", listed=3, sampled=100)
        turned = uow.comparisons.overview((sides[1], sides[0]), "f1", listed=3, sampled=100)
        itself = uow.comparisons.overview((sides[0], sides[0]), "f1", listed=3, sampled=100)
        unknown = uow.comparisons.overview(sides, "brier", listed=3, sampled=100)
    assert found.counts == PairCounts(larger=14, smaller=15, equal=1, only_first=10, only_second=0)
    assert turned.counts == PairCounts(larger=15, smaller=14, equal=1, only_first=0, only_second=10)
    assert itself.counts == PairCounts(larger=0, smaller=0, equal=40, only_first=0, only_second=0)
    assert unknown == Overview(PairCounts(0, 0, 0, 0, 0), [], [], [])


def test_an_overview_lists_what_the_pages_of_pairs_list(store: Store, sides: Any) -> None:
    with store.read() as uow:
        found = uow.comparisons.overview(sides, "f1", listed=5, sampled=100)
        assert found.larger == uow.comparisons.pairs(sides, "f1", limit=5, largest=True)
        assert found.smaller == uow.comparisons.pairs(sides, "f1", limit=5, largest=False)
    assert len(found.larger) == len(found.smaller) == 5


def test_a_sample_is_spread_over_all_classes(store: Store, sides: Any) -> None:
    with store.read() as uow:
        everything = uow.comparisons.overview(sides, "f1", listed=1, sampled=100).sample
        some = uow.comparisons.overview(sides, "f1", listed=1, sampled=10).sample
    assert len(everything) == 30
    assert [pair.first for pair in some] == list(range(0, 40, 4))
    assert (some[0].label, some[0].second, some[0].before) == ("c0", 39, 0.5)
