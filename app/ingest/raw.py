"""What all format readers share: limits, unvalidated data, columns of tables, and errors about a file.

A column's name announces an extra:

privileged:NAME     a column that is known in training only
score:CLASS         a teacher's score of a class
view:NAME:COLUMN    a feature that belongs to the view NAME; the columns of a view stand side by side

All other columns are features, or the label. Tables without names have features and a label only.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest, TooLarge, Unavailable
from core.data.extras import NO_RAW_EXTRAS, RawExtras

MAX_FAULTS = 10
"""Most faults reported for one file."""
UNLABELLED_HINT = "To keep training rows without a label, send unlabelled=accept."
PRIVILEGED: Final = "privileged:"
SCORE: Final = "score:"
VIEW: Final = "view:"


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


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table by their positions in the file.

    names: of all columns, or None. label: position of the labels. features, privileged, scores: positions.
    views: name, first feature and end of each. label_is_default: whether the label is the last column that
    is not of an extra.
    """

    names: tuple[str, ...] | None
    label: int
    features: tuple[int, ...]
    privileged: tuple[int, ...]
    scores: tuple[int, ...]
    views: tuple[tuple[str, int, int], ...]
    label_is_default: bool

    @classmethod
    def of(cls, names: Sequence[str] | None, count: int, label_column: str | None) -> Columns:
        """The columns of a table of ``count`` columns. Raises InvalidRequest."""
        named = () if names is None else tuple(names)
        roles = {
            prefix: [k for k, name in enumerate(named) if name.startswith(prefix)]
            for prefix in (PRIVILEGED, SCORE)
        }
        extras = {k for positions in roles.values() for k in positions}
        last = max((k for k in range(count) if k not in extras), default=0)
        chosen = choose_label_column(names, count, label_column)
        label = last if label_column is None else chosen
        features = tuple(k for k in range(count) if k != label and k not in extras)
        if not features or label in extras:
            raise invalid_file(
                "The table needs at least one feature column and a label column that is not one of"
                f" {PRIVILEGED}, {SCORE}.",
                code="one_column",
            )
        return cls(
            names=None if names is None else named,
            label=label,
            features=features,
            privileged=tuple(roles[PRIVILEGED]),
            scores=tuple(roles[SCORE]),
            views=() if names is None else _views([named[k] for k in features]),
            label_is_default=label == last,
        )

    @property
    def count(self) -> int:
        """Number of all columns."""
        return 1 + sum(map(len, self.tables.values()))

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The names of the features as they are in the file, those of views included."""
        return None if self.names is None else tuple(self.names[k] for k in self.features)

    @property
    def label_name(self) -> str:
        """The name of the label column, its position without names."""
        return str(self.label) if self.names is None else self.names[self.label]

    @property
    def tables(self) -> dict[str, tuple[int, ...]]:
        """Positions of the columns of each table of numbers, by the field that it becomes; X is first."""
        extras = {"privileged": self.privileged, "teacher_scores": self.scores}
        return {"X": self.features, **{field: columns for field, columns in extras.items() if columns}}

    def place(self, position: int) -> tuple[str, int | None]:
        """Field and column of a fault at this position of the file; the label has no column."""
        for field, positions in self.tables.items():
            if position in positions:
                return field, positions.index(position)
        return "y", None

    def extras(self, tables: Mapping[str, NDArray[Any]]) -> RawExtras:
        """The extras, of which ``tables`` has the numbers by field."""
        names = self.names or ()
        return RawExtras(
            privileged=tables.get("privileged"),
            privileged_names=_without(PRIVILEGED, (names[k] for k in self.privileged)) or None,
            views=self.views,
            teacher_scores=tables.get("teacher_scores"),
            score_classes=_without(SCORE, (names[k] for k in self.scores)) or None,
        )


def unlabelled_warning(rows: int, *, has_classes: bool) -> tuple[str, str]:
    """Code and text of the warning that so many rows have no label. has_classes: whether others have one."""
    if has_classes:
        return "unlabelled_rows", f"{rows} rows have no label: students learn the teacher's answers on them."
    return "unlabelled_rows", "No row has a label: a job needs a labelling, which clusters them."


def _without(prefix: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.removeprefix(prefix) for name in names)


def _views(features: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    """Name, first column and end of each view. Raises InvalidRequest if one is in several places."""
    views: list[tuple[str, int, int]] = []
    seen: set[str] = set()
    for column, name in enumerate(features):
        if not name.startswith(VIEW):
            continue
        view, colon, own = name.removeprefix(VIEW).partition(":")
        if not colon or not own.strip():
            text = f"Column {name!r:.80} must have the form {VIEW}NAME:COLUMN."
            raise invalid_rows([InputFault("views", "bad_name", text, column=column)])
        if views and views[-1][0] == view and views[-1][2] == column:
            views[-1] = (view, views[-1][1], column + 1)
        elif view in seen:
            text = f"The columns of the view {view!r:.80} do not stand side by side: see {name!r:.80}."
            raise invalid_rows([InputFault("views", "not_adjacent", text, column=column)])
        else:
            seen.add(view)
            views.append((view, column, column + 1))
    return tuple(views)
