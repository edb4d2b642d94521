"""Tuning from the command line: a job with a search, and the output about its search."""

from __future__ import annotations

import json
import re

import pytest


@pytest.fixture(scope="module")
def tuned(live, csv_file):
    """Id of a job that tuned the students of model `tuned`, with compact ones shipped."""
    from typer.testing import CliRunner

    from app.cli import build

    arguments = ["train", str(csv_file), "--model", "tuned", "--label-column", "kind", "--tune"]
    settings = [
        "tuning.grid.C=[1, 10]",
        "tuning.grid.margins=[0.5, 1]",
        "tuning.grid.floors=[0.2, 0.3, 0.5]",
        "tuning.folds=3",
        "evaluation.test_fraction=0.3",
        'evaluation.baselines=["gsvm"]',
        "compact.max_f1_loss=2",
        "threshold.folds=2",
        'classes=["b"]',
    ]
    sets = [part for setting in settings for part in ("--set", setting)]
    result = CliRunner().invoke(
        build(), [*arguments, *sets, "--server", live.address], env={"COLUMNS": "300"}
    )
    assert result.exit_code == 0, result.output
    assert "student gsvm of class b is tuned: C " in result.stderr
    assert "the best of 12 points" in result.stderr
    assert re.search(r"student compact of class b is tuned: \d+ landmarks, score", result.stderr)
    return re.search(r"Job (\S+) succeeded", result.stdout)[1]


@pytest.fixture
def ask(run, live):
    return lambda *arguments: run(*arguments, STMS_URL=live.address)


@pytest.mark.long
def test_the_table_of_students_has_what_was_chosen(ask, tuned):
    shown = ask("jobs", "students", tuned).stdout
    assert re.search(r"chosen +score +Brier", shown)
    assert re.search(r"gsvm +succeeded.* C 10?, margin (0\.5|1), floor 0\.\d+ +1\.0000 ± 0\.0000 +\d", shown)
    assert re.search(r"compact +succeeded.* n_landmarks 12, relative_cost [\d.]+ +1\.0000 +\d", shown)


@pytest.mark.long
def test_a_trace_is_a_table_with_the_best_points_first(ask, tuned):
    shown = ask("jobs", "trace", tuned, "b", "--method", "gsvm", "--limit", "5")
    assert shown.exit_code == 0, shown.output
    assert "7 more points; --limit 0 shows all." in shown.stdout
    assert re.search(r"class +b *\nmethod +gsvm *\nC +10?", shown.stdout)
    assert re.search(r"C +margin +floor +folds +score +± +gap +seconds", shown.stdout)
    everything = ask("jobs", "trace", tuned, "b", "--method", "gsvm", "--limit", "0").stdout
    rows = [line.split() for line in everything.splitlines() if re.match(r"[\d.]+ ", line)]
    assert len(rows) == 12
    ranks = [(int(row[3]), float(row[4])) for row in rows]
    assert ranks == sorted(ranks, reverse=True)


@pytest.mark.long
def test_a_trace_of_sizes_is_shown_likewise(ask, tuned):
    shown = ask("jobs", "trace", tuned, "b").stdout
    assert re.search(r"method +compact", shown)
    assert re.search(r"n_landmarks +F *\n12 +1\.0000", shown)


@pytest.mark.long
def test_a_trace_as_json_is_the_servers(ask, tuned):
    trace = json.loads(ask("jobs", "trace", tuned, "b", "--method", "gsvm", "--json").stdout)
    assert (trace["label"], trace["method"], len(trace["points"])) == ("b", "gsvm", 12)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["z"], "There is no trace for class 'z': job {} has no class of that name."),
        (["b", "--method", "teacher"], "of class 'b': job {} did not search for its hyper-parameters."),
        (["b", "--method", "svm"], "There is no trace for student 'svm' of class 'b'"),
    ],
)
def test_a_trace_that_is_not_there_is_a_sentence(ask, tuned, arguments, message):
    refused = ask("jobs", "trace", tuned, *arguments)
    assert refused.exit_code == 1
    assert message.format(tuned) in refused.stderr


def test_a_job_without_a_search_has_no_column_for_it(run, written):
    rows = [{"label": "a", "method": "svm", "state": "succeeded", "metrics": {}, "chosen": None}]
    written.on("GET", "/v1/training-jobs/job_1/students", {"data": rows, "has_more": False})
    shown = run("jobs", "students", "job_1", STMS_URL=written.address).stdout
    assert "chosen" not in shown
    assert "Brier" not in shown


CHOSEN = {"C": 10.0, "margin": 0.5, "floor": 0.3, "score": 0.9, "points": 3}
POINTS = [
    {"C": C, "margin": 0.5, "floor": 0.3, "folds": folds, "score": score, "standard_error": 0.01}
    for C, folds, score in ((1.0, 2, 0.95), (10.0, 4, 0.9), (100.0, 4, 0.8))
]


def test_a_search_is_a_table_with_the_points_of_most_folds_first(run, written):
    row = {"label": "b", "class_index": 1, "method": "gsvm", "state": "succeeded", "metrics": {}}
    students = "/v1/training-jobs/job_1/students"
    written.on("GET", students, {"data": [row | {"chosen": CHOSEN}], "has_more": False})
    trace = {"label": "b", "method": "gsvm", "chosen": CHOSEN, "points": POINTS}
    written.on("GET", f"{students}/1/gsvm/trace", trace)
    shown = run("jobs", "trace", "job_1", "b", "--limit", "2", STMS_URL=written.address).stdout
    assert "1 more points; --limit 0 shows all." in shown
    assert re.search(r"class +b *\nmethod +gsvm *\nC +10", shown)
    rows = [line.split() for line in shown.splitlines() if re.match(r"[\d.]+ +0\.5 ", line)]
    assert [row[0] for row in rows] == ["10", "100"]
    assert re.search(r"chosen +score", run("jobs", "students", "job_1", STMS_URL=written.address).stdout)
    as_json = run("jobs", "trace", "job_1", "b", "--json", STMS_URL=written.address).stdout
    assert json.loads(as_json) == trace
    refused = run("jobs", "trace", "job_1", "z", STMS_URL=written.address)
    assert "There is no trace for class 'z': job job_1 has no class of that name." in refused.stderr
