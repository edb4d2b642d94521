"""The encoder of a column of pictures: the better one is taken, by the training rows with a label."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.data.column_kinds import infer_column
from core.data.table import GAP, PictureCells, Table
from core.encoding.labelled_table import LabelledTable
from core.errors import InvalidProblem
from core.model_selection.encoder_choice import choose_encoders
from core.packed.encoder import Encoder
from core.packed.record_rows import RecordRows
from core.run import Run

N = 60
CLASSES = ("a", "b", "c")


def table(*, encoders: tuple[str, ...] = ("noise", "good")) -> LabelledTable:
    """Rows whose encoder ``good`` tells their classes; each 17th has no picture."""
    rng = np.random.default_rng(0)
    cells = PictureCells.of(None if row % 17 == 0 else b"%d" % row for row in range(N))
    y = (np.arange(N) % 3).astype(np.int32)
    of_picture = y[[int(np.flatnonzero(cells.codes == code)[0]) for code in range(len(cells.pictures))]]
    noise = rng.normal(size=(len(of_picture), 20))
    good = rng.normal(size=(len(of_picture), 30)) + 1.5 * (of_picture[:, None] == np.arange(30) % 3)
    vectors = {"noise": noise.astype(np.float32), "good": good.astype(np.float32)}
    cells = replace(
        cells,
        vectors={name: vectors[name] for name in encoders},
        encoders={name: (name, "pixels.1") for name in encoders},
    )
    schema = (infer_column("photo", cells),)
    return LabelledTable(Table(("photo",), (cells,)), schema, y, CLASSES)


def test_the_better_one_is_taken():
    rows, [choice] = choose_encoders(table(), {}, Run(0))
    assert (choice.taken, choice.rows) == ("good", N - 4)
    assert choice.f1["good"] > 0.75 > 0.5 > choice.f1["noise"]
    assert f"a mean F of {choice.f1['good']:.3f}" in choice.text
    assert [*rows.table.cells[0].vectors] == ["good"]  # type: ignore[union-attr]


def test_one_that_was_said_is_not_compared():
    _, [choice] = choose_encoders(table(), {"photo": ["noise"]}, Run(0))
    assert (choice.taken, choice.rows, dict(choice.f1)) == ("noise", 0, {})
    with pytest.raises(InvalidProblem, match="no vectors of the encoder") as caught:
        choose_encoders(table(encoders=("good",)), {"photo": ["noise"]}, Run(0))
    assert caught.value.faults[0].code == "not_encoded"


def test_a_vector_has_the_bits_of_its_row():
    rows, _ = choose_encoders(table(), {}, Run(0))
    encoder = Encoder.from_bytes(rows.encoder().to_bytes())
    matrix, reader = rows.encoded(encoder).X, RecordRows(encoder)
    cells = rows.table.cells[0]
    assert isinstance(cells, PictureCells)
    for row in range(N):
        code = int(cells.codes[row])
        vector = None if code == GAP else cells.vectors["good"][code].astype(float).tolist()
        values, faults = reader.read({"photo": vector})
        assert faults == []
        assert reader.encode(values).dense == matrix[row].tolist()
    # All numbers together have the variance of one other column.
    assert matrix[:, :30].var(axis=0).sum() == pytest.approx(1.0, abs=0.1)


def test_pictures_without_vectors_are_not_encoded():
    with pytest.raises(InvalidProblem) as caught:
        table(encoders=()).encoder()
    assert caught.value.faults[0].code == "not_encoded"
