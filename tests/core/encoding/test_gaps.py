"""What fills gaps is chosen on held-out rows: what other columns say, or the usual value."""

from __future__ import annotations

import numpy as np
import pytest

from core.data.column_kinds import infer_schema
from core.data.table import NumberCells, Table, TextCells
from core.encoding.fit import fit_encoder
from core.encoding.rules import ColumnRules
from core.errors import InvalidPackage, InvalidProblem
from core.packed.encoder import Encoder
from core.packed.gap_fill import MOST_MISSING, GapFill

N = 600


def fitted(columns: dict[str, NumberCells | TextCells], **more: object) -> Encoder:
    table = Table(tuple(columns), tuple(columns.values()))
    return fit_encoder(table, infer_schema(table), **more)  # type: ignore[arg-type]


def related() -> dict[str, NumberCells | TextCells]:
    """Lengths, the same in inches, and whether they are large."""
    size = np.random.default_rng(0).normal(50, 10, N)
    words = ["large" if one > 50 else "small" for one in size]
    return {"cm": NumberCells(size), "inch": NumberCells(size / 2.54), "word": TextCells.of(words)}


def test_columns_that_tell_each_other_are_filled_by_what_they_say():
    known = fitted(related())
    assert known.gaps is not None
    assert known.filling == 3
    again = Encoder.from_bytes(known.to_bytes())
    assert again.to_bytes() == known.to_bytes()
    asked = Table(
        ("cm", "inch", "word"),
        (
            NumberCells(np.array([np.nan, 70.0])),
            NumberCells(np.array([30.0, np.nan])),
            TextCells.of(["large"] * 2),
        ),
    )
    dense = again.encode(asked).dense
    assert dense[0, 0] == pytest.approx(76.2, abs=2.0)
    assert dense[1, 1] == pytest.approx(27.6, abs=1.0)


def test_columns_with_few_gaps_in_training_are_filled_and_those_with_many_are_learned():
    columns = related()
    few, many = (np.array(columns[name].values) for name in ("cm", "inch"))  # type: ignore[union-attr]
    few[:5], many[:60] = np.nan, np.nan
    known = fitted(columns | {"cm": NumberCells(few), "inch": NumberCells(many)})
    assert [(column.fills, column.marks_gaps) for column in known.columns] == [
        (True, False),
        (False, True),
        (True, False),
    ]


def test_gaps_are_refused_where_that_is_asked_for_and_of_a_single_column():
    assert all(column.required for column in fitted(related(), answers_gaps=False).columns)
    one = fitted(related(), rules={"cm": ColumnRules(missing=False)})
    assert [column.required for column in one.columns] == [True, False, False]
    only = fitted({"cm": related()["cm"]})
    assert (only.columns[0].required, only.gaps) == (True, None)


def test_wide_tables_have_usual_values():
    rng = np.random.default_rng(0)
    known = fitted({f"c{k}": NumberCells(rng.normal(size=40)) for k in range(130)})
    assert (known.filling, known.gaps) == (130, None)


def test_more_gaps_than_are_solved_for_keep_what_they_have():
    k = MOST_MISSING + 2
    fill = GapFill(np.zeros(k), np.ones(k), np.eye(k) + 0.5)
    row = [1.0] * k
    fill.fill(row, range(k - 1))
    assert row == [1.0] * k
    fill.fill(row, [0])
    assert row[0] != 1.0


@pytest.mark.parametrize("change", ["scales", "precision"])
def test_packages_with_unusable_gaps_are_refused(change: str):
    known = fitted(related())
    assert known.gaps is not None
    wrong = {"scales": (np.zeros(4), known.gaps.precision), "precision": (known.gaps.scales, np.eye(3))}[
        change
    ]
    with pytest.raises((InvalidProblem, InvalidPackage)):
        GapFill(known.means, *wrong)
