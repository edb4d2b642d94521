"""The compiled functions of `core.packed.trees`. What `prepare` gives is opaque."""

from typing import Any

from numpy.typing import NDArray

def prepare(
    feature: NDArray[Any],
    threshold: NDArray[Any],
    roots: NDArray[Any],
    test: NDArray[Any],
    children: NDArray[Any],
    values: NDArray[Any],
    output: NDArray[Any],
    columns: int,
    sums: int,
    width: int,
    divisor: float,
    /,
) -> object: ...
def add_leaves(trees: object, rows: NDArray[Any], sums: NDArray[Any], /) -> None: ...
def count_levels(roots: NDArray[Any], children: NDArray[Any], counts: NDArray[Any], /) -> None: ...
