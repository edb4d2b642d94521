# Copied from `core/packed/map_packages.py` by ``make client``: do not edit.
"""Maps in packages: what the header says of them, and the map of a header and its arrays."""

from __future__ import annotations

from stms_client._packed.codec import Arrays, Header, take, take_array
from stms_client._packed.errors import InvalidPackage
from stms_client._packed.maps import (
    BESIDE_TERMS,
    ROW_SCALED,
    BesideTerms,
    FourierBasis,
    LinearBasis,
    PackedMap,
    RbfBasis,
)
from stms_client._packed.trees import TreesBasis


def map_header(packed: PackedMap) -> Header:
    """What the header of a package says of its map."""
    header: Header = {"kind": packed.kind, "n_columns": packed.n_columns}
    return header | packed.sizes()


def map_from(header: Header, arrays: Arrays) -> PackedMap:
    """The map of a package; takes its arrays out of ``arrays``. Raises InvalidPackage or InvalidProblem."""
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
