"""The cost of a query in multiplications."""

from __future__ import annotations

from core.packed import PackedMap


def query_cost(basis: PackedMap, n_outputs: int) -> int:
    """Multiplications of one query: those of the p basis values, and ``n_outputs`` products with them.

    Exponentials and cosines are not counted: there is one for each d + n_outputs multiplications. For trees,
    comparisons and the additions of leaf values count as multiplications.
    """
    return basis.cost + basis.n_basis * n_outputs
