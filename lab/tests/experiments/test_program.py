"""`python -m lab.experiments.reproduce` from the outside."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.features.spec import FeatureSpec
from core.students.grid import Grid
from lab.experiments import parts, plans
from lab.experiments.reproduce import main


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--data-sets", "iris"], "iris"),
        (["--data-sets", ","], "','"),
        (["--parts", "protocol,figures"], "there is no figures; there are protocol, probabilities, compact"),
        (["--threads", "0"], "0 is less than 1"),
    ],
)
def test_an_unknown_name_is_wrong_usage(tmp_path: Path, capsys, options: list[str], named: str):
    with pytest.raises(SystemExit) as ended:
        main(["--data", str(tmp_path), *options])
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_data_sets_that_are_not_there_are_passed_over_unless_they_are_named(tmp_path: Path, capsys):
    assert main(["--data", str(tmp_path), "--work", str(tmp_path / "work")]) == 1
    shown = capsys.readouterr().err
    assert "not run: There is no file" in shown
    assert "nothing to do" in shown


def test_a_missing_data_set_is_told(tmp_path: Path, capsys):
    work = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert main(["--data", str(tmp_path), "--data-sets", "vowel", *work]) == 1
    assert "vowel.npz" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_a_folder_of_data_the_option_is_told(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.delenv("STMS_DATA", raising=False)
    assert main(["--work", str(tmp_path)]) == 1
    assert "--data" in capsys.readouterr().err


def test_a_file_that_has_no_records_is_told(tmp_path: Path, capsys):
    (tmp_path / "records.jsonl").write_text("notes\n")
    assert main(["--report-only", "--work", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "line 1, is not a record" in capsys.readouterr().err


def test_a_report_of_what_is_there_needs_no_data(tmp_path: Path, capsys):
    out = tmp_path / "out"
    assert main(["--report-only", "--work", str(tmp_path), "--out", str(out)]) == 0
    found = json.loads((out / "reproduction.json").read_text())
    assert "vowel" not in found
    assert found["about"]["command"].startswith("python -m lab.experiments.reproduce --report-only --work")
    assert "figures.md" in capsys.readouterr().out


@pytest.mark.long
def test_the_program_makes_results_and_tells_how_far_it_is(tmp_path: Path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    labels = np.tile([1, 2], 30)
    arrays = {f"X_{part}": labels[:, None] + 0.1 * rng.standard_normal((60, 2)) for part in ("train", "test")}
    np.savez(tmp_path / "yeast.npz", **arrays, y_train=labels, y_test=labels)

    def tiny(data_set, grid):
        plan = plans.plan_for(data_set, grid)
        search = replace(
            plan.search, features=FeatureSpec("nystroem", n_components=4), teacher_C=(10.0,), folds=2
        )
        return replace(plan, search=search, grid=Grid(C=(10.0,)), folds=2)

    monkeypatch.setattr(parts, "plan_for", tiny)
    out = tmp_path / "out"
    places = ["--data", str(tmp_path), "--work", str(tmp_path / "work"), "--out", str(out)]
    asked = [
        "--grid",
        "paper",
        "--data-sets",
        "yeast",
        "--splits",
        "1",
        "--threads",
        "1",
        "--parts",
        "protocol",
    ]
    assert main([*places, *asked]) == 0
    assert "10/10  yeast paper split 0  inference" in capsys.readouterr().err
    found = json.loads((out / "reproduction.json").read_text())
    assert found["yeast"]["paper"]["gsvm"]["mean"]["f1"] == 100.0
    assert main([*places, *asked]) == 0
    assert capsys.readouterr().err == ""
