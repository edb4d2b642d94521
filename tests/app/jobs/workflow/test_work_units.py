from __future__ import annotations

import pytest

from app.domain.entities import Priority, Worker
from app.jobs.engine.config import priority_level, queue_priority
from app.jobs.workflow.work_units import (
    PREPARE,
    Capacity,
    WorkUnit,
    chunk_ranges,
    is_one_chunk,
)


def worker(name: str, slots: int, threads: int) -> Worker:
    return Worker(name, "host", 1, started_at=0.0, beat_at=0.0, slots=slots, threads=threads)


@pytest.mark.parametrize("targets", [1, 2, 7, 26, 100, 1000, 10_000])
@pytest.mark.parametrize(("slots", "threads"), [(1, 1), (1, 16), (2, 1), (3, 4), (40, 1)])
@pytest.mark.parametrize("max_classes", [1, 10, 64])
def test_every_class_is_in_one_chunk(targets, slots, threads, max_classes):
    chunks = list(chunk_ranges(targets, Capacity(slots, threads), max_classes))
    assert [index for first, stop in chunks for index in range(first, stop)] == list(range(targets))
    assert all(0 < stop - first <= max_classes for first, stop in chunks)


def test_chunks_of_two_workers_shrink_to_an_even_end():
    sizes = [stop - first for first, stop in chunk_ranges(26, Capacity(2, 1), 64)]
    assert sizes == [7, 7, 3, 3, 2, 2, 1, 1]


def test_no_chunk_but_the_last_has_fewer_classes_than_a_solver_has_threads():
    sizes = [stop - first for first, stop in chunk_ranges(100, Capacity(3, 8), 64)]
    assert min(sizes[:-1]) >= 8


def test_a_single_slot_takes_the_largest_chunks():
    assert list(chunk_ranges(150, Capacity(1, 4), 64)) == [(0, 64), (64, 128), (128, 150)]


def test_ten_thousand_classes_are_some_hundred_chunks():
    assert len(list(chunk_ranges(10_000, Capacity(2, 1), 64))) < 200


@pytest.mark.parametrize(
    ("targets", "slots", "threads", "expected"),
    [(64, 1, 1, True), (65, 1, 1, False), (26, 2, 1, False), (26, 2, 32, True)],
)
def test_a_job_is_one_chunk_where_splitting_saves_no_time(targets, slots, threads, expected):
    assert is_one_chunk(targets, Capacity(slots, threads), 64) is expected


def test_capacity_is_all_slots_and_the_smallest_solver():
    capacity = Capacity.of([worker("a", 2, 8), worker("b", 1, 4)])
    assert (capacity.slots, capacity.threads, capacity.window) == (3, 4, 6)
    assert Capacity.of([]) == Capacity(1, 1)


def test_a_higher_priority_precedes_every_turn_of_a_lower_one():
    levels = [priority_level(priority) for priority in (Priority.HIGH, Priority.NORMAL, Priority.LOW)]
    places = [queue_priority(level, turn) for level in levels for turn in (1, 2, 10**6, 10**12)]
    assert places == sorted(places)
    assert len(set(places)) == len(places)
    assert places[0] >= 1
    assert places[-1] < 2**31


def test_units_have_names_and_kinds():
    assert WorkUnit("job_1", 2, PREPARE, 0, 0).kind == "prepare"
    chunk = WorkUnit("job_1", 2, 3, 4, 8)
    assert (chunk.id, chunk.kind) == ("job_1.2.3", "chunk")
