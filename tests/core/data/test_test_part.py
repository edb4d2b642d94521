"""Rows that are held out where nobody names a test part."""

from __future__ import annotations

import numpy as np
import pytest

from core.data.test_part import held_out_rows

DIFFERENT = np.arange(5000, dtype=np.uint64)


def test_each_class_gives_a_fifth_of_its_rows_and_keeps_two() -> None:
    y = np.repeat(np.arange(6, dtype=np.int32), [500, 99, 7, 3, 2, 1])
    rows = held_out_rows(y, DIFFERENT[: len(y)], seed=0)
    assert np.bincount(y[rows], minlength=6).tolist() == [100, 20, 1, 1, 0, 0]
    assert (np.diff(rows) > 0).all()
    assert rows.tolist() == held_out_rows(y, DIFFERENT[: len(y)], seed=0).tolist()
    assert rows.tolist() != held_out_rows(y, DIFFERENT[: len(y)], seed=1).tolist()


def test_rows_without_a_label_are_neither_held_out_nor_counted() -> None:
    y = np.repeat(np.array([-1, 0, 1], dtype=np.int32), [1000, 60, 40])
    rows = held_out_rows(y, DIFFERENT[: len(y)], seed=0)
    assert np.bincount(y[rows]).tolist() == [12, 8]
    assert not len(held_out_rows(y[:-1], DIFFERENT[: len(y) - 1], seed=0)), "99 labelled rows are too few"
    assert not len(held_out_rows(y[:1000], DIFFERENT[:1000], seed=0))


@pytest.mark.parametrize("contradictory", [False, True])
def test_equal_rows_stay_in_one_part(contradictory: bool) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 500).astype(np.int32)
    again = random.permutation(y) if contradictory else y
    y, digests = np.concatenate([y, again]), np.tile(DIFFERENT[:500], 2)
    rows = held_out_rows(y, digests, seed=0)
    others = np.setdiff1d(np.arange(1000), rows)
    assert not np.isin(digests[rows], digests[others]).any()
    assert 180 <= len(rows) <= 200


def test_where_most_rows_must_repeat_others_they_are_held_out_one_by_one() -> None:
    y = np.random.default_rng(0).integers(0, 2, 1000).astype(np.int32)
    rows = held_out_rows(y, DIFFERENT[:8].repeat(125), seed=0)
    assert len(rows) == 200
