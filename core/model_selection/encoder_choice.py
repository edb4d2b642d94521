"""Which encoder suits the pictures of a table, where a job leaves it open.

Encoders are compared as maps are (``core.model_selection.quick_choice``): by the mean leave-one-out F of
least squares on the training rows, never on a test part. On photographs an encoder with learnt weights wins,
on signs and drawn characters one without; two of them side by side mostly lie between both, so one is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from core.data.schema import Kind
from core.data.table import GAP, PictureCells, Table
from core.encoding.fit import scaling_of_block
from core.encoding.labelled_table import LabelledTable
from core.errors import Fault, InvalidProblem
from core.model_selection.quick_choice import best_f1_of_block
from core.model_selection.row_samples import comparison_rows
from core.packed.encoded_columns import Floats
from core.run import Run

_FEWEST_ROWS: Final = 4
"""Fewer rows with a label and a picture compare nothing."""


@dataclass(frozen=True, slots=True)
class EncoderChoice:
    """The encoder of one column.

    taken: its name. identity: what tells it apart from others of this name. rows: number of training rows on
    which encoders were compared, each left out once. f1: mean F over the classes of each encoder by name, in
    [0, 1]; empty if there was nothing to compare.
    """

    column: str
    taken: str
    identity: str
    rows: int
    f1: Mapping[str, float]

    @property
    def text(self) -> str:
        """One sentence with the figures."""
        if not self.f1:
            return f"Pictures of {self.column!r:.80} are encoded by {self.taken}."
        others = ", ".join(f"{name} {f1:.3f}" for name, f1 in self.f1.items() if name != self.taken)
        return (
            f"Pictures of {self.column!r:.80} are encoded by {self.taken}, with a mean F of"
            f" {self.f1[self.taken]:.3f} on {self.rows} rows, each left out once ({others})."
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "column": self.column,
            "encoder": self.taken,
            "identity": self.identity,
            "rows": self.rows,
            "f1": {name: round(f1, 4) for name, f1 in self.f1.items()},
            "reason": self.text,
        }


def choose_encoders(
    rows: LabelledTable, said: Mapping[str, Sequence[str]], run: Run
) -> tuple[LabelledTable, tuple[EncoderChoice, ...]]:
    """The rows with the vectors of one encoder in each column of pictures, and how it was chosen.

    said: names of the encoders to compare in some columns; in the others all are compared that have made
    vectors. Raises InvalidProblem for an encoder that has made no vectors, and Cancelled.
    """
    cells, choices = [*rows.table.cells], []
    for place, column in enumerate(rows.schema):
        of_column = cells[place]
        if column.kind is not Kind.IMAGE or not isinstance(of_column, PictureCells):
            continue
        names = {of_column.encoders[digest][0]: digest for digest in of_column.vectors}
        wanted = said.get(column.name, tuple(names))
        missing = [name for name in wanted if name not in names]
        if missing or not wanted:
            named = f" of the encoder {', '.join(missing)}" if missing else ""
            message = f"The pictures of column {column.name!r:.80} have no vectors{named}."
            raise InvalidProblem(Fault("inputs.columns", "not_encoded", message))
        choice = _choice(column.name, of_column, rows, {name: names[name] for name in wanted}, run)
        kept = names[choice.taken]
        cells[place] = replace(of_column, vectors={kept: of_column.vectors[kept]})
        choices.append(choice)
    return replace(rows, table=Table(rows.table.names, tuple(cells))), tuple(choices)


def _choice(
    column: str, cells: PictureCells, rows: LabelledTable, names: Mapping[str, str], run: Run
) -> EncoderChoice:
    known = np.flatnonzero((rows.y >= 0) & (cells.codes != GAP))
    some = known[comparison_rows(rows.y[known], len(rows.classes), run.seed)]
    labels = rows.y[some]
    if len(names) == 1 or len(some) < _FEWEST_ROWS or len(np.unique(labels)) < 2:
        name, identity = next(iter(names.items()))
        return EncoderChoice(column, name, identity, 0, {})
    f1: dict[str, float] = {}
    for done, (name, digest) in enumerate(names.items()):
        run.report("encoders", done, len(names))
        block: Floats = cells.vectors[digest][cells.codes[some]].astype(np.float64)
        centre, scale = scaling_of_block(block)
        f1[name] = best_f1_of_block((block - centre) * scale, labels, run)
    # Of equal ones the first is taken.
    best = max(f1, key=lambda name: f1[name])
    return EncoderChoice(column, best, names[best], len(some), f1)
