"""The store of results: whole records or none, and only those of the same recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.results import ResultStore, Run, recipe_of, student_name

RUN = Run("vowel", "open", 3)


def test_a_record_is_read_as_it_was_written(tmp_path: Path):
    store = ResultStore(tmp_path)
    store.write(RUN, student_name(7, "gsvm"), "abc", {"value": [1.5, None]})
    found = store.read(RUN, "class-007-gsvm", "abc")
    assert found is not None
    assert found["value"] == [1.5, None]
    assert (tmp_path / "vowel" / "open" / "split-03" / "class-007-gsvm.json").is_file()
    assert list(store.runs()) == [RUN]


def test_a_record_of_another_recipe_does_not_count(tmp_path: Path):
    store = ResultStore(tmp_path)
    store.write(RUN, "setting", "abc", {})
    assert store.read(RUN, "setting", "abd") is None
    assert store.read(RUN, "inference") is None


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path: Path):
    store = ResultStore(tmp_path)
    store.write(RUN, "setting", "abc", {"value": 1})
    with pytest.raises(ValueError, match="Out of range"):
        store.write(RUN, "setting", "abc", {"value": float("nan")})
    found = store.read(RUN, "setting")
    assert found is not None
    assert found["value"] == 1


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"format": "other"})])
def test_a_file_of_somebody_else_is_told(tmp_path: Path, text: str):
    store = ResultStore(tmp_path)
    store.write(RUN, "setting", "abc", {})
    (tmp_path / RUN.folder / "setting.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"setting\.json"):
        store.read(RUN, "setting")


def test_recipes_differ_when_a_part_does():
    assert recipe_of({"a": 1, "b": [2]}) == recipe_of({"b": [2], "a": 1})
    assert recipe_of({"a": 1}) != recipe_of({"a": 2})
