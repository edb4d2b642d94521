"""What every format reader takes and gives, and how it says what is wrong with a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.domain.errors import InputFault, InvalidRequest, TooLarge

MAX_FAULTS = 10
"""Faults told about one file; the rest would only repeat them."""


@dataclass(frozen=True, slots=True)
class DatasetLimits:
    """What a reader accepts. max_bytes: of the arrays in memory, however small the file is.

    temp_folder: folder for arrays that are put down on disk, see `app.ingest.mapped_arrays`.
    """

    max_rows: int
    max_columns: int
    max_bytes: int
    temp_folder: Path | None = None

    def check(self, rows: int, columns: int, *, itemsize: int = 8) -> None:
        """Raises TooLarge for a dense table over a limit; call it before memory is taken."""
        self.check_shape(rows, columns)
        self.check_bytes(rows * columns * itemsize)

    def check_bytes(self, size: int) -> None:
        """Raises TooLarge for more bytes of numbers than may be held."""
        if size > self.max_bytes:
            text = f"The numbers of the file take {size} bytes in memory; the limit is {self.max_bytes}."
            raise TooLarge(text, code="table_too_large")

    def check_shape(self, rows: int, columns: int) -> None:
        """Raises TooLarge for too many rows or columns."""
        for count, limit, what in ((rows, self.max_rows, "rows"), (columns, self.max_columns, "columns")):
            if count > limit:
                raise TooLarge(f"The file has {count} {what}; the limit is {limit}.", code=f"too_many_{what}")


@dataclass(frozen=True, slots=True)
class RawPart:
    """Rows (n, d) and their labels (n,), not checked yet."""

    X: Any
    labels: Any


@dataclass(frozen=True, slots=True)
class RawData:
    """What a file holds, not checked yet.

    label_column, label_is_default: name of the column of labels, and whether it would be chosen unasked.
    class_names: names of the classes behind number labels, if the file has them.
    ignored: arrays of the file that are not used.
    """

    train: RawPart
    test: RawPart | None = None
    feature_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    label_column: str | None = None
    label_is_default: bool = True
    ignored: tuple[str, ...] = ()


def invalid_file(message: str, *, code: str, faults: Sequence[InputFault] = ()) -> InvalidRequest:
    """The error of a file of the right kind whose content cannot be used."""
    return InvalidRequest(message, code=code, faults=faults)


def invalid_rows(faults: Sequence[InputFault]) -> InvalidRequest:
    """The error of a file with faults in its rows; its message is that of the first."""
    more = f" ({len(faults)} faults are listed.)" if len(faults) > 1 else ""
    return invalid_file(faults[0].message + more, code="invalid_dataset", faults=faults)


def choose_label_column(names: Sequence[str] | None, n_columns: int, wanted: str | None) -> int:
    """Index of the label column: by name, else by a zero-based number, else the last.

    names: the columns' names, None when the file has none. Raises InvalidRequest.
    """
    if n_columns < 2:
        raise invalid_file(
            "The table has one column only; at least one column of features and one of labels are needed.",
            code="one_column",
        )
    if wanted is None:
        return n_columns - 1
    if names is not None and wanted in names:
        return list(names).index(wanted)
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 8 and int(wanted) < n_columns:
        return int(wanted)
    known = "It has no header." if names is None else f"Its columns are {_listed(names)}."
    text = f"The table has no column {wanted!r:.120}. {known}"
    raise invalid_file(
        text, code="no_label_column", faults=[InputFault("label_column", "no_label_column", text)]
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name)[:60] for name in names[:20])
    return shown + (", …" if len(names) > 20 else "")
