"""The column of a file that tells whom a row is about: it becomes a pseudonym beside the row."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest
from app.ingest.options import GIVEN, Decision
from app.ingest.raw import RawData, RawPart, RawTable
from app.ingest.validate import Data
from core.data.row_marks import SUBJECT_BYTES, RowMarks, pseudonyms
from core.data.table import Cells, NumberCells, Table, TextCells

_FIELD: Final = "subject_column"

Item = TypeVar("Item")


def with_subjects(raw: RawData, column: str, key: bytes) -> RawData:
    """The content of a file without a column, whose values are the subjects of its rows.

    column: its name, or its number where columns have no names. key: of the pseudonyms. A row with a gap is
    about nobody. Raises InvalidRequest where there is no such column.
    """
    names = raw.train.X.table.names if isinstance(raw.train.X, RawTable) else raw.feature_names
    width = len(names) if names is not None else raw.train.X.shape[1]
    place = _place(names, width, column)
    if width == 1:
        text = f"The column {column!r:.80} is the only one: nothing would be left to learn from."
        raise InvalidRequest(text, faults=[InputFault(_FIELD, "no_columns", text)])
    kept = None if raw.feature_names is None else _without(raw.feature_names, place)
    return replace(
        raw,
        train=_part(raw.train, place, key),
        test=None if raw.test is None else _part(raw.test, place, key),
        feature_names=kept,
        decisions=(*raw.decisions, Decision(_FIELD, column, GIVEN)),
        variant=(*raw.variant, f"{_FIELD}={column}"),
    )


def count_subjects(train: Data, test: Data | None) -> int:
    """How many subjects the rows of both parts are about."""
    parts = [one.marks.subjects for one in (train, test) if one is not None]
    every = np.concatenate([subjects for subjects in parts if subjects is not None])
    return len(np.unique(pseudonyms(every[every.any(axis=1)])))


def _place(names: tuple[str, ...] | None, width: int, column: str) -> int:
    if names is not None and column in names:
        return names.index(column)
    if names is None and column.isascii() and column.isdigit() and int(column) < width:
        return int(column)
    text = (
        f"There is no column {column!r:.80} of subjects. A column that numbers the rows is left out unless"
        " index_column=none says otherwise."
    )
    raise InvalidRequest(text, code="unknown_column", faults=[InputFault(_FIELD, "unknown_column", text)])


def _part(part: RawPart, place: int, key: bytes) -> RawPart:
    X = part.X
    if isinstance(X, RawTable):
        cells, name = X.table.cells[place], X.table.names[place]
        table = Table(_without(X.table.names, place), _without(X.table.cells, place))
        views = tuple((view, tuple(one for one in of_view if one != name)) for view, of_view in X.views)
        kinds = {one: kind for one, kind in X.kinds.items() if one != name}
        # Rows to be asked about may have the column, too.
        smaller = replace(X, table=table, views=views, kinds=kinds, known=(*X.known, name))
        return replace(part, X=smaller, marks=RowMarks(subjects=_pseudonyms(cells, key)))
    values = X[:, [place]]
    dense = values if isinstance(values, np.ndarray) else values.toarray()
    kept = np.delete(np.arange(X.shape[1]), place)
    subjects = _pseudonyms(NumberCells(np.asarray(dense, dtype=np.float64).reshape(-1)), key)
    return replace(part, X=X[:, kept], marks=RowMarks(subjects=subjects))


def _pseudonyms(cells: Cells, key: bytes) -> NDArray[np.uint8]:
    """The pseudonym of each cell, (n, 16), zeros for gaps. Raises InvalidRequest for lists of numbers."""
    if isinstance(cells, TextCells):
        # The last entry is that of a gap.
        table = [*(hmac.digest(key, text.encode(), "sha256")[:SUBJECT_BYTES] for text in cells.texts)]
        table.append(bytes(SUBJECT_BYTES))
        return np.frombuffer(b"".join(table), dtype=np.uint8).reshape(-1, SUBJECT_BYTES)[cells.codes]
    if not isinstance(cells, NumberCells):
        text = "The column of subjects has lists of numbers; it must have texts or numbers."
        raise InvalidRequest(text, faults=[InputFault(_FIELD, "not_a_name", text)])
    values, codes = np.unique(cells.values, return_inverse=True)
    found = np.zeros((len(values), SUBJECT_BYTES), dtype=np.uint8)
    for number, value in enumerate(values.tolist()):
        if value == value:
            name = str(int(value)) if float(value).is_integer() else repr(value)
            digest = hmac.digest(key, name.encode(), "sha256")[:SUBJECT_BYTES]
            found[number] = np.frombuffer(digest, dtype=np.uint8)
    return found[codes]


def _without(items: Sequence[Item], place: int) -> tuple[Item, ...]:
    return (*items[:place], *items[place + 1 :])
