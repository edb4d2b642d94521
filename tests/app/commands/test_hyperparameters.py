"""Hyper-parameters given on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from app.commands.hyperparameters import (
    TABLE_BEGINS,
    TABLE_ENDS,
    read_hyperparameters,
    with_table,
)
from app.domain.parameter_table import parameter_rows
from core.learners import STUDENTS


def test_values_are_json_where_they_are_json_and_text_elsewhere():
    given = read_hyperparameters(
        ["student.C=1e5", "features.kind=nystroem", 'classes=["1", "2"]', "alias=null", "publish=false"], None
    )
    assert given == {
        "student": {"C": 1e5},
        "features": {"kind": "nystroem"},
        "classes": ["1", "2"],
        "alias": None,
        "publish": False,
    }


def test_the_command_line_goes_on_top_of_the_file(tmp_path):
    file = tmp_path / "params.json"
    file.write_text('{"student": {"C": 10, "margin": 2}, "seed": 3}', encoding="utf-8")
    assert read_hyperparameters(["student.C=20"], file) == {"student": {"C": 20, "margin": 2}, "seed": 3}


@pytest.mark.parametrize(
    ("assignments", "tuning"),
    [
        ([], {"scope": "job"}),
        (["tuning=null"], {"scope": "job"}),
        (["tuning.grid=open"], {"grid": "open"}),
        (["tuning.grid.C=[1, 2]"], {"grid": {"C": [1, 2]}}),
    ],
)
def test_a_search_is_asked_for_in_a_word(assignments, tuning):
    assert read_hyperparameters(assignments, None, tune=True) == {"tuning": tuning}
    assert read_hyperparameters([], None) == {}
    named = read_hyperparameters(["features.kind=nystroem"], None, tune=True)
    assert named == {"features": {"kind": "nystroem"}, "tuning": {}}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("student.C", "not NAME=VALUE"),
        ("=3", "not NAME=VALUE"),
        ("student.C=1e99", "student.C: Input should be less than or equal to 100000000"),
        ("student.c=1", r"student.c: student has no 'c'; it has .* Is 'C' meant\?"),
        ("studnt.C=1", r"a job has no 'studnt'; it has .* Is 'student' meant\?"),
        ("seed.x=1", "seed"),
        ("tuning.grid=coarse", "tuning.grid: Input should be 'paper' or 'open'"),
        ("compact=5", "compact"),
    ],
)
def test_a_wrong_one_is_named(assignment, message):
    with pytest.raises(typer.BadParameter, match=message):
        read_hyperparameters([assignment], None)


def test_a_value_is_not_a_group():
    with pytest.raises(typer.BadParameter, match="seed is a value, not a group"):
        read_hyperparameters(["seed=1", "seed.x=1"], None)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[1]", "does not contain a JSON object")]
)
def test_a_file_that_is_no_object_is_told(tmp_path, text, message):
    file = tmp_path / "params.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(typer.BadParameter, match=message):
        read_hyperparameters([], file)


def test_every_hyperparameter_has_a_meaning_and_a_default_that_is_accepted():
    rows = list(parameter_rows())
    assert len(rows) > 20
    for row in rows:
        assert row.meaning, row.name
        group = row.name.rpartition(".")[0]
        default = [] if row.default == "required" else [f"{row.name}={row.default}"]
        for method in row.methods or [""]:
            named = [f"{group}.method={method}"] if method else []
            if method == "remote":
                named += ["teacher.url=http://triton", "teacher.model=net"]
            read_hyperparameters([*named, *default], None)
    assert {row.name for row in rows if row.default == "required"} == {"teacher.url", "teacher.model"}


def test_bounds_and_choices_are_shown():
    rows: dict[str, str] = {}
    for row in parameter_rows():
        rows.setdefault(row.name, row.allowed)
    assert rows["student.C"] == "≥ 1e-06 and ≤ 100000000"
    assert rows["student.method"] == " | ".join(name for name in STUDENTS if name != "compact")
    assert rows["evaluation.test_fraction"] == "> 0 and < 0.9"


def test_the_command_lists_them_for_people_and_for_programs(run):
    shown = run("hyperparameters")
    assert shown.exit_code == 0
    assert "student.C = 100000.0  (≥ 1e-06 and ≤ 100000000)" in shown.output
    schema = json.loads(run("hyperparameters", "--json").stdout)
    assert schema["title"] == "TrainingSpec"


def test_the_page_of_hyper_parameters_holds_the_table_of_today():
    page = (Path(__file__).parents[3] / "docs" / "hyperparameters.md").read_text(encoding="utf-8")
    assert "`student.C`" in page
    assert with_table(page) == page


def test_the_table_of_a_page_is_written_anew(run, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{TABLE_BEGINS}\nold\n{TABLE_ENDS}\nafter\n", encoding="utf-8")
    assert run("hyperparameters", "--update", str(page)).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| `seed` | `0` |" in text
    assert "\nold\n" not in text
