"""The benchmark of records and texts: its parts without a server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.benchmarks.inputs import pipelines, speeds
from lab.benchmarks.inputs.__main__ import parser, summary
from lab.benchmarks.inputs.jobs import record_of
from lab.benchmarks.inputs.sets import SETS, RawSet, Split, splits, table_of

KINDS = {"size": "number", "colour": "category", "note": "text", "old": "boolean", "id": "ignore"}


def written(folder: Path, n: int = 60) -> RawSet:
    """A set of two classes that the colour gives away, with gaps."""
    lines = ["size,colour,note,old,kind"]
    for k in range(n):
        colour = "red" if k % 2 else "blue"
        lines.append(
            f"{k % 7 if k % 5 else 'NA'},{colour},some words {colour},{str(k % 3 == 0).lower()},{colour[0]}"
        )
    (folder / "file.csv").write_text("\n".join(lines) + "\n")
    return RawSet("file.csv", "kind")


def test_thirds_of_each_class_are_held_out_three_times(tmp_path: Path):
    drawn = splits(written(tmp_path), tmp_path, 1000)
    assert len(drawn) == 3
    for split in drawn:
        assert [len(split.train), len(split.test)] == [40, 20]
        for part, count in ((split.train, 20), (split.test, 10)):
            assert sum(row[split.label] == "b" for row in part) == count
    assert drawn[0].train != drawn[1].train


def test_the_official_test_part_is_taken_once_and_few_rows_are_learnt_from(tmp_path: Path):
    one = written(tmp_path)
    (tmp_path / "test.csv").write_bytes((tmp_path / "file.csv").read_bytes())
    official = RawSet(one.file, one.label, test="test.csv", leaks=("colour",))
    [split] = splits(official, tmp_path, 12)
    assert [len(split.train), len(split.test)] == [12, 12]
    assert split.names == ["size", "note", "old", "kind"]
    assert {row[split.label] for row in split.train} == {"b", "r"}


def test_rows_are_written_as_they_are_read(tmp_path: Path):
    split = Split(["a", "b"], 1, [["x, y", "1"], ['say "no"\nagain', "2"]], [])
    split.write(tmp_path / "file.csv")
    names, rows = table_of(RawSet("file.csv", "b"), "file.csv", tmp_path)
    assert (names, rows) == (("a", "b"), split.train)


def test_a_record_has_values_of_the_kinds_of_its_columns():
    record = record_of(["NA", " red ", " two words", "TRUE", "7"], list(KINDS), KINDS)
    assert record == {"size": None, "colour": "red", "note": " two words", "old": True}
    assert record_of(["1.5", "?", "", "false", "7"], list(KINDS), KINDS) == {
        "size": 1.5,
        "colour": None,
        "note": None,
        "old": False,
    }


def test_pipelines_find_what_gives_the_class_away(tmp_path: Path):
    split = splits(written(tmp_path), tmp_path, 1000)[0]
    found = pipelines.measure(split, KINDS, is_text=False)
    assert set(found) == {
        f"{terms} {model}"
        for terms in ("words", "pairs", "characters")
        for model in ("LinearSVC", "LogisticRegression", "SVC")
    }
    assert {one["f1"] for one in found.values()} == {100.0}
    # Without the two columns that tell, nothing but chance is left.
    blind = pipelines.measure(split, {"size": "number"}, is_text=False)
    assert max(one["f1"] for one in blind.values()) < 90.0


def test_the_summary_compares_with_the_best_pipeline_and_leaves_failed_jobs_out(capsys):
    f1 = {
        "car": {"students": {"f1": 90.0}, "a": {"f1": 80.0}, "b": {"f1": 91.0}},
        "sms": {"students": {"f1": 97.0}, "a": {"f1": 95.0}},
        "crx": {"students": {"f1": None}, "a": {"f1": 95.0}},
    }
    promises = [{"kept": True}, {"kept": False}]
    found = summary({"car": None, "sms": "no"}, f1, promises)
    assert (found["sets"], found["accepted"]) == (2, 1)
    assert (found["mean_f1_vs_best"], found["worst_f1_vs_best"]) == (0.5, -1.0)
    assert found["text_f1_vs_best"] == {"sms": 2.0}
    assert (found["promises"], found["promises_kept"]) == (2, 1)
    assert "crx is left out" in capsys.readouterr().err
    nothing = summary(None, None, None)
    assert {nothing[name] for name in ("sets", "accepted", "mean_f1_vs_best", "promises")} == {None}


def test_reading_is_compared_on_files_of_the_same_shape(capsys):
    assert speeds.reading(300, 1) > 0.0
    assert "reading of 300 rows" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(SETS))
def test_public_files_have_classes_to_learn_and_to_measure(name: str):
    folder = Path(parser().parse_args([]).raw)
    if not (folder / SETS[name].file).is_file():
        pytest.skip(f"{SETS[name].file} is not in {folder}; STMS_RAW names the folder of public files")
    for split in splits(SETS[name], folder, 3000):
        learnt, measured = ({row[split.label] for row in part} for part in (split.train, split.test))
        assert len(measured) >= 2
        assert measured <= learnt
        assert np.unique([len(row) for row in split.train]).tolist() == [len(split.names)]
