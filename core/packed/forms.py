"""Decision forms, which compute a packed student's score from the basis values b(x) of a row.

    linear      score = coef·b + intercept
    polytope    score = min_j (coef_j·b + intercept_j)
    gaussian    score = m / √(1 + v),  m = coef·b + intercept,  v = max(prior_variance − ‖factor b‖², 0)

The gaussian form is that of a Gaussian process classifier with a probit likelihood: m and v are mean and
variance of its latent function (Rasmussen and Williams, Gaussian Processes for Machine Learning, Eq. 3.24 and
3.25), and Φ(score) is the probability of the class, see ``ProbitCalibration``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isfinite, sqrt
from typing import Any, ClassVar, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from core.errors import Fault, InvalidPackage, InvalidProblem
from core.packed.calibration import Calibration, ProbitCalibration
from core.packed.codec import Arrays, Header, take, take_array
from core.packed.maps import Floats, frozen_array
from core.packed.sparse import SparseRows, StoredBasis

Linear: TypeAlias = tuple[Floats, float]
"""(coef (p,), intercept) of coef·b + intercept."""

_DOUBLE: np.dtype[np.floating] = np.dtype(np.float64)
_SINGLE: np.dtype[np.floating] = np.dtype(np.float32)
_NO_OVERFLOW = 1e200
"""Basis values never exceed 1e100; if the sum of coefficients is smaller than this, every score is finite."""


class Form(ABC):
    """A function from basis values (p,) to a score, with the teacher's score of the class as its gate.

    coef: of the linear part, (p,), or of several linear functions, (q, p). number_type: type of ``coef`` in a
    package.
    """

    kind: ClassVar[str]
    calibration: ClassVar[Calibration | None] = None
    """The probability, if it follows from the score; None if a calibration must be fitted."""

    coef: Floats
    number_type: np.dtype[np.floating] = _DOUBLE

    @property
    @abstractmethod
    def linear(self) -> Linear | None:
        """The score as coefficients and intercept; None if it is not linear."""

    @property
    @abstractmethod
    def gate(self) -> Linear:
        """The teacher's score S^y; zeros if a student has no gate."""

    @abstractmethod
    def at(self, basis: Floats) -> float:
        """The score at basis values (p,); not finite if float64 overflows."""

    @abstractmethod
    def block(self, basis: Floats) -> Floats:
        """Scores (n,) at basis values (n, p); not finite if float64 overflows."""

    @abstractmethod
    def at_stored(self, basis: StoredBasis) -> float:
        """The score at basis values that are mostly 0; not finite if float64 overflows."""

    @property
    def functions(self) -> int:
        """Number of linear functions of the basis values that a score needs."""
        return 1

    @property
    def work(self) -> int:
        """Multiply-adds of a score from basis values."""
        return self.functions * int(self.coef.shape[-1])

    @property
    def piece(self) -> Callable[[Floats], Floats] | None:
        """A function from basis values (n, p) to the number of the linear function that is the score, (n,).

        Numbers start from 0. None if the score is not the smallest of several functions.
        """
        return None

    def on_stored(self, rows: SparseRows) -> Floats | None:
        """Scores (n,) of sparse rows of a linear map by their stored entries; None if it needs all values."""
        del rows
        return None

    @abstractmethod
    def header(self) -> Header:
        """Its entries in a package's header, JSON-ready."""

    @abstractmethod
    def arrays(self) -> Arrays:
        """Its arrays by their names in a package."""

    @abstractmethod
    def copied(self) -> Self:
        """The same form with its own arrays, which are no views of a whole package."""

    def in_single(self) -> Self:
        """The same form with ``coef`` rounded to float32, which is packed in half the bytes."""
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays in memory, which are all float64."""
        return sum(array.size for array in self.arrays().values()) * _DOUBLE.itemsize

    @property
    def packed_coef(self) -> NDArray[np.floating]:
        """``coef`` as it is packed: as float32 if all its numbers are float32 numbers."""
        return self.coef.astype(self.number_type, copy=False)

    @property
    def is_bounded(self) -> bool:
        """Whether the score is finite for every usable row."""
        with np.errstate(over="ignore"):
            return bool(np.abs(self.coef).sum() < _NO_OVERFLOW)


@final
@dataclass(frozen=True, eq=False)
class LinearForm(Form):
    """score = coef·b + intercept; gate = gate_coef·b + gate_intercept, zeros for a plain SVM.

    coef, gate_coef: (p,), kept as read-only float64; a ``coef`` of float32 is packed as such.
    Raises InvalidProblem.
    """

    kind: ClassVar[str] = "linear"
    coef: Floats
    intercept: float
    gate_coef: Floats
    gate_intercept: float
    number_type: np.dtype[np.floating] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number_type", _type_of(self.coef))
        object.__setattr__(self, "coef", frozen_array(self.coef, "coef", (None,)))
        object.__setattr__(self, "gate_coef", frozen_array(self.gate_coef, "gate_coef", (None,)))
        for name in ("intercept", "gate_intercept"):
            object.__setattr__(self, name, finite_number(getattr(self, name), name))

    @property
    def linear(self) -> Linear:
        return self.coef, self.intercept

    @property
    def gate(self) -> Linear:
        return self.gate_coef, self.gate_intercept

    def at(self, basis: Floats) -> float:
        return float(self.coef.dot(basis)) + self.intercept

    def at_stored(self, basis: StoredBasis) -> float:
        return float(basis.dot(self.coef)) + self.intercept

    def block(self, basis: Floats) -> Floats:
        scores: Floats = basis @ self.coef + self.intercept
        return scores

    def on_stored(self, rows: SparseRows) -> Floats:
        return rows.dot(self.coef) + self.intercept

    def header(self) -> Header:
        """The header has no kind, because packages without one have this form."""
        return {"intercept": self.intercept, "gate_intercept": self.gate_intercept}

    def arrays(self) -> Arrays:
        return {"coef": self.packed_coef, "gate_coef": self.gate_coef}

    def in_single(self) -> LinearForm:
        return replace(self, coef=_single(self.coef))

    def copied(self) -> LinearForm:
        coef = self.coef.astype(self.number_type)
        return LinearForm(coef, self.intercept, self.gate_coef.copy(), self.gate_intercept)


@final
@dataclass(frozen=True, eq=False)
class PolytopeForm(Form):
    """score = min_j (coef_j·b + intercept_j), which is positive inside a convex polytope with q faces.

    coef: (q, p), q ≥ 1. intercept: (q,). gate_coef: (p,). All are kept as read-only float64; a ``coef`` of
    float32 is packed as such. Raises InvalidProblem.
    """

    kind: ClassVar[str] = "polytope"
    coef: Floats
    intercept: Floats
    gate_coef: Floats
    gate_intercept: float
    number_type: np.dtype[np.floating] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number_type", _type_of(self.coef))
        coef = frozen_array(self.coef, "coef", (None, None))
        object.__setattr__(self, "coef", coef)
        object.__setattr__(self, "intercept", frozen_array(self.intercept, "intercept", (len(coef),)))
        object.__setattr__(self, "gate_coef", frozen_array(self.gate_coef, "gate_coef", (None,)))
        gate_intercept = finite_number(self.gate_intercept, "gate_intercept")
        object.__setattr__(self, "gate_intercept", gate_intercept)

    @property
    def linear(self) -> Linear | None:
        return (self.coef[0], float(self.intercept[0])) if len(self.coef) == 1 else None

    @property
    def gate(self) -> Linear:
        return self.gate_coef, self.gate_intercept

    def at(self, basis: Floats) -> float:
        return float((self.coef.dot(basis) + self.intercept).min())

    def at_stored(self, basis: StoredBasis) -> float:
        return float((basis.dot(self.coef) + self.intercept).min())

    def block(self, basis: Floats) -> Floats:
        scores: Floats = self.faces(basis).min(axis=1)
        return scores

    @property
    def functions(self) -> int:
        return len(self.coef)

    @property
    def piece(self) -> Callable[[Floats], Floats] | None:
        if len(self.coef) == 1:
            return None
        return lambda basis: self.faces(basis).argmin(axis=1).astype(np.float64)

    def faces(self, basis: Floats) -> Floats:
        """The values of all functions, (n, q), at basis values (n, p); the smallest is the score."""
        values: Floats = basis @ self.coef.T + self.intercept
        return values

    def on_stored(self, rows: SparseRows) -> Floats:
        values = [rows.dot(coef) + shift for coef, shift in zip(self.coef, self.intercept, strict=True)]
        scores: Floats = np.min(values, axis=0)
        return scores

    def header(self) -> Header:
        return {"form": self.kind, "gate_intercept": self.gate_intercept}

    def arrays(self) -> Arrays:
        return {"coef": self.packed_coef, "intercept": self.intercept, "gate_coef": self.gate_coef}

    def in_single(self) -> PolytopeForm:
        return replace(self, coef=_single(self.coef))

    def copied(self) -> PolytopeForm:
        coef = self.coef.astype(self.number_type)
        return PolytopeForm(coef, self.intercept.copy(), self.gate_coef.copy(), self.gate_intercept)


@final
@dataclass(frozen=True, eq=False)
class GaussianForm(Form):
    """score = m / √(1 + v), see the module's docstring; it has no gate.

    coef: (p,). factor: R (r, p), kept as read-only float64. prior_variance: k(x, x) ≥ 0, equal for all rows.
    Raises InvalidProblem.
    """

    kind: ClassVar[str] = "gaussian"
    calibration: ClassVar[Calibration | None] = ProbitCalibration()
    coef: Floats
    intercept: float
    factor: Floats
    prior_variance: float = 1.0
    _no_gate: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        coef = frozen_array(self.coef, "coef", (None,))
        object.__setattr__(self, "coef", coef)
        object.__setattr__(self, "factor", frozen_array(self.factor, "factor", (None, len(coef))))
        for name in ("intercept", "prior_variance"):
            object.__setattr__(self, name, finite_number(getattr(self, name), name))
        if self.prior_variance < 0.0:
            message = "prior_variance must not be negative."
            raise InvalidProblem(Fault("prior_variance", "out_of_range", message))
        object.__setattr__(self, "_no_gate", frozen_array(np.zeros(len(coef)), "gate_coef", coef.shape))

    @property
    def functions(self) -> int:
        return 1 + len(self.factor)

    @property
    def linear(self) -> None:
        return None

    @property
    def gate(self) -> Linear:
        return self._no_gate, 0.0

    def at(self, basis: Floats) -> float:
        return self._standardised(float(self.coef.dot(basis)), self.factor.dot(basis))

    def at_stored(self, basis: StoredBasis) -> float:
        return self._standardised(float(basis.dot(self.coef)), basis.dot(self.factor))

    def _standardised(self, product: float, whitened: Floats) -> float:
        """The score from coef·b and factor b."""
        # Rounding can make the variance of a row near a landmark negative; it is then 0.
        variance = max(self.prior_variance - float(whitened.dot(whitened)), 0.0)
        return (product + self.intercept) / sqrt(1.0 + variance)

    def block(self, basis: Floats) -> Floats:
        whitened = basis @ self.factor.T
        variances = np.maximum(self.prior_variance - np.einsum("ij,ij->i", whitened, whitened), 0.0)
        scores: Floats = (basis @ self.coef + self.intercept) / np.sqrt(1.0 + variances)
        return scores

    def header(self) -> Header:
        return {"form": self.kind, "intercept": self.intercept, "prior_variance": self.prior_variance}

    def arrays(self) -> Arrays:
        return {"coef": self.coef, "factor": self.factor}

    def copied(self) -> GaussianForm:
        return GaussianForm(self.coef.copy(), self.intercept, self.factor.copy(), self.prior_variance)


def form_from(header: Header, arrays: Arrays) -> Form:
    """The form of a package; removes its arrays from ``arrays``. Raises InvalidPackage, InvalidProblem."""
    kind = take(header, "form", str) if "form" in header else LinearForm.kind
    form: Form
    if kind == LinearForm.kind:
        form = LinearForm(
            coef=take_array(arrays, "coef"),
            intercept=take(header, "intercept", float),
            gate_coef=take_array(arrays, "gate_coef"),
            gate_intercept=take(header, "gate_intercept", float),
        )
    elif kind == PolytopeForm.kind:
        form = PolytopeForm(
            coef=take_array(arrays, "coef"),
            intercept=take_array(arrays, "intercept"),
            gate_coef=take_array(arrays, "gate_coef"),
            gate_intercept=take(header, "gate_intercept", float),
        )
    elif kind == GaussianForm.kind:
        form = GaussianForm(
            coef=take_array(arrays, "coef"),
            intercept=take(header, "intercept", float),
            factor=take_array(arrays, "factor"),
            prior_variance=take(header, "prior_variance", float),
        )
    else:
        raise InvalidPackage(f"The package has a decision form of unknown kind {kind!r:.80}.")
    for name in form.arrays():
        del arrays[name]
    return form


def _single(coef: Floats) -> Any:
    """``coef`` in float32, which forms also accept; unchanged if float32 overflows."""
    with np.errstate(over="ignore"):
        single = coef.astype(np.float32)
    return single if np.isfinite(single).all() else coef


def _type_of(coef: Any) -> np.dtype[np.floating]:
    return _SINGLE if getattr(coef, "dtype", None) == _SINGLE else _DOUBLE


def finite_number(value: Any, name: str) -> float:
    """``value`` as a float. Raises InvalidProblem."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not isfinite(value):
        raise InvalidProblem(Fault(name, "not_finite", f"{name} must be a finite number."))
    return float(value)
