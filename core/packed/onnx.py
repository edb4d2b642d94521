"""A student as an ONNX graph: the arithmetic of a query in float64, with operators that every runtime has.

    inputs    x [rows, d] float64; of a version with an encoder one [rows, 1] for each column: float64 for
              numbers (NaN is a gap) and truth values (0, 1, NaN), text for categories ("" is a gap)
    outputs   match [rows] bool, score [rows] float64, probability [rows] float64 if there is a calibration

A graph cannot refuse a row: if ``core.packed`` raises InvalidProblem, match is false and the score has no
meaning. Sums of trees are added in the order of the trees, so that ties stay ties.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import sqrt
from typing import Final, NoReturn

import numpy as np

from core.data.row_scaling import RowScaling
from core.data.validation import MAX_MAGNITUDE, refuse
from core.errors import Fault, InvalidProblem
from core.packed.calibration import Calibration, IsotonicCalibration, ProbitCalibration, SigmoidCalibration
from core.packed.encoded_columns import CategoryColumn, ColumnEncoder, NumberColumn
from core.packed.encoder import Encoder
from core.packed.forms import Form, GaussianForm, LinearForm, PolytopeForm
from core.packed.maps import (
    BesideTerms,
    Floats,
    FourierBasis,
    LinearBasis,
    PackedMap,
    RbfBasis,
    RowScaledBasis,
)
from core.packed.onnx_erfc import erfc
from core.packed.onnx_wire import BOOL, DOUBLE, INT64, MAX_BYTES, ML, STRING, Graph, OnnxModel
from core.packed.student import PackedStudent
from core.packed.trees import TreesBasis

OUTPUTS: Final = ("match", "score", "probability")
MAX_SUMS: Final = 4096
"""Largest number of sums of boosted trees, because each sum takes nodes of its own."""
MAX_BOOSTED: Final = 1 << 20
"""Largest number of boosted trees, because they are sorted by their sums."""
_FAR: Final = 1e30
"""As in ``core.packed.maps``."""
_LARGEST: Final = float(np.finfo(np.float64).max)
_ROWS: Final = "rows"


def onnx_model(
    student: PackedStudent, encoder: Encoder | None = None, properties: Mapping[str, str] | None = None
) -> OnnxModel:
    """The student as an ONNX model (opset 18, IR 8). The same student always gives the same bytes.

    encoder: makes the student's rows from records. properties: further texts for the model's metadata. The
    arrays of the student are read while the model is written.

    Raises InvalidProblem naming what ONNX cannot express, or if the model would take 2 GiB or more.
    """
    graph = Graph()
    if encoder is None:
        row = graph.input("x", DOUBLE, [_ROWS, student.map.n_columns])
        usable = _all_usable(graph, row)
    else:
        row, usable = _encoded(graph, encoder)
        if encoder.layout.columns != student.map.n_columns:
            _refuse("encoder", "wrong_columns", "The encoder does not fit the columns of the student.")
    basis = _basis(graph, student.map, row)
    score = _score(graph, student.form, basis)
    accepts = graph.op("GreaterOrEqual", score, graph.constant(student.threshold))
    finite = graph.op("LessOrEqual", graph.op("Abs", score), graph.constant(_LARGEST))
    match = graph.op("And", graph.op("And", usable, finite), accepts)
    graph.output(match, OUTPUTS[0], BOOL, [_ROWS])
    graph.output(score, OUTPUTS[1], DOUBLE, [_ROWS])
    if student.calibration is not None:
        probability = _probability(graph, student.calibration, score)
        graph.output(probability, OUTPUTS[2], DOUBLE, [_ROWS])
    if graph.nbytes > MAX_BYTES:
        text = f"The student takes {graph.nbytes} bytes; an ONNX model is smaller than 2 GiB."
        _refuse("student", "too_large", text)
    known = {"stms.label": student.label, "stms.threshold": repr(student.threshold)}
    return graph.model("student", "stms", {**known, "stms.student": student.digest, **(properties or {})})


def onnx_bytes(
    student: PackedStudent, encoder: Encoder | None = None, properties: Mapping[str, str] | None = None
) -> bytes:
    """The whole model of `onnx_model` in memory. Raises as it does."""
    return b"".join(onnx_model(student, encoder, properties).pieces())


def _refuse(field: str, code: str, text: str) -> NoReturn:
    raise InvalidProblem(Fault(field, code, text))


def _squeezed(graph: Graph, value: str) -> str:
    """[rows, 1] as [rows]."""
    return graph.op("Squeeze", value, graph.constant(np.array([1])))


def _column(graph: Graph, value: str) -> str:
    """[rows] as [rows, 1]."""
    return graph.op("Unsqueeze", value, graph.constant(np.array([1])))


def _all(graph: Graph, conditions: str) -> str:
    """Whether all of [rows, n] hold, [rows]. A maximum is not used: runtimes differ in how it treats NaN."""
    flags = graph.op("Cast", conditions, to=6)
    least = graph.op("ReduceMin", flags, graph.constant(np.array([1])), keepdims=0)
    return graph.op("Greater", least, graph.constant(np.array(0, dtype=np.int32)))


def _all_usable(graph: Graph, values: str) -> str:
    """Whether all numbers of [rows, n] are finite and at most `MAX_MAGNITUDE`, [rows]."""
    within = graph.op("LessOrEqual", graph.op("Abs", values), graph.constant(MAX_MAGNITUDE))
    return _all(graph, within)


def _encoded(graph: Graph, encoder: Encoder) -> tuple[str, str]:
    """The dense columns of records, [rows, d], and whether their values are usable, [rows].

    Raises InvalidProblem naming every column that ONNX cannot express.
    """
    dense: list[str] = []
    usable: list[str] = []
    refuse(*filter(None, map(_column_fault, encoder.columns)))
    for column in encoder.columns:
        encode = _category if isinstance(column, CategoryColumn) else _number
        parts, condition = encode(graph, column)  # type: ignore[arg-type]
        dense += parts
        usable.append(condition)
    row = dense[0] if len(dense) == 1 else graph.op("Concat", *dense, axis=1)
    return row, _all(graph, usable[0] if len(usable) == 1 else graph.op("Concat", *usable, axis=1))


def _column_fault(column: ColumnEncoder) -> Fault | None:
    """Why a column cannot be an input of a graph, or None."""
    if column.name in OUTPUTS or column.name.startswith("/") or not column.name:
        text = f"Column {column.name!r:.80} has a name that the graph uses itself."
        return Fault(column.name, "reserved_name", text)
    if column.tables or not isinstance(column, NumberColumn | CategoryColumn):
        text = (
            f"Column {column.name!r:.80} is of kind {column.kind}: ONNX has numbers, truth values and "
            "categories of few values, but neither dates nor terms of texts nor vectors. Evaluate the "
            "student in a program (local evaluation) or serve a bundle, which have all kinds, or train "
            f"without the column ({column.name:.80}:ignore)."
        )
        return Fault(column.name, "no_onnx_form", text)
    return None


def _number(graph: Graph, column: NumberColumn) -> tuple[list[str], str]:
    value = graph.input(column.name, DOUBLE, [_ROWS, 1])
    is_gap = graph.op("IsNaN", value)
    if column.is_truth:
        zero, one = (graph.op("Equal", value, graph.constant(number)) for number in (0.0, 1.0))
        usable = graph.op("Or", zero, one)
    else:
        usable = graph.op("LessOrEqual", graph.op("Abs", value), graph.constant(MAX_MAGNITUDE))
    if column.required or column.fills:
        usable = graph.op("And", usable, graph.op("Not", is_gap))
    else:
        usable = graph.op("Or", usable, is_gap)
    dense = [graph.op("Where", is_gap, graph.constant(column.fallback), value)]
    if column.marks_gaps:
        dense.append(graph.op("Cast", is_gap, to=DOUBLE))
    return dense, usable


def _category(graph: Graph, column: CategoryColumn) -> tuple[list[str], str]:
    """Look up a table with a row for each position; the last two rows are for no column, and for refusal."""
    value = graph.input(column.name, STRING, [_ROWS, 1])
    width, refused = column.width, column.width + 1

    def row(place: int) -> int:
        return width if place < 0 else place

    places = {key: row(place) for key, place in column.places.items()}
    places[""] = refused if column.required or column.fills else row(width - 1 if column.marks_gaps else -1)
    default = refused if column.refuses_unseen else row(column.unseen)
    number = graph.op(
        "LabelEncoder",
        value,
        domain=ML,
        keys_strings=list(places),
        values_int64s=list(places.values()),
        default_int64=default,
    )
    number = _squeezed(graph, number)
    flags = np.ones((width + 2, 1), dtype=np.bool_)
    flags[refused] = False
    usable = graph.op("Gather", graph.constant(flags), number, axis=0)
    table = graph.constant(np.eye(width + 2, width))
    return ([graph.op("Gather", table, number, axis=0)] if width else []), usable


def _basis(graph: Graph, packed: PackedMap, row: str) -> str:
    """Basis values [rows, p]."""
    if isinstance(packed, LinearBasis):
        return row
    if isinstance(packed, RbfBasis):
        return _rbf(graph, packed, row)
    if isinstance(packed, RowScaledBasis):
        return _rbf(graph, packed.of_scaled, _scaled(graph, packed.row_scaling, row))
    if isinstance(packed, FourierBasis):
        angles = graph.op("MatMul", row, graph.constant(packed.projections.T))
        return graph.op("Cos", graph.op("Add", angles, graph.constant(packed.phases)))
    if isinstance(packed, BesideTerms):
        d = packed.of_dense.n_columns
        parts = [_columns(graph, row, 0, d), _columns(graph, row, d, packed.n_columns)]
        return graph.op("Concat", _basis(graph, packed.of_dense, parts[0]), parts[1], axis=1)
    if isinstance(packed, TreesBasis):
        return _trees(graph, packed, row)
    _refuse("map", "no_onnx_form", f"A map of kind {packed.kind!r} has no form in ONNX.")


def _columns(graph: Graph, row: str, first: int, stop: int) -> str:
    ends = [graph.constant(np.array([end])) for end in (first, stop, 1)]
    return graph.op("Slice", row, *ends)


def _rbf(graph: Graph, packed: RbfBasis, row: str) -> str:
    shifted = graph.op("Sub", row, graph.constant(packed.shift))
    doubled = graph.op("Mul", shifted, graph.constant(packed.twice_scale))
    axis = graph.constant(np.array([1]))
    squares = graph.op("ReduceSum", graph.op("Mul", doubled, doubled), axis, keepdims=1)
    norm = graph.op("Mul", squares, graph.constant(0.25))
    landmarks = packed.landmarks
    products = graph.op("MatMul", doubled, graph.constant(landmarks.T))
    products = graph.op("Add", products, graph.constant(-np.einsum("ij,ij->i", landmarks, landmarks)))
    values = graph.op("Exp", graph.op("Sub", products, norm))
    near = graph.op("Less", norm, graph.constant(_FAR))
    return graph.op("Where", near, values, graph.constant(0.0))


def _scaled(graph: Graph, scaling: RowScaling, row: str) -> str:
    """The same as ``core.data.row_scaling.scale_rows``."""
    axis = graph.constant(np.array([1]))
    if scaling is RowScaling.HELLINGER:
        row = graph.op("Sqrt", graph.op("Max", row, graph.constant(0.0)))
    largest = graph.op("ReduceMax", graph.op("Abs", row), axis, keepdims=1)
    scaled = graph.op("Div", row, _without_zeros(graph, largest))
    squares = graph.op("ReduceSum", graph.op("Mul", scaled, scaled), axis, keepdims=1)
    return graph.op("Div", scaled, _without_zeros(graph, graph.op("Sqrt", squares)))


def _without_zeros(graph: Graph, value: str) -> str:
    is_zero = graph.op("Equal", value, graph.constant(0.0))
    return graph.op("Where", is_zero, graph.constant(1.0), value)


def _trees(graph: Graph, packed: TreesBasis, row: str) -> str:
    """Sums of trees [rows, q]: one step for each level of the deepest tree, for all trees at once."""
    leaves = _leaves(graph, packed, row)
    values = graph.op("Gather", graph.constant(packed.values), leaves, axis=0)
    trees, width = len(packed.roots), packed.values.shape[1]
    if width == packed.sums:
        sums = _last(graph, values, trees)
    else:
        if packed.sums > MAX_SUMS:
            text = f"Boosted trees of {packed.sums} sums: at most {MAX_SUMS} have a form in ONNX."
            _refuse("map", "too_large", text)
        if trees > MAX_BOOSTED:
            text = f"There are {trees} boosted trees: at most {MAX_BOOSTED} have a form in ONNX."
            _refuse("map", "too_large", text)
        sums = _sums(graph, packed, values)
    return graph.op("Div", sums, graph.constant(packed.divisor))


def _leaves(graph: Graph, packed: TreesBasis, row: str) -> str:
    """The leaf of every tree as a row of the values, int64 [rows, T]."""
    width = graph.op("Shape", row, start=0, end=1)
    shape = graph.op("Concat", width, graph.constant(np.array([len(packed.roots)])), axis=0)
    reached = graph.op("Expand", graph.constant(packed.roots, INT64), shape)
    if packed.depth:
        tested = graph.op("Gather", row, graph.constant(packed.feature, INT64), axis=1)
        failed = graph.op("Greater", tested, graph.constant(packed.threshold))
        outcomes = graph.op("Cast", failed, to=7)
        tests = graph.constant(packed.test, INT64)
        children = graph.constant(packed.children.ravel(), INT64)
        zero, two = graph.constant(np.array(0)), graph.constant(np.array(2))
        for _ in range(packed.depth):
            node = graph.op("Max", reached, zero)
            outcome = graph.op("GatherElements", outcomes, graph.op("Gather", tests, node), axis=1)
            place = graph.op("Add", graph.op("Mul", node, two), outcome)
            below = graph.op("Gather", children, place)
            inside = graph.op("GreaterOrEqual", reached, zero)
            reached = graph.op("Where", inside, below, reached)
    # A reference to a leaf is −1 minus its row.
    return graph.op("Sub", graph.constant(np.array(-1)), reached)


def _sums(graph: Graph, packed: TreesBasis, values: str) -> str:
    """Sums [rows, q] of trees that each add to one sum."""
    parts = []
    order = np.argsort(packed.output, kind="stable")
    ends = np.searchsorted(packed.output[order], np.arange(packed.sums + 1))
    for first, stop in pairwise(ends.tolist()):
        trees = order[first:stop]
        if len(trees):
            own = graph.op("Gather", values, graph.constant(trees), axis=1)
            parts.append(_last(graph, own, len(trees)))
        else:
            first = graph.op("Gather", values, graph.constant(np.array([0])), axis=1)
            none = graph.op("Mul", _last(graph, first, 1), graph.constant(0.0))
            parts.append(none)
    return parts[0] if len(parts) == 1 else graph.op("Concat", *parts, axis=1)


def _last(graph: Graph, values: str, trees: int) -> str:
    """Sums [rows, q] of values [rows, T, q] in the order of the trees, by a running sum."""
    running = graph.op("CumSum", values, graph.constant(np.array(1)))
    return graph.op("Gather", running, graph.constant(np.array(trees - 1)), axis=1)


def _score(graph: Graph, form: Form, basis: str) -> str:
    """Scores [rows]."""
    if isinstance(form, LinearForm):
        return _linear(graph, form.coef, form.intercept, basis)
    if isinstance(form, PolytopeForm):
        faces = graph.op("MatMul", basis, graph.constant(form.coef.T))
        faces = graph.op("Add", faces, graph.constant(form.intercept))
        return graph.op("ReduceMin", faces, graph.constant(np.array([1])), keepdims=0)
    if isinstance(form, GaussianForm):
        mean = _linear(graph, form.coef, form.intercept, basis)
        whitened = graph.op("MatMul", basis, graph.constant(form.factor.T))
        squares = graph.op("Mul", whitened, whitened)
        explained = graph.op("ReduceSum", squares, graph.constant(np.array([1])), keepdims=0)
        variance = graph.op("Sub", graph.constant(form.prior_variance), explained)
        variance = graph.op("Max", variance, graph.constant(0.0))
        deviation = graph.op("Sqrt", graph.op("Add", variance, graph.constant(1.0)))
        return graph.op("Div", mean, deviation)
    _refuse("form", "no_onnx_form", f"A decision form of kind {form.kind!r} has no form in ONNX.")


def _linear(graph: Graph, coef: Floats, intercept: float, basis: str) -> str:
    product = graph.op("MatMul", basis, graph.constant(coef[:, np.newaxis]))
    return graph.op("Add", _squeezed(graph, product), graph.constant(intercept))


def _probability(graph: Graph, calibration: Calibration, score: str) -> str:
    """Probabilities [rows]."""
    if isinstance(calibration, SigmoidCalibration):
        odds = graph.op("Mul", score, graph.constant(calibration.slope))
        odds = graph.op("Add", odds, graph.constant(calibration.offset))
        small = graph.op("Exp", graph.op("Neg", graph.op("Abs", odds)))
        one = graph.constant(1.0)
        above = graph.op("GreaterOrEqual", odds, graph.constant(0.0))
        return graph.op("Div", graph.op("Where", above, one, small), graph.op("Add", small, one))
    if isinstance(calibration, IsotonicCalibration):
        return _interpolated(graph, calibration, score)
    if isinstance(calibration, ProbitCalibration):
        tail = erfc(graph, graph.op("Mul", score, graph.constant(-1.0 / sqrt(2.0))))
        return graph.op("Mul", tail, graph.constant(0.5))
    _refuse("calibration", "no_onnx_form", f"A calibration {calibration.kind!r} has no form in ONNX.")


def _interpolated(graph: Graph, calibration: IsotonicCalibration, score: str) -> str:
    """Linear between the knots, and constant beyond them."""
    knots, values = calibration.knots, calibration.values
    if len(knots) == 1:
        # Any finite score times 0, so that the output has a value for each row.
        nothing = graph.op("Mul", score, graph.constant(0.0))
        return graph.op("Add", nothing, graph.constant(float(values[0])))
    with np.errstate(over="ignore"):
        slopes = np.diff(values) / np.diff(knots)
    # Scores are clipped first, so that both ends have the values of the outer knots.
    low, high = graph.constant(float(knots[0])), graph.constant(float(knots[-1]))
    clipped = graph.op("Min", graph.op("Max", score, low), high)
    if len(knots) == 2:
        place = graph.op("Cast", graph.op("Mul", clipped, graph.constant(0.0)), to=7)
    else:
        inner = graph.constant(knots[1:-1][np.newaxis])
        above = graph.op("Cast", graph.op("GreaterOrEqual", _column(graph, clipped), inner), to=7)
        place = graph.op("ReduceSum", above, graph.constant(np.array([1])), keepdims=0)
    start = graph.op("Gather", graph.constant(knots[:-1]), place)
    slope = graph.op("Gather", graph.constant(slopes), place)
    base = graph.op("Gather", graph.constant(values[:-1]), place)
    rise = graph.op("Mul", slope, graph.op("Sub", clipped, start))
    inside = graph.op("Add", base, rise)
    last = graph.op("GreaterOrEqual", score, high)
    return graph.op("Where", last, graph.constant(float(values[-1])), inside)
