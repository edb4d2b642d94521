"""Summary, goals, tables and report of hand-made results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments import tables
from experiments.goals import goal_cells, order_faults, teacher_faults
from experiments.results import ResultStore, Run
from experiments.summary import figures, summarise

from .conftest import fill

RUN = Run("vowel", "open", 0)


def test_means_and_medians_leave_undefined_classes_out(store: ResultStore):
    outcome = summarise(store, ["vowel"])["vowel"]["open"]
    assert outcome.value("gsvm", "mean", "f1") == pytest.approx(65.0)
    assert outcome.value("teacher", "median", "f1") == pytest.approx(80.0)
    assert outcome.value("gsvm", "mean", "accuracy") == pytest.approx(90.0)
    cell = outcome.cells["gsvm", "mean", "auc"]
    assert (cell.low, cell.high) == pytest.approx((70.5, 89.5))
    assert cell.spread is None
    one_replicate = outcome.cells["gsvm", "mean", "f1"]
    assert one_replicate.low == one_replicate.high == pytest.approx(55.0)


def test_splits_are_averaged(store: ResultStore):
    same = {method: [0.7, 0.8, 0.9] for method in ("teacher", "svm", "gsvm0", "gsvm")}
    fill(store, Run("vowel", "open", 1), same, shift=0.02)
    outcome = summarise(store, ["vowel"])["vowel"]["open"]
    assert len(outcome.runs) == 2
    assert outcome.value("gsvm", "mean", "f1") == pytest.approx(72.5)
    assert outcome.cells["gsvm", "mean", "accuracy"].spread == pytest.approx(100 * 0.02 / 2**0.5)


def test_a_run_that_is_not_complete_is_left_out(store: ResultStore):
    (store.root / RUN.folder / "class-001-svm.json").unlink()
    assert list(summarise(store, ["vowel"])["vowel"]) == ["paper"]
    (store.root / "vowel" / "paper" / "split-00" / "setting.json").unlink()
    assert summarise(store, ["vowel"]) == {}


def test_a_record_of_another_recipe_makes_a_run_incomplete(store: ResultStore):
    found = store.read(RUN, "class-000-gsvm")
    assert found is not None
    store.write(
        RUN, "class-000-gsvm", "other", {k: v for k, v in found.items() if k not in {"recipe", "format"}}
    )
    assert list(summarise(store, ["vowel"])["vowel"]) == ["paper"]


def test_figures_are_nested_as_promised(store: ResultStore):
    found = figures(summarise(store, ["vowel", "letter"]))
    assert list(found) == ["vowel"]
    assert list(found["vowel"]) == ["paper", "open"]
    assert found["vowel"]["open"]["svm"]["median"] == {"accuracy": 90.0, "f1": 30.0, "auc": 80.0}


def test_there_are_30_goals_and_those_missed_have_a_reason(store: ResultStore):
    cells = goal_cells(summarise(store, ["vowel"]))
    assert len(cells) == 30
    by_name = {(cell.data_set, cell.statistic, cell.measure): cell for cell in cells}
    assert by_name["vowel", "mean", "f1"].reached
    missed = by_name["vowel", "mean", "auc"]
    assert not missed.reached
    assert "outside our 95 % interval 70.50 to 89.50" in missed.reason
    assert "class c0 has 4 test rows" in missed.reason
    assert by_name["letter", "mean", "f1"].reason == "not run"
    assert not by_name["letter", "mean", "f1"].reached


def test_a_wrong_order_of_methods_is_told(store: ResultStore):
    faults = order_faults(summarise(store, ["vowel"]))
    assert faults == ["vowel: mean F of gSVM / gSVM-0 / SVM is 50.00 / 60.00 / 30.00"]


def test_a_student_far_below_its_teacher_is_told(store: ResultStore):
    f1_of = {"teacher": [0.9, 0.9], "svm": [0.1, 0.1], "gsvm0": [0.2, 0.2], "gsvm": [0.88, 0.89]}
    fill(store, Run("letter", "open", 0), f1_of)
    assert teacher_faults(summarise(store, ["letter"])) == [
        "letter: gSVM is 1.50 points of mean F below its teacher"
    ]
    assert teacher_faults(summarise(store, ["vowel"])) == []


def test_a_cell_shows_ours_the_interval_the_paper_and_the_difference(store: ResultStore):
    table = tables.comparison(summarise(store, ["vowel"]), "open", ("vowel", "letter"), "Table")
    assert len(table.rows) == 4
    assert table.rows[3][:2] == ("vowel", "gSVM")
    assert table.rows[3][3] == "65.00 [55.00, 55.00] / 52.49 (+12.51)"


def test_tables_are_escaped_where_they_are_written():
    table = tables.Table("a < b", "", ("x", "y"), (("1|2", "<b>"),))
    assert "| 1\\|2 | <b> |" in table.markdown()
    assert "<td>&lt;b&gt;</td>" in table.html()
    assert "a &lt; b" in table.html()


def test_the_report_is_three_files_that_need_nothing_else(store: ResultStore, tmp_path: Path):
    pytest.importorskip("matplotlib")
    from experiments.report import Facts, write_report

    summary = summarise(store, ["vowel"])
    facts = Facts("stms reproduce --grid open & more", 0, 2)
    markdown, numbers, page = write_report(summary, facts, tmp_path / "out")
    assert json.loads(numbers.read_text()) == figures(summary)
    text = markdown.read_text()
    assert "stms reproduce --grid open & more" in text
    assert "Table 3 on the open grid" in text
    assert "5 of 30" in text or re.search(r"\d+ of 30 cells are reached", text)
    html = page.read_text()
    assert "--grid open &amp; more" in html
    assert html.count("data:image/svg+xml;base64,") == 5
    assert not re.search(r'(src|href)="(?!data:)', html)
    again = write_report(summary, facts, tmp_path / "again")[2]
    assert again.read_bytes() == page.read_bytes()


def test_a_report_without_results_is_still_a_report(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from experiments.report import Facts, write_report

    markdown, numbers, page = write_report({}, Facts("stms reproduce", 0, 500), tmp_path)
    assert json.loads(numbers.read_text()) == {}
    assert "0 of 30" in markdown.read_text()
    assert "<img" not in page.read_text()
