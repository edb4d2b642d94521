"""Students of every map, form and calibration, and rows to ask them about."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from core.packed import LinearBasis, PackedStudent
from core.packed.calibration import Calibration, IsotonicCalibration, ProbitCalibration, SigmoidCalibration
from core.packed.forms import Form, GaussianForm, LinearForm, PolytopeForm
from core.packed.maps import (
    BesideTerms,
    FourierBasis,
    HellingerRbfBasis,
    PackedMap,
    RbfBasis,
    UnitRbfBasis,
)
from tests.reference.trees import random_trees, rows

D, P = 6, 40
"""Columns of the students, and their basis functions."""


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def rbf(d: int = D, spread: float = 0.3) -> RbfBasis:
    random = rng()
    return RbfBasis(random.normal(size=d), np.full(d, spread), random.normal(size=(P, d)) * spread)


def maps() -> dict[str, PackedMap]:
    return {
        "linear": LinearBasis(D),
        "rbf": rbf(),
        "fourier": FourierBasis(rng().normal(size=(P, D)), rng().uniform(0, 6.28, P)),
        "unit_rbf": UnitRbfBasis(rbf(spread=1.5)),
        "hellinger_rbf": HellingerRbfBasis(rbf(spread=1.5)),
        "linear_beside_terms": BesideTerms(LinearBasis(2), D - 2),
        "rbf_beside_terms": BesideTerms(rbf(2), D - 2),
        "forest": random_trees(columns=D, sums=5, trees=30, depth=9),
        "boosting": random_trees(columns=D, sums=5, trees=30, depth=6, wide=False),
        "stumps": random_trees(columns=D, sums=1, trees=2, depth=0),
    }


def forms(p: int) -> dict[str, Form]:
    random = rng()
    coef = random.normal(size=p)
    return {
        "linear": LinearForm(coef, 0.25, np.zeros(p), 0.0),
        "polytope": PolytopeForm(random.normal(size=(5, p)), random.normal(size=5) + 1, coef, 0.0),
        "gaussian": GaussianForm(coef, -0.1, random.normal(size=(3, p)) / p),
    }


CALIBRATIONS: dict[str, Calibration | None] = {
    "none": None,
    "sigmoid": SigmoidCalibration(2.5, -0.5),
    "isotonic": IsotonicCalibration(
        np.array([-2.0, -0.5, 0.1, 0.7, 3.0]), np.array([0.0, 0.2, 0.2, 0.9, 1.0])
    ),
    "isotonic of two": IsotonicCalibration(np.array([-1.0, 1.0]), np.array([0.1, 0.8])),
    "isotonic of one": IsotonicCalibration(np.array([0.0]), np.array([0.4])),
    "probit": ProbitCalibration(),
}


def cases() -> Iterator[tuple[str, PackedStudent]]:
    for map_name, packed in maps().items():
        for form_name, form in forms(packed.n_basis).items():
            for name in ("none",) if map_name != "linear" else CALIBRATIONS:
                student = PackedStudent(packed, form, 0.125, "größe/1:x", calibration=CALIBRATIONS[name])
                yield f"{map_name}-{form_name}-{name}", student


CASES = dict(cases())


def some_rows(student: PackedStudent, n: int) -> np.ndarray:
    if student.map.kind == "trees":
        return rows(n, D, seed=1)
    X = rng().normal(size=(n, D))
    X[::50] = 0.0
    X[1::50] *= 1e8
    return np.abs(X) if student.map.kind == "hellinger_rbf" else X
