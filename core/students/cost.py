"""The cost of a query in multiplications."""

from __future__ import annotations

from core.packed import PackedMap


def query_cost(basis: PackedMap, n_outputs: int) -> int:
    """Multiplications of one query: the basis of p values from d columns, then ``n_outputs`` products of it.

    An exponential or cosine is not counted: there is one for d + n_outputs multiplications. Comparisons of
    trees, and the sums of what their leaves hold, count as multiplications.
    """
    return basis.cost + basis.n_basis * n_outputs
