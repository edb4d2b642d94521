"""Explanations by column, in JSON: which values of a row speak for the class, and which against it.

"base"      the score of a typical row
"exact"     whether base and effects add up to the score, up to rounding
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
from app.serving.columns.base import Columns, Students
from app.serving.columns.notes import is_known
from app.serving.columns.reading import Records
from app.serving.decision import COLUMNS, Explain
from app.serving.work import TOO_MUCH_WORK, RequestLimits
from core.packed.contributions import Baseline, Contributions, effects_of_words, explainer, explanation_work
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
    students: Students, records: Records, rows: int, limits: RequestLimits
) -> Callable[[Values], list[bytes]]:
    """A function from the values of a record to its explanation for each student of one version.

    rows: number of rows in the request. It raises InvalidProblem. Raises TooLarge for more records, or more
    work, than the limit of explanations.
    """
    explainers = _explainers(students, rows, records.baseline, limits)

    def explained(values: Values) -> list[bytes]:
        encoded = records.rows.encode(values)
        by_name = dict(zip((one.name for one in records.rows.columns), values, strict=True))
        return [
            _record_json(records, by_name, encoded, contributions_of(encoded))
            for contributions_of in explainers
        ]

    return explained


def numbers_explainer(
    students: Students, columns: Columns, rows: int, limits: RequestLimits
) -> Callable[[NDArray[Any]], list[list[bytes]]]:
    """A function from rows (n, d) of numbers to the explanations of each for each student of one version.

    rows: number of rows in the request. It raises InvalidProblem. Raises Unprocessable; TooLarge as
    `record_explainer`.
    """
    baseline = columns.baseline
    if baseline is None:
        text = (
            f"{columns.where} has not kept the means of its columns, with which a row is compared: it has too"
            " many columns for that, or was imported."
        )
        raise Unprocessable(text, code="no_means", faults=[InputFault("explain", "no_means", text)])
    explainers = _explainers(students, rows, baseline, limits)

    def explained(table: NDArray[Any]) -> list[list[bytes]]:
        is_outside = columns.is_outside(table)
        of_students: list[list[bytes]] = [[] for _ in students]
        for row, outside in zip(table.astype(np.float64), is_outside, strict=True):
            encoded = EncodedRecord(row.tolist(), *_NO_TERMS)
            for contributions_of, of_student in zip(explainers, of_students, strict=True):
                of_student.append(_row_json(columns, encoded, outside, contributions_of(encoded)))
        return of_students

    return explained


def check_explained(explain: Explain, limits: RequestLimits, *, is_json: bool) -> None:
    """Refuse effects of columns in an answer that is a tensor, and in the event loop."""
    if explain == COLUMNS and not limits.explains_columns:
        raise TooLarge("Explanations by columns are computed in threads.", code=TOO_MUCH_WORK)
    if explain == COLUMNS and not is_json:
        text = "An explanation by columns is answered in JSON, and the request accepts none."
        raise InvalidRequest(
            text, code="bad_parameter", faults=[InputFault("explain", "bad_parameter", text)]
        )


def _explainers(
    students: Students, rows: int, baseline: Baseline, limits: RequestLimits
) -> list[Callable[[EncodedRecord], Contributions]]:
    """The explainers of rows, one for each student.

    Raises TooLarge for more rows, or more work, than the limit of explanations.
    """
    if rows > MOST_ROWS:
        message = f"The query has {rows} rows; at most {MOST_ROWS} are explained by columns at once."
        raise TooLarge(message, code="too_many_rows")
    work = sum(explanation_work(served.student, baseline, rows) for served in students)
    if work > limits.max_work:
        message = (
            f"An explanation by columns costs {work:.2g} multiply-adds for these rows and classes; at"
            f" most {limits.max_work:.2g} are computed for one request. Ask about fewer rows or classes."
        )
        raise TooLarge(message, code=TOO_MUCH_WORK)
    return [explainer(served.student, baseline) for served in students]


def _row_json(
    columns: Columns, encoded: EncodedRecord, outside: Sequence[bool], contributions: Contributions
) -> bytes:
    order = _largest(contributions.columns, MOST_COLUMNS)
    entries = [
        {
            "name": columns.name_of(place),
            "value": encoded.dense[place],
            "effect": float(contributions.columns[place]),
            "known": not outside[place],
        }
        for place in order
    ]
    return _json(contributions, order, entries)


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
    """Positions of the ``most`` effects that are farthest from 0."""
    order: list[int] = np.argsort(-np.abs(effects), kind="stable")[:most].tolist()
    return order


def _shown(value: Any) -> Any:
    """A value of a record as answers have it, a long text cut."""
    return value[: _LONGEST - 1] + "…" if isinstance(value, str) and len(value) > _LONGEST else value
