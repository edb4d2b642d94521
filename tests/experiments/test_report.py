"""Summary, goals, tables and report of hand-made results."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path

import pytest

from experiments import part_tables, tables
from experiments.gathered import Gathered, gather
from experiments.goals import compact_faults, goal_cells, order_faults, teacher_faults
from experiments.history import remember, remembered
from experiments.notes import NOTES, notes_on
from experiments.paper import METHODS
from experiments.plans import DATA_SETS
from experiments.remarks import findings, remarks
from experiments.results import ResultStore, Run
from experiments.summary import figures, summarise
from experiments.table import Table

from .conftest import CHOSEN, fill, fill_curve, fill_probabilities

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


def test_a_lead_is_measured_on_the_same_resampled_rows(store: ResultStore):
    lead = summarise(store, ["vowel"])["vowel"]["paper"].lead("gsvm0", "mean", "f1")
    # Both are 10 points lower in the only replicate that is defined: the difference has no spread.
    assert (lead.value, lead.low, lead.high) == pytest.approx((-10.0, -10.0, -10.0))
    table = tables.leads(summarise(store, ["vowel"]))
    assert table.rows[0][3] == "-10.00 [-10.00, -10.00]"


def test_the_cells_of_vowel_are_never_without_their_note(store: ResultStore):
    summary = summarise(store, ["vowel"])
    shown = [
        tables.comparison(summary, "open", ("vowel",), "Table"),
        tables.goals(summary),
        tables.leads(summary),
        tables.class_measures(summary["vowel"]["open"], ("f1",)),
    ]
    for table in shown:
        for text in (table.markdown(), table.html()):
            assert "revised after its test part had been looked at" in text
            assert "some 56 combinations" in text


def test_every_note_is_on_a_data_set_with_a_plan():
    assert set(NOTES) <= set(DATA_SETS)
    assert notes_on(["mnist", "letter", "mnist"]) == (f"mnist: {NOTES['mnist']}",)


def test_settings_that_were_looked_at_are_counted(store: ResultStore):
    outcome = summarise(store, ["vowel"])["vowel"]["open"]
    assert (outcome.tried.teachers, outcome.tried.points) == (0, 9 * 12)
    store.write(RUN, "tuning-gsvm", "r", {"chosen": {**CHOSEN, "points": 126}, "seconds": 5.0})
    joint = summarise(store, ["vowel"])["vowel"]["open"]
    assert joint.tried.points == 126
    assert joint.seconds == outcome.seconds + 5.0
    assert (outcome.joint, joint.joint) == (False, True)
    shown = {
        joint: tables.settings({"vowel": {"open": one}}).rows[0][5]
        for joint, one in ((0, outcome), (1, joint))
    }
    assert shown == {0: "halving, 10 folds", 1: "one point for all classes, 10 folds"}
    assert "accuracy, F and AUC" not in "\n".join(remarks(gather(store)))
    record = store.read(RUN, "class-000-gsvm")
    assert record is not None
    record["chosen"]["cv_score"] = 1.0
    for code in range(3):
        kept = {k: v for k, v in record.items() if k not in {"format", "recipe"}}
        store.write(RUN, f"class-{code:03d}-gsvm", "r", kept)
    assert "vowel (open): mean of accuracy, F and AUC 100.0 against 76.7" in "\n".join(remarks(gather(store)))


def test_a_table_of_classes_has_one_column_a_measure_and_method(store: ResultStore):
    table = tables.class_measures(summarise(store, ["vowel"])["vowel"]["open"], ("f1", "auc"))
    assert table.columns[:5] == ("class", "F, teacher", "F, SVM", "F, gSVM-0", "F, gSVM")
    assert table.rows[2][:5] == ("c2", "90.00", "40.00", "70.00", "–")
    assert table.rows[3] == ("mean", "80.00", "30.00", "60.00", "65.00", *["80.00"] * 4)


@pytest.fixture
def full(store: ResultStore) -> Gathered:
    """Every part of something."""
    same: dict[str, list[float | None]] = {
        method: [0.5, 0.6, 0.7] for method in ("teacher", "svm", "gsvm0", "gsvm")
    }
    fill(store, Run("news20_bydate", "open", 0), same)
    fill_probabilities(store, RUN)
    fill_curve(store, "letter", {25: 0.8, 100: 0.85, 200: 0.95})
    seconds = {"sparse": 2e-6, "dense": 9e-6, "sparse_served": 2e-5, "dense_served": 1e-5}
    groups = [{"rows": 40, "nonzeros": nonzeros, "seconds": seconds} for nonzeros in (20.0, 90.0)]
    line = {"label": "c0", "columns": 32199, "seconds_a_query": 1.5e-6, "seconds_a_nonzero": 4e-9}
    record = {**line, "protocol": "r", "groups": groups, "seconds": 3.0}
    store.write(Run("news20_bydate", "open", 0), "sparse-query", "s", record)
    return gather(store)


def test_compact_students_below_their_goal_are_told(full: Gathered):
    assert compact_faults(full.curves) == ["letter: mean F with 100 landmarks is 85.00, below 90"]
    assert any("letter: mean F with 100" in line for line in findings(full))


def test_findings_tell_of_teachers_that_are_too_far_ahead_and_of_an_order_that_holds(tmp_path: Path):
    store = ResultStore(tmp_path)
    f1_of: dict[str, list[float | None]] = {"teacher": [0.9], "svm": [0.1], "gsvm0": [0.2], "gsvm": [0.8]}
    for grid in ("open", "paper"):
        fill(store, Run("letter", grid, 0), f1_of)
    lines = findings(gather(store))
    assert "Open grid: letter: gSVM is 10.00 points of mean F below its teacher." in lines
    assert "Paper's grid: gSVM ≥ gSVM-0 ≥ SVM in every mean." in lines


def test_compact_students_at_their_goal_are_told(store: ResultStore):
    fill_curve(store, "letter", {100: 0.95, 200: 0.95})
    assert "Compact students: every mean F that was to be reached is reached." in findings(gather(store))


def test_the_table_of_the_curve_starts_with_the_teacher(full: Gathered):
    table = part_tables.compact(full.curves)
    assert table.rows[0][:3] == ("letter", "teacher", "95.00")
    assert table.rows[1][1:6] == ("25", "80.00 [79.10, 81.00]", "98.00", "0.125", "0.250")
    assert "100 training rows and 50 test rows" in table.footnotes[0]


def test_isotonic_is_held_against_the_sigmoid_of_the_same_classes(full: Gathered):
    rows = part_tables.probabilities(full.probabilities).rows
    assert [row[1:3] for row in rows] == [
        ("sigmoid", "3 of 3"),
        ("isotonic", "1 of 3"),
        ("sigmoid, classes of isotonic", "1 of 3"),
    ]
    assert rows[0][3:6] == ("0.0400", "0.2000", "0.800")


def test_the_time_of_a_sparse_query_is_told_by_non_zeros(full: Gathered):
    table = part_tables.sparse(full.sparse)
    assert table.rows[0][1:5] == ("20 of 32199", "2.00", "9.00", "0.222")
    assert "1.50 µs and 4.00 ns for each non-zero" in table.footnotes[0]


def test_what_was_not_run_is_listed_with_its_state(full: Gathered, store: ResultStore):
    states = {(row[0], row[1], row[2]): row[3] for row in part_tables.covered(full).rows}
    assert states["letter", "protocol", "open"] == "not run"
    assert states["mnist", "compact", "–"].startswith("not run")
    assert states["letter", "compact", "–"] == "3 of 4 numbers of landmarks"
    assert states["reuters_r8", "sparse queries", "open"].startswith("not run")
    assert ("vowel", "protocol", "open") not in states
    assert ("vowel", "probabilities", "open") not in states
    (store.root / RUN.folder / "class-001-svm.json").unlink()
    again = {
        (row[0], row[2]): row[3] for row in part_tables.covered(gather(store)).rows if row[1] == "protocol"
    }
    assert again["vowel", "open"] == "not complete: 13 of 17 records of split 0"
    fill(store, Run("yeast", "paper", 0), {method: [0.5, 0.5] for method in METHODS})
    part = {
        (row[0], row[2]): row[3] for row in part_tables.covered(gather(store)).rows if row[1] == "protocol"
    }
    assert part["yeast", "paper"] == "1 of 20 splits"


def test_remarks_come_from_the_records(full: Gathered):
    text = "\n".join(remarks(full))
    assert "0 settings of map and teacher and 324 points of students" in text
    assert "Fewer than 10 folds were used for the students on news20_bydate (open): 5." in text
    assert "trained again for their probabilities differ from the protocol's on vowel: class c2" in text
    assert "Solvers stopped" not in text
    assert "γ lies" not in text


def test_remarks_name_ends_of_the_search_and_students_that_stopped(store: ResultStore):
    setting, student = store.read(RUN, "setting"), store.read(RUN, "class-000-gsvm")
    assert setting is not None
    assert student is not None
    features = {**setting["features"], "gamma": 0.5}
    trace = [{"features": {**features, "gamma": gamma}} for gamma in (0.1, 0.2, 0.5)]
    changed = {**setting, "features": features, "teacher_C": 1e6, "trace": trace}
    chosen = {**student["chosen"], "C": 1e6, "cv_score": 0.95}
    stopped = {**student, "chosen": chosen, "solution": {"status": "max_epochs"}}
    for name, record in (("setting", changed), ("class-000-gsvm", stopped)):
        store.write(RUN, name, "r", {k: v for k, v in record.items() if k not in {"format", "recipe"}})
    text = "\n".join(remarks(gather(store)))
    assert "γ lies at the end of what was tried on vowel (open)" in text
    assert "The largest teacher C that could be chosen was chosen on vowel (open)" in text
    assert "gSVM students chose the largest C of their grid: vowel (open) 1 of 3" in text
    assert "Solvers stopped before their gap was reached: vowel (open) 1 of 9 students" in text
    assert "better on held-out rows than on the test part on vowel (paper): F 65.0 against 50.0" in text


def test_remarks_tell_of_poor_probabilities_two_teachers_and_unclear_leads(store: ResultStore):
    fill(store, Run("letter", "open", 0), {method: [0.5, 0.5] for method in METHODS})
    fill_curve(store, "letter", {25: 0.8})
    fill_probabilities(store, RUN)
    record = store.read(RUN, "probability-001")
    assert record is not None
    record["calibrations"]["sigmoid"] |= {"brier": 0.3}
    store.write(
        RUN, "probability-001", "p", {k: v for k, v in record.items() if k not in {"format", "recipe"}}
    )
    text = "\n".join(remarks(gather(store)))
    assert "no better than the share of the class on vowel (sigmoid): class c1" in text
    assert "mean F: letter 95.00 against 50.00" in text
    assert "no order is shown: letter (open) over gSVM-0 and SVM" in text
    assert "lies below 0: vowel (paper) over gSVM-0" in text


def test_splits_searched_by_halving_on_the_papers_grid_are_named(store: ResultStore):
    for split in (0, 1):
        fill(store, Run("yeast", "paper", split), {method: [0.5, 0.5] for method in METHODS})
    fill(store, Run("letter", "paper", 0), {method: [0.5, 0.5] for method in METHODS})
    text = "\n".join(remarks(gather(store)))
    assert "not exhaustively, on letter; yeast, 1 of 2 splits." in text


def test_tables_are_escaped_where_they_are_written():
    table = Table("a < b", "", ("x", "y"), (("1|2", "<b>"),), ("x: & y",))
    assert "Note on x: &amp; y" in table.html()
    assert "| 1\\|2 | <b> |" in table.markdown()
    assert "<td>&lt;b&gt;</td>" in table.html()
    assert "a &lt; b" in table.html()


FACTS = ("stms reproduce --grid open & more", 0, 2, 2)


def test_the_report_is_three_files_that_need_nothing_else(full: Gathered, tmp_path: Path):
    pytest.importorskip("matplotlib")
    from experiments.report import Facts, versions, write_report

    facts = Facts(*FACTS)
    markdown, numbers, page = write_report(full, facts, tmp_path / "out")
    found = json.loads(numbers.read_text())
    assert {name: found[name] for name in ("vowel", "news20_bydate")} == figures(full.summary)
    assert found["about"]["versions"] == versions()
    assert found["about"]["cores"] == os.cpu_count()
    assert found["about"]["command"] == FACTS[0]
    assert found["about"]["seconds"]["compact"] == pytest.approx(36.0)
    assert [point["landmarks"] for point in found["compact"]["letter"]["points"]] == [25, 100, 200]
    assert found["probabilities"]["vowel"]["sigmoid"]["brier"] == pytest.approx(0.04)
    assert found["sparse_queries"]["news20_bydate"]["columns"] == 32199
    assert len(found["goals"]) == 30
    assert ("letter", "paper") in {(one["data_set"], one["grid"]) for one in found["not_complete"]}
    text = markdown.read_text()
    for expected in (
        FACTS[0],
        f"{os.cpu_count()} cores",
        "Table 3 on the open grid",
        "news20_bydate, open grid: F and AUC of each class",
        "Compact students: cost against F",
        "### Probabilities",
        "One query of sparse text",
        "Not run, or not complete",
        "Time that each part took",
    ):
        assert expected in text
    assert re.search(r"\d+ of 30 cells are reached", text)
    html = page.read_text()
    assert "--grid open &amp; more" in html
    for figure in ("Figure 2", "Figure 3", "Figure 4", "Compact students: mean F", "Reliability: vowel"):
        assert f"<figcaption>{figure}" in html
    # Figure 4, Figures 2 and 3 of three runs, the curve, one reliability plot, sparse queries.
    assert html.count("data:image/svg+xml;base64,") == 1 + 2 * 3 + 3
    again = write_report(full, facts, tmp_path / "again")[2]
    assert again.read_bytes() == page.read_bytes()


def test_the_page_refers_to_nothing_outside_of_it(full: Gathered, tmp_path: Path):
    pytest.importorskip("matplotlib")
    from experiments.report import Facts, write_report

    html = write_report(full, Facts(*FACTS), tmp_path)[2].read_text()
    assert not re.search(r"<(script|link|iframe|object)\b", html)
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert "url(" not in html
    assert "@import" not in html
    for picture in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html):
        svg = base64.b64decode(picture).decode()
        assert not re.search(r'(?:href|src)="(?!#)', svg)


def test_the_commands_that_filled_the_work_folder_are_named(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from experiments.report import Facts

    assert remembered(tmp_path) == ()
    for command in (
        "stms reproduce --grid paper",
        "stms reproduce --grid open",
        "stms reproduce --grid paper",
    ):
        remember(tmp_path / "work", command)
    history = remembered(tmp_path / "work")
    assert history == ("stms reproduce --grid paper", "stms reproduce --grid open")
    lines = Facts("stms reproduce --grid open", 0, 500, 2, history).lines()
    assert lines[:2] == [
        "Command: stms reproduce --grid open",
        "Results were made by, too: stms reproduce --grid paper",
    ]


def test_a_report_without_results_is_still_a_report(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from experiments.report import Facts, write_report

    gathered = gather(ResultStore(tmp_path / "empty"))
    markdown, numbers, page = write_report(gathered, Facts("stms reproduce", 0, 500, 2), tmp_path)
    found = json.loads(numbers.read_text())
    assert not set(found) & set(DATA_SETS)
    assert {one["data_set"] for one in found["not_complete"]} == set(DATA_SETS)
    text = markdown.read_text()
    assert "0 of 30" in text
    assert all(name in text for name in DATA_SETS)
    assert "<img" not in page.read_text()
