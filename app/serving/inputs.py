"""What a version knows of the columns of its rows: names, ranges, and where indices begin.

A list of numbers has the columns of the model in their order and needs none of this. Values that come with
names are put into that order, and refused where the names do not fit: nothing is guessed of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from app.domain.entities import ModelVersion
from app.domain.errors import InputFault, Unprocessable
from app.domain.near_names import listed, near_name
from app.serving.input_tally import InputTally
from app.serving.outside import MAX_OUTSIDE, Outside, RowCount, widened
from app.serving.records import Records
from core.packed.contributions import Baseline
from core.packed.encoder import Encoder
from core.packed.record_rows import RecordRows

_MAX_FAULTS: Final = 10
_NAME_BYTES: Final = 250


class Inputs:
    """The columns of one version, shared by all that is loaded of it.

    names: in the order of the columns; None if the version has not kept them. label: name of the label
    column of its data set, which rows with names may have, too. index_base: the first index of the svmlight
    file that the version was trained on; None for other versions. low, high: range of each column (d,), or
    None. baseline: what explanations compare rows of numbers with, or None. row_count: counts what `outside`
    finds. make_tally: makes what counts the records of the version. records: of a version with an encoder,
    whose rows are records; None for other versions.
    """

    def __init__(
        self,
        version: ModelVersion,
        row_count: RowCount | None = None,
        encoder: Encoder | None = None,
        make_tally: Callable[[RecordRows], InputTally] = InputTally,
    ) -> None:
        self._row_count = row_count or RowCount()
        self.records = None if encoder is None else Records(encoder, self._row_count, make_tally)
        known = version.inputs
        names: list[str] | None = known.get("columns")
        if names is None and encoder is not None and encoder.takes_numbers:
            names = list(encoder.names)
        # A table has columns that are not used, of which a list has no numbers.
        takes_lists = encoder is not None and encoder.takes_numbers
        self.n_columns = len(encoder.columns) if encoder is not None and takes_lists else version.columns
        # Of two columns with one name none could be meant.
        is_usable = names is not None and len(set(names)) == len(names) == self.n_columns
        self.where = f"version {version.version} of model {version.model!r}"
        self.names = names if is_usable else None
        self.label: str | None = known.get("label_column")
        self.encoder_digest = None if encoder is None else version.encoder_digest
        self.index_base: int | None = known.get("index_base")
        self.low: NDArray[np.float64] | None = None
        self.high: NDArray[np.float64] | None = None
        if len(ranges := known.get("ranges") or ()) == version.columns:
            self.low, self.high = widened(np.array(ranges, dtype=np.float64))
        means: list[float] = known.get("means") or []
        self.baseline: Baseline | None = None
        if encoder is not None and encoder.takes_numbers:
            self.baseline = Baseline.of_encoder(encoder)
        elif len(means) == version.columns:
            self.baseline = Baseline.of_numbers(np.array(means, dtype=np.float64))

    @property
    def has_effects(self) -> bool:
        """Whether rows can be explained by columns."""
        return self.records is not None or self.baseline is not None

    @property
    def nbytes(self) -> int:
        """Memory of names, positions, ranges and the encoder, about."""
        of_names = 0 if self.names is None else _NAME_BYTES * len(self.names)
        of_ranges = 0 if self.low is None else 2 * self.low.nbytes
        of_ranges += 0 if self.baseline is None else 4 * self.baseline.means.nbytes
        return of_names + of_ranges + (0 if self.records is None else self.records.nbytes)

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {name: column for column, name in enumerate(self.names or ())}

    def order(self, given: Sequence[str], field: str, row: int | None = None) -> list[int]:
        """The place in ``given`` of each column of the model; the label column may be there, too.

        field, row: of the request, for the error. Raises Unprocessable for names that are missing, unknown or
        there twice, and for all names where the model has none.
        """
        if self.names is None:
            raise self._nameless(field, row)
        order, positions = [-1] * self.n_columns, self._positions
        is_whole = len(given) == self.n_columns or len(given) == self.n_columns + 1
        for place, name in enumerate(given):
            column = positions.get(name)
            if column is not None:
                is_whole &= order[column] < 0
                order[column] = place
            elif name != self.label:
                is_whole = False
        if not is_whole or -1 in order:
            raise self._misfit(given, field, row)
        return order

    def in_order(self, values: Mapping[str, Any], field: str, row: int | None) -> list[Any]:
        """The values of one row by name, in the order of the model; raises as `order`."""
        if self.names is not None and values.keys() == self._positions.keys():
            return [values[name] for name in self.names]
        given = list(values)
        return [values[given[place]] for place in self.order(given, field, row)]

    def first_index(self, stated: Literal[0, 1] | None, field: str, row: int | None = None) -> int:
        """Where the indices of a sparse row begin: 0, or 1 if the row says so.

        Raises Unprocessable where that cannot be known, or contradicts the file of the training rows.
        """
        if stated is None and self.index_base == 1:
            text = (
                f"{field}: say whether the indices count from 1, as the svmlight file that {self.where} was "
                'trained on does ("index_base": 1), or are numbers of columns, which count from 0 '
                '("index_base": 0).'
            )
            raise _refusal("index_base_missing", text, f"{field}.index_base", row)
        if stated == 1 and self.index_base == 0:
            text = (
                f"{field}: the svmlight file that {self.where} was trained on counts from 0, so indices that "
                "count from 1 would be of other columns."
            )
            raise _refusal("wrong_index_base", text, f"{field}.index_base", row)
        return stated or 0

    def outside(self, table: NDArray[Any]) -> list[Outside] | None:
        """Which columns of each row (n, d) are outside their range; None where ranges are not known."""
        if self.low is None or self.high is None:
            return None
        is_outside = self.is_outside(table)
        self._row_count.outside += int(is_outside.any(axis=1).sum())
        return [
            Outside([self.name_of(int(column)) for column in row.nonzero()[0][:MAX_OUTSIDE]], int(row.sum()))
            for row in is_outside
        ]

    def is_outside(self, table: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each number of rows (n, d) is outside the range of its column, as far as this is known."""
        if self.low is None or self.high is None:
            return np.zeros(table.shape, dtype=bool)
        return (table < self.low) | (table > self.high)

    def name_of(self, column: int) -> str | int:
        """The name of a column, otherwise its index in the svmlight file or its number, from 0."""
        return column + (self.index_base or 0) if self.names is None else self.names[column]

    def _nameless(self, field: str, row: int | None) -> Unprocessable:
        text = (
            f"{_place(field, row)} names columns, but {self.where} has no names of columns: it was"
            " trained on rows without them, or on more columns than are kept by name, or was imported. Give a"
            f" list of its {self.n_columns} numbers in their order."
        )
        return _refusal("no_column_names", text, field, row)

    def _misfit(self, given: Sequence[str], field: str, row: int | None) -> Unprocessable:
        names, positions = self.names or [], self._positions
        present = dict.fromkeys(given)
        missing = [name for name in names if name not in present]
        unknown = [name for name in present if name not in positions and name != self.label]
        double = _repeated(given)
        parts = [f"lacks {listed(missing)}"] if missing else []
        if unknown:
            near = near_name(unknown[0], missing or names)
            hint = "" if near is None else f" (is {near!r:.80} meant?)"
            parts.append(f"has {listed(unknown)}, which {self.where} does not know{hint}")
        parts += [f"has {listed(double)} twice"] if double else []
        text = f"{_place(field, row)} {', and '.join(parts)}. The columns are {listed(names)}."
        faults = [
            *_faults(missing, "missing_column", "is missing", field, row, positions),
            *_faults(unknown, "unknown_column", "is unknown", field, row, positions),
            *_faults(double, "duplicate_column", "is there twice", field, row, positions),
        ]
        return Unprocessable(text, code="wrong_columns", faults=faults)


def _faults(
    names: Sequence[str], code: str, what: str, field: str, row: int | None, positions: Mapping[str, int]
) -> list[InputFault]:
    where = _place(field, row)
    return [
        InputFault(field, code, f"{where}: column {name!r:.100} {what}.", row, positions.get(name))
        for name in names[:_MAX_FAULTS]
    ]


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _refusal(code: str, text: str, field: str, row: int | None) -> Unprocessable:
    return Unprocessable(text, code=code, faults=[InputFault(field, code, text, row)])


def _place(field: str, row: int | None) -> str:
    return field if row is None else f"{field}, row {row} (counted from 0)"
