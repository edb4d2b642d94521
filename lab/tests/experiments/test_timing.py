"""The timed queries give the right answers and are run in alternation."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.packed import LinearBasis, LinearForm, PackedStudent, PackedTeacher, RbfBasis
from lab.experiments import timing
from lab.experiments.timing import basis_of, measure_inference, query_seconds, time_alternately

KERNELS = ("_score", "_argmax", "_is_largest")


@pytest.fixture(params=["compiled", "interpreted"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "interpreted":
        for name in KERNELS:
            kernel = getattr(timing, name)
            monkeypatch.setattr(timing, name, getattr(kernel, "py_func", kernel))


def linear_teacher(K: int, d: int, *, ties: bool) -> PackedTeacher:
    rng = np.random.default_rng(0)
    coef = rng.integers(-1, 2, (K, d)).astype(float) if ties else rng.standard_normal((K, d))
    return PackedTeacher(LinearBasis(d), coef, np.zeros(K), tuple(map(str, range(K))))


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_teacher_remark_2_and_student_answer_like_the_packed_ones(
    ties: bool, stored: bool, monkeypatch: pytest.MonkeyPatch
):
    """With weights and values of -1, 0 and 1 the largest score is often shared by several classes."""
    teacher = linear_teacher(5, 6, ties=ties)
    rng = np.random.default_rng(1)
    rows = rng.integers(-1, 2, (40, 6)).astype(float)
    form = LinearForm(rng.standard_normal(6), 0.1, np.zeros(6), 0.0)
    student = PackedStudent(LinearBasis(6), form, 0.2, "a")
    answers: dict[str, list[bool]] = {}

    def ask(queries: dict[str, Callable[[int], bool]], n: int) -> dict[str, np.ndarray]:
        answers.update({name: [bool(query(i)) for i in range(n)] for name, query in queries.items()})
        return {name: np.zeros(n) for name in queries}

    monkeypatch.setattr(timing, "time_alternately", ask)
    basis = timing._computed(sp.csr_array(rows)) if stored else timing.basis_of(teacher.map, rows)
    product = form.coef, form.intercept - student.threshold
    for target in range(5):
        query_seconds(teacher, [target] * len(rows), basis, product, basis)
        assert answers["teacher"] == (teacher.predict(rows) == target).tolist()
        assert answers["remark_2"] == [teacher.is_class(row, target)[0] for row in rows]
        assert answers["student"] == student.decide(rows).tolist()


def test_the_classes_that_are_asked_for_do_not_depend_on_the_order_of_the_rows():
    """A yes costs all scores, so a target that followed the row's own class would cost all of them."""
    K, n = 20, 400
    labels = np.repeat(np.arange(K), n // K)
    teacher = PackedTeacher(LinearBasis(K), np.eye(K), np.zeros(K), tuple(map(str, range(K))))
    test = LabelledData.from_arrays(np.eye(K)[labels], labels)
    found = measure_inference(SimpleNamespace(packed_teacher=lambda: teacher), test, seed=0)  # type: ignore[arg-type]
    assert 2.0 < found["classes_evaluated"] < 10.0
    assert set(found["seconds_per_query"]) == set(found["seconds_for_scoring"])


def test_every_repeat_runs_all_rows_of_one_query_and_then_of_the_next():
    asked: list[tuple[str, int]] = []

    def query(name: str) -> Callable[[int], Any]:
        return lambda i: asked.append((name, i))

    seconds = time_alternately({"a": query("a"), "b": query("b")}, 3)
    turn = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]
    assert asked == turn * (len(asked) // 6)
    assert len(asked) > 6
    assert all(each.shape == (3,) and (each >= 0).all() for each in seconds.values())


def test_the_fastest_repeat_counts(monkeypatch: pytest.MonkeyPatch):
    clock = iter(np.cumsum([0.0, 5.0, 0.0, 3.0, 0.0, 4.0, 0.0, 9.0, 0.0, 7.0]).tolist())
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert time_alternately({"a": lambda _: None}, 1)["a"] == pytest.approx([3.0])


def test_a_student_on_few_landmarks_is_faster_than_a_teacher_on_many():
    rng = np.random.default_rng(3)

    def basis(p: int) -> RbfBasis:
        return RbfBasis(np.zeros(200), np.full(200, 0.05), 0.05 * rng.standard_normal((p, 200)))

    teacher = PackedTeacher(basis(2000), rng.standard_normal((8, 2000)), np.zeros(8), tuple("abcdefgh"))
    rows = rng.standard_normal((20, 200))
    own = basis(10)
    product = rng.standard_normal(10), 0.0
    bases = [basis_of(one, rows) for one in (teacher.map, own)]
    found = query_seconds(teacher, [2] * 20, bases[0], product, bases[1])
    assert set(found) == {"teacher", "remark_2", "student"}
    assert found["student"] < 0.5 * found["teacher"]
