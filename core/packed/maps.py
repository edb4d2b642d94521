"""The part of a feature map that a query computes: from x to p basis values, including standardisation.

    linear    b(x) = x                                                   p = d
    rbf       b_j(x) = exp(−‖(x − shift)·scale − l_j‖²)                  √γ is inside scale and l_j
    fourier   b_j(x) = cos(ω_j·x + β_j)                                  standardisation is inside ω_j and β_j
    unit_rbf, hellinger_rbf: rbf of the scaled row, x / ‖x‖ or √(x / Σ_j x_j)
    …_beside_terms: any of these for the first columns, and terms of texts as they are

Later linear steps (whitening, √(2/p), weights) are folded into the coefficients of a student or teacher.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Self, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.data.row_scaling import RowScaling, scale_rows
from core.data.validation import QUIET, as_dense, query_rows
from core.errors import Fault, InvalidProblem
from core.packed.codec import Arrays, Header, encode

Floats: TypeAlias = NDArray[np.float64]

EXPONENTIAL: Final = 24
COSINE: Final = 96
ROOT: Final = 8
"""Time of an exponential, of a cosine, or of a square root with its division, in multiply-adds."""

_FAR = 1e30
"""Beyond this squared distance from the origin, every kernel value is 0 in float64."""


def frozen_array(value: Any, field: str, shape: tuple[int | None, ...]) -> Floats:
    """A read-only float64 view of ``value``, C-ordered and finite, of ``shape`` (None: any size from 1).

    Raises InvalidProblem.
    """
    array = as_dense(value, field, ndim=len(shape)).astype(np.float64, copy=False).view()
    fits = all(
        size == want if want is not None else size >= 1 for size, want in zip(array.shape, shape, strict=True)
    )
    if not fits:
        wanted = " × ".join("any" if want is None else str(want) for want in shape)
        actual = " × ".join(map(str, array.shape))
        raise InvalidProblem(Fault(field, "wrong_shape", f"{field} is {actual}; {wanted} expected."))
    if not np.isfinite(array).all():
        raise InvalidProblem(Fault(field, "not_finite", f"{field} holds NaN or infinite values."))
    array.setflags(write=False)
    return array


def squared_norms(X: Floats) -> Floats:
    """‖x_i‖² of each row, (n,)."""
    norms: Floats = np.einsum("ij,ij->i", X, X)
    return norms


class PackedMap(ABC):
    """A map from d raw columns to p basis values.

    ``row`` and ``block`` trust their input; ``basis`` checks it.
    """

    FORMAT: ClassVar[str] = "stms.map.1"
    kind: ClassVar[str]

    @property
    @abstractmethod
    def n_columns(self) -> int:
        """d, the number of raw columns of a query."""

    @property
    @abstractmethod
    def n_basis(self) -> int:
        """p, the number of basis values, which is the length of a student's coefficients."""

    @abstractmethod
    def row(self, x: Floats) -> Floats:
        """Basis values (p,) of one row (d,), float64, already checked."""

    @abstractmethod
    def block(self, X: Floats) -> Floats:
        """Basis values (n, p) of rows (n, d), float64, already checked."""

    @abstractmethod
    def arrays(self) -> Arrays:
        """The arrays that make up the map, by name."""

    def sizes(self) -> Header:
        """Further header entries besides kind and columns, if the arrays do not determine them."""
        return {}

    def header(self) -> Header:
        """The map's entries in the header of a package."""
        return {"kind": self.kind, "n_columns": self.n_columns, **self.sizes()}

    def to_bytes(self) -> bytes:
        """The map as safetensors, for ``map_from_bytes``; the same map always gives the same bytes."""
        return encode({"format": self.FORMAT, **self.header()}, self.arrays())

    @property
    def cost(self) -> int:
        """Multiplications for a row's basis values; for trees additions and comparisons."""
        return self.n_columns * self.n_basis

    @property
    @abstractmethod
    def work(self) -> int:
        """Time of a row's basis values in multiply-adds, see `core.packed.work`; at least d."""

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, and of further values that it keeps once it is ready."""
        return sum(array.nbytes for array in self.arrays().values())

    def ready(self) -> Self:
        """The same map; computes first what the first row would otherwise wait for."""
        return self

    def basis(self, X: ArrayLike) -> Floats:
        """Basis values (n, p) of rows (n, d). Raises InvalidProblem for unusable rows."""
        return self.block(query_rows(X, self.n_columns))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of ``to_bytes()``; students with equal digests share every basis value."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


@final
@dataclass(frozen=True, eq=False)
class LinearBasis(PackedMap):
    """b(x) = x; the coefficients include scaling and shift."""

    kind: ClassVar[str] = "linear"
    columns: int

    def __post_init__(self) -> None:
        if self.columns < 1:
            raise InvalidProblem(Fault("columns", "out_of_bounds", "A map needs at least one column."))

    @property
    def n_columns(self) -> int:
        return self.columns

    @property
    def n_basis(self) -> int:
        return self.columns

    @property
    def cost(self) -> int:
        return 0

    @property
    def work(self) -> int:
        return self.columns

    def row(self, x: Floats) -> Floats:
        return x

    def block(self, X: Floats) -> Floats:
        return X

    def arrays(self) -> Arrays:
        return {}


@final
@dataclass(frozen=True, eq=False)
class RbfBasis(PackedMap):
    """b_j(x) = exp(−‖z − l_j‖²) with z = (x − shift)·scale, computed as exp(2 z·l_j − ‖l_j‖² − ‖z‖²).

    shift, scale: (d,); the kernel's √γ is a factor of scale.
    landmarks: (p, d), in the space of z.
    """

    kind: ClassVar[str] = "rbf"
    shift: Floats
    scale: Floats
    landmarks: Floats

    def __post_init__(self) -> None:
        landmarks = frozen_array(self.landmarks, "landmarks", (None, None))
        d = landmarks.shape[1]
        object.__setattr__(self, "landmarks", landmarks)
        object.__setattr__(self, "shift", frozen_array(self.shift, "shift", (d,)))
        object.__setattr__(self, "scale", frozen_array(self.scale, "scale", (d,)))
        if not np.isfinite(self._offset).all():
            raise InvalidProblem(Fault("landmarks", "too_large", "A landmark is too far from the origin."))

    @property
    def n_columns(self) -> int:
        return int(self.landmarks.shape[1])

    @property
    def n_basis(self) -> int:
        return int(self.landmarks.shape[0])

    @property
    def work(self) -> int:
        """Besides the products: four passes over the row, and an exponential for each landmark."""
        return self.cost + 4 * self.n_columns + EXPONENTIAL * self.n_basis

    @cached_property
    def _offset(self) -> Floats:
        """−‖l_j‖², (p,)."""
        return -squared_norms(self.landmarks)

    @cached_property
    def twice_scale(self) -> Floats:
        """2·scale, (d,), which includes the factor 2 of 2 z·l_j."""
        return 2.0 * self.scale

    @QUIET
    def row(self, x: Floats) -> Floats:
        z2 = x - self.shift
        z2 *= self.twice_scale
        norm = 0.25 * z2.dot(z2)
        if not norm < _FAR:
            return np.zeros(self.n_basis)
        values: Floats = self.landmarks.dot(z2)
        values += self._offset
        values -= norm
        np.exp(values, out=values)
        return values

    @QUIET
    def block(self, X: Floats) -> Floats:
        Z2 = X - self.shift
        Z2 *= self.twice_scale
        return self.finish(Z2 @ self.landmarks.T, 0.25 * squared_norms(Z2))

    def finish(self, products: Floats, norms: Floats) -> Floats:
        """Kernel values (n, p), in place of ``products`` 2 z·l_j, given ``norms`` ‖z‖² (n,)."""
        far = ~(norms < _FAR)
        products += self._offset
        products -= np.where(far, 0.0, norms)[:, np.newaxis]
        products[far] = -np.inf
        return np.exp(products, out=products)

    def arrays(self) -> Arrays:
        return {"map.landmarks": self.landmarks, "map.scale": self.scale, "map.shift": self.shift}


@final
@dataclass(frozen=True, eq=False)
class FourierBasis(PackedMap):
    """b_j(x) = cos(ω_j·x + β_j).

    projections: (p, d), the ω_j in raw units.
    phases: (p,), the β_j.
    """

    kind: ClassVar[str] = "fourier"
    projections: Floats
    phases: Floats

    def __post_init__(self) -> None:
        projections = frozen_array(self.projections, "projections", (None, None))
        object.__setattr__(self, "projections", projections)
        object.__setattr__(self, "phases", frozen_array(self.phases, "phases", (len(projections),)))

    @property
    def n_columns(self) -> int:
        return int(self.projections.shape[1])

    @property
    def n_basis(self) -> int:
        return int(self.projections.shape[0])

    @property
    def work(self) -> int:
        return self.cost + self.n_columns + COSINE * self.n_basis

    @QUIET
    def row(self, x: Floats) -> Floats:
        values: Floats = self.projections.dot(x)
        values += self.phases
        np.cos(values, out=values)
        return values

    @QUIET
    def block(self, X: Floats) -> Floats:
        return self.finish(X @ self.projections.T)

    def finish(self, products: Floats) -> Floats:
        """Cosines (n, p), in place of ``products`` ω_j·x."""
        products += self.phases
        return np.cos(products, out=products)

    def arrays(self) -> Arrays:
        return {"map.projections": self.projections, "map.phases": self.phases}


class RowScaledBasis(PackedMap):
    """b(x) = b'(x') with the scaled row x' and a kernel's basis b', ``of_scaled``."""

    row_scaling: ClassVar[RowScaling]

    def __init__(self, of_scaled: RbfBasis) -> None:
        self.of_scaled = of_scaled

    @property
    def n_columns(self) -> int:
        return self.of_scaled.n_columns

    @property
    def n_basis(self) -> int:
        return self.of_scaled.n_basis

    @property
    def work(self) -> int:
        """Besides the kernel: a norm, or a sum and square roots, of the row."""
        return self.of_scaled.work + ROOT * self.n_columns

    def row(self, x: Floats) -> Floats:
        return self.of_scaled.row(scale_rows(x[np.newaxis], self.row_scaling)[0])

    def block(self, X: Floats) -> Floats:
        return self.of_scaled.block(scale_rows(X, self.row_scaling))

    def arrays(self) -> Arrays:
        return self.of_scaled.arrays()


@final
@dataclass(frozen=True, eq=False)
class BesideTerms(PackedMap):
    """b(x) = (b'(z), t): a basis b' of the columns z, followed by the terms t of texts.

    of_dense: b'. n_terms: number of columns of t, at least 1.
    """

    of_dense: PackedMap
    n_terms: int

    def __post_init__(self) -> None:
        if self.n_terms < 1:
            raise InvalidProblem(Fault("n_terms", "out_of_bounds", "A map beside terms needs terms."))

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The kind of the basis with a suffix."""
        return self.of_dense.kind + BESIDE_TERMS

    @property
    def n_columns(self) -> int:
        return self.of_dense.n_columns + self.n_terms

    @property
    def n_basis(self) -> int:
        return self.of_dense.n_basis + self.n_terms

    @property
    def cost(self) -> int:
        return self.of_dense.cost

    @property
    def work(self) -> int:
        return self.of_dense.work + self.n_terms

    def row(self, x: Floats) -> Floats:
        d = self.of_dense.n_columns
        return np.concatenate([self.of_dense.row(x[:d]), x[d:]])

    def block(self, X: Floats) -> Floats:
        d = self.of_dense.n_columns
        return np.hstack([self.of_dense.block(X[:, :d]), X[:, d:]])

    def arrays(self) -> Arrays:
        return self.of_dense.arrays()

    def sizes(self) -> Header:
        return {"n_terms": self.n_terms}


BESIDE_TERMS: Final = "_beside_terms"
"""Suffix of a map's kind if terms of texts follow its columns."""


@final
class UnitRbfBasis(RowScaledBasis):
    """A kernel's basis of x / ‖x‖."""

    kind: ClassVar[str] = "unit_rbf"
    row_scaling = RowScaling.UNIT


@final
class HellingerRbfBasis(RowScaledBasis):
    """A kernel's basis of √(x / Σ_j x_j)."""

    kind: ClassVar[str] = "hellinger_rbf"
    row_scaling = RowScaling.HELLINGER


ROW_SCALED: Final[tuple[type[UnitRbfBasis] | type[HellingerRbfBasis], ...]] = (
    UnitRbfBasis,
    HellingerRbfBasis,
)


def with_scaled_rows(basis: RbfBasis, row_scaling: RowScaling) -> PackedMap:
    """``basis`` of scaled rows."""
    return next((kind(basis) for kind in ROW_SCALED if kind.row_scaling is row_scaling), basis)
