"""Protocol 2 on small sets made here: what is read, what is stored, and how cells are counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab.experiments.paper import GOAL_SETS, METHODS
from lab.experiments.plans import Effort
from lab.experiments.protocol_2 import __main__ as program
from lab.experiments.protocol_2 import runs, summary
from lab.experiments.protocol_2.runs import (
    PAPER,
    PRODUCT,
    TEACHER,
    UNSEEN_SETS,
    ProtocolTwo,
    Source,
    planned_runs,
)
from lab.experiments.protocol_2.summary import BEST, Figure, Outcome, markdown, summarise
from lab.experiments.store import Run, Store
from lab.tests.experiments.conftest import clusters

EFFORT = Effort(n_threads=1, replicates=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets of three classes; the rows of the test parts lie far away."""
    made = tmp_path_factory.mktemp("sets")
    for seed, name in enumerate(("vowel", "segment")):
        X, y = clusters(seed)
        X_test, y_test = clusters(seed + 10)
        np.savez(made / f"{name}.npz", X_train=X, y_train=y, X_test=X_test + 100.0, y_test=y_test)
    return made


@pytest.fixture(scope="module")
def work(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run on thirds, with both grids."""
    made = tmp_path_factory.mktemp("work")
    few = ["--sets", "vowel", "segment", "--replicates", "20"]
    assert program.main(["--data", str(folder), "--work", str(made), *few]) == 0
    return made / "protocol_2_thirds"


def test_test_parts_are_measured_only_when_the_run_is_final(folder: Path):
    thirds, final = (Source(folder, one).split("vowel", 0) for one in (False, True))
    assert thirds.train.n + thirds.test.n == final.train.n == 64
    assert max(np.abs(part.X).max() for part in (thirds.train, thirds.test)) < 50.0
    assert final.test.X.min() > 50.0
    rows = {tuple(row) for part in (thirds.train, thirds.test) for row in part.X.tolist()}
    assert rows == {tuple(row) for row in final.train.X.tolist()}


def test_the_sets_and_splits_are_those_of_the_page():
    planned = planned_runs([*GOAL_SETS, *UNSEEN_SETS])
    assert len(planned) == 2 * (4 + 10) + 9
    assert {run.data_set for run in planned if run.grid == PAPER} == set(GOAL_SETS)
    page = (Path(runs.__file__).parents[1] / "protocol_2.md").read_text(encoding="utf-8")
    assert all(name in page for name in (*GOAL_SETS, *UNSEEN_SETS))
    assert '{"tuning": {"scope": "job"}, "evaluation": {"baselines": ["svm", "gsvm0", "gsvm"]}}' in page
    assert json.loads(page.split("the job `")[1].split("`")[0]) == runs.JOB


@pytest.mark.long
def test_a_run_makes_every_record_and_its_report(work: Path):
    store = Store(work / "records.jsonl")
    for grid, names in ((PRODUCT, (TEACHER, "automatic", *METHODS[1:])), (PAPER, METHODS[1:])):
        for name in names:
            record = store.read(Run("vowel", grid, 0).key(name))
            assert [one["label"] for one in record["classes"]] == ["1", "2", "3"]
            assert len(record["classes"][0]["replicates"]["f1"]) == 20
            if name != TEACHER and not (grid == PRODUCT and record["held_out_score"] is None):
                assert 0.0 < record["held_out_score"] <= 1.0
    shown = json.loads((work / "protocol_2.json").read_text(encoding="utf-8"))
    assert not shown["final"]
    assert set(shown["cells"][PRODUCT]) == {*METHODS, "automatic", BEST}
    assert set(shown["cells"][PAPER]) == {*METHODS, BEST}
    assert shown["cells_measured"] == {PRODUCT: 6, PAPER: 6}
    assert shown["unseen"]["sets"] == ["segment"]
    lead = shown["unseen"]["gsvm_minus_svm"]
    assert lead["low"] <= lead["value"] <= lead["high"]
    page = (work / "protocol_2.md").read_text(encoding="utf-8")
    assert page.splitlines()[4].startswith(
        "- Cells reached on the grid `product`, of 30 (6 measured): teacher "
    )


@pytest.mark.long
def test_a_stopped_run_goes_on_with_the_stored_search(folder: Path, work: Path, monkeypatch):
    def not_again(*_: object, **__: object) -> None:
        raise AssertionError("the search was repeated")

    stored = ProtocolTwo(
        Run("vowel", PRODUCT, 0), Source(folder), work, Store(work / "records.jsonl"), EFFORT
    )
    assert [new for _, new in stored.steps()] == [False] * 5
    monkeypatch.setattr(runs, "prepare", not_again)
    again = stored.make("gsvm")
    before = stored.store.read(stored.run.key("gsvm"))
    assert json.loads(json.dumps(again["classes"])) == before["classes"]


def record(f1: list[float | None], score: float | None = None) -> dict:
    """Of three classes; each replicate is the value itself."""
    classes = [
        {"metrics": dict.fromkeys(("accuracy", "f1", "auc"), value),
         "replicates": dict.fromkeys(("accuracy", "f1", "auc"), [value] * 4)}
        for value in f1
    ]  # fmt: skip
    return {"classes": classes} | ({} if score is None else {"held_out_score": score})


def test_the_best_student_is_chosen_by_held_out_rows_and_not_by_the_measured_ones():
    outcome = Outcome(
        "vowel",
        PRODUCT,
        [
            {
                TEACHER: record([0.9, 0.9, None]),
                "gsvm": record([0.5, 0.6, None], 0.7),
                "svm": record([0.8, 0.9, None], 0.6),
                "automatic": record([0.1, 0.2, None], 0.7),
            }
        ],
    )
    assert outcome.record(0, BEST) is outcome.splits[0]["gsvm"]
    assert outcome.figure(BEST, "mean", "f1").value == pytest.approx(55.0)
    assert outcome.lead("svm", "gsvm")[0] == pytest.approx(0.3)


def test_an_interval_contains_its_own_estimate():
    assert Figure.of(0.5, [0.7, 0.8, 0.9] * 20) == pytest.approx((50.0, 40.0, 60.0))
    assert Figure.of(0.5, [0.2, np.nan, 0.2]) == pytest.approx((50.0, 50.0, 50.0))


def test_cells_are_those_at_or_above_the_paper(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(summary, "SPLITS", {})
    store = Store(tmp_path / "records.jsonl")
    values = {"gsvm": 0.999, "gsvm0": 0.5, "svm": 0.1, "automatic": 0.999, TEACHER: 1.0}
    for method, value in values.items():
        made = record([value] * 3, None if method == TEACHER else value)
        store.write(Run("letter", PRODUCT, 0).key(method), "r", made)
    shown = summarise(store, {"open": dict.fromkeys(METHODS, 3)})
    assert shown["cells"][PRODUCT] == {
        "teacher": 6,
        "gsvm": 6,
        "gsvm0": 0,
        "svm": 0,
        "automatic": 6,
        "best": 6,
    }
    assert shown["cells"][PAPER] == {}
    assert shown["missed"][PRODUCT] == []
    assert shown["unseen"]["gsvm_minus_svm"] is None
    page = markdown(shown)
    assert "- Protocol 1, grid `open`: teacher 3, svm 3, gsvm0 3, gsvm 3." in page
    assert "- Cells reached on the grid `paper`, of 30 (0 measured): not run." in page


def test_the_final_run_cannot_be_made_smaller(folder: Path, capsys):
    with pytest.raises(SystemExit):
        program.main(["--data", str(folder), "--final", "--rows", "10"])
    assert "the protocol says how many rows" in capsys.readouterr().err


def test_a_missing_set_is_named(tmp_path: Path, capsys):
    assert program.main(["--data", str(tmp_path), "--work", str(tmp_path), "--sets", "vowel"]) == 1
    assert "There is no file" in capsys.readouterr().err
