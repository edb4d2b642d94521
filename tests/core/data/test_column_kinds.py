"""What most cells of a column look like decides its kind; what is doubtful is said or refused."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest

from core.data.cell_values import NULLS
from core.data.column_kinds import infer_column, infer_schema
from core.data.schema import ColumnSchema, Kind, KindSpec, cells_as
from core.data.table import NumberCells, Table, TextCells
from core.errors import InvalidProblem
from tests.refusals import at_fault

NUMBERS = [f"{i * 1.5:.2f}" for i in range(60)]
DAYS = [date(2001, 1, 1) + timedelta(days=37 * i) for i in range(60)]


def cells(texts: list[str]) -> TextCells:
    return TextCells.of(None if text in NULLS else text for text in texts)


def column(texts: list[str], said: str | None = None) -> ColumnSchema:
    return infer_column("v", cells(texts), None if said is None else KindSpec.parse(said))


def numbers(texts: list[str], said: str | None = None) -> list[float]:
    read = cells_as("v", cells(texts), column(texts, said).spec)
    assert isinstance(read, NumberCells)
    return read.values.tolist()


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ("${}", "$1,234.5"),
        ("{}%", "1,234.5%"),
        ("{} %", "1,234.5 %"),
        ("€{}", "€1,234.5"),
        ("{} kg", "1,234.5 kg"),
        ("USD {}", "USD 1,234.5"),
        ("{}°C", "1,234.5°C"),
        ("({})", "1,234.5"),
        ("{}-", "1,234.5"),
        ("−{}", "1,234.5"),
    ],
)
def test_numbers_with_a_common_sign_are_numbers(form: str, pattern: str):
    texts = [form.format(number) for number in NUMBERS[1:]]
    found = column(texts)
    assert (found.kind, found.pattern, found.reason) == (
        "number",
        pattern,
        f"all values are numbers, written as {pattern}",
    )
    sign = -1 if form in ("({})", "{}-", "−{}") else 1
    assert numbers(texts) == [sign * float(number) for number in NUMBERS[1:]]
    assert column(texts, "number").pattern == pattern


@pytest.mark.parametrize("said", ["number:$5", "number"])
def test_what_is_said_of_numbers_is_checked(said: str):
    texts = [*(f"${number}" for number in NUMBERS), "£5"]
    with at_fault(InvalidProblem, "not_numeric", match="'£5' is not a number"):
        numbers(texts, said)


@pytest.mark.parametrize("token", ["-", r"\N", "n.a.", "None", "unknown", "..", "#DIV/0!", "<NA>", "–"])
@pytest.mark.parametrize("every", [2, 9, 50])
def test_words_for_gaps_are_gaps_of_numbers_and_dates(token: str, every: int):
    for texts, kind in ((NUMBERS, "number"), ([f"{day:%d.%m.%Y}" for day in DAYS], "date")):
        mixed = [token if i % every == 1 else text for i, text in enumerate(texts)]
        found = column(mixed)
        assert (found.kind, found.nulls) == (kind, (token,))
        assert found.gaps == mixed.count(token) == cells_as("v", cells(mixed), found.spec).is_gap.sum()
        assert found.reason.startswith("all other values are")


def test_few_other_cells_are_gaps_and_more_are_refused():
    texts = [f"{i / 8}" for i in range(1000)]
    assert column(["12a", *texts]).nulls == ("12a",)
    many = [f"x{i}" for i in range(11)]
    with at_fault(InvalidProblem, "mixed_column", match=r"all but 11 of 1011 cells: 'x0', .* and 6 more"):
        column([*texts, *many])
    # Few different ones, but a third of the cells.
    with at_fault(InvalidProblem, "mixed_column", match="null_values=absent"):
        column([*texts, *["absent"] * 500])
    with at_fault(InvalidProblem, "mixed_column", match="has dates in all but 1 of 60 cells: '2024-02-30'"):
        column(["2024-02-30", *(day.isoformat() for day in DAYS[1:])])
    # A few whole numbers beside a word are names, such as those of floors.
    floors = column(["1", "2", "3", "G"] * 20)
    assert (floors.kind, "60 of 80 values are numbers" in (floors.hint or "")) == ("category", True)
    with at_fault(InvalidProblem, "not_finite", match="infinite"):
        column(["1", "2", "inf", "4", "5"] * 4)


@pytest.mark.parametrize(
    "texts",
    [
        [f"A{i}" for i in range(60)],
        [f"user_{i}" for i in range(60)],
        [f"#{i * 7}" for i in range(60)],
        [f"{i:05}" for i in range(60)],
        [f"10.0.0.{i}" for i in range(60)],
        [f"{i} Main Street {i}" for i in range(60)],
        [f"{i}:30" for i in range(60)],
        [f"{i}/7" for i in range(60)],
    ],
)
def test_codes_are_no_numbers(texts: list[str]):
    assert column(texts).kind in ("ignore", "category", "text")


def test_mixed_signs_are_a_hint():
    found = column([f"{i}kg" if i % 2 else f"{i}00g" for i in range(1, 61)])
    assert found.kind in ("ignore", "category")
    assert "30 of 60 values are numbers" in (found.hint or "")


@pytest.mark.parametrize(
    ("texts", "pattern", "values"),
    [
        (["400", "800", "1,200", "24,000"], "1,234.5", [400, 800, 1200, 24000]),
        (["1,200,000", "2,300,000"], "1,234.5", [1200000, 2300000]),
        (["400", "1.200", "24.000"], "1.234,5", [400, 1200, 24000]),
        (["1.234,5", "2"], "1.234,5", [1234.5, 2]),
        (["1,5", "2,25"], "1.234,5", [1.5, 2.25]),
        (["0,125", "1,250"], "1.234,5", [0.125, 1.25]),
        (["1200", "1,250"], "1.234,5", [1200, 1.25]),
        (["1 200", "24 000,5"], "1.234,5", [1200, 24000.5]),
        (["1'200", "300"], "1,234.5", [1200, 300]),
        (["1.250", "2.125"], None, [1.25, 2.125]),
    ],
)
def test_marks_between_thousands_are_told_from_decimals(
    texts: list[str], pattern: str | None, values: list[float]
):
    assert column(texts).pattern == pattern
    assert numbers(texts) == values


def test_a_doubtful_mark_is_settled_by_other_columns_or_refused():
    doubtful, clear = cells(["1,234", "2,345", "3,456"]), cells(["1,5", "2,5", "3,25"])
    with at_fault(
        InvalidProblem, "ambiguous_decimal", match=r'columns="v:number:1,234\.5" .* or .*:1\.234,5"'
    ):
        infer_schema(Table(("v",), (doubtful,)))
    both = infer_schema(Table(("v", "w"), (doubtful, clear)))
    assert [one.pattern for one in both] == ["1.234,5", "1.234,5"]
    assert infer_schema(Table(("v",), (doubtful,)), usage=(",",))[0].pattern == "1.234,5"
    said = infer_schema(Table(("v",), (doubtful,)), {"v": KindSpec.parse("number:1,234.5")})
    assert (said[0].pattern, said[0].code) == ("1,234.5", "given")
    points = cells(["1.200", "2.400"])
    assert infer_column("v", points).pattern is None
    assert infer_column("v", points, usage=(",",)).pattern == "1.234,5"


@pytest.mark.parametrize(
    "pattern",
    [
        *("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y/%m/%d", "%d-%m-%y", "%d %b %Y", "%b %d, %Y", "%B %d, %Y"),
        *(
            "%d-%b-%Y",
            "%a, %d %b %Y %H:%M:%S %z",
            "%d/%m/%Y %H:%M",
            "%m/%d/%Y %I:%M %p",
            "%d/%m/%y %H:%M:%S.%f",
        ),
    ],
)
def test_dates_have_the_pattern_of_all_cells(pattern: str):
    texts = [f"{day:{pattern}}".replace(" +0000", "") for day in DAYS]
    if "%z" in pattern:
        texts = [f"{text.strip()} +0200" for text in texts]
    found = column(texts)
    assert (found.kind, found.code, found.pattern) == ("date", "dates", pattern)
    assert column(texts, "date").pattern == pattern


def test_days_and_months_that_cannot_be_told_apart_are_settled_or_refused():
    doubtful = cells(["05/06/2001", "06/07/2001", "01/02/2001"])
    with at_fault(InvalidProblem, "ambiguous_date", match=r"date:%d/%m/%Y.*date:%m/%d/%Y"):
        infer_schema(Table(("v",), (doubtful,)))
    clear = cells(["13/01/2020", "01/02/2021", "02/03/2021"])
    assert infer_schema(Table(("v", "w"), (doubtful, clear)))[0].pattern == "%d/%m/%Y"
    assert column(["05.06.2001", "06.07.2001"]).pattern == "%d.%m.%Y"
    assert column(["03/03/2001", "04/04/2001"]).kind == "date"


def test_dates_of_databases_have_short_offsets():
    found = column(["2024-05-06 07:08:09+00", "2024-05-07 07:08:09.5-03"])
    assert (found.kind, found.pattern) == ("date", None)


def test_texts_beside_numbers_of_plain_columns_are_read_alike():
    texts = ["1", "-", "2.5"] * 10
    found = column(texts)
    assert found == ColumnSchema(
        "v", Kind.NUMBER, "numbers", "all other values are numbers", 10, 2, nulls=("-",)
    )
    np.testing.assert_array_equal(numbers(texts)[:3], [1, np.nan, 2.5])


SHUFFLED = np.random.default_rng(0).permutation(891)[:668] + 1.0


@pytest.mark.parametrize(
    "name",
    [
        *("id", "Id", "ID", "PassengerId", "customer_id", "customerID", "id_of_house", "rowid", "objid"),
        *("key", "index", "Index", "Unnamed: 0", "", "sample key", "user.id"),
    ],
)
@pytest.mark.parametrize("rows", [10, 668])
def test_whole_numbers_that_are_all_different_under_the_name_of_an_id_are_one(name: str, rows: int):
    found = infer_column(name, NumberCells(SHUFFLED[:rows]))
    assert (found.kind, found.code) == ("ignore", "identifier")
    assert found.reason == (
        "it identifies rows: each has a whole number of its own, and its name is that of an id"
    )
    as_texts = infer_column(name, cells([f"{value:.0f}" for value in SHUFFLED[:rows]]))
    assert (as_texts.kind, as_texts.code) == ("ignore", "identifier")
    assert infer_column(name, NumberCells(SHUFFLED[:rows]), KindSpec(Kind.NUMBER)).kind == "number"


@pytest.mark.parametrize("name", ["number", "case_no", "Nr.", "row_index", "serial"])
def test_a_name_of_something_numbered_is_an_id_in_many_dense_rows_only(name: str):
    assert infer_column(name, NumberCells(SHUFFLED)).code == "identifier"
    few = infer_column(name, NumberCells(SHUFFLED[:10]))
    assert (few.kind, "if they identify the rows, say ignore" in (few.hint or "")) == ("number", True)
    assert infer_column(name, NumberCells(SHUFFLED**2)).kind == "number"


@pytest.mark.parametrize(
    "name", ["Age", "acid", "humid", "paid", "bid", "grid", "width", "idle", "keyboard", "price", "indexed"]
)
def test_other_names_are_no_ids(name: str):
    found = infer_column(name, NumberCells(SHUFFLED))
    assert (found.kind, "each row has a number of its own" in (found.hint or "")) == ("number", True)


@pytest.mark.parametrize(
    "values",
    [np.append(SHUFFLED[1:], SHUFFLED[5]), SHUFFLED + 0.5, np.append(SHUFFLED, np.nan), SHUFFLED[:9]],
)
def test_an_id_is_whole_different_in_each_row_and_never_missing(values: np.ndarray):
    assert infer_column("id", NumberCells(values)).kind == "number"


def test_a_pattern_of_dates_without_a_day_says_nothing_of_others():
    table = Table(
        ("year", "day"),
        (TextCells.of(["2021", "2022"] * 20), TextCells.of([f"{13 + k % 10}/02/2021" for k in range(40)])),
    )
    columns = infer_schema(table, {"year": KindSpec(Kind.DATE, "%Y")})
    assert [column.pattern for column in columns] == ["%Y", "%d/%m/%Y"]
