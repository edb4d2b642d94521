"""Types that all format readers share: limits, unvalidated data, and errors about a file."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.domain.errors import InputFault, InvalidRequest, TooLarge, Unavailable
from core.data.extras import NO_RAW_EXTRAS, RawExtras

MAX_FAULTS = 10
"""Most faults reported for one file."""
UNLABELLED_HINT = "To keep training rows without a label, send unlabelled=accept."


@dataclass(frozen=True, slots=True)
class DatasetLimits:
    """Largest data set that a reader accepts.

    max_bytes: size of the arrays in memory, independent of the size of the file.
    temp_folder: for large arrays, see `app.ingest.mapped_arrays`.
    """

    max_rows: int
    max_columns: int
    max_bytes: int
    temp_folder: Path | None = None

    def check(self, rows: int, columns: int, *, itemsize: int = 8) -> None:
        """Raise TooLarge for a dense table over a limit. Call it before the table is allocated."""
        self.check_shape(rows, columns)
        self.check_bytes(rows * columns * itemsize)

    def check_bytes(self, size: int) -> None:
        """Raise TooLarge if the arrays would take more than ``max_bytes``."""
        if size > self.max_bytes:
            text = f"The numbers of the file take {size} bytes in memory; the limit is {self.max_bytes}."
            raise TooLarge(text, code="table_too_large")

    def check_shape(self, rows: int, columns: int) -> None:
        """Raise TooLarge for too many rows or columns."""
        for count, limit, what in ((rows, self.max_rows, "rows"), (columns, self.max_columns, "columns")):
            if count > limit:
                raise TooLarge(f"The file has {count} {what}; the limit is {limit}.", code=f"too_many_{what}")


@dataclass(frozen=True, slots=True)
class RawPart:
    """Rows (n, d), their labels (n,) and extras, not yet validated."""

    X: Any
    labels: Any
    extras: RawExtras = NO_RAW_EXTRAS


@dataclass(frozen=True, slots=True)
class RawData:
    """Content of a file, not yet validated.

    label_column, label_is_default: name of the label column, and whether it is the default one.
    class_names: names of the classes if labels are numbers and the file names them.
    ignored: names of the arrays in the file that are not used.
    """

    train: RawPart
    test: RawPart | None = None
    feature_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    label_column: str | None = None
    label_is_default: bool = True
    ignored: tuple[str, ...] = ()


def invalid_file(message: str, *, code: str, faults: Sequence[InputFault] = ()) -> InvalidRequest:
    """The error for a file of a supported format with invalid content."""
    return InvalidRequest(message, code=code, faults=faults)


def invalid_rows(faults: Sequence[InputFault]) -> InvalidRequest:
    """The error for a file with faults in its rows; the message is that of the first fault."""
    more = f" ({len(faults)} faults are listed.)" if len(faults) > 1 else ""
    return invalid_file(faults[0].message + more, code="invalid_dataset", faults=faults)


@contextmanager
def disk_full_as_unavailable() -> Iterator[None]:
    """Convert the OSError of a full disk to Unavailable."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = "The server's disk has no space left for this file."
        raise Unavailable(text, code="storage_full", retry_after=10.0) from error


def choose_label_column(names: Sequence[str] | None, n_columns: int, wanted: str | None) -> int:
    """Index of the label column: ``wanted`` is a name or a zero-based index; None selects the last column.

    names: of the columns, None when the file has no header. Raises InvalidRequest.
    """
    if n_columns < 2:
        raise invalid_file(
            "The table has only one column; it needs at least one feature column and a label column.",
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
