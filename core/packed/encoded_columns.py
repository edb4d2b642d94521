"""Encodes one column of a table or record, by its kind; ``core.packed.encoder`` combines the columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import cos, isfinite, pi, sin
from typing import Any, ClassVar, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from core.data.cell_values import NULLS, category_key, microseconds_of
from core.data.schema import Kind, KindSpec
from core.data.table import Cells, NumberCells, TextCells, Texts, VectorCells
from core.data.validation import MAX_MAGNITUDE
from core.errors import Fault, InvalidProblem
from core.packed.codec import Arrays, Header
from core.packed.term_table import Entries, TermTable, term_entries

Floats: TypeAlias = NDArray[np.float64]

MAX_VALUES: Final = 64
"""Largest number of values of a category that have columns of their own."""
MAX_COLUMNS: Final = 10_000
"""Largest number of columns of a record, and of numbers of a vector."""
MAX_VALUE_BYTES: Final = 4096
"""Largest number of bytes of a category's value."""
FILLS: Final = "fills"
"""Key in the header of a package: whether a column fills gaps."""
CYCLES: Final = ("hour", "weekday", "yearday")
"""Cycles of a date: the hour of the day, the day of the week, the day of the year."""

_DAY: Final = 86_400_000_000
_YEAR: Final = 365.25 * _DAY
_PERIODS: Final = {"hour": _DAY, "weekday": 7 * _DAY, "yearday": round(_YEAR)}


class ColumnEncoder(ABC):
    """Encodes one column. name: of the column. required: whether gaps are refused.

    fills: whether gaps of queries are filled from the other columns, because no training row had a gap.
    ``checked`` checks values of records; all other methods trust their input. A gap is None.
    """

    kind: ClassVar[Kind]
    name: str
    required: bool
    nulls: tuple[str, ...] = ()
    """Texts that mean a gap in this column, in addition to those that do in every column."""
    fills: bool = False
    marks_gaps: bool
    """Whether a dense column indicates gaps."""

    @property
    def spec(self) -> KindSpec:
        """How to read cells of tables and texts of records."""
        return KindSpec(self.kind)

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of dense columns."""

    @property
    def numbers(self) -> int:
        """How many of the first dense columns are numbers, which scaling may change."""
        return 0

    @property
    def tables(self) -> tuple[TermTable, ...]:
        """The known terms of the column's texts, by families."""
        return ()

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The meaning of each dense column, for explanations."""

    @abstractmethod
    def checked(self, value: Any) -> Any:
        """A value of a record, not None, in the form that ``row`` takes. Raises InvalidProblem."""

    @abstractmethod
    def row(self, value: Any) -> list[float]:
        """The dense columns of one checked value or gap."""

    @abstractmethod
    def usual(self, means: Floats) -> list[float]:
        """The dense columns of a usual value. means: of the dense columns in training."""

    @abstractmethod
    def fill(self, cells: Cells, out: Floats) -> None:
        """Write the dense columns (n, width) of the cells of a table to ``out``, which holds zeros."""

    @abstractmethod
    def header(self) -> Header:
        """The column's JSON-ready entry in a package's header, without name and kind."""

    def arrays(self) -> Arrays:
        """The column's arrays by name."""
        return {}

    def entries(self, cells: Cells) -> Entries:
        """The terms of the cells."""
        tables = self.tables
        if not tables:
            return Entries.joined([])
        assert isinstance(cells, TextCells)  # noqa: S101 - only texts have terms
        return _spread(term_entries(tables, list(cells.texts)), cells)

    def _fault(self, code: str, message: str) -> InvalidProblem:
        return InvalidProblem(Fault(self.name, code, message))

    def _checked_vector(self, value: Any, length: int, otherwise: str) -> list[float]:
        """A list of so many finite numbers. otherwise: what is said of a value that is none."""
        if not isinstance(value, list) or len(value) != length:
            raise self._fault("wrong_type", otherwise)
        for number in value:
            if type(number) not in (int, float):
                raise self._fault("wrong_type", f"must be a list of numbers, and has {described(number)}")
            if not abs(number) <= MAX_MAGNITUDE:
                raise self._fault(
                    "not_finite", f"has a number that is not finite or beyond ±{MAX_MAGNITUDE:g}"
                )
        return [*map(float, value)]


@final
@dataclass(frozen=True, slots=True, eq=False)
class NumberColumn(ColumnEncoder):
    """fallback: number for a gap. marks_gaps: whether a column indicates gaps. low, high: range in training.

    is_truth: whether values are true and false. pattern, nulls: format of the numbers in training, see
    `KindSpec`; if either is set, texts are also accepted.
    """

    name: str
    required: bool
    fallback: float
    marks_gaps: bool
    low: float
    high: float
    is_truth: bool = False
    pattern: str | None = None
    nulls: tuple[str, ...] = ()
    fills: bool = False

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        return Kind.BOOLEAN if self.is_truth else Kind.NUMBER

    @property
    def spec(self) -> KindSpec:
        return KindSpec(self.kind, self.pattern, self.nulls)

    @property
    def takes_texts(self) -> bool:
        """Whether texts are read as numbers and gaps, as in training."""
        return self.pattern is not None or bool(self.nulls)

    @property
    def width(self) -> int:
        return 1 + self.marks_gaps

    @property
    def numbers(self) -> int:
        return 1

    @property
    def labels(self) -> tuple[str, ...]:
        return ("value", "missing")[: self.width]

    def checked(self, value: Any) -> float | None:
        if isinstance(value, str) and self.takes_texts:
            return self._of_text(value.strip())
        if self.is_truth:
            if value is True or value is False:
                return float(value)
            raise self._fault("wrong_type", f"must be true or false, not {described(value)}")
        if type(value) is not float and type(value) is not int:
            raise self._fault("wrong_type", f"must be a number, not {described(value)}")
        if not abs(value) <= MAX_MAGNITUDE:
            if isinstance(value, float) and not isfinite(value):
                raise self._fault("not_finite", "is not a finite number")
            raise self._fault("too_large", f"is a number beyond ±{MAX_MAGNITUDE:g}")
        return float(value)

    def _of_text(self, text: str) -> float | None:
        if text in self.nulls or text in NULLS:
            if self.required:
                raise self._fault("missing_value", "has no value")
            return None
        number = self.spec.value_of(text)
        if number is None:
            like = f", written as {self.pattern}" if self.pattern else ""
            raise self._fault("not_numeric", f"is {text!r:.40}, not a number{like}")
        return number

    def row(self, value: float | None) -> list[float]:
        if self.marks_gaps:
            return [self.fallback, 1.0] if value is None else [value, 0.0]
        return [self.fallback if value is None else value]

    def usual(self, means: Floats) -> list[float]:
        del means
        return self.row(self.fallback)

    def fill(self, cells: Cells, out: Floats) -> None:
        assert isinstance(cells, NumberCells)  # noqa: S101 - the caller has converted them
        is_gap = cells.is_gap
        out[:, 0] = np.where(is_gap, self.fallback, cells.values)
        if self.marks_gaps:
            out[:, 1] = is_gap

    def header(self) -> Header:
        return {
            "required": self.required,
            "fallback": self.fallback,
            "marks_gaps": self.marks_gaps,
            "range": [self.low, self.high],
            **({} if self.pattern is None else {"pattern": self.pattern}),
            **({"nulls": list(self.nulls)} if self.nulls else {}),
        }


@final
@dataclass(frozen=True, eq=False)
class CategoryColumn(ColumnEncoder):
    """values: keys with columns of their own, all different. rare: other keys that training had.

    marks_rare: whether a column indicates other values than ``values``. marks_gaps: whether one indicates
    gaps.
    refuses_unseen: whether a value that training did not have is an error. term_tables: terms of a category
    with many values.
    """

    kind: ClassVar[Kind] = Kind.CATEGORY
    name: str
    required: bool
    values: tuple[str, ...]
    rare: tuple[str, ...]
    marks_rare: bool
    marks_gaps: bool
    refuses_unseen: bool = False
    term_tables: tuple[TermTable, ...] = ()
    fills: bool = False

    @property
    def width(self) -> int:
        return len(self.values) + self.marks_rare + self.marks_gaps

    @property
    def tables(self) -> tuple[TermTable, ...]:
        return self.term_tables

    @property
    def labels(self) -> tuple[str, ...]:
        return (
            *self.values,
            *(["rare"] if self.marks_rare else ()),
            *(["missing"] if self.marks_gaps else ()),
        )

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The column of each value; rare values share that of other values; −1 if there is none."""
        other = len(self.values) if self.marks_rare else -1
        return {**dict.fromkeys(self.rare, other), **{key: place for place, key in enumerate(self.values)}}

    @property
    def unseen(self) -> int:
        """The column of values that training did not have; −1 if there is none."""
        return len(self.values) if self.marks_rare else -1

    def checked(self, value: Any) -> str:
        if not isinstance(value, str | float | int) or (isinstance(value, float) and not isfinite(value)):
            raise self._fault("wrong_type", f"must be a text or a number, not {described(value)}")
        key = category_key(value)
        if 4 * len(key) > MAX_VALUE_BYTES and len(key.encode("utf-8", "surrogatepass")) > MAX_VALUE_BYTES:
            raise self._fault("too_long", f"is longer than {MAX_VALUE_BYTES} bytes")
        if self.refuses_unseen and key not in self.places:
            raise self._fault("unknown_value", f"is {key!r:.80}, a value that no row of training had")
        return key

    def row(self, value: str | None) -> list[float]:
        dense = [0.0] * self.width
        place = self._place(value)
        if place >= 0:
            dense[place] = 1.0
        return dense

    def usual(self, means: Floats) -> list[float]:
        """The columns of the most frequent value, or of values without a column if these are more."""
        dense = [0.0] * self.width
        if self.width and means.max() >= 1.0 - means.sum():
            dense[int(means.argmax())] = 1.0
        return dense

    def fill(self, cells: Cells, out: Floats) -> None:
        assert isinstance(cells, TextCells)  # noqa: S101 - the caller has converted them
        place_of = np.array([*map(self._place, cells.texts), self._place(None)], dtype=np.int64)
        places = place_of[cells.codes]
        rows = np.flatnonzero(places >= 0)
        out[rows, places[rows]] = 1.0

    def _place(self, value: str | None) -> int:
        if value is None:
            return self.width - 1 if self.marks_gaps else -1
        return self.places.get(value, self.unseen)

    def header(self) -> Header:
        return {
            "required": self.required,
            "marks_rare": self.marks_rare,
            "marks_gaps": self.marks_gaps,
            "refuses_unseen": self.refuses_unseen,
        }

    def arrays(self) -> Arrays:
        return _texts_arrays("values", self.values) | _texts_arrays("rare", self.rare)


@final
@dataclass(frozen=True, slots=True, eq=False)
class DateColumn(ColumnEncoder):
    """first: midnight of the first day of training, in microseconds since 1970. fallback: date of a gap.

    cycles: those of `CYCLES` that vary in training. pattern, nulls: see `KindSpec`. low, high: first and last
    date of training.
    """

    kind: ClassVar[Kind] = Kind.DATE
    name: str
    required: bool
    first: int
    fallback: int
    cycles: tuple[str, ...]
    marks_gaps: bool
    pattern: str | None
    low: int
    high: int
    nulls: tuple[str, ...] = ()
    fills: bool = False

    @property
    def spec(self) -> KindSpec:
        return KindSpec(self.kind, self.pattern, self.nulls)

    @property
    def width(self) -> int:
        return 1 + 2 * len(self.cycles) + self.marks_gaps

    @property
    def numbers(self) -> int:
        return 1

    @property
    def labels(self) -> tuple[str, ...]:
        waves = (f"{wave} of {cycle}" for cycle in self.cycles for wave in ("sine", "cosine"))
        return ("years", *waves, "missing")[: self.width]

    def checked(self, value: Any) -> int | None:
        if not isinstance(value, str):
            raise self._fault("wrong_type", f"must be a text, not {described(value)}")
        if self.nulls and value.strip() in self.nulls:
            if self.required:
                raise self._fault("missing_value", "has no value")
            return None
        moment = microseconds_of(value.strip(), self.pattern)
        if moment is None:
            like = "2024-05-06 or 2024-05-06T07:08:09+02:00" if self.pattern is None else self.pattern
            raise self._fault("bad_date", f"is not a date like {like}")
        return moment

    def row(self, value: int | None) -> list[float]:
        moment = self.fallback if value is None else value
        dense = [(moment - self.first) / _YEAR]
        for cycle in self.cycles:
            period = _PERIODS[cycle]
            angle = 0.0 if value is None else 2.0 * pi * ((moment % period) / period)
            dense += (0.0, 0.0) if value is None else (sin(angle), cos(angle))
        if self.marks_gaps:
            dense.append(float(value is None))
        return dense

    def usual(self, means: Floats) -> list[float]:
        del means
        return self.row(self.fallback)

    def fill(self, cells: Cells, out: Floats) -> None:
        assert isinstance(cells, TextCells)  # noqa: S101 - the caller has converted them
        moments = [microseconds_of(text, self.pattern) for text in cells.texts]
        out[:] = np.array([self.row(moment) for moment in [*moments, None]])[cells.codes]

    def header(self) -> Header:
        return {
            "required": self.required,
            "first": self.first,
            "fallback": self.fallback,
            "cycles": list(self.cycles),
            "marks_gaps": self.marks_gaps,
            "pattern": self.pattern,
            "range": [self.low, self.high],
            **({"nulls": list(self.nulls)} if self.nulls else {}),
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class TextColumn(ColumnEncoder):
    """term_tables: the known terms, by families."""

    kind: ClassVar[Kind] = Kind.TEXT
    name: str
    required: bool
    term_tables: tuple[TermTable, ...]
    fills: bool = False

    @property
    def marks_gaps(self) -> bool:  # type: ignore[override]
        return False

    @property
    def width(self) -> int:
        return 0

    @property
    def tables(self) -> tuple[TermTable, ...]:
        return self.term_tables

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    def checked(self, value: Any) -> str:
        if not isinstance(value, str):
            raise self._fault("wrong_type", f"must be a text, not {described(value)}")
        return value

    def row(self, value: str | None) -> list[float]:
        del value
        return []

    def usual(self, means: Floats) -> list[float]:
        del means
        return []

    def fill(self, cells: Cells, out: Floats) -> None:
        del cells, out

    def header(self) -> Header:
        return {"required": self.required}


@final
@dataclass(frozen=True, slots=True, eq=False)
class VectorColumn(ColumnEncoder):
    """fallback: the vector for a gap, (w,). marks_gaps: whether a column indicates gaps."""

    kind: ClassVar[Kind] = Kind.VECTOR
    name: str
    required: bool
    fallback: Floats
    marks_gaps: bool
    fills: bool = False

    @property
    def width(self) -> int:
        return len(self.fallback) + self.marks_gaps

    @property
    def labels(self) -> tuple[str, ...]:
        return (*map(str, range(len(self.fallback))), *(["missing"] if self.marks_gaps else ()))

    def checked(self, value: Any) -> list[float]:
        wanted = len(self.fallback)
        return self._checked_vector(
            value, wanted, f"must be a list of {wanted} numbers, not {described(value)}"
        )

    def row(self, value: list[float] | None) -> list[float]:
        numbers = self.fallback.tolist() if value is None else value
        return [*numbers, float(value is None)] if self.marks_gaps else [*numbers]

    def usual(self, means: Floats) -> list[float]:
        del means
        return self.row(self.fallback.tolist())

    def fill(self, cells: Cells, out: Floats) -> None:
        assert isinstance(cells, VectorCells)  # noqa: S101 - the caller has converted them
        is_gap = cells.is_gap
        out[:, : len(self.fallback)] = np.where(is_gap[:, np.newaxis], self.fallback, cells.values)
        if self.marks_gaps:
            out[:, -1] = is_gap

    def header(self) -> Header:
        return {"required": self.required, "marks_gaps": self.marks_gaps}

    def arrays(self) -> Arrays:
        return {"fallback": self.fallback}


def _texts_arrays(name: str, texts: Sequence[str]) -> Arrays:
    packed = Texts.of(texts)
    return {name: packed.data, f"{name}.offsets": packed.offsets}


def _spread(entries: Entries, cells: TextCells) -> Entries:
    """Convert the entries of each text to entries of the cells that have this text."""
    counts = np.bincount(entries.rows, minlength=len(cells.texts))
    starts = np.concatenate([[0], np.cumsum(counts)])
    order = np.argsort(entries.rows, kind="stable")
    rows = np.flatnonzero(cells.codes >= 0)
    lengths = counts[cells.codes[rows]] if len(counts) else np.zeros(0, dtype=np.int64)
    total = int(lengths.sum())
    ends = np.cumsum(lengths)
    within = np.arange(total) - np.repeat(ends - lengths, lengths)
    places = order[np.repeat(starts[cells.codes[rows]], lengths) + within]
    return Entries(np.repeat(rows, lengths), entries.columns[places], entries.values[places])


def described(value: Any) -> str:
    """A value of JSON in the words of messages."""
    names = {str: "a text", bool: "true or false", list: "a list", dict: "an object"}
    return (
        "a number"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else names.get(type(value), f"a {type(value).__name__}")
    )
