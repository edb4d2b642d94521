"""What the columns of a table are: features, the label, and extras, which a column's name announces.

privileged:NAME     a column that is known in training only
score:CLASS         a teacher's score of a class
view:NAME:COLUMN    a feature that belongs to the view NAME; the columns of a view stand side by side

All other columns are features, or the label. Tables without names have features and a label only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from app.domain.errors import InputFault
from app.ingest.raw import choose_label_column, invalid_file, invalid_rows
from core.data.extras import RawExtras

PRIVILEGED: Final = "privileged:"
SCORE: Final = "score:"
VIEW: Final = "view:"


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
