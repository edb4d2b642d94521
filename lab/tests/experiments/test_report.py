"""Results, tables, remarks and report of hand-made records."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lab.experiments.paper import MEASURES, METHODS, STATISTICS
from lab.experiments.plans import DATA_SETS, plan_for
from lab.experiments.report import remarks, tables
from lab.experiments.report.outcomes import Outcome
from lab.experiments.report.results import Results, goal_cells, read, update
from lab.experiments.report.tables import notes_on, prose
from lab.experiments.store import Run, Store

from .conftest import CHOSEN, EFFORT, fill, fill_curve, fill_probabilities, gather, rewrite

RUN = Run("vowel", "open", 0)
SAME = {method: [0.7, 0.8, 0.9] for method in METHODS}


def vowel(store: Store, grid: str = "open") -> Outcome:
    outcome = gather(store).outcome("vowel", grid)
    assert outcome is not None
    return outcome


@pytest.fixture
def full(store: Store) -> Results:
    """Every part of something."""
    same: dict[str, list[float | None]] = {
        method: [0.5, 0.6, 0.7] for method in ("teacher", "svm", "gsvm0", "gsvm")
    }
    fill(store, Run("news20_bydate", "open", 0), same)
    fill_probabilities(store, RUN)
    fill_curve(store, "letter", {25: 0.8, 100: 0.85, 200: 0.95})
    return gather(store)


def test_means_and_medians_leave_undefined_classes_out(store: Store):
    outcome = vowel(store)
    assert outcome.value("gsvm", "mean", "f1") == pytest.approx(65.0)
    assert outcome.value("teacher", "median", "f1") == pytest.approx(80.0)
    assert outcome.value("gsvm", "mean", "accuracy") == pytest.approx(90.0)
    cell = outcome.cell("gsvm", "mean", "auc")
    assert (cell.low, cell.high) == pytest.approx((70.5, 89.5))
    assert outcome["cells"]["gsvm mean auc"]["spread"] is None
    one_replicate = outcome.cell("gsvm", "mean", "f1")
    assert one_replicate.low == one_replicate.high == pytest.approx(55.0)


def test_splits_are_averaged(store: Store):
    fill(store, Run("yeast", "open", 0), {**SAME, "gsvm": [0.6, 0.7, None]})
    fill(store, Run("yeast", "open", 1), SAME, shift=0.02)
    outcome = gather(store).outcome("yeast", "open")
    assert outcome is not None
    assert outcome["runs"] == [0, 1]
    assert outcome.value("gsvm", "mean", "f1") == pytest.approx(72.5)
    assert outcome["cells"]["gsvm mean accuracy"]["spread"] == pytest.approx(100 * 0.02 / 2**0.5)


def test_a_run_with_a_record_of_another_recipe_is_left_out(store: Store):
    rewrite(store, RUN, "class-000-gsvm", recipe="other")
    assert [one.grid for one in gather(store).outcomes] == ["paper"]


def test_a_missed_goal_has_a_reason(store: Store):
    results = gather(store)
    cells = {(cell["data_set"], cell["statistic"], cell["measure"]): cell for cell in goal_cells(results)}
    assert len(cells) == 30
    assert cells["vowel", "mean", "f1"]["reached"]
    missed = cells["vowel", "mean", "auc"]
    assert not missed["reached"]
    assert "70.50 to 89.50" in missed["reason"]
    assert "class c0 has 4 test rows" in missed["reason"]
    assert not cells["letter", "mean", "f1"]["reached"]


def test_cells_are_counted_for_every_method(store: Store):
    counts = {m: sum(cell["reached"] for cell in goal_cells(gather(store), m)) for m in METHODS}
    # Only the goals in F, 52.49 and 51.72, are reached: by F of 80, 60 and 65, not by 30.
    assert counts == {"teacher": 2, "svm": 0, "gsvm0": 2, "gsvm": 2}
    assert any("teacher 2, SVM 0, gSVM-0 2, gSVM 2" in line for line in remarks.findings(gather(store)))


def test_a_wrong_order_of_methods_is_found(store: Store):
    [fault] = remarks.order_faults(gather(store))
    assert fault.startswith("vowel")
    assert "50.00 / 60.00 / 30.00" in fault


def test_a_cell_shows_ours_the_interval_the_paper_and_the_difference(store: Store):
    table = tables.comparison(gather(store), "open", ("vowel", "letter"), "Table")
    assert len(table.rows) == 4
    assert table.rows[3][:2] == ("vowel", "gSVM")
    assert table.rows[3][3] == "65.00 [55.00, 55.00] / 52.49 (+12.51)"


def test_a_lead_is_measured_on_the_same_resampled_rows(store: Store):
    lead = vowel(store, "paper").lead("gsvm0")
    # Both are 10 points lower in the only replicate that is defined: the difference has no spread.
    assert (lead.value, lead.low, lead.high) == pytest.approx((-10.0, -10.0, -10.0))
    assert tables.leads(gather(store)).rows[0][3] == "-10.00 [-10.00, -10.00]"


def test_every_table_of_a_data_set_has_its_note(store: Store):
    results = gather(store)
    shown = [
        tables.comparison(results, "open", ("vowel",), "Table"),
        tables.goals(results),
        tables.leads(results),
        tables.per_class(vowel(store)),
    ]
    assert all(f"Note on vowel: {prose()['notes']['vowel']}" in table.markdown() for table in shown)
    assert set(prose()["notes"]) <= set(DATA_SETS)
    assert len(notes_on([("mnist",), ("letter",), ("mnist",)])) == 1


def test_settings_that_were_looked_at_are_counted(store: Store):
    outcome = vowel(store)
    assert outcome["tried"] == {"teachers": 0, "points": 9 * 12}
    store.write(RUN.key("tuning-gsvm"), "r", {"chosen": {**CHOSEN, "points": 126}, "seconds": 5.0})
    joint = vowel(store)
    assert joint["tried"]["points"] == 126
    assert joint["seconds"] == outcome["seconds"] + 5.0
    assert (outcome["joint"], joint["joint"]) == (False, True)


@pytest.mark.parametrize("joint", [False, True])
def test_optimism_compares_the_score_that_was_maximised_with_itself(store: Store, joint: bool):
    """F with F; or one minus the geometric mean of the errors in accuracy, F and AUC, on both sides."""
    fill(store, RUN, {**SAME, "gsvm": [0.6, 0.7, 0.8]})
    if joint:
        store.write(RUN.key("tuning-gsvm"), "r", {"chosen": {**CHOSEN, "points": 126}, "seconds": 5.0})
    held_out, test = remarks.optimism(vowel(store))
    assert held_out == pytest.approx(100 * CHOSEN["cv_score"])
    assert test == pytest.approx(100 * (1 - (0.1 * 0.3 * 0.2) ** (1 / 3)) if joint else 70.0)


def test_the_table_of_the_curve_starts_with_the_teacher(full: Results):
    table = tables.compact(full)
    assert table.rows[0][:3] == ("letter", "teacher", "95.00")
    assert table.rows[1][1:6] == ("25", "80.00 [79.10, 81.00]", "98.00", "0.125", "0.250")
    assert "100 training rows and 50 test rows" in table.footnotes[0]


def test_isotonic_is_compared_with_the_sigmoid_of_the_same_classes(full: Results):
    rows = tables.probabilities(full).rows
    assert [row[2] for row in rows] == ["3 of 3", "1 of 3", "1 of 3"]
    assert rows[0][3:6] == ("0.0400", "0.2000", "0.800")
    assert rows[2][3] == "0.0400"


def test_missing_runs_are_listed_with_what_is_done(full: Results, store: Store):
    def states(results: Results) -> dict[tuple[str, str, str], tuple[int, int]]:
        names = ("part", "data_set", "grid")
        return {tuple(one[n] for n in names): (one["done"], one["planned"]) for one in results.missing()}  # type: ignore[misc]

    shown = states(full)
    assert shown["protocol", "letter", "open"] == (0, 1)
    assert shown["compact", "letter", "–"] == (3, 4)
    assert shown["compact", "mnist", "–"] == (0, 4)
    assert ("probabilities", "vowel", "open") not in shown
    assert shown["probabilities", "letter", "open"] == (0, 1)
    for grid in ("paper", "open"):
        fill(store, Run("yeast", grid, 0), {method: [0.5, 0.5] for method in METHODS})
    rewrite(store, Run("yeast", "open", 0), "class-001-svm", recipe="other")
    shown = states(gather(store))
    assert shown["protocol", "yeast", "paper"] == (1, 20)
    assert shown["protocol", "yeast", "open"] == (0, 20)
    nothing = read(Store(store.path.with_name("none.jsonl")), EFFORT)
    assert len(full.states()) == len(states(nothing))


def test_remarks_name_ends_of_the_search_and_students_that_stopped(store: Store):
    features = {**vowel(store)["setting"]["features"], "gamma": 0.5}
    trace = [{"features": {**features, "gamma": gamma}} for gamma in (0.1, 0.2, 0.5)]
    rewrite(store, RUN, "setting", features=features, teacher_C=1e6, trace=trace)
    chosen = {**CHOSEN, "C": 1e6, "cv_score": 0.95}
    rewrite(store, RUN, "class-000-gsvm", chosen=chosen, solution={"status": "max_epochs"})
    text = "\n".join(remarks.remarks(gather(store)))
    assert "vowel (open) 1 of 3" in text  # the largest C of the grid
    assert "vowel (open) 1 of 9 students" in text  # not converged
    assert "vowel (paper): F 65.0 against 50.0" in text  # optimism
    for title in ("γ lies at the end", "The largest teacher C"):
        assert re.search(rf"{title}.* vowel \(open\)", text)


def test_remarks_count_what_was_tried_and_name_changed_students(full: Results):
    text = "\n".join(remarks.remarks(full))
    assert "0 settings of map and teacher and 324 points" in text
    assert "vowel: class c2" in text
    assert "Solvers stopped" not in text


def test_a_report_is_the_same_from_stored_results_alone(full: Results, store: Store):
    stored = Store(store.path.with_name("kept.jsonl"))
    again = read(stored, EFFORT)
    assert [table.markdown() for table in tables.report_tables(again)] == [
        table.markdown() for table in tables.report_tables(full)
    ]
    size = len(stored.path.read_text().splitlines())
    update(stored, store, EFFORT)
    assert len(stored.path.read_text().splitlines()) == size == 5


def test_stored_results_with_more_splits_are_not_replaced(store: Store, tmp_path: Path):
    for split in (0, 1):
        fill(store, Run("yeast", "open", split), SAME)
    kept = Store(tmp_path / "kept.jsonl")
    gather(store, kept=kept)
    fewer = Store(tmp_path / "fewer.jsonl")
    fill(fewer, Run("yeast", "open", 0), {method: [0.1, 0.1, 0.1] for method in METHODS})
    outcome = gather(fewer, kept=kept).outcome("yeast", "open")
    assert outcome is not None
    assert outcome["runs"] == [0, 1]


def test_results_of_another_seed_or_plan_are_not_shown(full: Results, store: Store, monkeypatch):
    kept = Store(store.path.with_name("kept.jsonl"))
    for effort in (replace(EFFORT, seed=1), replace(EFFORT, replicates=6)):
        assert read(kept, effort).outcomes == []
    monkeypatch.setattr(
        "lab.experiments.report.results.plan_for", lambda name, grid: replace(plan_for(name, grid), folds=7)
    )
    found = read(kept, EFFORT)
    # Without its outcome a result of the other parts has nothing to belong to.
    assert (found.outcomes, found.probabilities) == ([], {})
    assert list(found.curves) == ["letter"]


COMMAND = "reproduce --grid open & more"


@pytest.mark.long
def test_the_report_is_made_of_text_numbers_and_figures(full: Results, tmp_path: Path):
    pytest.importorskip("matplotlib")
    from lab.experiments.report.page import about, write_report

    facts = about(full, EFFORT, COMMAND, [COMMAND, "reproduce"])
    markdown, numbers, figures = write_report(full, facts, tmp_path / "out")
    found = json.loads(numbers.read_text())
    svm = found["vowel"]["open"]["svm"]
    assert svm["median"] == {"accuracy": 90.0, "f1": 30.0, "auc": 80.0}
    assert list(svm) == list(STATISTICS)
    assert list(svm["mean"]) == list(MEASURES)
    assert found["about"] == facts
    assert (facts["command"], facts["cores"], facts["replicates"]) == (COMMAND, os.cpu_count(), 5)
    assert facts["seconds"]["compact"] == pytest.approx(36.0)
    assert [point["landmarks"] for point in found["compact"]["letter"]["points"]] == [25, 100, 200]
    assert found["probabilities"]["vowel"]["sigmoid"]["brier"] == pytest.approx(0.04)
    assert len(found["goals"]) == 30
    text = markdown.read_text()
    assert all(table.markdown() in text for table in tables.report_tables(full))
    assert text.count("reproduce\n") == 1
    assert "numba" in text
    # Figure 4, Figures 2 and 3 of three runs, the curve, one reliability plot.
    named = re.findall(r"\]\(([\w-]+\.svg)\)", figures.read_text())
    assert len(named) == 1 + 2 * 3 + 2
    assert all(tables.per_class(one).markdown() in figures.read_text() for one in full.outcomes)
    again = write_report(full, facts, tmp_path / "again")[2].parent
    for name in named:
        assert (figures.parent / name).read_bytes() == (again / name).read_bytes()
        assert not re.search(r'(?:href|src)="(?!#)', (again / name).read_text())


def test_lines_of_cells_are_escaped():
    table = tables.Table("a < b", "", ("x", "y"), (("1|2", "<b>"),), ("x: & y",))
    assert "| 1\\|2 | <b> |" in table.markdown()


def test_a_report_without_results_is_still_a_report(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from lab.experiments.report.page import about, write_report

    results = gather(Store(tmp_path / "empty.jsonl"))
    facts = about(results, EFFORT, "reproduce", [])
    markdown, numbers, figures = write_report(results, facts, tmp_path)
    found = json.loads(numbers.read_text())
    assert not set(found) & set(DATA_SETS)
    assert {one["data_set"] for one in found["not_complete"]} == set(DATA_SETS)
    assert "of 30, open grid: teacher 0, SVM 0, gSVM-0 0, gSVM 0" in markdown.read_text()
    assert "![" not in figures.read_text()


def test_the_committed_numbers_are_those_of_the_committed_results():
    pytest.importorskip("matplotlib")
    from lab.experiments.report.page import numbers, reached_cells

    root = Path(__file__).parents[3] / "docs"
    results = read(Store(root / "reproduction" / "results.jsonl"), replace(EFFORT, replicates=500))
    assert (len(results.outcomes), len(results.curves), len(results.probabilities)) == (18, 3, 6)
    committed = json.loads((root / "reproduction.json").read_text())
    made = json.loads(json.dumps(numbers(results) | {"cells": reached_cells(results, root)}))
    assert made == {name: value for name, value in committed.items() if name != "about"}


def test_cells_are_those_of_the_second_protocol_once_it_was_run(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from lab.experiments.report.page import reached_cells

    nothing = read(Store(tmp_path / "results.jsonl"), EFFORT)
    assert reached_cells(nothing, tmp_path)["open"] == {"teacher": 0, "svm": 0, "gsvm0": 0, "gsvm": 0}
    of_second = {"product": {"best": 29, "gsvm": 27}, "paper": {"best": 25}}
    (tmp_path / "protocol_2.json").write_text(json.dumps({"cells": of_second}))
    assert reached_cells(nothing, tmp_path) == {"open": of_second["product"], "paper": of_second["paper"]}
