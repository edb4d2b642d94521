"""The paper's figures as data, the data sets, and their plans."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from core.students.gated import GSVM
from lab.experiments.data import DataMissing, load
from lab.experiments.paper import FIGURES, GOAL_SETS, METHODS, published
from lab.experiments.plans import DATA_SETS, GRIDS, plan_for
from lab.experiments.protocol_2.runs import UNSEEN_SETS

ROOT = Path(__file__).parents[3]
PAPER = ROOT.parent / "shared" / "papers" / "single-teacher-multi-student-gsvm.md"
TABLE_2 = {
    "letter": (15000, 5000, 16, 26),
    "satimage": (4435, 2000, 36, 6),
    "shuttle": (43500, 14500, 9, 7),
    "vowel": (528, 462, 10, 11),
    "yeast": (1185, 299, 8, 10),
}
"""Training rows, test rows, features and classes."""

BENCHMARKS = Path(os.environ.get("STMS_DATA", ROOT.parent / "shared" / "data"))


def test_every_cell_of_table_3_is_in_the_paper():
    if not PAPER.exists():
        pytest.skip("the text of the paper is not here")
    text = PAPER.read_text(encoding="utf-8")
    for data_set in (*GOAL_SETS, "protein"):
        for method in METHODS:
            cells = [published(data_set, method, *figure) for figure in FIGURES]
            assert "\t".join(f"{cell:.2f}%" for cell in cells) in text, (data_set, method)


def test_the_part_of_protein_is_compared_with_protein_and_other_sets_with_nothing():
    assert published("protein_val_part", "gsvm", "mean", "f1") == 69.86
    assert published("mnist", "gsvm", "mean", "f1") is None


@pytest.mark.data
@pytest.mark.parametrize("name", GOAL_SETS)
def test_the_benchmark_sets_have_the_sizes_of_table_2(name: str):
    if not (BENCHMARKS / f"{name}.npz").exists():
        pytest.skip("the benchmark sets are not here")
    split = load(name, BENCHMARKS)
    assert (split.train.n, split.test.n, split.train.d, split.train.K) == TABLE_2[name]


@pytest.mark.parametrize("first", [0, 1])
def test_names_of_classes_belong_to_codes_from_the_smallest_one_on(tmp_path: Path, first: int):
    codes, names = np.array([0, 2, 1, 0, 1, 2]) + first, np.array(["ei", "ie", "n"])
    X = np.arange(12.0).reshape(6, 2)
    arrays = {"X_train": X, "y_train": codes, "X_test": X[:2], "y_test": codes[1:3], "class_names": names}
    np.savez(tmp_path / "some.npz", **arrays)
    split = load("some", tmp_path)
    assert split.train.classes == ("ei", "ie", "n")
    assert [split.train.classes[code] for code in split.test.y] == ["n", "ie"]
    np.savez(tmp_path / "some.npz", **{**arrays, "y_test": codes[1:3] + 5})
    with pytest.raises(DataMissing, match="cannot be read as a data set"):
        load("some", tmp_path)


@pytest.mark.data
def test_every_set_of_protocol_2_can_be_read():
    for name in (*GOAL_SETS, *UNSEEN_SETS):
        if (BENCHMARKS / f"{name}.npz").exists():
            assert load(name, BENCHMARKS).train.K > 1


def test_further_splits_take_four_fifths_of_every_class(folder: Path):
    given, other = load("yeast", folder), load("yeast", folder, 1)
    totals = given.train.class_counts + given.test.class_counts
    assert list(other.train.class_counts) == [int(0.8 * total) for total in totals]
    assert list(other.train.class_counts + other.test.class_counts) == list(totals)
    assert given.train.classes == ("one", "three", "two")


def test_a_split_is_drawn_from_its_number(folder: Path):
    first, again, other = (load("yeast", folder, split).train.X for split in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_only_yeast_has_further_splits(folder: Path):
    with pytest.raises(DataMissing, match="one split only"):
        load("vowel", folder, 1)


def test_texts_become_rows_of_length_one(folder: Path):
    rows = load("reuters_r8", folder).train.X
    lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    assert np.allclose(lengths, 1.0)


def test_rows_of_one_speaker_or_chain_belong_together(folder: Path):
    assert load("vowel", folder).groups is None
    chains = load("protein_val_part", folder).groups
    assert chains is not None
    assert list(np.bincount(chains)) == [8] * 8
    y = np.tile(np.arange(11), 12)
    X = np.random.default_rng(0).standard_normal((132, 10))
    np.savez(folder / "vowel.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    speakers = load("vowel", folder).groups
    assert speakers is not None
    assert list(np.bincount(speakers)) == [66, 66]


def test_unreadable_data_are_reported(folder: Path):
    with pytest.raises(DataMissing, match="no file"):
        load("letter", folder)
    (folder / "letter.npz").write_bytes(b"not a zip file")
    with pytest.raises(DataMissing, match="cannot be read"):
        load("letter", folder)


@pytest.mark.parametrize("name", DATA_SETS)
def test_every_data_set_has_a_plan_for_both_grids(name: str):
    paper, wide = (plan_for(name, grid) for grid in GRIDS)
    assert max(paper.grid.C) == 1e3
    assert max(wide.grid.C) == 1e6
    assert (paper.tuning, wide.tuning) == ("class", "joint")
    assert len(GSVM().grid(paper.grid)) == 7 * 16 * 5


def test_only_the_first_split_is_searched_exhaustively():
    plan = plan_for("yeast", "paper")
    assert [plan.strategy_of(split) for split in (0, 1)] == ["exhaustive", "halving"]
    assert plan.splits == 20
