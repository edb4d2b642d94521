"""The JSONL files: appended lines, recipes, and files that others wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.experiments.store import Run, Store, body, code_version, recipe_of, short

RUN = Run("vowel", "open", 3)


def test_a_record_is_read_as_it_was_written_by_this_and_by_later_processes(tmp_path: Path):
    store = Store(tmp_path / "new" / "records.jsonl")
    store.write(RUN.key("setting"), "abc", {"value": [1.5, None]})
    for opened in (store, Store(store.path)):
        record = opened.read("vowel/open/3/setting", "abc")
        assert record is not None
        assert (record["value"], record["code"]) == ([1.5, None], code_version())
        assert body(record) == {"value": [1.5, None]}


def test_the_last_record_with_a_key_counts_and_equal_ones_are_stored_once(tmp_path: Path):
    store = Store(tmp_path / "records.jsonl")
    for value in (1, 1, 2):
        store.write("key", "abc", {"value": value})
    assert len(store.path.read_text().splitlines()) == 2
    record = Store(store.path).read("key")
    assert record is not None
    assert record["value"] == 2


def test_a_record_of_another_recipe_does_not_count(tmp_path: Path):
    store = Store(tmp_path / "records.jsonl")
    store.write("key", "abc", {})
    assert store.read("key", "abd") is None
    assert store.read("other") is None


def test_a_number_that_json_does_not_have_is_refused_and_nothing_is_written(tmp_path: Path):
    store = Store(tmp_path / "records.jsonl")
    with pytest.raises(ValueError, match="Out of range"):
        store.write("key", "abc", {"value": float("nan")})
    assert not store.path.exists()


def test_a_line_that_a_killed_process_left_incomplete_is_overwritten(tmp_path: Path):
    store = Store(tmp_path / "records.jsonl")
    store.write("key", "abc", {"value": 1})
    with store.path.open("a") as stream:
        stream.write('{"key": "ot')
    again = Store(store.path)
    again.write("other", "abc", {"value": 2})
    assert [json.loads(line)["value"] for line in store.path.read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize("line", ["{", "[]", '{"format": "other"}'])
def test_a_file_of_another_program_is_refused(tmp_path: Path, line: str):
    (tmp_path / "records.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"records\.jsonl, line 1"):
        Store(tmp_path / "records.jsonl")


def test_commands_are_remembered_once_in_the_order_of_their_first_use(tmp_path: Path):
    store = Store(tmp_path / "records.jsonl")
    for command in ("reproduce --grid paper", "reproduce", "reproduce --grid paper"):
        store.remember(command)
    assert Store(store.path).commands() == ["reproduce --grid paper", "reproduce"]


def test_recipes_differ_when_a_part_or_the_protocol_does(monkeypatch: pytest.MonkeyPatch):
    assert recipe_of({"a": 1, "b": [2]}) == recipe_of({"b": [2], "a": 1})
    before = recipe_of({"a": 1})
    assert before != recipe_of({"a": 2})
    monkeypatch.setattr("lab.experiments.store.PROTOCOL_VERSION", 2)
    assert recipe_of({"a": 1}) != before


def test_stored_numbers_have_seven_digits():
    assert short({"a": [1 / 3, float("nan"), "text"], "b": (2,)}) == {
        "a": [0.3333333, None, "text"],
        "b": [2],
    }
