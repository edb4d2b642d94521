"""The protocol on small data: everything made once, resumable, and nothing chosen on the test part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.training.evaluation import Evaluator
from lab.experiments.data import Split, load
from lab.experiments.protocol import Protocol
from lab.experiments.store import NeedsProtocol, Run, Store

from .conftest import EFFORT, gather, small


def protocol(folder: Path, store: Store, name: str = "vowel", grid: str = "open") -> Protocol:
    data = load(name, folder)
    return Protocol(small(name, grid), Run(name, grid, 0), data, store, EFFORT)


@pytest.mark.parametrize(
    ("name", "grid"), [("protein_val_part", "open"), ("yeast", "paper"), ("reuters_r8", "open")]
)
def test_a_run_measures_every_class_with_every_method(folder: Path, tmp_path: Path, name: str, grid: str):
    store = Store(tmp_path / "work.jsonl")
    steps = list(protocol(folder, store, name, grid).steps())
    assert all(new for _, new in steps)
    outcome = gather(store).outcome(name, grid)
    assert outcome is not None
    assert [len(records) for records in outcome["per_class"].values()] == [3, 3, 3, 3]
    assert outcome.value("gsvm", "mean", "auc") > 80.0
    assert outcome["inference"]["seconds_per_query"]["student"] > 0.0
    grouped = name == "protein_val_part"
    assert outcome["setting"]["grouped"] is grouped


@pytest.mark.long
def test_a_stopped_run_goes_on_and_ends_with_the_same_figures(folder: Path, tmp_path: Path):
    whole, stopped = Store(tmp_path / "whole.jsonl"), Store(tmp_path / "stopped.jsonl")
    names = [name for name, _ in protocol(folder, whole).steps()]
    first = protocol(folder, stopped).steps()
    for _ in range(7):
        next(first)
    first.close()
    second = list(protocol(folder, stopped).steps())
    assert [new for _, new in second] == [False] * 7 + [True] * (len(names) - 7)
    run = Run("vowel", "open", 0)
    for name in names[1:-1]:
        one, other = whole.read(run.key(name)), stopped.read(run.key(name))
        assert one is not None
        assert other is not None
        assert one.get("metrics") == other.get("metrics"), name
        assert one.get("chosen", {}).get("C") == other.get("chosen", {}).get("C")
        assert "metrics" in one or "chosen" in one


def test_another_seed_invalidates_all_records(folder: Path, tmp_path: Path):
    store = Store(tmp_path / "work.jsonl")
    list(protocol(folder, store).steps())
    data = load("vowel", folder)
    plan, run = small("vowel", "open"), Run("vowel", "open", 0)
    other = Protocol(plan, run, data, store, replace(EFFORT, seed=1))
    assert next(other.steps())[1]


def test_a_student_needs_the_records_before_it(folder: Path, tmp_path: Path):
    with pytest.raises(NeedsProtocol, match="run the part protocol"):
        protocol(folder, Store(tmp_path / "work.jsonl")).make("class-000-gsvm")


def chosen(store: Store, run: Run) -> list[Any]:
    setting = store.read(run.key("setting"))
    student = store.read(run.key("class-001-gsvm"))
    assert setting is not None
    assert student is not None
    own = {name: value for name, value in student["chosen"].items() if name != "tuning_seconds"}
    return [setting["features"], setting["teacher_C"], own]


def test_the_test_part_does_not_change_what_is_chosen(folder: Path, tmp_path: Path):
    data = load("vowel", folder)
    shuffled = np.random.default_rng(0).permutation(data.test.y)
    other = Split(data.train, replace(data.test, y=shuffled, X=data.test.X[::-1] * 3.0), data.groups)
    found = []
    for number, split in enumerate((data, other)):
        store, run = Store(tmp_path / f"{number}.jsonl"), Run("vowel", "open", 0)
        list(Protocol(small("vowel", "open"), run, split, store, EFFORT).steps())
        found.append(chosen(store, run))
    assert found[0] == found[1]


def test_a_class_without_test_rows_is_reported_as_undefined(folder: Path, tmp_path: Path):
    data = load("yeast", folder)
    kept = data.test.y != 2
    test = replace(data.test, X=data.test.X[kept], y=data.test.y[kept])
    store, run = Store(tmp_path / "work.jsonl"), Run("yeast", "open", 0)
    list(Protocol(small("yeast", "open"), run, Split(data.train, test), store, EFFORT).steps())
    record = store.read(run.key("class-002-gsvm"))
    assert record is not None
    assert record["metrics"]["f1"] is None
    assert record["roc"] is None
    assert record["replicates"]["auc"] == [None] * 5


def test_the_teachers_cost_is_that_of_remark_2(folder: Path, tmp_path: Path):
    store = Store(tmp_path / "work.jsonl")
    one = protocol(folder, store)
    list(one.steps())
    assert isinstance(one.evaluator, Evaluator)
    record = store.read(Run("vowel", "open", 0).key("class-000-teacher"))
    assert record is not None
    assert 2.0 <= record["classes_evaluated"] <= 3.0
    assert one.preparation.teacher.C in {10.0, 100.0}
