"""`stms reproduce` from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_an_unknown_data_set_is_wrong_usage(run, tmp_path: Path):
    pytest.importorskip("matplotlib")
    shown = run("reproduce", "--data", str(tmp_path), "--data-sets", "iris")
    assert shown.exit_code == 2
    assert "iris" in shown.stderr
    assert run("reproduce", "--data", str(tmp_path), "--data-sets", ",").exit_code == 2


def test_an_unknown_part_is_wrong_usage(run, tmp_path: Path):
    pytest.importorskip("matplotlib")
    shown = run("reproduce", "--data", str(tmp_path), "--parts", "protocol,figures")
    assert shown.exit_code == 2
    assert "figures" in shown.stderr
    assert "protocol, probabilities, compact" in shown.stderr


def test_the_help_tells_the_parts(run):
    shown = run("reproduce", "--help")
    assert shown.exit_code == 0
    for word in ("--parts", "protocol", "probabilities", "compact", "--report-only", "Examples"):
        assert word in shown.stdout


def test_data_sets_that_are_not_there_are_passed_over_unless_they_are_named(run, tmp_path: Path):
    pytest.importorskip("matplotlib")
    shown = run("reproduce", "--data", str(tmp_path), "--work", str(tmp_path / "work"))
    assert shown.exit_code == 1
    assert "not run: There is no file" in shown.stderr
    assert "nothing to do" in shown.stderr


def test_a_missing_data_set_is_told(run, tmp_path: Path):
    pytest.importorskip("matplotlib")
    work = ("--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"))
    shown = run("reproduce", "--data", str(tmp_path), "--data-sets", "vowel", *work)
    assert shown.exit_code == 1
    assert "vowel.npz" in shown.stderr
    assert not (tmp_path / "out").exists()


def test_without_a_folder_of_data_the_option_is_told(run, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("STMS_DATA", raising=False)
    shown = run("reproduce")
    assert shown.exit_code == 1
    assert "--data" in shown.stderr


def test_without_matplotlib_the_way_to_install_it_is_told(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.commands.reproduce.find_spec", lambda _: None)
    shown = run("reproduce")
    assert shown.exit_code == 1
    assert "stms[reports]" in shown.stderr


def test_a_report_of_what_is_there_needs_no_data(run, tmp_path: Path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    shown = run("reproduce", "--report-only", "--work", str(tmp_path), "--out", str(out))
    assert shown.exit_code == 0, shown.stderr
    found = json.loads((out / "reproduction.json").read_text())
    assert "vowel" not in found
    assert found["about"]["command"].startswith("stms")
    assert "figures.md" in shown.stdout


@pytest.mark.long
def test_the_command_makes_results_and_tells_how_far_it_is(run, tmp_path: Path, monkeypatch):
    pytest.importorskip("matplotlib")
    import numpy as np

    from core.features.spec import FeatureSpec
    from experiments import plans, reproduce

    rng = np.random.default_rng(0)
    labels = np.tile([1, 2], 30)
    arrays = {f"X_{part}": labels[:, None] + 0.1 * rng.standard_normal((60, 2)) for part in ("train", "test")}
    np.savez(tmp_path / "yeast.npz", **arrays, y_train=labels, y_test=labels)

    def tiny(data_set, grid):
        from dataclasses import replace

        from core.students.grid import Grid

        plan = plans.plan_for(data_set, grid)
        search = replace(
            plan.search, features=FeatureSpec("nystroem", n_components=4), teacher_C=(10.0,), folds=2
        )
        return replace(plan, search=search, grid=Grid(C=(10.0,)), folds=2)

    monkeypatch.setattr(reproduce, "plan_for", tiny)
    out = tmp_path / "out"
    places = ("--data", str(tmp_path), "--work", str(tmp_path / "work"), "--out", str(out))
    which = (
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
    )
    shown = run("reproduce", *places, *which)
    assert shown.exit_code == 0, shown.stderr
    assert "10/10  yeast paper split 0  inference" in shown.stderr
    found = json.loads((out / "reproduction.json").read_text())
    assert found["yeast"]["paper"]["gsvm"]["mean"]["f1"] == 100.0
    assert run("reproduce", *places, *which).stderr == ""
