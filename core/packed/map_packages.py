"""Reads maps from packages: their own packages, or those of students and teachers."""

from __future__ import annotations

from typing import Final

from core.errors import InvalidPackage
from core.packed.codec import (
    Arrays,
    Buffer,
    Header,
    check_digest,
    decode,
    package_errors,
    refuse_extra,
    take,
    take_array,
)
from core.packed.maps import (
    BESIDE_TERMS,
    ROW_SCALED,
    BesideTerms,
    FourierBasis,
    LinearBasis,
    PackedMap,
    RbfBasis,
)
from core.packed.trees import TreesBasis

MIN_SHARED_BYTES: Final = 4096
"""Smaller arrays stay in the package of each student. A package of its own costs a blob with its rows in the
database, a cache file and a client request, which is more than such a map takes.
"""


def map_from_bytes(data: Buffer, *, digest: str | None = None) -> PackedMap:
    """The map that `PackedMap.to_bytes` stored; its arrays are views of ``data``.

    digest: if given, the SHA-256 that ``data`` must have. Raises InvalidPackage.
    """
    check_digest(data, digest)
    header, arrays = decode(data, PackedMap.FORMAT)
    with package_errors("map"):
        packed = map_from(header, arrays)
    refuse_extra(arrays, set())
    return packed


def map_from(header: Header, arrays: Arrays) -> PackedMap:
    """The map of a package; removes its arrays from ``arrays``. Raises InvalidPackage or InvalidProblem."""
    n_columns = take(header, "n_columns", int)
    kind = take(header, "kind", str)
    if kind.endswith(BESIDE_TERMS):
        n_terms = take(header, "n_terms", int)
        inner: Header = {"kind": kind.removesuffix(BESIDE_TERMS), "n_columns": n_columns - n_terms}
        return BesideTerms(map_from(inner, arrays), n_terms)
    packed: PackedMap
    if kind == LinearBasis.kind:
        packed = LinearBasis(n_columns)
    elif kind == RbfBasis.kind or kind in {scaled.kind for scaled in ROW_SCALED}:
        names = ("map.shift", "map.scale", "map.landmarks")
        basis = RbfBasis(*(take_array(arrays, name) for name in names))
        packed = next((scaled(basis) for scaled in ROW_SCALED if scaled.kind == kind), basis)
    elif kind == FourierBasis.kind:
        packed = FourierBasis(take_array(arrays, "map.projections"), take_array(arrays, "map.phases"))
    elif kind == TreesBasis.kind:
        packed = TreesBasis.from_arrays(n_columns, take(header, "n_basis", int), arrays)
    else:
        raise InvalidPackage(f"The package has a map of unknown kind {kind!r:.80}.")
    if packed.n_columns != n_columns:
        raise InvalidPackage(
            "The map of the package does not have the number of columns that its header says."
        )
    for name in packed.arrays():
        del arrays[name]
    return packed
