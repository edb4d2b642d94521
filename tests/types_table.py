"""The table of types and ways: what becomes of a value of each type, whichever way it comes.

`tests/app/ingest/test_types.py` walks it, and docs/types.md shows it: ``python -m tests.types_table`` prints
that page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Final

FILES: Final = ("csv", "jsonl", "arff", "parquet", "arrow")
FRAMES: Final = ("pandas", "polars", "pyarrow", "mapping", "numpy")
WAYS: Final = (*FILES, *FRAMES, "array")
TITLES: Final = {
    "csv": "CSV",
    "jsonl": "JSON Lines",
    "arff": "ARFF",
    "parquet": "Parquet",
    "arrow": "Arrow IPC",
    "pandas": "pandas",
    "polars": "polars",
    "pyarrow": "pyarrow",
    "mapping": "mapping",
    "numpy": "NumPy columns",
    "array": "NumPy array, npz",
}
ROWS_OF_COLUMN: Final = 40
NO: Final = "–"
"""A way has no such type."""
TYPED: Final = ("parquet", "arrow", *FRAMES)
"""Ways that know the types of values; to the others dates are texts."""


class Colour(Enum):
    """An enumeration of texts."""

    RED = "red"
    BLUE = "blue"
    GREEN = "green"


@dataclass(frozen=True)
class Type:
    """A row of the table. value: of a number from 0 to 6. kind: what its columns are where they are taken.

    cells: what else they are by the way, a kind or the code of the error; `NO` where there is no such type.
    gap: a value in some rows in place of the others. arrow, numpy, pandas, polars: the type in that library.
    words: what each refusal says, too. asked: the code with which queries refuse it though training takes it.
    seen: the value of a cell after reading.
    """

    name: str
    value: Callable[[int], Any]
    kind: str
    cells: Mapping[str, str] = field(default_factory=dict)
    gap: Any = ...
    arrow: str | None = None
    numpy: str | None = None
    pandas: str | None = None
    polars: str | None = None
    words: str = ""
    asked: str = ""
    seen: Callable[[int], Any] | None = None

    def cell(self, way: str) -> str:
        """What the way makes of such a column: a kind, the code of an error, or `NO`."""
        return self.cells.get(way, self.kind)

    def values(self) -> list[Any]:
        """A column: no constant, no identifier and no count of its rows."""
        filled = [self.value(number) for number in numbers()]
        if self.gap is not ...:
            filled[3::8] = [self.gap] * len(filled[3::8])
        return filled

    def expected(self) -> list[Any]:
        """The values that reading gives: numbers, texts, microseconds of dates, lists, None for gaps."""
        seen = self.seen or self.value
        filled = [seen(number) for number in numbers()]
        if self.gap is not ...:
            filled[3::8] = [None] * len(filled[3::8])
        return filled


def numbers() -> list[int]:
    """The numbers of which the values of a column are made."""
    return [(k * k + 3 * k) % 7 for k in range(ROWS_OF_COLUMN)]


def _except(ways: tuple[str, ...], cell: str = NO, **others: str) -> dict[str, str]:
    return {**dict.fromkeys(ways, cell), **others}


def _microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _noon(number: int) -> datetime:
    return datetime(2024, 5, 6 + number, 12, 30, 0, 250_000)


_TEXT_FILES = ("csv", "jsonl", "arff")
_ARRAY = {"array": NO}
_ONLY_PYTHON = (*FILES, "pandas", "polars", "pyarrow", "numpy", "array")

TYPES: Final = (
    Type(
        "truth value",
        lambda k: k % 2 == 0,
        "boolean",
        _except(("arff",), array="number"),
        seen=lambda k: float(k % 2 == 0),
    ),
    Type(
        "truth value, with gaps",
        lambda k: k % 2 == 0,
        "boolean",
        _except(("arff", "numpy", "array")),
        None,
        "bool",
        None,
        "boolean",
        seen=lambda k: float(k % 2 == 0),
    ),
    *(
        Type(
            name,
            lambda k: k,
            "number",
            arrow=name,
            numpy=name,
            pandas=name,
            polars=name.title().replace("Ui", "UI"),
            seen=float,
        )
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    ),
    Type(
        "uint64 beyond 2^53",
        lambda k: 2**63 + 2**12 * k,
        "number",
        arrow="uint64",
        numpy="uint64",
        pandas="uint64",
        polars="UInt64",
        seen=lambda k: float(2**63 + 2**12 * k),
    ),
    *(
        Type(name, lambda k: k / 4, "number", arrow=arrow, numpy=name, pandas=name, polars=polars)
        for name, arrow, polars in (
            ("float16", "halffloat", "Float32"),
            ("float32", "float32", "Float32"),
            ("float64", "float64", "Float64"),
        )
    ),
    Type(
        "float64 with NaN",
        lambda k: k / 4,
        "number",
        _except(("arff",), array="not_finite", jsonl="not_finite"),
        float("nan"),
        "float64",
        "float64",
        "float64",
        "Float64",
    ),
    Type(
        "int64, with gaps",
        lambda k: k,
        "number",
        _except(("numpy", "array")),
        None,
        "int64",
        None,
        "Int64",
        "Int64",
        seen=float,
    ),
    Type(
        "masked array",
        lambda k: k,
        "number",
        _except(tuple(way for way in WAYS if way not in ("numpy", "array")), array="missing_value"),
        None,
        numpy="masked",
        words="masked",
        seen=float,
    ),
    Type(
        "decimal",
        lambda k: Decimal(k) / 4,
        "number",
        arrow="decimal128(10, 2)",
        numpy="object",
        pandas="object",
        polars="Decimal",
        seen=lambda k: k / 4,
    ),
    Type(
        "infinite number",
        lambda k: k / 4,
        "not_finite",
        _except(("arff",)),
        float("inf"),
        "float64",
        "float64",
        "float64",
        "Float64",
    ),
    Type(
        "number beyond 1e100",
        lambda k: k / 4,
        "too_large",
        _except(("arff",), csv="not_finite"),
        1e101,
        "float64",
        "float64",
        "float64",
        "Float64",
    ),
    Type("text", lambda k: ["red", "blue", "light green"][k % 3], "category", {"array": NO}, numpy="str"),
    Type(
        "text, with gaps",
        lambda k: ["red", "blue", "light green"][k % 3],
        "category",
        {"array": NO, "numpy": NO},
        None,
    ),
    Type(
        "text that is a number",
        lambda k: str(k),
        "number",
        {"array": NO},
        numpy="str",
        asked="wrong_type",
        seen=float,
    ),
    Type(
        "text that stands for a gap",
        lambda k: ["red", "blue", "light green"][k % 3],
        "category",
        {"array": NO, "arff": NO},
        "NA",
        numpy="str",
    ),
    Type(
        "categories of texts",
        lambda k: ["red", "blue", "light green"][k % 3],
        "category",
        _except((*_TEXT_FILES, "mapping", "numpy", "array")),
        None,
        "dictionary",
        None,
        "category",
        "Categorical",
    ),
    Type(
        "categories of numbers",
        lambda k: k,
        "number",
        _except((*_TEXT_FILES, "polars", "mapping", "numpy", "array")),
        None,
        "dictionary int64",
        None,
        "category",
        seen=float,
    ),
    Type(
        "bytes",
        lambda k: [b"red", b"blue"][k % 2],
        "category",
        _except((*_TEXT_FILES, "array")),
        arrow="binary",
        numpy="S4",
        pandas="object",
        polars="Binary",
        seen=lambda k: ["red", "blue"][k % 2],
    ),
    Type(
        "enumeration",
        lambda k: list(Colour)[k % 3],
        "category",
        _except(_ONLY_PYTHON),
        seen=lambda k: list(Colour)[k % 3].value,
    ),
    Type(
        "path",
        lambda k: Path("/data") / "abc"[k % 3],
        "category",
        _except(_ONLY_PYTHON),
        seen=lambda k: f"/data/{'abc'[k % 3]}",
    ),
    Type(
        "day",
        lambda k: date(2024, 5, 6 + k),
        "date",
        {"array": "not_numeric"},
        arrow="date32",
        numpy="M8[D]",
        pandas="object",
        polars="Date",
        seen=lambda k: _microseconds(datetime(2024, 5, 6 + k, tzinfo=UTC)),
    ),
    *(
        Type(
            f"moment, in {unit}",
            _noon,
            "date",
            _except((*_TEXT_FILES, "mapping", *(("polars",) if unit == "s" else ())), array="not_numeric"),
            None,
            f"timestamp[{unit}]",
            f"M8[{unit}]",
            f"M8[{unit}]",
            f"Datetime {unit}",
            seen=lambda k, unit=unit: _microseconds(
                _noon(k).replace(tzinfo=UTC, microsecond=0 if unit == "s" else 250_000)
            ),
        )
        for unit in ("s", "ms", "us", "ns")
    ),
    Type(
        "moment",
        _noon,
        "date",
        _except((*TYPED, "array"), mapping="date"),
        seen=lambda k: _microseconds(_noon(k).replace(tzinfo=UTC)),
    ),
    Type(
        "moment with a zone",
        lambda k: _noon(k).replace(tzinfo=timezone(timedelta(hours=2))),
        "date",
        _except(("arff", "numpy", "array")),
        arrow="timestamp[us, +02:00]",
        pandas="datetime64[us, UTC+02:00]",
        polars="Datetime us Europe/Berlin",
        seen=lambda k: _microseconds(_noon(k).replace(tzinfo=UTC)) - 7_200_000_000,
    ),
    Type(
        "time of day",
        lambda k: time(10, k),
        "bad_type",
        {"csv": "category", "jsonl": "category", "arff": NO, "numpy": "bad_type", "array": NO},
        arrow="time64[us]",
        numpy="object",
        pandas="object",
        polars="Time",
        words="seconds since midnight",
        seen=lambda k: f"10:0{k}:00",
    ),
    Type(
        "duration",
        lambda k: timedelta(seconds=k),
        "bad_type",
        _except(_TEXT_FILES, array="not_numeric"),
        arrow="duration[us]",
        numpy="m8[us]",
        pandas="m8[us]",
        polars="Duration",
        words="seconds",
    ),
    Type(
        "list of numbers",
        lambda k: [float(k), 1.5],
        "vector",
        _except(("csv", "arff", "array")),
        arrow="list<double>",
        numpy="matrix",
        pandas="object",
        polars="List",
    ),
    Type(
        "list of texts",
        lambda k: ["red", "blue"][k % 2 :],
        "bad_type",
        _except(("csv", "arff", "numpy", "array"), jsonl="nested_value"),
        arrow="list<string>",
        pandas="object",
        polars="List",
        words="column of each value",
    ),
    Type(
        "record",
        lambda k: {"a": k},
        "bad_type",
        _except(("csv", "arff", "array"), jsonl="nested_value"),
        arrow="struct<a: int64>",
        numpy="object",
        pandas="object",
        polars="Struct",
        words="column of each",
    ),
    Type(
        "complex number",
        lambda k: complex(k, 1),
        "bad_type",
        _except((*FILES, "polars", "pyarrow"), array="not_numeric"),
        numpy="complex128",
        pandas="complex128",
        words="",
    ),
    Type(
        "period",
        lambda k: date(2024, 1 + k, 1),
        "date",
        _except((*FILES, "polars", "pyarrow", "mapping", "numpy", "array")),
        pandas="period",
        seen=lambda k: _microseconds(datetime(2024, 1 + k, 1, tzinfo=UTC)),
    ),
    Type(
        "interval",
        lambda k: k,
        "bad_type",
        _except((*FILES, "polars", "pyarrow", "mapping", "numpy", "array")),
        pandas="interval",
        words="make a column of each of",
    ),
    Type(
        "nothing",
        lambda k: None,
        "ignore",
        {"array": NO, "arff": NO},
        arrow="null",
        numpy="object",
        pandas="object",
        polars="Null",
    ),
)


LABEL_WAYS: Final = ("csv", "jsonl", "parquet", "arrow", "rows", "estimator")
LABEL_TITLES: Final = {**TITLES, "rows": "`upload_rows`", "estimator": "estimator"}


@dataclass(frozen=True)
class LabelType:
    """A type of labels. labels: two of them. classes: their names. cells: codes of errors by the way."""

    name: str
    labels: tuple[Any, Any]
    classes: tuple[str, str]
    cells: Mapping[str, str] = field(default_factory=dict)

    def cell(self, way: str) -> str:
        """The names of the classes, or the code of the error."""
        return self.cells.get(way, ", ".join(self.classes))


_MISSING = _except(LABEL_WAYS, "missing_label", csv="empty_label", rows="empty_label")
_UNUSABLE = _except(("parquet", "arrow", "estimator"), "bad_label_type")
LABEL_TYPES: Final = (
    LabelType("whole number", (2, 10), ("2", "10")),
    LabelType("truth value", (True, False), ("false", "true")),
    LabelType("whole float", (1.0, 2.0), ("1", "2")),
    LabelType(
        "other float",
        (0.5, 1.5),
        ("0.5", "1.5"),
        _except(("jsonl", "parquet", "arrow"), "label_not_whole", estimator="continuous"),
    ),
    LabelType("decimal", (Decimal("0.50"), Decimal("1.5")), ("0.5", "1.5")),
    LabelType("text", ("01", "x"), ("01", "x")),
    LabelType("bytes", (b"x", b"y"), ("x", "y")),
    LabelType("day", (date(2024, 1, 1), date(2024, 1, 2)), ("2024-01-01", "2024-01-02")),
    LabelType(
        "moment",
        (datetime(2024, 1, 1, 5), datetime(2024, 1, 2)),
        ("2024-01-01 05:00:00", "2024-01-02 00:00:00"),
    ),
    LabelType("time of day", (time(1), time(2)), ("01:00:00", "02:00:00"), _UNUSABLE),
    LabelType(
        "missing",
        ("x", None),
        ("x", ""),
        _except(LABEL_WAYS, "missing_label", csv="empty_label", rows="empty_label"),
    ),
)


PAGE: Final = """# Types of values

What becomes of a column of values of each type, whichever way it comes: in a file, in a data frame or
mapping that the client uploads or an estimator gets, or in a query. A cell is the
[kind](user-guide.md#kinds-of-columns) of the column, or the code of the error that refuses it; – means that
the way has no such type. Values are the same in all ways: numbers as float64, dates to the microsecond in
UTC, texts without the blanks around them. None, NaN, NaT, NA, masked values of a column and [the usual
tokens](user-guide.md#how-a-file-is-read) are gaps. Texts that are plain numbers are numbers in training;
in a query, numbers are sent as numbers (`wrong_type`), unless the column has [a
pattern](user-guide.md#numbers-and-dates-as-people-write-them). In JavaScript, values are those of JSON:
numbers, true and false, texts, null, and lists of numbers.

"""
LABELS_OF_PAGE: Final = """
## Labels

The names of two classes, by the type of their labels. An estimator keeps numbers and truth values.

"""


def page() -> str:
    """The documentation's page of the table."""
    columns = _shown(TITLES, WAYS, TYPES)
    return PAGE + columns + LABELS_OF_PAGE + _shown(LABEL_TITLES, LABEL_WAYS, LABEL_TYPES)


def _shown(titles: Mapping[str, str], ways: tuple[str, ...], rows: Sequence[Type | LabelType]) -> str:
    head = ["type", *(titles[way] for way in ways)]
    lines = [head, ["---"] * len(head)]
    for one in rows:
        cells = [one.cell(way) for way in ways]
        lines.append([one.name, *(f"`{cell}`" if "_" in cell else cell for cell in cells)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(page(), end="")
