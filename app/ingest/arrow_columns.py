"""Columns of Arrow tables from Parquet and Arrow files: raw cells, labels, and types that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest
from app.ingest.cells import (
    AS_TEXT,
    Column,
    number_column,
    picture_column,
    text_column,
    vector_column,
)
from app.ingest.columns import Columns, ambiguous_label, index_candidates, index_reason, is_pandas_index
from app.ingest.raw import MAX_FAULTS, DatasetLimits, invalid_file, invalid_rows
from core.data.schema import KindSpec
from core.data.validation import MAX_MAGNITUDE

DAMAGE: Final = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError)
"""Errors that Arrow raises for damaged files, and for operations that it does not support."""
NO_END: Final = "its end is missing, which says what is in it. Send or fetch it again."
_LONGEST_LABEL: Final = 10_000
_SECONDS: Final = "send seconds as a number, in pandas column.dt.total_seconds()"
_WAYS_OUT: Final[tuple[tuple[Callable[[Any], bool], str], ...]] = (
    (pa.types.is_duration, f"a duration; {_SECONDS}"),
    (pa.types.is_interval, f"an interval; {_SECONDS}"),
    (pa.types.is_time, "a time of day; send the seconds since midnight, or the hour, as a number"),
    (pa.types.is_struct, "a struct; make a column of each of its fields"),
    (pa.types.is_map, "a map; make a column of each of its keys"),
    (pa.types.is_nested, "nested; only lists of numbers are read: make a column of each value, or one text"),
    (pa.types.is_fixed_size_binary, "bytes; send texts or numbers"),
)
"""Types that columns may not have: the name of each, and what to send instead."""


@dataclass(slots=True)
class ArrowCells:
    """Collects the cells of features and extras, and the labels, from batches of one schema.

    kinds: kinds that the sender gave for columns, by name. nulls: tokens of missing values.
    """

    columns: Columns
    kinds: Mapping[str, KindSpec]
    nulls: frozenset[str]
    limits: DatasetLimits
    labels: list[Any] = field(default_factory=list)
    _rows: int = 0
    _bytes: int = 0
    _chunks: dict[int, list[Any]] = field(default_factory=dict)
    _truths: set[int] = field(default_factory=set)
    _pictures: set[int] = field(default_factory=set)
    _faults: list[InputFault] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch) -> None:
        """Some more rows. Raises TooLarge, and InvalidRequest that names numbers of unusable size."""
        self.limits.check_shape(self._rows + len(batch), self.columns.count)
        self._bytes += batch.nbytes
        self.limits.check_bytes(self._bytes)
        for positions in self.columns.tables.values():
            for k in positions:
                cells = converted(self.columns.name(k), batch.column(k), partial(self._cells, k))
                self._chunks.setdefault(k, []).append(cells)
        if self.columns.label is not None:
            self.labels += converted(
                self.columns.name(self.columns.label), batch.column(self.columns.label), labels_of
            )
        self._rows += len(batch)
        self._check()

    def read(self) -> dict[int, Column]:
        """The columns by position. Raises InvalidRequest that names lists of different lengths."""
        found = {k: self._column(k, self._chunks.pop(k)) for k in [*self._chunks]}
        self._check()
        return found

    def _cells(self, position: int, values: pa.Array) -> Any:
        """Numbers as a NumPy array, texts and lists as Arrow arrays. values: see `plain`."""
        if is_picture(values.type):
            self._pictures.add(position)
            return pc.cast(pc.struct_field(values, "bytes"), pa.large_binary())
        if is_text(values.type):
            return values
        if is_moment(values.type):
            return moments(values)
        if is_list(values.type):
            return pc.cast(values, pa.large_list(pa.float64()), safe=False)
        said = self.kinds.get(self.columns.name(position))
        if said is not None and said.kind in AS_TEXT and pa.types.is_integer(values.type):
            return pc.cast(values, pa.string())
        if pa.types.is_boolean(values.type):
            self._truths.add(position)
        numbers: NDArray[Any] = pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(np.abs(numbers) > MAX_MAGNITUDE)[:MAX_FAULTS]:
            what = f"beyond ±{MAX_MAGNITUDE:g}" if np.isfinite(numbers[row]) else "not a finite number"
            code = "too_large" if np.isfinite(numbers[row]) else "not_finite"
            self._add_fault(position, code, self._rows + int(row), f"{numbers[row]:g} is {what}")
        return numbers

    def _column(self, position: int, chunks: list[Any]) -> Column:
        if isinstance(chunks[0], np.ndarray):
            return number_column(np.concatenate(chunks), {}, is_truth=position in self._truths)
        if position in self._pictures:
            return picture_column(chunks)
        if pa.types.is_large_list(chunks[0].type):
            return self._vectors(position, pa.chunked_array(chunks).combine_chunks())
        try:
            return text_column(chunks, self.nulls, self.kinds.get(self.columns.name(position)))
        except pa.ArrowInvalid as error:
            text = f"Column {self.columns.name(position)!r:.80} has texts that are not UTF-8."
            raise invalid_rows([InputFault("X", "bad_encoding", text)]) from error

    def _vectors(self, position: int, lists: pa.Array) -> Column:
        """Lists of one length."""
        lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(lengths >= 0)
        width = int(lengths[rows[0]]) if len(rows) else 1
        wrong = rows[lengths[rows] != width] if width else rows[:1]
        for row in map(int, wrong[:MAX_FAULTS]):
            what = f"the list has {lengths[row]} numbers; {width or 'one or more'} are expected"
            self._add_fault(position, "ragged_vector", row, what)
        values = lists.flatten().to_numpy(zero_copy_only=False)
        if len(wrong):
            return number_column(values, {})
        # NaN fails the comparison.
        for place in np.flatnonzero(~(np.abs(values) <= MAX_MAGNITUDE))[:MAX_FAULTS]:
            row = int(rows[place // width])
            self._add_fault(position, "not_finite", row, "a number of the list is missing or not finite")
        return vector_column([lists], width)

    def _add_fault(self, position: int, code: str, row: int, what: str) -> None:
        where, place = self.columns.place(position)
        text = f"Row {row} (counted from 0), column {self.columns.name(position)!r:.80}: {what}."
        self._faults.append(InputFault(where, code, text, row=row, column=place))

    def _check(self) -> None:
        if self._faults:
            raise invalid_rows(self._faults[:MAX_FAULTS])


def check_types(schema: pa.Schema, columns: Columns) -> None:
    """Raise InvalidRequest for columns of types that are neither cells nor labels."""
    faults = []
    for position, column in enumerate(schema):
        if position in columns.unread:
            continue
        kind, (where, place) = column.type, columns.place(position)
        if position == columns.label:
            if not (is_text(kind) or is_number(kind) or is_moment(kind) or pa.types.is_null(inner(kind))):
                text = f"The label column {column.name!r:.80} is of type {_shown(kind)}{way_out(kind)}."
                faults.append(InputFault("y", "bad_label_type", text))
        elif not is_cell(kind):
            text = f"Column {column.name!r:.80} is of type {_shown(kind)}, which no column of a data set may"
            faults.append(InputFault(where, "bad_type", f"{text} have{way_out(kind)}.", column=place))
    if faults:
        raise invalid_rows(faults[:MAX_FAULTS])


def index_of(schema: pa.Schema, first_column: Callable[[], Sequence[Any]]) -> dict[int, str]:
    """Positions of columns that were the index of a data frame or number the rows, each with the reason.

    first_column: gives the values of the first column.
    """
    described = schema.pandas_metadata or {}
    stored = {name for name in described.get("index_columns", ()) if isinstance(name, str)}
    found = {}
    for position, name in enumerate(schema.names):
        if name in stored:
            found[position] = "the file says that it was the index of a data frame of pandas"
        elif is_pandas_index(name):
            found[position] = "pandas gives this name to the index of a data frame"
    for position in index_candidates(schema.names):
        kind = schema.field(position).type
        if position not in found and (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_text(kind)
        ):
            reason = index_reason(schema.names[position], first_column())
            if reason is not None:
                found[position] = reason
    return found


def ambiguous(schema: pa.Schema, columns: Columns, doubt: str) -> InvalidRequest:
    """The error if the last column probably does not hold classes. doubt: the reason, a clause."""
    kinds = [column.type for column in schema]
    skipped = {columns.label, *columns.unread, *columns.privileged, *columns.scores}
    usable = [k for k in range(columns.count) if k not in skipped]
    texts = [k for k in usable if is_text(kinds[k]) or pa.types.is_boolean(kinds[k])]
    whole = [k for k in usable if pa.types.is_integer(kinds[k])]
    reason = f"{columns.doubtful_label}: {doubt}."
    return ambiguous_label(columns.names, [*texts, *whole], reason, columns.count)


def inner(kind: pa.DataType) -> pa.DataType:
    """The type of the values themselves, without encodings and names."""
    while True:
        if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def is_measured(kind: pa.DataType) -> bool:
    """Whether values are floats or decimals."""
    return bool(pa.types.is_floating(inner(kind)) or pa.types.is_decimal(inner(kind)))


def is_number(kind: pa.DataType) -> bool:
    """Whether values are numbers or booleans."""
    return bool(
        pa.types.is_integer(inner(kind)) or pa.types.is_boolean(inner(kind)) or is_measured(inner(kind))
    )


def is_text(kind: pa.DataType) -> bool:
    """Whether values are texts or bytes."""
    one = inner(kind)
    return bool(
        pa.types.is_string(one)
        or pa.types.is_large_string(one)
        or pa.types.is_string_view(one)
        or pa.types.is_binary(one)
        or pa.types.is_large_binary(one)
        or pa.types.is_binary_view(one)
    )


def is_moment(kind: pa.DataType) -> bool:
    """Whether values are days or moments."""
    return bool(pa.types.is_date(inner(kind)) or pa.types.is_timestamp(inner(kind)))


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists of numbers."""
    one = inner(kind)
    has_lists = pa.types.is_list(one) or pa.types.is_large_list(one) or pa.types.is_fixed_size_list(one)
    return bool(has_lists and is_number(one.value_type) and inner(one.value_type) == one.value_type)


def is_picture(kind: pa.DataType) -> bool:
    """Whether values are pictures as Hugging Face has them: a struct of ``bytes``, mostly with ``path``."""
    one = inner(kind)
    if not pa.types.is_struct(one):
        return False
    names = {one.field(k).name for k in range(one.num_fields)}
    return "bytes" in names <= {"bytes", "path"} and is_text(one.field("bytes").type)


def is_cell(kind: pa.DataType) -> bool:
    """Whether values may be cells of a table."""
    has_cells = is_number(kind) or is_text(kind) or is_moment(kind) or is_list(kind) or is_picture(kind)
    return has_cells or bool(pa.types.is_null(inner(kind)))


def way_out(kind: pa.DataType) -> str:
    """The description of a refused type and what to send instead, as the end of a sentence."""
    return next((f": it is {text}" for is_kind, text in _WAYS_OUT if is_kind(inner(kind))), "")


def _shown(kind: pa.DataType) -> str:
    """A type without its parameters, which some formats name in their own way."""
    return str(kind).partition("<")[0] if pa.types.is_nested(kind) else str(kind)


def plain(values: pa.Array) -> pa.Array:
    """The values without Arrow's encodings: runs, views, extensions and dictionaries.

    Only texts stay dictionary-encoded, because long repeated texts would take too much memory.
    """
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain(values.storage)
    if pa.types.is_run_end_encoded(kind):
        places = pa.array(np.arange(len(values.values)), pa.int64())
        runs = pa.RunEndEncodedArray.from_arrays(values.run_ends, places)
        rows = pc.run_end_decode(runs.slice(values.offset, len(values)))
        return plain(values.values).take(rows)
    if pa.types.is_string_view(kind):
        return values.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return values.cast(pa.large_binary())
    if not pa.types.is_dictionary(kind):
        return values
    dictionary = plain(values.dictionary)
    if is_text(kind) and not pa.types.is_dictionary(dictionary.type):
        return pa.DictionaryArray.from_arrays(values.indices, dictionary)
    return dictionary.take(values.indices)


def batches_of(kind: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of a file of a ``kind``; errors that Arrow raises during reading become InvalidRequest."""
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except pa.ArrowMemoryError:
            raise
        except DAMAGE as error:
            raise unreadable(kind, error) from error
        yield batch


def unreadable(kind: str, error: Exception) -> InvalidRequest:
    """The error of a file of a ``kind`` that Arrow does not read."""
    text = f"The {kind} file is cut off or damaged: {error}"
    if isinstance(error, pa.ArrowNotImplementedError):
        text = f"The {kind} file has something that is not read: {error}. Write it as CSV, or in another way."
    return invalid_file(text, code="unreadable_file")


@contextmanager
def errors_as_invalid(kind: str) -> Iterator[None]:
    """Convert errors that Arrow raises for the values of a whole file of a ``kind`` to InvalidRequest."""
    try:
        yield
    except pa.ArrowMemoryError:
        raise
    except DAMAGE as error:
        raise invalid_file(f"The {kind} file cannot be read: {error}", code="unreadable_file") from error


def converted(name: str, values: pa.Array, convert: Callable[[pa.Array], Any]) -> Any:
    """The values of a column, converted by ``convert`` from `plain` values. Raises InvalidRequest."""
    try:
        return convert(plain(values))
    except pa.ArrowMemoryError:
        raise
    except DAMAGE as error:
        if is_text(values.type) and not isinstance(error, pa.ArrowNotImplementedError):
            text = f"Column {name!r:.80} has texts that are not UTF-8."
            raise invalid_rows([InputFault("X", "bad_encoding", text)]) from error
        text = f"Column {name!r:.80} of type {values.type} cannot be read: {error}."
        raise invalid_rows([InputFault("X", "bad_type", text)]) from error


def moments(values: pa.Array) -> pa.Array:
    """Dates and times as texts of ISO 8601; those with a time zone are in UTC."""
    if pa.types.is_date(values.type):
        return pc.cast(pc.cast(values, pa.date32()), pa.string())
    zone = None if values.type.tz is None else "UTC"
    texts = pc.cast(pc.cast(values, pa.timestamp("us", zone), safe=False), pa.string())
    without_zeros = pc.replace_substring_regex(texts, r"(\.[0-9]*[1-9])0+(Z?)$", r"\1\2")
    return pc.replace_substring_regex(without_zeros, r"\.0+(Z?)$", r"\1").cast(pa.string())


def labels_of(values: pa.Array) -> list[Any]:
    """Labels as text, numbers or booleans; None where one is missing. values: see `plain`.

    Raises InvalidRequest.
    """
    if not is_text(values.type):
        if is_moment(values.type):
            values = moments(values)
        elif pa.types.is_decimal(values.type):
            values = pc.cast(values, pa.string())
        listed: list[Any] = values.to_pylist()
        return listed
    coded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    longest = pc.max(pc.binary_length(coded.dictionary)).as_py()
    if longest is not None and longest > _LONGEST_LABEL:
        raise invalid_file(f"A label is {longest} bytes long.", code="label_too_long")
    # All rows of a class share one str object.
    names = [*pc.cast(coded.dictionary, pa.string()).to_pylist(), None]
    return [names[code] for code in pc.fill_null(coded.indices, len(names) - 1).to_pylist()]
