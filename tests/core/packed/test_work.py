"""The counted cost of answers, against the operations that the same code makes on numbers that count them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.packed import LinearBasis, LinearForm, PackedMap, PackedStudent, PackedTeacher, RbfBasis, TreesBasis
from core.packed.contributions import Baseline, explainer, explanation_work
from core.packed.maps import COSINE, EXPONENTIAL, ROOT, BesideTerms
from core.packed.record_rows import EncodedRecord, RecordRows
from core.packed.work import record_work, row_work, students_work
from tests.app.serving.written_records import encoder, random_form, random_map
from tests.compiled import compiled
from tests.reference.random_students import FORMS, MAPS, random_student
from tests.reference.trees import random_trees

FACTOR = 3.0
"""A count is right if it is at most so many times too high or too low."""
SMALL = {"max_examples": 150, "deadline": None}


class Counted:
    """A number that counts what is done with it: an addition or a multiplication is half a multiply-add."""

    work = 0.0

    def __init__(self, value: float) -> None:
        self.value = float(value)

    def _count(self, value: float, work: float = 0.5) -> Counted:
        Counted.work += work
        return Counted(value)

    def __add__(self, other: Any) -> Counted:
        return self._count(self.value + float(other))

    def __sub__(self, other: Any) -> Counted:
        return self._count(self.value - float(other))

    def __rsub__(self, other: Any) -> Counted:
        return self._count(float(other) - self.value)

    def __mul__(self, other: Any) -> Counted:
        return self._count(self.value * float(other))

    def __truediv__(self, other: Any) -> Counted:
        return self._count(self.value / float(other), ROOT)

    __radd__, __rmul__ = __add__, __mul__

    def exp(self) -> Counted:
        return self._count(np.exp(self.value), EXPONENTIAL)

    def cos(self) -> Counted:
        return self._count(np.cos(self.value), COSINE)

    def sqrt(self) -> Counted:
        return self._count(np.sqrt(self.value), ROOT)

    def __lt__(self, other: Any) -> bool:
        Counted.work += 0.5
        return self.value < float(other)

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __abs__(self) -> Counted:
        return self._count(abs(self.value))

    def __float__(self) -> float:
        return self.value


def counted_rows(n: int, d: int) -> np.ndarray:
    """Rows (n, d) of counting numbers."""
    Counted.work = 0.0
    return np.array([[Counted(1e-3 * (1 + i)) for _ in range(d)] for i in range(n)], dtype=object)


def walked_work(trees: TreesBasis, x: np.ndarray) -> float:
    """Comparisons, and numbers that leaves add, of a row, one node after the other; a step counts as 16."""
    work = 0
    for root in trees.roots.tolist():
        reference = root
        while reference >= 0:
            test = trees.test[reference]
            reference = int(trees.children[reference, int(x[trees.feature[test]] > trees.threshold[test])])
            work += 16
        work += 16 + trees.values.shape[1]
    return work + 3 * trees.sums


def work_of_row(student: PackedStudent) -> float:
    """What a row costs, by its operations."""
    packed, d = student.map, student.map.n_columns
    if isinstance(packed, TreesBasis):
        Counted.work = walked_work(packed, np.full(d, -1.0))
        student.form.at(np.array([Counted(1.0) for _ in range(packed.n_basis)], dtype=object))
    else:
        student.form.at(packed.row(counted_rows(1, d)[0]))
    return Counted.work + d


def assert_right(count: float, operations: float) -> None:
    assert operations / FACTOR <= count <= FACTOR * operations, (count, operations)


students = st.builds(
    lambda seed, kind, form, size: random_student(np.random.default_rng(seed), kind, form, size),
    st.integers(0, 2**32),
    st.sampled_from(MAPS),
    st.sampled_from(FORMS),
    st.floats(20.0, 5000.0),
)


@compiled
@settings(**SMALL)
@given(student=students)
def test_a_row_costs_what_its_operations_do(student: PackedStudent):
    assert_right(students_work([student]), work_of_row(student))


@settings(**SMALL)
@given(student=students.filter(lambda one: one.map.kind != "trees"))
def test_rows_in_a_table_cost_what_their_operations_do(student: PackedStudent):
    basis = student.map.block(counted_rows(3, student.map.n_columns))
    student.form.block(basis)
    assert_right(3 * students_work([student]), Counted.work + 3 * student.map.n_columns)


@settings(**SMALL)
@given(student=students, more=st.integers(0, 2**32))
def test_students_share_the_basis_values_of_one_map_only(student: PackedStudent, more: int):
    other = PackedStudent(student.map, random_form(student.map.n_basis, 1), 0.0, "b")
    [expensive] = [random_student(np.random.default_rng(more), "rbf", "linear", 4000.0)]
    both = students_work([student, other])
    assert both == students_work([student]) + other.form.work
    assert students_work([student, expensive]) == students_work([student]) + students_work([expensive])


@settings(**SMALL)
@given(student=students.filter(lambda one: one.map.kind != "trees"), classes=st.integers(1, 5))
def test_a_prediction_costs_what_its_operations_do(student: PackedStudent, classes: int):
    packed = student.map
    teacher = PackedTeacher(
        packed, np.ones((classes, packed.n_basis)), np.zeros(classes), tuple(map(str, range(classes)))
    )
    packed.block(counted_rows(1, packed.n_columns)) @ teacher.coef.T
    assert_right(row_work(packed, classes), Counted.work + packed.n_columns)


def test_explained_answers_count_gate_and_number_of_the_rejection():
    linear = PackedStudent(LinearBasis(4), random_form(4, 1), 0.0, "a")
    pieces = PackedStudent(LinearBasis(4), random_form(4, 3), 0.0, "a")
    assert students_work([linear], explain=True) == students_work([linear]) + 4
    assert students_work([pieces], explain=True) == students_work([pieces]) + 3 * 4 + 4


@pytest.mark.parametrize("kind", ["linear", "rbf"])
@pytest.mark.parametrize("with_note", [False, True])
def test_a_record_costs_its_values_its_texts_and_the_map_of_its_dense_columns(kind: str, with_note: bool):
    known = encoder(with_note=with_note)
    packed = random_map(known, kind)
    student = PackedStudent(packed, random_form(packed.n_basis, 3), 0.0, "a")
    rows = RecordRows(known)
    of_dense = packed.of_dense if isinstance(packed, BesideTerms) else packed
    dense = known.layout.dense if kind == "linear" else of_dense.n_basis
    of_map = dense if kind == "linear" else of_dense.work
    expected = 500 * len(rows.columns) + 80_000 * with_note + of_map + 3 * dense
    assert record_work([student], rows) == expected


def baseline_of(columns: int) -> Baseline:
    return Baseline.of_numbers(np.zeros(columns))


def explained(student: PackedStudent, rows: int) -> int:
    """Explain some rows of numbers, and return what that counts for."""
    d = student.map.n_columns
    baseline = baseline_of(d)
    contributions = explainer(student, baseline)
    for i in range(rows):
        contributions(EncodedRecord([0.5 * i] * d, np.empty(0, dtype=np.int64), np.empty(0)))
    return explanation_work(student, baseline, rows)


@pytest.mark.parametrize("columns", [1, 7, 40])
@pytest.mark.parametrize("rows", [1, 5])
def test_an_explanation_by_a_kernel_counts_the_rows_that_are_scored(
    columns: int, rows: int, monkeypatch: pytest.MonkeyPatch
):
    packed = RbfBasis(np.zeros(columns), np.ones(columns), np.ones((30, columns)))
    student = PackedStudent(packed, LinearForm(np.ones(30), 0.0, np.zeros(30), 0.0), 0.0, "a")
    scored = 0
    whole = RbfBasis.block

    def counting(self: PackedMap, X: np.ndarray) -> np.ndarray:
        nonlocal scored
        scored += len(X)
        return whole(self, X)

    monkeypatch.setattr(RbfBasis, "block", counting)
    count = explained(student, rows)
    assert scored == rows * (columns + 2)
    assert count > scored * work_of_row(student)


@pytest.mark.parametrize("wide", [True, False])
def test_an_explanation_of_trees_counts_its_faces_once_and_its_paths_for_each_row(wide: bool):
    trees = random_trees(3, trees=40, sums=6, wide=wide)
    one, three = (PackedStudent(trees, random_form(trees.n_basis, faces), 0.0, "a") for faces in (1, 3))
    counts = {rows: explained(one, rows) for rows in (1, 2, 3)}
    of_row = counts[2] - counts[1]
    assert counts[3] - counts[2] == of_row
    of_face = counts[1] - of_row
    assert of_face >= trees.values.size + len(trees.test)
    assert of_row >= walked_work(trees, np.full(4, -1.0))
    assert explained(three, 3) >= 3 * of_face + 3 * of_row


def test_what_explains_trees_needs_no_number_for_each_sum(monkeypatch: pytest.MonkeyPatch):
    """Nothing of the size columns x sums, or nodes x sums, is made."""
    trees = random_trees(3, trees=40, sums=6)
    student = PackedStudent(trees, random_form(6, 1), 0.0, "a")
    sizes: list[tuple[int, ...]] = []
    whole = TreesBasis.mean_values

    def noting(self: TreesBasis, values: np.ndarray) -> np.ndarray:
        sizes.append(values.shape)
        return whole(self, values)

    monkeypatch.setattr(TreesBasis, "mean_values", noting)
    explained(student, 5)
    assert sizes == [(len(trees.values),)]
