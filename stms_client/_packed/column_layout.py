# Copied from `core/data/column_layout.py` by ``make client``: do not edit.
"""Which columns of encoded rows are what: numbers, indicators, terms."""

from __future__ import annotations

from dataclasses import dataclass

from stms_client._packed.errors import Fault, InvalidProblem


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """d columns, of which the last are terms of texts. numbers: those that scaling may change, ascending.
    dense: columns before the terms.

    All other columns are left as they are: an indicator that is rarely 1 has a small deviation, and divided
    by it would outweigh the numbers.
    """

    columns: int
    dense: int
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.dense <= self.columns or any(
            not 0 <= column < self.dense for column in self.numbers
        ):
            raise InvalidProblem(
                Fault("layout", "out_of_range", "the columns of a layout do not fit together")
            )

    @property
    def terms(self) -> int:
        """Columns of terms."""
        return self.columns - self.dense
