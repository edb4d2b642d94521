"""Students as ONNX graphs: checked by onnx, run by onnxruntime, equal to what a query computes."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable
from math import erfc

import numpy as np
import onnx
import onnxruntime
import pytest

from core.errors import InvalidProblem
from core.packed import LinearBasis, PackedStudent
from core.packed.encoded_columns import CategoryColumn, DateColumn, NumberColumn, TextColumn
from core.packed.encoder import Encoder
from core.packed.forms import LinearForm, PolytopeForm
from core.packed.maps import RbfBasis
from core.packed.onnx import onnx_bytes, onnx_model
from core.packed.onnx_erfc import erfc as erfc_graph
from core.packed.onnx_wire import DOUBLE, Graph
from core.packed.record_rows import RecordRows
from tests.reference.packed_students import CASES, D, P, rbf, rng, some_rows
from tests.reference.trees import random_trees, rows
from tests.refusals import at_fault

TOLERANCE = 1e-11


def session(data: bytes) -> onnxruntime.InferenceSession:
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def compare(student: PackedStudent, n: int) -> float:
    """Asserts that there is no flip; returns the largest difference.

    Rows of some 1e8 may have a score of 0, a difference of numbers of their size: there it is relative to it.
    """
    X = some_rows(student, n)
    outputs = dict(
        zip(["match", "score", "probability"], session(onnx_bytes(student)).run(None, {"x": X}), strict=False)
    )
    expected = student.scores(X)
    np.testing.assert_array_equal(outputs["match"], expected >= student.threshold)
    size = np.where(student.map.kind == "trees", 1.0, np.abs(X).max(axis=1))
    difference = np.abs(outputs["score"] - expected) / np.where(size > 100.0, size, 1.0)
    if student.calibration is not None:
        wanted = student.calibration.probabilities(expected)
        difference = np.maximum(difference, np.abs(outputs["probability"] - wanted))
    return float(difference.max())


@pytest.mark.parametrize("case", CASES)
def test_every_form_answers_as_a_query_does(case: str):
    assert compare(CASES[case], 2000) <= TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_no_answer_of_100_000_rows_flips(case: str):
    assert compare(CASES[case], 100_000) <= TOLERANCE


@pytest.mark.parametrize("case", ["linear-linear-none", "rbf-polytope-none", "forest-linear-none"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e101, -1e300])
def test_rows_that_a_query_refuses_never_match(case: str, bad: float):
    student = CASES[case]
    always = PackedStudent(student.map, student.form, -1e300, student.label)
    run = session(onnx_bytes(always))
    good = some_rows(student, 3)
    for column in range(D):
        X = good.copy()
        X[1, column] = bad
        with pytest.raises(InvalidProblem):
            always.scores(X)
        assert run.run(["match"], {"x": X})[0].tolist() == [True, False, True]


def test_a_score_beyond_float64_never_matches():
    form = LinearForm(np.full(D, 1e250), 0.0, np.zeros(D), 0.0)
    student = PackedStudent(LinearBasis(D), form, 0.0, "a")
    X = np.full((1, D), 1e99)
    with pytest.raises(InvalidProblem):
        student.scores(X)
    assert session(onnx_bytes(student)).run(["match"], {"x": X})[0].tolist() == [False]


def test_ties_of_a_forest_stay_ties():
    """Sums are added in the order of the trees: at a threshold that is a score every row answers alike."""
    trees = random_trees(columns=D, sums=5, trees=30, depth=9)
    margin = PolytopeForm(np.eye(5)[2] - np.eye(5)[[0, 1, 3, 4]], np.zeros(4), np.eye(5)[2], 0.0)
    X = rows(2000, D, seed=2)
    scores = PackedStudent(trees, margin, 0.0, "a").scores(X)
    for threshold in np.unique(scores)[::20].tolist():
        student = PackedStudent(trees, margin, threshold, "a")
        run = session(onnx_bytes(student))
        np.testing.assert_array_equal(run.run(["match"], {"x": X})[0], scores >= threshold)


def test_the_bytes_are_the_same_each_time_and_say_whose_they_are():
    student = CASES["rbf-linear-none"]
    data = onnx_bytes(student, properties={"stms.model": "letters"})
    assert onnx_bytes(student, properties={"stms.model": "letters"}) == data
    model = onnx.load_from_string(data)
    found = {entry.key: entry.value for entry in model.metadata_props}
    assert found == {
        "stms.label": "größe/1:x",
        "stms.threshold": "0.125",
        "stms.student": student.digest,
        "stms.model": "letters",
    }
    assert model.ir_version == 8
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 18}
    assert {node.domain for node in model.graph.node} == {""}


def test_the_error_function_keeps_small_probabilities():
    graph = Graph()
    x = graph.input("x", DOUBLE, ["rows"])
    graph.output(erfc_graph(graph, x), "y", DOUBLE, ["rows"])
    points = np.concatenate([np.linspace(-30, 30, 6001), [0.46875, 4.0, -0.46875, 0.0]])
    found = session(b"".join(graph.model("erfc", "tests", {}).pieces())).run(None, {"x": points})[0]
    wanted = np.array([erfc(point) for point in points.tolist()])
    visible = wanted > 1e-300
    np.testing.assert_allclose(found[visible], wanted[visible], rtol=5e-15, atol=0)
    assert (found[~visible] < 1e-290).all()


def of_columns(*columns: object) -> Encoder:
    width = sum(column.width for column in columns)
    return Encoder(tuple(columns), (), np.zeros(width), True)


NUMBERS = [
    NumberColumn("age", False, 40.0, True, 0.0, 90.0),
    NumberColumn("width", True, 0.0, False, 0.0, 9.0),
    NumberColumn("is new", False, 0.0, False, 0.0, 1.0, is_truth=True),
]
CITIES = CategoryColumn("city", False, ("Rome", "São Paulo", "7"), ("Oslo",), True, True)
STRICT = CategoryColumn("kind", True, ("a", "b"), ("c",), False, False, refuses_unseen=True)


def test_records_of_numbers_and_categories_are_encoded_in_the_graph():
    encoder = of_columns(*NUMBERS, CITIES, STRICT)
    d = encoder.layout.columns
    random = rng()
    student = PackedStudent(rbf(d), LinearForm(random.normal(size=P), 0.1, np.zeros(P), 0.0), 0.1, "a")
    n = 400
    columns = {
        "age": random.choice([np.nan, 17.0, 63.5], n),
        "width": random.normal(size=n),
        "is new": random.choice([0.0, 1.0, np.nan], n),
        "city": random.choice(["Rome", "São Paulo", "7", "Oslo", "Atlantis", ""], n),
        "kind": random.choice(["a", "b", "c"], n),
    }
    run = session(onnx_bytes(student, encoder))
    fed = {
        name: (values.astype(object) if values.dtype.kind == "U" else values).reshape(-1, 1)
        for name, values in columns.items()
    }
    match, score = run.run(["match", "score"], fed)
    order = RecordRows(encoder)
    rows_of = []
    for at in range(n):
        values = []
        for column in order.columns:
            value = columns[column.name][at]
            is_gap = value == "" or value != value
            of_truth = column.name == "is new"
            plain = str(value) if isinstance(value, str) else bool(value) if of_truth else float(value)
            values.append(None if is_gap else plain)
        rows_of.append(order.encode(values).dense)
    expected = student.scores(np.array(rows_of))
    np.testing.assert_array_equal(match, expected >= 0.1)
    np.testing.assert_allclose(score, expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("change", "matches"),
    [
        ({}, True),
        ({"kind": "d"}, False),
        ({"kind": ""}, False),
        ({"width": np.nan}, False),
        ({"width": np.inf}, False),
        ({"is new": 0.5}, False),
        ({"age": np.nan}, True),
        ({"age": 1e101}, False),
        ({"city": ""}, True),
    ],
)
def test_values_that_no_record_may_have_never_match(change: dict[str, object], matches: bool):
    encoder = of_columns(*NUMBERS, CITIES, STRICT)
    d = encoder.layout.columns
    student = PackedStudent(LinearBasis(d), LinearForm(np.zeros(d), 1.0, np.zeros(d), 0.0), 0.0, "a")
    values = {"age": 20.0, "width": 1.0, "is new": 1.0, "city": "Rome", "kind": "a"} | change
    fed = {
        name: np.array([[value]], dtype=object if isinstance(value, str) else np.float64)
        for name, value in values.items()
    }
    assert session(onnx_bytes(student, encoder)).run(["match"], fed)[0].tolist() == [matches]


def date(name: str) -> DateColumn:
    return DateColumn(name, False, 0, 0, ("hour",), False, None, 0, 1)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: of_columns(NUMBERS[0], date("born")), "no_onnx_form"),
        (lambda: of_columns(NUMBERS[0], TextColumn("note", False, ())), "no_onnx_form"),
        (lambda: of_columns(NumberColumn("match", True, 0.0, False, 0.0, 1.0)), "reserved_name"),
    ],
)
def test_what_onnx_cannot_say_is_refused_by_name(make: Callable[[], Encoder], code: str):
    encoder = make()
    d = encoder.layout.columns
    student = PackedStudent(LinearBasis(d), LinearForm(np.ones(d), 1.0, np.zeros(d), 0.0), 0.0, "a")
    with at_fault(InvalidProblem, code) as refused:
        onnx_bytes(student, encoder)
    assert refused.value.faults[0].field in {"born", "note", "match"}


def test_every_column_that_onnx_cannot_say_is_named_with_the_ways_out():
    encoder = of_columns(NUMBERS[0], date("born"), TextColumn("note", False, ()))
    d = encoder.layout.columns
    student = PackedStudent(LinearBasis(d), LinearForm(np.ones(d), 1.0, np.zeros(d), 0.0), 0.0, "a")
    with at_fault(InvalidProblem, "no_onnx_form") as refused:
        onnx_bytes(student, encoder)
    assert [fault.field for fault in refused.value.faults] == ["born", "note"]
    for fault in refused.value.faults:
        assert f"{fault.field}:ignore" in fault.message
        assert "local evaluation" in fault.message


def test_a_model_is_written_without_a_copy_of_its_numbers(monkeypatch: pytest.MonkeyPatch):
    """Landmarks are written transposed; pieces of any size are the same model."""
    landmarks = rng().normal(size=(4000, 1000))
    student = PackedStudent(
        RbfBasis(np.zeros(1000), np.ones(1000), landmarks),
        LinearForm(np.ones(4000), 0.0, np.zeros(4000), 0.0),
        0.0,
        "a",
    )
    model = onnx_model(student)
    tracemalloc.start()
    try:
        sizes = [len(piece) for piece in model.pieces()]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sizes) == model.size > landmarks.nbytes
    assert peak < model.size / 3
    small = hashlib.sha256()
    whole = hashlib.sha256(b"".join(model.pieces()))
    monkeypatch.setattr("core.packed.onnx_wire.PIECE_BYTES", 1001)
    for piece in model.pieces():
        small.update(piece)
    assert small.digest() == whole.digest()


def test_more_boosted_trees_than_are_sorted_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("core.packed.onnx.MAX_BOOSTED", 1)
    with at_fault(InvalidProblem, "too_large"):
        onnx_model(CASES["boosting-linear-none"])


def test_a_model_of_2_gib_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("core.packed.onnx.MAX_BYTES", 1000)
    with at_fault(InvalidProblem, "too_large"):
        onnx_bytes(CASES["rbf-linear-none"])
