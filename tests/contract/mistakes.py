"""The table of mistakes and ways of asking: each mistake has one code, however it was asked and however the
model was trained. `test_mistakes.py` asks every cell.

A row of numbers is ``{"length": 1, "width": 2, "height": 3}``. Three versions take it: one of numbers with
names (`NUMBERS`), one with an encoder of these columns, to which a list is a row, too (`LISTS`), and one
whose records may also have a category (`RECORDS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

NUMBERS, LISTS, RECORDS, NAMELESS = VERSIONS = ("numbers", "lists", "records", "nameless")
NAMED: Final = (NUMBERS, LISTS, RECORDS)
NAMES: Final = ("length", "width", "height")
MAX_ROWS: Final = 3

RECORD, MANY, NAMED_X, NAMED_ROWS, COLUMNS = ("record", "records", "x by names", "rows by names", "columns")
PREDICTED: Final = "record, of the teacher"
CLASSES: Final = "records, of several classes"
V2, V2_BINARY, GRPC, GRPC_TYPED = ("V2 in JSON", "V2 in binary", "gRPC in binary", "gRPC")
LOCAL: Final = "local evaluation in Python"
BY_NAMES: Final = (RECORD, MANY, NAMED_X, NAMED_ROWS, COLUMNS, PREDICTED, CLASSES)
"""Ways of JSON that name each value."""
BY_INPUTS: Final = (V2, V2_BINARY, GRPC, GRPC_TYPED)
"""Ways with one tensor for each column."""
LIST, LISTED, TENSOR, NPY, V2_TABLE, GRPC_TABLE = (
    "x",
    "rows",
    "raw tensor",
    "npy",
    "V2, one table",
    "gRPC, one table",
)
IN_ORDER: Final = (LIST, LISTED, TENSOR, NPY, V2_TABLE, GRPC_TABLE)
"""Ways of numbers in the order of the columns."""

Pairs = Sequence[tuple[str, str]]
GOOD: Final[Pairs] = (("length", "1"), ("width", "2"), ("height", "3"))


@dataclass(frozen=True)
class Mistake:
    """A row of the table. code, status: of the answer to each way.

    pairs: the names and values, in JSON, of a row by names. values: of a list. bodies: the whole body of some
    ways of JSON. ways: which ways can make the mistake. versions: which versions are asked. column: the
    number of the column at fault, as errors of JSON have it, and its name; None of neither.
    """

    name: str
    code: str
    status: int = 400
    pairs: Pairs = ()
    values: Sequence[str] = ()
    bodies: Mapping[str, str] = field(default_factory=dict)
    ways: Sequence[str] = ()
    versions: Sequence[str] = NAMED
    column: tuple[int | None, str | None] = (None, None)

    def cells(self) -> list[tuple[str, str]]:
        """The ways and versions of this row."""
        return [(way, version) for way in self.ways or tuple(self.bodies) for version in self.versions]


def _with(**values: str) -> Pairs:
    """A good row but for some values."""
    return [*(dict(GOOD) | values).items()]


_TYPED: Final = (*BY_NAMES, V2, GRPC_TYPED, V2_BINARY, GRPC)
_WIDTH: Final = (1, "width")

MISTAKES: Final = (
    Mistake(
        "a column is missing",
        "missing_value",
        pairs=GOOD[:2],
        ways=(*_TYPED, LOCAL),
        column=(2, "height"),
    ),
    Mistake(
        "a column is null",
        "missing_value",
        pairs=_with(width="null"),
        ways=(*BY_NAMES, V2, LOCAL),
        column=_WIDTH,
    ),
    Mistake(
        "a gap of a tensor", "missing_value", pairs=_with(width="NaN"), ways=(V2_BINARY, GRPC, GRPC_TYPED)
    ),
    Mistake(
        "null in a list",
        "missing_value",
        values=("1", "null", "3"),
        ways=(LIST, LISTED, V2_TABLE),
        versions=(NUMBERS, LISTS),
    ),
    Mistake(
        "a column that there is not",
        "unknown_column",
        pairs=[*GOOD, ("depth", "1")],
        ways=(*_TYPED, LOCAL),
        column=(None, "depth"),
    ),
    Mistake(
        "a column twice",
        "duplicate_key",
        pairs=[*GOOD, ("width", "2")],
        ways=_TYPED,
        column=_WIDTH,
    ),
    Mistake(
        "a column that is not used, twice",
        "duplicate_key",
        pairs=[*GOOD, ("kind", "1"), ("kind", "2")],
        ways=_TYPED,
        column=(None, "kind"),
    ),
    Mistake(
        "a text for a number",
        "wrong_type",
        pairs=_with(width='"2"'),
        ways=(*_TYPED, LOCAL),
        column=_WIDTH,
    ),
    Mistake(
        "a text in a list",
        "wrong_type",
        values=("1", '"2"', "3"),
        ways=(LIST, LISTED, V2_TABLE),
        versions=(NUMBERS, LISTS),
    ),
    Mistake(
        "true for a number", "wrong_type", pairs=_with(width="true"), ways=(*BY_NAMES, LOCAL), column=_WIDTH
    ),
    Mistake(
        "a list for a number", "wrong_type", pairs=_with(width="[2]"), ways=(*BY_NAMES, LOCAL), column=_WIDTH
    ),
    Mistake(
        "an object for a number", "wrong_type", pairs=_with(width='{"a": 1}'), ways=BY_NAMES, column=_WIDTH
    ),
    Mistake(
        "a list in a list",
        "wrong_type",
        values=("1", "[2]", "3"),
        ways=(LIST, LISTED),
        versions=(NUMBERS, LISTS),
    ),
    Mistake("NaN", "not_finite", pairs=_with(width="NaN"), ways=(*BY_NAMES, V2), column=_WIDTH),
    Mistake(
        "an infinite number",
        "not_finite",
        pairs=_with(width="-Infinity"),
        ways=(*BY_NAMES, V2, V2_BINARY, GRPC, GRPC_TYPED),
        column=_WIDTH,
    ),
    Mistake(
        "NaN in a list",
        "not_finite",
        values=("1", "NaN", "3"),
        ways=IN_ORDER,
        versions=(NUMBERS, LISTS),
        column=_WIDTH,
    ),
    Mistake(
        "a number beyond use",
        "too_large",
        pairs=_with(width="1e101"),
        ways=(*_TYPED, LOCAL),
        column=_WIDTH,
    ),
    Mistake(
        "a number beyond use in a list",
        "too_large",
        values=("1", "-1e101", "3"),
        ways=IN_ORDER,
        versions=(NUMBERS, LISTS),
        column=_WIDTH,
    ),
    Mistake("a number beyond float64", "too_large", pairs=_with(width="1e400"), ways=BY_NAMES, column=_WIDTH),
    Mistake(
        "a number beyond float64 in a list",
        "too_large",
        values=("1", "1e400", "3"),
        ways=(LIST, LISTED),
        versions=(NUMBERS, LISTS),
    ),
    Mistake("too few numbers", "wrong_columns", values=("1", "2"), ways=IN_ORDER, versions=(NUMBERS, LISTS)),
    Mistake(
        "too many numbers",
        "wrong_columns",
        values=("1", "2", "3", "4"),
        ways=IN_ORDER,
        versions=(NUMBERS, LISTS),
    ),
    Mistake(
        "names where the columns have none",
        "no_column_names",
        pairs=GOOD,
        ways=_TYPED,
        versions=(NAMELESS,),
    ),
    Mistake(
        "numbers where names are needed",
        "needs_record",
        values=("1", "2", "3"),
        ways=IN_ORDER,
        versions=(RECORDS,),
    ),
    Mistake(
        "a row that is no object",
        "wrong_type",
        bodies={
            RECORD: '{"record": 5}',
            MANY: '{"records": [{"length": 1, "width": 2, "height": 3}, [1, 2, 3]]}',
            PREDICTED: '{"record": "length"}',
        },
    ),
    Mistake(
        "a row that is nothing",
        "wrong_type",
        bodies={LIST: '{"x": 5}', LISTED: '{"rows": [[1, 2, 3], true]}', NAMED_X: '{"x": "length"}'},
        versions=(NUMBERS, LISTS),
    ),
    Mistake(
        "rows that are no list",
        "wrong_type",
        bodies={LISTED: '{"rows": 5}', MANY: '{"records": {}}', NAMED_ROWS: '{"rows": {"length": 1}}'},
    ),
    Mistake(
        "a column that is no list",
        "wrong_type",
        bodies={COLUMNS: '{"columns": {"length": [1], "width": 2, "height": [3]}}'},
    ),
    Mistake(
        "columns of different lengths",
        "wrong_length",
        bodies={COLUMNS: '{"columns": {"length": [1, 2], "width": [2], "height": [3, 4]}}'},
    ),
    Mistake(
        "tensors of different lengths",
        "wrong_length",
        pairs=[("length", "1"), ("width", "2"), ("height", "…")],
        ways=(V2, V2_BINARY, GRPC, GRPC_TYPED),
    ),
    Mistake(
        "no rows",
        "empty",
        bodies={
            LISTED: '{"rows": []}',
            MANY: '{"records": []}',
            COLUMNS: '{"columns": {"length": [], "width": [], "height": []}}',
            CLASSES: '{"classes": ["box"], "records": []}',
        },
    ),
    Mistake("tensors without rows", "empty", pairs=[(name, "") for name in NAMES], ways=BY_INPUTS),
    Mistake(
        "too many rows",
        "too_many_rows",
        413,
        bodies={
            LISTED: '{"rows": [[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]]}',
            MANY: '{"records": [{}, {}, {}, {}]}',
            COLUMNS: '{"columns": {"length": [1, 2, 3, 4], "width": [1, 2, 3, 4], "height": [1, 2, 3, 4]}}',
        },
    ),
    Mistake(
        "tensors of too many rows",
        "too_many_rows",
        413,
        pairs=[(name, "1, 2, 3, 4") for name in NAMES],
        ways=BY_INPUTS,
    ),
    Mistake(
        "rows in two forms",
        "wrong_body",
        bodies={
            LIST: '{"x": [1, 2, 3], "rows": [[1, 2, 3]]}',
            RECORD: '{"record": {"length": 1}, "records": []}',
            COLUMNS: '{"columns": {"length": [1]}, "record": {"length": 1}}',
        },
    ),
    Mistake(
        "rows in no form",
        "wrong_body",
        bodies={LIST: "{}", RECORD: '{"explain": true}', LISTED: "5", PREDICTED: "[]"},
    ),
    Mistake(
        "a text where there is none", "wrong_body", bodies={RECORD: '{"text": "a"}', MANY: '{"texts": ["a"]}'}
    ),
    Mistake(
        "a field that there is not",
        "wrong_body",
        bodies={
            LIST: '{"x": [1, 2, 3], "z": 1}',
            RECORD: '{"instances": [{"length": 1}]}',
            MANY: '{"recrods": []}',
        },
    ),
    Mistake(
        "a field of another type",
        "wrong_type",
        bodies={LIST: '{"x": [1, 2, 3], "explain": 7}', RECORD: '{"record": {}, "explain": 7}'},
    ),
    Mistake(
        "a field twice",
        "duplicate_key",
        bodies={LIST: '{"x": [1, 2, 3], "x": [1, 2, 3]}', RECORD: '{"record": {}, "record": {}}'},
    ),
    Mistake(
        "no JSON",
        "malformed_json",
        bodies={LIST: '{"x": [1, 2', RECORD: '{"record": {', V2: '{"inputs": ['},
    ),
    Mistake("nothing", "empty", bodies={LIST: "", RECORD: "  ", PREDICTED: ""}),
)
