"""The cost of a query in multiplications."""

from __future__ import annotations

from core.packed import PackedMap


def query_cost(basis: PackedMap, n_outputs: int) -> int:
    """Multiplications of one query: the basis of p values from d columns, then ``n_outputs`` products of it.

    An exponential or cosine is not counted: there is one for d + n_outputs multiplications.
    """
    mapped = 0 if basis.kind == "linear" else basis.n_basis * basis.n_columns
    return mapped + basis.n_basis * n_outputs
