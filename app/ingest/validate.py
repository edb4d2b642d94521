"""Validates the raw content of a file, and summarises it with warnings for the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from app.domain.entities import Json
from app.domain.errors import InputFault
from app.domain.names import without_unusable
from app.ingest.columns import counting_columns
from app.ingest.label_warnings import count_warnings, label_warnings
from app.ingest.leak_warnings import leak_warnings, row_warnings, shared_warnings
from app.ingest.left_out import MIN_PER_CLASS, RareClasses, Unlabelled, choose_left_out, without_chosen
from app.ingest.raw import (
    MAX_FAULTS,
    LinesOf,
    RawData,
    RawPart,
    RawTable,
    in_lines,
    input_faults,
    invalid_rows,
)
from app.ingest.table_summary import summarise_table
from app.ingest.validate_table import validate_table, validate_test_table
from core.data.dataset import LabelledData
from core.data.description import describe
from core.data.reading_hints import reading_hint
from core.encoding.labelled_table import LabelledTable
from core.errors import InvalidProblem

_LISTED_COLUMNS = 10

T = TypeVar("T")


Data: TypeAlias = LabelledData | LabelledTable


def validate(
    raw: RawData, *, unlabelled: Unlabelled | None = None, rare_classes: RareClasses | None = None
) -> tuple[Data, Data | None]:
    """Training part and test part, checked by core.

    unlabelled, rare_classes: what to do with training rows without a label, and with those of classes that
    are too small; None leaves a few of them out, and refuses more; "keep" is for rows to test on. Raises
    InvalidRequest that names field, row and column of the first faults.
    """
    chosen = choose_left_out(raw.train.labels, unlabelled, rare_classes)
    keeps = unlabelled == "accept" or chosen.unlabelled
    least = 1 if chosen.rare or rare_classes == "keep" else MIN_PER_CLASS
    if isinstance(raw.train.X, RawTable):
        table = validate_table(raw, raw.train.X, unlabelled=keeps, min_per_class=least)
        table = replace(table, marks=raw.train.marks)
        kept = _checked(lambda: without_chosen(table, chosen), part="")
        if raw.test is None:
            return kept, None
        return kept, _checked(lambda: validate_test_table(raw, kept), part="_test")
    train_labels, order = _named_labels(raw, raw.train, keeps)
    train = _checked(
        lambda: LabelledData.from_arrays(
            raw.train.X,
            train_labels,
            raw.feature_names,
            order,
            min_per_class=least,
            extras=raw.train.extras,
            unlabelled=keeps,
        ),
        part="",
        lines_of=raw.lines_of,
    )
    train = replace(train, marks=raw.train.marks)
    train = _checked(lambda: without_chosen(train, chosen), part="")
    if raw.test is None:
        return train, None
    test, (test_labels, _) = raw.test, _named_labels(raw, raw.test, False)
    tested = _checked(
        lambda: LabelledData.with_codes(
            test.X, test_labels, train.classes, raw.feature_names, n_columns=train.d, extras=test.extras
        ),
        part="_test",
    )
    return train, replace(tested, marks=test.marks)


def summarise(raw: RawData, train: Data, test: Data | None) -> Json:
    """What `core.data.description` says of the training part, the size of the test part and ``warnings``.

    ``reading``: the decisions of the reader, each with name, value and reason. ``schema``: the columns of a
    table of raw cells, see `app.ingest.table_summary`.
    """
    if isinstance(train, LabelledTable):
        return summarise_table(raw, raw.train.X, train) | {"test": _tested(test)}
    summary = describe(train)
    summary["label_column"] = raw.label_column
    summary["reading"] = [msgspec.to_builtins(decision) for decision in raw.decisions]
    summary["test"] = _tested(test)
    summary["warnings"] = [
        {"code": code, "message": message} for code, message in _warnings(raw, summary, train, test)
    ]
    return summary


def _tested(test: Data | None) -> Json | None:
    return None if test is None else {"rows": test.n, "classes": len(np.unique(test.y))}


def _warnings(
    raw: RawData, summary: Json, train: LabelledData, test: Data | None
) -> Sequence[tuple[str, str]]:
    warnings = [*raw.warnings, *_counting(train), *leak_warnings(train), *label_warnings(raw, train)]
    constant, duplicate = summary["constant_columns"], summary["duplicate_columns"]
    if constant:
        text = (
            f"{_columns(constant)} the same value in every row: {_listed(summary, 'constant_columns', raw)}."
        )
        warnings.append(("constant_columns", text))
    if nearly := summary["nearly_constant_columns"]:
        which = _listed(summary, "nearly_constant_columns", raw)
        text = f"{_columns(nearly)} values that differ by no more than rounding, and no use: {which}."
        warnings.append(("nearly_constant_columns", text))
    if duplicate:
        warnings.append(("duplicate_columns", f"{_columns(duplicate)} the same values as an earlier column."))
    warnings += row_warnings(raw, summary, train)
    if summary["more_features_than_rows"]:
        text = f"There are more columns ({summary['columns']}) than rows ({summary['rows']})."
        warnings.append(("more_features_than_rows", text))
    warnings += count_warnings(train)
    if raw.ignored:
        names = without_unusable(", ".join(raw.ignored)[:1000])
        warnings.append(("ignored_arrays", f"These arrays are not used: {names}."))
    if isinstance(test, LabelledData):
        warnings += shared_warnings(train, test)
    if test is not None and summary["test"]["classes"] < test.K:
        text = f"The test part has examples of only {summary['test']['classes']} of {test.K} classes."
        warnings.append(("classes_without_test", text))
    return warnings


def _listed(summary: Json, which: str, raw: RawData) -> str:
    """The first columns of a list in the summary by number, from 0, and by name if they have one."""
    columns = summary[f"first_{which}"]
    names = raw.feature_names
    shown = [str(k) if names is None else f"{k} ({names[k]!r:.60})" for k in columns[:_LISTED_COLUMNS]]
    return ", ".join(shown) + (", …" if summary[which] > len(shown) else "")


def _counting(train: LabelledData) -> list[tuple[str, str]]:
    """The warning that columns count the rows."""
    if not isinstance(train.X, np.ndarray):
        return []
    names = train.feature_names
    text = (
        "Column {} counts the rows; where a file is sorted by class, a row's number gives its class away. If"
        f" it does nothing else, leave it out: {reading_hint('index_column', 'COLUMN')}."
    )
    return [
        ("counts_rows", text.format(column if names is None else repr(names[column])[:80]))
        for column in counting_columns(train.X)[:MAX_FAULTS]
    ]


def _columns(count: int) -> str:
    return f"{count} column{' has' if count == 1 else 's have'}"


def _named_labels(raw: RawData, part: RawPart, unlabelled: bool) -> tuple[Any, tuple[str, ...] | None]:
    """Labels of a part and the order of the classes; codes become names if the file has class_names.

    unlabelled: whether the code −1 means that a label is missing.
    """
    if raw.class_names is None:
        return part.labels, None
    names = raw.class_names
    labels, known = np.asarray(part.labels), np.unique(np.asarray(raw.train.labels))
    if labels.ndim != 1 or labels.dtype.kind not in "biu":
        # The labels are names already, so class_names only gives their order.
        return part.labels, tuple(name for name in names if name in set(known.tolist())) or names
    missing = np.zeros(len(labels), dtype=bool)
    if unlabelled:
        missing, known = labels == -1, known[known != -1]
    if len(known) == len(names):
        index = np.searchsorted(known, labels)
        valid = (index < len(known)) & (known[np.minimum(index, len(known) - 1)] == labels)
    else:
        index, valid = labels, (labels >= 0) & (labels < len(names))
        known = known[(known >= 0) & (known < len(names))]
    valid |= missing
    if not valid.all():
        row = int(np.argmin(valid))
        text = f"The label {labels[row]} in row {row} (counted from 0) has no name in class_names."
        raise invalid_rows(
            [InputFault("y" if part is raw.train else "y_test", "unknown_class", text, row=row)]
        )
    order = names if len(known) == len(names) else tuple(names[code] for code in known)
    named = np.asarray(names, dtype=object)[np.where(missing, 0, index)]
    named[missing] = None
    return named, order


def _checked(make: Callable[[], T], *, part: str, lines_of: LinesOf | None = None) -> T:
    try:
        return make()
    except InvalidProblem as error:
        faults = in_lines(input_faults(error, part), lines_of)
        if part:
            faults = [replace(fault, message=f"Test part: {fault.message}") for fault in faults]
        raise invalid_rows(faults) from error
