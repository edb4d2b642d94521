"""Explanations by column: what of a row speaks for the class and what against it, in JSON.

"base"      the score of a typical row
"exact"     whether base and effects add up to the score, but for rounding
"columns"   name, value, effect, whether training had such a value, and the words of a text, the largest
            effects first
"rest"      the sum of the effects that are not listed, if there are any
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest, TooLarge, Unprocessable
from app.serving.decision import COLUMNS, Explain
from app.serving.inputs import Inputs
from app.serving.record_notes import is_known
from app.serving.record_sources import RecordSource
from app.serving.records import Records
from app.serving.servable import ServableStudent
from app.serving.work import TOO_MUCH_WORK, row_work
from core.packed.contributions import Baseline, Contributions, compared_rows, contributions, effects_of_words
from core.packed.encoded_columns import TextColumn
from core.packed.record_rows import EncodedRecord, Values, is_gap

MOST_ROWS: Final = 100
"""Rows of one request that are explained by columns."""
MOST_COLUMNS: Final = 100
MOST_WORDS: Final = 10
"""Effects that are listed, of columns and of the words of a text."""
_LONGEST: Final = 200
"""Characters of a value that are shown."""

_encode: Final = msgspec.json.Encoder().encode
_NO_TERMS: Final = (np.empty(0, dtype=np.int64), np.empty(0))


def record_explainer(
    students: Sequence[ServableStudent], source: RecordSource, max_work: int
) -> Callable[[Values], list[bytes]]:
    """From the values of a record to its explanation by each student of one version.

    It raises InvalidProblem. Raises TooLarge for more records, or more work, than are explained.
    """
    check_explained_rows(len(source))
    records = source.records
    baseline = records.baseline
    _check_work(students, len(source), baseline, max_work)

    def explained(values: Values) -> list[bytes]:
        encoded = records.rows.encode(values)
        by_name = dict(zip((one.name for one in records.rows.columns), values, strict=True))
        return [
            _record_json(records, by_name, encoded, contributions(served.student, encoded, baseline))
            for served in students
        ]

    return explained


def explain_numbers(
    students: Sequence[ServableStudent], inputs: Inputs, table: NDArray[Any], max_work: int
) -> list[list[bytes]]:
    """The explanation of each of the rows (n, d) of numbers by each student of one version.

    Raises Unprocessable, InvalidProblem and TooLarge.
    """
    baseline = inputs.baseline
    if baseline is None:
        text = (
            f"{inputs.where} has not kept the means of its columns, with which a row is compared: it has too"
            " many columns for that, was made by an earlier release, or was imported."
        )
        raise Unprocessable(text, code="no_means", faults=[InputFault("explain", "no_means", text)])
    _check_work(students, len(table), baseline, max_work)
    is_outside = inputs.is_outside(table)
    explained: list[list[bytes]] = [[] for _ in students]
    for row, outside in zip(table.astype(np.float64), is_outside, strict=True):
        encoded = EncodedRecord(row.tolist(), *_NO_TERMS)
        for served, of_one in zip(students, explained, strict=True):
            found = contributions(served.student, encoded, baseline)
            order = _largest(found.columns, MOST_COLUMNS)
            entries = [
                {
                    "name": inputs.name_of(place),
                    "value": encoded.dense[place],
                    "effect": float(found.columns[place]),
                    "known": not outside[place],
                }
                for place in order
            ]
            of_one.append(_json(found, order, entries))
    return explained


def check_answered_in_json(explain: Explain, *, is_json: bool) -> None:
    """Refuse effects of columns in an answer that is a tensor."""
    if explain == COLUMNS and not is_json:
        text = "An explanation by columns is answered in JSON, and the request accepts none."
        raise InvalidRequest(
            text, code="bad_parameter", faults=[InputFault("explain", "bad_parameter", text)]
        )


def check_explained_rows(rows: int) -> None:
    """Raise TooLarge if a request has more rows than are explained by columns."""
    if rows > MOST_ROWS:
        message = f"The query has {rows} rows; at most {MOST_ROWS} are explained by columns at once."
        raise TooLarge(message, code="too_many_rows")


def _check_work(students: Sequence[ServableStudent], rows: int, baseline: Baseline, max_work: int) -> None:
    work = sum(
        compared_rows(served.student, baseline.columns)
        * row_work(served.student.map, served.student.form.functions)
        for served in students
    )
    if rows * work > max_work:
        message = (
            f"An explanation by columns costs {rows * work:.2g} multiply-adds for these rows and classes; at"
            f" most {max_work:.2g} are computed for one request. Ask about fewer rows or classes."
        )
        raise TooLarge(message, code=TOO_MUCH_WORK)


def _record_json(
    records: Records, by_name: Mapping[str, Any], encoded: EncodedRecord, found: Contributions
) -> bytes:
    order = _largest(found.columns, MOST_COLUMNS)
    firsts = records.baseline.terms
    entries: list[dict[str, Any]] = []
    for place in order:
        column = records.encoder.columns[place]
        value = by_name[column.name]
        entry = {"name": column.name, "effect": float(found.columns[place]), "known": is_known(column, value)}
        if not isinstance(value, list):
            entry["value"] = _shown(value)
        if isinstance(column, TextColumn) and found.terms is not None and isinstance(value, str):
            text = "" if is_gap(column, value) else value
            within = (encoded.columns >= firsts[place]) & (encoded.columns < firsts[place + 1])
            own = encoded.columns[within] - firsts[place]
            words = effects_of_words(column.tables, text, own, found.terms[within])
            effects = np.array([*words.values()])
            spelled = list(words)
            entry["words"] = [
                {"word": _shown(spelled[at]), "effect": float(effects[at])}
                for at in _largest(effects, MOST_WORDS)
            ]
        entries.append(entry)
    return _json(found, order, entries)


def _json(found: Contributions, order: Sequence[int], entries: Sequence[Mapping[str, Any]]) -> bytes:
    fields: dict[str, Any] = {"base": found.base, "exact": found.is_exact, "columns": entries}
    if len(order) < len(found.columns):
        others = np.ones(len(found.columns), dtype=bool)
        others[list(order)] = False
        fields["rest"] = float(found.columns[others].sum())
    return _encode(fields)[1:-1]


def _largest(effects: NDArray[np.float64], most: int) -> list[int]:
    """Places of the effects that are farthest from 0, at most so many."""
    order: list[int] = np.argsort(-np.abs(effects), kind="stable")[:most].tolist()
    return order


def _shown(value: Any) -> Any:
    """A value of a record as answers have it, a long text cut."""
    return value[: _LONGEST - 1] + "…" if isinstance(value, str) and len(value) > _LONGEST else value
