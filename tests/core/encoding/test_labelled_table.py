"""Labelled tables: rows are taken, kinds changed and encoded, with their classes and extras."""

from __future__ import annotations

import numpy as np
import pytest

from core.data.column_kinds import infer_schema
from core.data.extras import Extras, View
from core.data.schema import Kind, KindSpec
from core.data.table import NumberCells, Table, TextCells
from core.encoding.labelled_table import LabelledTable
from core.errors import InvalidProblem
from tests.refusals import at_fault


def labelled() -> LabelledTable:
    table = Table(
        ("a", "b", "c"),
        (
            NumberCells(np.array([1.0, 2.0, 3.0, 1.0] * 6)),
            TextCells.of(["x", "y", "x", "z"] * 6),
            NumberCells(np.linspace(0.0, 1.0, 24) ** 2),
        ),
    )
    y = np.array([0, 1, 1, -1] * 6, dtype=np.int32)
    return LabelledTable(
        table,
        infer_schema(table),
        y,
        ("no", "yes"),
        known=("label",),
        views=(("first", ("a", "b")), ("second", ("c",))),
        extras=Extras(privileged=np.arange(24.0)[:, np.newaxis]),
    )


def test_rows_are_encoded_with_classes_extras_and_views():
    data = labelled()
    encoder = data.encoder()
    assert encoder.ignored == ("label",)
    encoded = data.encoded(encoder)
    assert encoded.layout == encoder.layout
    assert (encoded.n, encoded.classes, encoded.unlabelled) == (24, ("no", "yes"), 6)
    # The value z has rows without a label only, to which nothing is fitted.
    assert encoder.columns[1].labels == ("x", "y")
    assert encoded.views == (View("first", 0, 3), View("second", 3, 4))
    some = data.take(np.array([0, 3]))
    np.testing.assert_array_equal(some.encoded(encoder).X, encoded.X[[0, 3]])
    assert some.extras.privileged is not None
    assert some.extras.privileged.tolist() == [[0.0], [3.0]]
    assert data.class_counts.tolist() == [6, 12]
    assert data.labelled().n == 18


def test_kinds_are_changed_without_another_upload():
    data = labelled().with_kinds({"a": KindSpec(Kind.CATEGORY), "b": KindSpec(Kind.IGNORE)})
    encoder = data.encoder()
    assert [column.kind for column in encoder.columns] == ["category", "number"]
    assert encoder.ignored == ("b", "label")
    with pytest.raises(InvalidProblem, match="no column 'z'"):
        data.with_kinds({"z": KindSpec(Kind.TEXT)})
    with pytest.raises(InvalidProblem, match=r"Row 0 .*'x' is not a number"):
        data.with_kinds({"b": KindSpec(Kind.NUMBER)}).encoder()


def test_views_of_texts_and_of_nothing_are_refused():
    texts = labelled().with_kinds({"b": KindSpec(Kind.TEXT)})
    with at_fault(InvalidProblem, "view_of_texts", match="view 'first' has the column of texts 'b'"):
        texts.encoded(texts.encoder())
    unused = labelled().with_kinds({"c": KindSpec(Kind.IGNORE)})
    with pytest.raises(InvalidProblem, match="view 'second' has no column that is used"):
        unused.encoded(unused.encoder())
