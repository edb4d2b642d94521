"""The ablation on small sets made here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.experiments import ablation
from lab.experiments.ablation import PARTS, TEACHER, Ablation, Draw, collect, findings, gain, main
from lab.experiments.store import Run, Store
from lab.tests.experiments.conftest import clusters

STUDENTS = [f"{family}, {part}" for family in ("full", "compact") for part in PARTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sets")
    X, y = clusters(0, (60, 50, 60))
    far = {"X_test": X[:9] + 100.0, "y_test": y[:9]}
    np.savez(made / "vowel.npz", X_train=X, y_train=y, **far)
    return made


def work(folder: Path, store: Store) -> Ablation:
    return Ablation(Draw("vowel", 0, 4500), folder, store, 1)


def test_the_test_part_is_not_read_and_regimes_need_rows(folder: Path, tmp_path: Path, monkeypatch):
    own = work(folder, Store(tmp_path / "records.jsonl"))
    assert max(np.abs(part.X).max() for part in (own.train, own.test)) < 50.0
    assert own.train.n + own.test.n == 170
    assert own.names() == ["all", "10", "10+", "tenth"]
    monkeypatch.setattr(ablation, "LABELLED", (10, 100))
    assert own.names() == ["all", "10", "10+", "tenth"]


def test_labelled_rows_are_so_many_of_each_class(folder: Path, tmp_path: Path):
    own = work(folder, Store(tmp_path / "records.jsonl"))
    assert np.bincount(own.train.y[own._rows(10)]).tolist() == [10, 10, 10]
    assert np.bincount(own.train.y[own._rows(None)]).tolist() == [
        max(2, count // 10) for count in own.train.class_counts
    ]


@pytest.mark.long
def test_a_run_writes_table_and_figure_and_goes_on_where_it_was(
    folder: Path, tmp_path: Path, monkeypatch, capsys
):
    few = {
        family: tuple(replace(one, steps=30) if family == "compact" else one for one in specs)
        for family, specs in ablation.FAMILIES.items()
    }
    monkeypatch.setattr(ablation, "FAMILIES", few)
    arguments = [
        "--data",
        str(folder),
        "--work",
        str(tmp_path),
        "--out",
        str(tmp_path),
        "--sets",
        "vowel",
        "--quick",
    ]
    assert main(arguments) == 0
    first = capsys.readouterr().out.splitlines()
    assert main(arguments) == 0
    again = capsys.readouterr().out.splitlines()
    assert all(": made, " in line for line in first[:-1])
    assert all(": stored, " in line for line in again[:-1])
    assert first[-1] == again[-1]
    means = json.loads(first[-1])["mean_f1"]
    assert list(means) == ["all", "10", "10+", "tenth"]
    assert set(means["10+"]) == {TEACHER, *STUDENTS}
    assert means["10"][TEACHER] == means["10+"][TEACHER], "rows without labels are for the students"
    assert means["10"]["full, gate"] != means["10+"]["full, gate"]
    assert means["all"][TEACHER] == means["tenth"][TEACHER]
    assert means["all"]["full, none"] > 75.0
    page = (tmp_path / "ablation.md").read_text(encoding="utf-8")
    assert page.count("\n| 10+ | 1 |") == 1
    assert (tmp_path / "ablation.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_gains_are_paired_and_told_with_their_error(tmp_path: Path):
    values = {"full, none": [50.0, 70.0], "full, gate": [53.0, 75.0]}
    assert gain(values, "full", "gate") == (4.0, 1.0)
    assert collect(Store(tmp_path / "none.jsonl"), ["vowel"], 2) == ({}, {})
    one = {name: [50.0, 70.0] for name in STUDENTS} | {
        "full, gate": [53.0, 75.0],
        "full, gate and difficulty": [40.0, 61.0],
    }
    told = list(findings({"10": one, "10+": one}))
    assert told[0] == "full students, gate, against no teacher: helps with 10, 10+."
    assert told[1] == "full students, gate and difficulty, against no teacher: costs F with 10, 10+."
    assert "at 10 of a class +0.0 ± 0.0 points over the same student" in told[2]
    alone = {name: own[:1] for name, own in one.items()}
    assert next(findings({"10": alone})) == (
        "full students, gate, against no teacher: makes no clear difference with 10."
    )


def test_draws_of_a_set_count_once(tmp_path: Path):
    store = Store(tmp_path / "records.jsonl")
    for name, seed, f1 in (("vowel", 0, 0.1), ("vowel", 1, 0.3), ("yeast", 0, 0.5)):
        parts = {part: {"f1": f1} for part in PARTS}
        made = {TEACHER: {"f1": f1}, "full": parts, "compact": parts}
        store.write(Run(name, "ablation", seed).key("30"), "r", made)
    values, sizes = collect(store, ["vowel", "yeast"], 2)
    assert sizes == {"30": 2}
    assert values["30"][TEACHER] == pytest.approx([20.0, 50.0])


def test_a_missing_set_is_named(tmp_path: Path, capsys):
    assert main(["--data", str(tmp_path), "--work", str(tmp_path), "--sets", "vowel"]) == 1
    assert "There is no file" in capsys.readouterr().err
