"""The columns of a table: the label column, the index column, and the roles of all others.

A column's name announces an extra:

privileged:NAME     a column that is known in training only
score:CLASS         a teacher's score of a class
view:NAME:COLUMN    a feature that belongs to the view NAME; the columns of a view are adjacent

All other columns are features, the label, or the index, which is left out. Tables without names have only
features and a label.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest
from app.domain.names import find_unusable
from app.domain.near_names import near_name
from app.ingest.options import GIVEN, NO_COLUMN, Decision, ReadingOptions
from app.ingest.raw import NOTHING, FeatureRows, Known, invalid_file, invalid_rows
from core.data.dataset import MAX_COLUMN_NAME
from core.data.extras import RawExtras
from core.data.reading_hints import reading_hint
from core.data.table import Table

PRIVILEGED: Final = "privileged:"
SCORE: Final = "score:"
VIEW: Final = "view:"
USUAL_LABELS: Final = frozenset(
    {"label", "labels", "class", "classes", "target", "targets", "y", "species", "category", "outcome"}
    | {"response", "diagnosis", "label_name", "true_label", "class_label", "class_name", "classname"}
    | {"target_class", "target_name", "target_label", "ground_truth", "groundtruth"}
)
"""Usual names of a label column, in lower case, with one underscore for blanks, points and hyphens."""
OFTEN_LABELS: Final = frozenset(
    {"survived", "churn", "churned", "income", "spam", "is_spam", "fraud", "is_fraud", "sentiment", "emotion"}
    | {"rating", "stars", "intent", "topic", "segment"}
)
"""Names that often mean a label, used if no column has a usual name and one column has such a name."""
MIN_COUNTED: Final = 10
"""Fewest rows of a file in which a column that counts is worth a warning."""

_UNNAMED: Final = re.compile(r"Unnamed: ?[0-9]{1,9}(_level_[0-9]{1,9})?")
_INDEX_NAMES: Final = frozenset({"index", "level_0"})
_PANDAS_INDEX: Final = re.compile(r"__index_level_[0-9]+__")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,15}(\.0*)?")
_LONGEST_USUAL: Final = 30
_FEW: Final = 20
"""So many different whole numbers are classes rather than measurements."""
_SHOWN_VALUES: Final = 3
"""Values of a column that a message lists."""
_SHOWN: Final = 20
"""Columns that a message lists."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table by their positions in the file.

    names: of all columns, or None. count: of all columns. label: position of the labels, None if rows
    have none. features, privileged, scores: positions. views: name, first feature and end of each. index:
    position of the column that numbers the rows. ignored: positions of columns that are not read.
    decisions: how label and index were found. label_is_default: whether the label is the last column that is
    not an extra. labels_may_lack: whether the sender allowed rows without a label.
    """

    names: tuple[str, ...] | None
    count: int
    label: int | None
    features: tuple[int, ...]
    privileged: tuple[int, ...] = ()
    scores: tuple[int, ...] = ()
    views: tuple[tuple[str, int, int], ...] = ()
    index: tuple[int, ...] = ()
    ignored: tuple[int, ...] = ()
    decisions: tuple[Decision, ...] = ()
    label_is_default: bool = True
    labels_may_lack: bool = False

    @classmethod
    def of(
        cls,
        names: Sequence[str] | None,
        count: int,
        options: ReadingOptions,
        *,
        index: Mapping[int, str] | None = None,
    ) -> Columns:
        """The columns of a table of ``count`` columns with labels. Raises InvalidRequest.

        index: positions of columns that number the rows, each with the reason.
        """
        if count < 2:
            raise _one_column()
        named = () if names is None else tuple(names)
        roles = {
            prefix: [k for k, name in enumerate(named) if name.startswith(prefix)]
            for prefix in (PRIVILEGED, SCORE)
        }
        extras = {k for positions in roles.values() for k in positions}
        # Features must be left after removing the index.
        found = index if index and count - len(extras) - len(index) > 1 else {}
        left_out = _index(names, count, options, found)
        last = max((k for k in range(count) if k not in extras), default=0)
        label, label_reason = _label(names, count, options, extras, left_out.keys(), last)
        # A column that the sender names as the label is the label, even if it seems to be an index.
        left_out.pop(label, None)
        features = tuple(k for k in range(count) if k != label and k not in extras and k not in left_out)
        if not features or label in extras:
            raise _one_column(f" that is not one of {PRIVILEGED}, {SCORE}")
        columns = cls(
            names=None if names is None else named,
            count=count,
            label=label,
            features=features,
            privileged=tuple(roles[PRIVILEGED]),
            scores=tuple(roles[SCORE]),
            views=() if names is None else _views([named[k] for k in features]),
            index=tuple(left_out),
            label_is_default=label == last,
            labels_may_lack=options.unlabelled is not None,
        )
        _check_kept_names(columns)
        decided = [Decision("index_column", columns.name(k), reason) for k, reason in left_out.items()]
        none = Decision(
            "index_column", NO_COLUMN, GIVEN if options.index_column else "no column seems to be one"
        )
        return replace(
            columns,
            decisions=(Decision("label_column", columns.name(label), label_reason), *(decided or [none])),
        )

    @classmethod
    def of_rows(
        cls,
        names: Sequence[str] | None,
        count: int,
        options: ReadingOptions,
        *,
        index: Mapping[int, str] | None = None,
        known: Known = NOTHING,
    ) -> Columns:
        """The columns of a table of rows without labels; its labels and extras are not read.

        Raises InvalidRequest for missing columns and, if rows are numbers, for unknown ones.
        """
        if known.kinds is not None:
            return cls._of_records(names, count, known)
        has_label = names is not None and known.columns is not None and known.label in names
        if has_label and options.label_column is None:
            options = msgspec.structs.replace(options, label_column=known.label)
        left_out = _index(names, count, options, index or {})
        usual = usual_labels(names, left_out)
        decisions = [Decision("index_column", _name(names, k), reason) for k, reason in left_out.items()]
        ignored = {k for k, name in enumerate(names or ()) if name.startswith((PRIVILEGED, SCORE))}
        if options.label_column is not None:
            ignored.add(find_column(names, count, options.label_column, "label_column"))
            decisions.append(Decision("label_column", options.label_column, GIVEN))
        elif len(usual) == 1:
            ignored.add(usual[0])
            reason = "the only column with a usual name of a label; a query has no use for it"
            decisions.append(Decision("label_column", _name(names, usual[0]), reason))
        features = tuple(k for k in range(count) if k not in ignored and k not in left_out)
        if names is not None and known.columns is not None:
            features = _in_order([(names[k], k) for k in features], known.columns)
        if not features:
            raise invalid_file("The file has no column of features.", code="one_column")
        return cls(
            names=None if names is None else tuple(names),
            count=count,
            label=None,
            features=features,
            index=tuple(left_out),
            ignored=tuple(sorted(ignored)),
            decisions=tuple(decisions),
        )

    @classmethod
    def _of_records(cls, names: Sequence[str] | None, count: int, known: Known) -> Columns:
        """The columns of a table of records: those of the model; no others are read.

        Raises InvalidRequest if a column is missing that each record must have.
        """
        wanted = list(known.kinds or ())
        own = {_name(names, k): k for k in range(count)}
        features = tuple(own[name] for name in wanted if name in own)
        missing = [name for name in wanted if name in known.required and name not in own]
        if missing or not features:
            text = (
                f"The file lacks {_listed(missing or wanted)}. The columns of the model are"
                f" {_listed(wanted)}; those of the file {_listed(list(own))}."
            )
            if names is None:
                text += f" If it has no header, say its names: {reading_hint('column_names', 'a,b,c')}."
            raise invalid_file(text, code="wrong_columns", faults=[InputFault("rows", "wrong_columns", text)])
        ignored = tuple(sorted({*range(count)} - {*features}))
        return cls(None if names is None else tuple(names), count, None, features, ignored=ignored)

    @property
    def label_is_guessed(self) -> bool:
        """Whether the label column has no usual name, so that its values must look like classes."""
        reasons = [one.reason for one in self.decisions if one.name == "label_column"]
        return self.label is not None and reasons[0].startswith((_LAST, _OFTEN))

    @property
    def doubtful_label(self) -> str:
        """The beginning of a sentence about a label column that is guessed, and hardly holds classes."""
        shown = f"{self.label_name!r:.60}" if self.names else self.label_name
        which = f"the last column, {shown}," if self.label_is_default else f"the column {shown}"
        return f"No column has a usual name of a label, and {which} hardly holds classes"

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The names of the features as in the file, including those of views."""
        return None if self.names is None else tuple(self.names[k] for k in self.features)

    @property
    def label_name(self) -> str | None:
        """The name of the label column, its position without names."""
        return None if self.label is None else self.name(self.label)

    @property
    def tables(self) -> dict[str, tuple[int, ...]]:
        """Positions of the columns of each table of numbers, by the field that it becomes; X is first."""
        extras = {"privileged": self.privileged, "teacher_scores": self.scores}
        return {"X": self.features, **{field: columns for field, columns in extras.items() if columns}}

    @property
    def unread(self) -> frozenset[int]:
        """Positions whose cells are not read as numbers or labels."""
        return frozenset(self.index) | frozenset(self.ignored)

    def name(self, position: int) -> str:
        """The name of a column; its position if it has no name or a blank one."""
        return _name(self.names, position)

    def place(self, position: int) -> tuple[str, int | None]:
        """Field and column of a fault at this position of the file; the label has no column."""
        for field, positions in self.tables.items():
            if position in positions:
                return field, positions.index(position)
        return "y", None

    def extras(self, tables: Mapping[str, NDArray[Any]]) -> RawExtras:
        """The extras, whose numbers are in ``tables`` by field."""
        names = self.names or ()
        return RawExtras(
            privileged=tables.get("privileged"),
            privileged_names=_without(PRIVILEGED, (names[k] for k in self.privileged)) or None,
            views=self.views,
            teacher_scores=tables.get("teacher_scores"),
            score_classes=_without(SCORE, (names[k] for k in self.scores)) or None,
        )

    def rows(
        self, X: NDArray[Any] | Table, decisions: tuple[Decision, ...], lines: Sequence[int] | None
    ) -> FeatureRows:
        """The rows ``X`` without labels, from a table with these columns."""
        ignored = tuple(self.name(k) for k in sorted(self.unread))
        return FeatureRows(X, self.feature_names, lines, decisions, ignored)

    @property
    def variant(self) -> tuple[str, ...]:
        """How this reading differs from the one with the last column as the label and all other columns."""
        label = () if self.label_is_default else (f"label_column={self.label_name}",)
        return (*label, *(f"index_column={self.name(k)}" for k in self.index))

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """Code and text of the warning that columns are left out."""
        keep = f"To keep it, send {reading_hint('index_column', NO_COLUMN)}."
        return tuple(
            ("index_left_out", f"Column {said(self.names, one.value)} is left out: {one.reason}. {keep}")
            for one in self.decisions
            if one.name == "index_column" and one.reason != GIVEN and self.index
        )


_LAST: Final = "the last column"
_OFTEN: Final = "the only column whose name is often that of a label"


def _name(names: Sequence[str] | None, position: int) -> str:
    return str(position) if names is None or not names[position].strip() else names[position]


def said(names: Sequence[str] | None, name: str) -> str:
    """A column as messages name it: its number without names."""
    return name if names is None or name not in names else f"{name!r:.80}"


def find_column(names: Sequence[str] | None, count: int, wanted: str, field: str) -> int:
    """Position of a column by its name, or by its number: from 0, or from −1 backwards.

    Raises InvalidRequest with the code ``no_label_column``, or another by the ``field``.
    """
    if names is not None and wanted in names:
        if list(names).count(wanted) > 1:
            text = f"{field}: two columns are named {wanted!r:.120}; say its number, counted from 0."
            raise invalid_file(
                text, code=f"ambiguous_{field}", faults=[InputFault(field, f"ambiguous_{field}", text)]
            )
        return list(names).index(wanted)
    if is_column_number(wanted) and -count <= int(wanted) < count:
        return int(wanted) % count
    near = near_name(wanted, [*map(str.strip, names or ())])
    meant = f" Is {near!r} meant?" if near else ""
    known = "It has no header." if names is None else f"Its columns are {_listed(names)}.{meant}"
    text = f"The table has no column {wanted!r:.120}. {known} Numbers count from 0, from the end from -1."
    raise invalid_file(text, code=f"no_{field}", faults=[InputFault(field, f"no_{field}", text)])


def is_column_number(wanted: str) -> bool:
    """Whether this is a column's number and not only its name."""
    digits = wanted.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 8


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names; repeated names get a number at their end, and blank ones stay."""
    given, taken = set(names), set[str]()
    numbers: dict[str, int] = {}
    found = []
    for name in names:
        one = name
        while one in taken and name.strip():
            numbers[name] = numbers.get(name, 1) + 1
            one = f"{name}_{numbers[name]}"
            if one in given:
                one = name
        taken.add(one)
        found.append(one)
    return tuple(found)


def renamed_warning(before: Sequence[str], names: Sequence[str]) -> list[tuple[str, str]]:
    """The warning that columns of one name have got names of their own."""
    renamed = [name for old, name in zip(before, names, strict=True) if old != name]
    if not renamed:
        return []
    return [("renamed_columns", f"Columns of one name were given names of their own: {_listed(renamed)}.")]


def usual_labels(
    names: Sequence[str] | None, skipped: Collection[int] = (), usual: Collection[str] = USUAL_LABELS
) -> list[int]:
    """Positions of the columns that have a usual name of a label."""
    words = {
        k: re.sub(r"[\s.\-]+", "_", name.strip().casefold())
        for k, name in enumerate(names or ())
        if len(name) <= _LONGEST_USUAL and not name[:1].isdigit()
    }
    found = [k for k, word in words.items() if word in usual and k not in skipped]
    if "x" in words.values() and len(names or ()) > 2:
        # Beside x, y is a coordinate.
        found = [k for k in found if words[k] != "y"]
    return found


def index_candidates(names: Sequence[str] | None) -> tuple[int, ...]:
    """The first column if libraries give an index such a name: blank, ``Unnamed: 0`` or ``index``."""
    if not names:
        return ()
    first = names[0].strip()
    return (0,) if not first or _UNNAMED.fullmatch(first) or first.casefold() in _INDEX_NAMES else ()


def index_reason(name: str, values: Sequence[Any]) -> str | None:
    """Why a column with such a name (see `index_candidates`) is the index; None if it is not.

    values: all of it, texts or numbers.
    """
    texts = [str(value).strip() for value in values]
    whole = all(_WHOLE.fullmatch(text) for text in texts)
    called = f"its name is {name!r:.40}" if name.strip() else "it has no name"
    if whole and counts(np.array([float(text) for text in texts])):
        return f"{called} and it counts the rows"
    if name.strip().casefold() in _INDEX_NAMES or len(set(texts)) != len(texts):
        return None
    # Rows that were shuffled or drawn keep their numbers.
    if whole:
        return f"{called} and it holds a number of its own for each row"
    return (
        None
        if name.strip() or any(map(_NUMBER.fullmatch, texts))
        else f"{called} and each row has its own text"
    )


def counts(values: NDArray[Any]) -> bool:
    """Whether whole numbers go up or down by equal steps, one for each row."""
    if len(values) < 2 or not np.isfinite(values).all():
        return False
    step = values[1] - values[0]
    return bool(step != 0 and step == np.rint(step) and values[0] == np.rint(values[0])) and bool(
        np.array_equal(np.diff(values), np.full(len(values) - 1, step))
    )


def counting_columns(X: NDArray[Any]) -> list[int]:
    """Columns of a table (n, d) that count its rows."""
    if len(X) < MIN_COUNTED:
        return []
    first = X[:MIN_COUNTED].astype(np.float64)
    steps = np.diff(first, axis=0)
    likely = np.flatnonzero((steps == steps[0]).all(axis=0) & (steps[0] != 0))
    return [int(k) for k in likely if counts(X[:, k])]


def label_doubt(labels: Sequence[Any], *, may_lack: bool = False) -> str | None:
    """Why a column hardly holds classes, as a clause; None if it may. labels: texts or numbers.

    may_lack: whether gaps are no doubt.
    """
    distinct = {str(label).strip() for label in set(labels) if label is not None} - {"", "nan"}
    n = len(labels) - sum(label is None or label == "" for label in labels)
    different = len(distinct)
    if len(labels) - n > 0 and not may_lack:
        return f"{len(labels) - n} of its {len(labels)} cells are empty"
    if different > max(3, n / 2):
        return f"it has {different} different values in {n} rows"
    if not all(map(_NUMBER.fullmatch, distinct)):
        return None
    fraction = next((text for text in sorted(distinct) if not _WHOLE.fullmatch(text)), None)
    if fraction is not None:
        return f"it holds numbers such as {fraction:.40}, which measure rather than name classes"
    if different <= _FEW:
        return None
    values = sorted(int(float(text)) for text in distinct)
    is_coded = values[0] in (0, 1) and values[-1] - values[0] == different - 1
    return None if is_coded and n >= 10 * different else f"it holds {different} different numbers"


def ambiguous_label(
    names: Sequence[str] | None,
    candidates: Sequence[int],
    reason: str,
    count: int,
    sample: Sequence[Sequence[str]] = (),
) -> InvalidRequest:
    """The error if the sender must name the label column. reason: a sentence.

    sample: some rows of the file, whose values describe columns without names.
    """
    if names is None:
        # The values let a reader see which column a number means.
        known = [f"{k} ({_values(sample, k)})" if sample else str(k) for k in candidates[:_SHOWN]]
        shown = ", ".join(known) + (", …" if len(candidates) > _SHOWN else "")
        example = str(candidates[0]) if candidates else "0"
    else:
        shown = _listed([names[k] for k in candidates])
        example = names[candidates[0]] if candidates else names[-1]
    likely = f" Columns that may hold the classes: {shown}." if candidates else f" There are {count} columns."
    text = (
        f"{reason}{likely} Say which it is: {reading_hint('label_column', f'{example:.60}')}, by"
        " its name or by its number, counted from 0, negative from the end."
    )
    fault = InputFault("label_column", "ambiguous_label_column", text)
    return invalid_file(text, code="ambiguous_label_column", faults=[fault])


def _values(sample: Sequence[Sequence[str]], column: int) -> str:
    distinct = dict.fromkeys(row[column].strip() for row in sample if column < len(row))
    shown = [f"{value:.30}" for value in distinct if value]
    return ", ".join(shown[:_SHOWN_VALUES]) + (", …" if len(shown) > _SHOWN_VALUES else "")


def likely_labels(rows: Sequence[Sequence[str]], skipped: Collection[int] = ()) -> list[int]:
    """Positions of columns that hold texts or few whole numbers in some rows of a file; few values first."""
    columns = [k for k in range(len(rows[0]) if rows else 0) if k not in skipped]
    cells = {k: [row[k].strip() for row in rows if k < len(row)] for k in columns}
    likely = [k for k in columns if label_doubt(cells[k]) is None]
    return sorted(likely, key=lambda k: len(set(cells[k])))


def _in_order(columns: Sequence[tuple[str, int]], known: Sequence[str]) -> tuple[int, ...]:
    """Positions of named columns in the order of the ``known`` ones, all of which must be there."""
    place = dict(columns)
    missing = [name for name in known if name not in place]
    unknown = [name for name in place if name not in set(known)]
    if missing or unknown or len(place) != len(columns):
        near = near_name(unknown[0], missing) if unknown else None
        parts = [f"lacks {_listed(missing)}"] if missing else []
        parts += [f"has {_listed(unknown)}, which the model does not know"] if unknown else []
        parts += ["has two columns of one name"] if not parts else []
        meant = f" Is {near!r} meant by {unknown[0]!r:.80}?" if near else ""
        text = f"The file {' and '.join(parts)}. The columns of the model are {_listed(known)}.{meant}"
        raise invalid_file(text, code="wrong_columns", faults=[InputFault("rows", "wrong_columns", text)])
    return tuple(place[name] for name in known)


def _label(
    names: Sequence[str] | None,
    count: int,
    options: ReadingOptions,
    extras: Collection[int],
    left_out: Collection[int],
    last: int,
) -> tuple[int, str]:
    """Position of the label column, and why it is that. Raises InvalidRequest."""
    if options.label_column is not None:
        return find_column(names, count, options.label_column, "label_column"), GIVEN
    usual = usual_labels(names, extras)
    if len(usual) > 1:
        raise ambiguous_label(names, usual, "Several columns have a usual name of a label.", count)
    if usual:
        return usual[0], "the only column with a usual name of a label"
    often = usual_labels(names, extras, OFTEN_LABELS)
    if len(often) == 1:
        return often[0], _OFTEN
    if last in left_out:
        last = max((k for k in range(count) if k not in extras and k not in left_out), default=last)
    return last, _LAST if names is None else f"{_LAST}; none has a usual name of a label"


def _index(
    names: Sequence[str] | None, count: int, options: ReadingOptions, found: Mapping[int, str]
) -> dict[int, str]:
    wanted = options.index_column
    if wanted is None:
        return dict(found)
    if wanted == NO_COLUMN and NO_COLUMN not in (names or ()):
        return {}
    return {find_column(names, count, wanted, "index_column"): GIVEN}


def is_pandas_index(name: str) -> bool:
    """Whether pandas gave a column of an Arrow table this name because its index had no name."""
    return _PANDAS_INDEX.fullmatch(name) is not None


def _check_kept_names(columns: Columns) -> None:
    """Raise InvalidRequest for the name of the label or index column if it cannot be stored or is too long.

    The names of features and extras are checked with their numbers.
    """
    kept = {"label_column": (columns.label,), "index_column": columns.index}
    for field, positions in kept.items():
        for position in positions:
            name = "" if columns.names is None or position is None else columns.names[position]
            if (unusable := find_unusable(name)) is not None:
                text = f"The name of column {position} (counted from 0) has {unusable}."
                raise invalid_rows([InputFault(field, "bad_name", text)])
            if len(name) > MAX_COLUMN_NAME:
                text = f"The name {name!r:.40}… of a column is longer than {MAX_COLUMN_NAME} characters."
                raise invalid_rows([InputFault(field, "name_too_long", text)])


def _one_column(of_label: str = "") -> InvalidRequest:
    return invalid_file(
        "The table has only one column; it needs at least one feature column and a label column."
        if not of_label
        else f"The table needs at least one feature column and a label column{of_label}.",
        code="one_column",
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name)[:60] for name in names[:_SHOWN])
    return shown + (", …" if len(names) > _SHOWN else "")


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
