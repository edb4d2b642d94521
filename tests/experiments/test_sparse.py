"""A query of sparse text reads the coefficients of the row's non-zero columns, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from core.packed import LinearBasis, LinearForm, PackedStudent
from experiments.data import load
from experiments.protocol import Protocol
from experiments.sparse import NAME, SparseQuery, query_seconds
from experiments.store import Run, Store

from .conftest import EFFORT, gather, small

RUN = Run("reuters_r8", "open", 0)


class Counting(np.ndarray):
    """An array that writes down which entries are read, and refuses to be used as a whole."""

    read: list[int]

    def __getitem__(self, key: Any) -> Any:
        plain = self.view(np.ndarray)
        self.read += np.atleast_1d(np.arange(len(plain))[key]).tolist()
        return plain[key]

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the coefficients were used as a whole")

    def __array_function__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the coefficients were used as a whole")

    def dot(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the coefficients were used as a whole")


def student(d: int, seed: int = 0) -> PackedStudent:
    rng = np.random.default_rng(seed)
    return PackedStudent(
        LinearBasis(d), LinearForm(rng.standard_normal(d), 0.25, np.zeros(d), 0.0), 0.0, "tech"
    )


def sparse_row(d: int, nonzeros: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.sort(rng.permutation(d)[:nonzeros]), rng.random(nonzeros)


@pytest.mark.parametrize("nonzeros", [0, 1, 7, 60])
def test_a_query_reads_as_many_coefficients_as_the_row_has_non_zeros(nonzeros: int):
    asked = student(1000)
    columns, values = sparse_row(1000, nonzeros)
    expected = float(asked.scores_sparse(columns, values)[0])
    counting = asked.form.coef.view(Counting)
    counting.read = []
    object.__setattr__(asked.form, "coef", counting)
    assert asked.scores_sparse(columns, values)[0] == expected
    assert counting.read == columns.tolist()


def test_poisoned_coefficients_of_other_columns_do_not_reach_the_score():
    asked = student(500)
    columns, values = sparse_row(500, 12)
    expected = asked.form.coef[columns] @ values + 0.25
    poisoned = np.full(500, np.nan)
    poisoned[columns] = asked.form.coef[columns]
    object.__setattr__(asked.form, "coef", poisoned)
    assert asked.scores_sparse(columns, values)[0] == pytest.approx(expected)
    # The row written out does reach them, as 0 times NaN is NaN: the check is effective.
    written_out = np.zeros(500)
    written_out[columns] = values
    assert np.isnan(poisoned.dot(written_out))


def test_the_timed_queries_read_no_other_coefficients():
    asked = student(300)
    columns, values = sparse_row(300, 9)
    X = sp.csr_array((values, columns.astype(np.int32), np.array([0, 9])), shape=(1, 300))
    seconds = query_seconds(asked, X)
    assert set(seconds) == {"sparse", "dense", "sparse_served", "dense_served"}
    assert all(each.shape == (1,) and each[0] > 0 for each in seconds.values())


@pytest.fixture
def made(folder: Path, tmp_path: Path) -> Store:
    store = Store(tmp_path / "made.jsonl")
    plan = small("reuters_r8", "open")
    list(Protocol(plan, RUN, load("reuters_r8", folder), store, EFFORT).steps())
    return store


def test_time_is_measured_in_groups_of_rows(folder: Path, made: Store):
    plan, data = small("reuters_r8", "open"), load("reuters_r8", folder)
    steps = list(SparseQuery(Protocol(plan, RUN, data, made, EFFORT)).steps())
    assert [name for name, _ in steps] == [NAME]
    record = gather(made).sparse["reuters_r8"]
    nonzeros = [group["nonzeros"] for group in record["groups"]]
    assert nonzeros == sorted(nonzeros)
    assert sum(group["rows"] for group in record["groups"]) == data.test.n
    assert record["columns"] == 12
    assert record["label"] == data.train.classes[0]


def test_a_measurement_of_another_protocol_does_not_count(folder: Path, made: Store):
    made.write(RUN.key(NAME), "s", {"protocol": "other"})
    assert gather(made).sparse == {}
