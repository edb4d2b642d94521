"""The complementary error function in an ONNX graph, because runtimes have it in float32 only.

Rational functions of W. J. Cody, Rational Chebyshev approximations for the error function, Mathematics of
Computation 23 (1969): one for |x| ≤ 0.46875, one up to 4, one beyond; relative error below 1e-15.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt
from typing import Final

from core.packed.onnx_wire import Graph

_SMALL: Final = 0.46875
_MIDDLE: Final = 4.0
_LARGEST: Final = 27.0
"""Beyond it erfc is 0 in float64."""

_NEAR: Final = (
    (
        1.85777706184603153e-1,
        3.16112374387056560e00,
        1.13864154151050156e02,
        3.77485237685302021e02,
        3.20937758913846947e03,
    ),
    (1.0, 2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03, 2.84423683343917062e03),
)
_BETWEEN: Final = (
    (
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594e0,
        6.61191906371416295e01,
        2.98635138197400131e02,
        8.81952221241769090e02,
        1.71204761263407058e03,
        2.05107837782607147e03,
        1.23033935479799725e03,
    ),
    (
        1.0,
        1.57449261107098347e01,
        1.17693950891312499e02,
        5.37181101862009858e02,
        1.62138957456669019e03,
        3.29079923573345963e03,
        4.36261909014324716e03,
        3.43936767414372164e03,
        1.23033935480374942e03,
    ),
)
_BEYOND: Final = (
    (
        1.63153871373020978e-2,
        3.05326634961232344e-1,
        3.60344899949804439e-1,
        1.25781726111229246e-1,
        1.60837851487422766e-2,
        6.58749161529837803e-4,
    ),
    (
        1.0,
        2.56852019228982242e00,
        1.87295284992346725e00,
        5.27905102951428412e-1,
        6.05183413124413191e-2,
        2.33520497626869185e-3,
    ),
)


def erfc(graph: Graph, x: str) -> str:
    """erfc of float64 [rows], in [0, 2]."""
    size = graph.op("Min", graph.op("Abs", x), graph.constant(_LARGEST))
    square = graph.op("Mul", size, size)
    near = graph.op("Mul", x, _ratio(graph, _NEAR, square))
    near = graph.op("Sub", graph.constant(1.0), near)
    decay = _decay(graph, size)
    between = graph.op("Mul", decay, _ratio(graph, _BETWEEN, size))
    large = graph.op("Max", size, graph.constant(_MIDDLE))
    inverse = graph.op("Div", graph.constant(1.0), graph.op("Mul", large, large))
    rest = graph.op("Mul", inverse, _ratio(graph, _BEYOND, inverse))
    rest = graph.op("Sub", graph.constant(1.0 / sqrt(pi)), rest)
    beyond = graph.op("Mul", decay, graph.op("Div", rest, large))
    is_middle = graph.op("LessOrEqual", size, graph.constant(_MIDDLE))
    tail = graph.op("Where", is_middle, between, beyond)
    is_negative = graph.op("Less", x, graph.constant(0.0))
    tail = graph.op("Where", is_negative, graph.op("Sub", graph.constant(2.0), tail), tail)
    return graph.op("Where", graph.op("LessOrEqual", size, graph.constant(_SMALL)), near, tail)


def _decay(graph: Graph, size: str) -> str:
    """exp(−y²) without rounding y²: y is split into a multiple of 1/16 and a rest."""
    scaled = graph.op("Floor", graph.op("Mul", size, graph.constant(16.0)))
    whole = graph.op("Div", scaled, graph.constant(16.0))
    rest = graph.op("Mul", graph.op("Sub", size, whole), graph.op("Add", size, whole))
    first = graph.op("Exp", graph.op("Neg", graph.op("Mul", whole, whole)))
    return graph.op("Mul", first, graph.op("Exp", graph.op("Neg", rest)))


def _ratio(graph: Graph, polynomials: tuple[Sequence[float], Sequence[float]], x: str) -> str:
    """One polynomial divided by another; coefficients of each start with the highest power."""
    return graph.op("Div", *(_polynomial(graph, coefficients, x) for coefficients in polynomials))


def _polynomial(graph: Graph, coefficients: Sequence[float], x: str) -> str:
    value = graph.constant(coefficients[0])
    for coefficient in coefficients[1:]:
        value = graph.op("Add", graph.op("Mul", value, x), graph.constant(coefficient))
    return value
