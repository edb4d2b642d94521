"""Evaluations and gates on the command line, against a server whose answers are written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.commands import evaluate as module
from core.monitoring.comparison import PairedCounts, compare_classes

SHARE = {"estimate": 0.5, "low": 0.4, "high": 0.6, "method": "wilson", "level": 0.95}
MEASURES = {"f1": 0.5, "auc": 0.75, "precision": SHARE, "recall": None, "false_positive_rate": SHARE}
PATH = "/v1/evaluations"


def evaluation(*pairs: tuple[PairedCounts, PairedCounts], **changed: Any) -> dict[str, Any]:
    classes = [
        {"class": f"c{k}", "n": 9, **MEASURES, "baseline": MEASURES, "comparison": one.as_dict()}
        for k, one in enumerate(compare_classes(pairs) if pairs else ())
    ]
    usual = {
        "id": "ev_1",
        "version": "letters@5",
        "baseline": "letters@3",
        "dataset_id": "ds_1",
        "state": "succeeded",
        "rows_used": 1100,
        "rows_left_out": {"trained_on": 7, "unknown_class": 2},
        "warnings": [],
        "progress_done": 1,
        "progress_total": 1,
        "verdict": "worse",
        "classes": classes,
        "not_compared": [],
        "error_code": None,
        "error_message": None,
        "created_at": "2026-11-30T12:00:00Z",
    }
    return usual | changed


WORSE = PairedCounts(200, 90, 2), PairedCounts(900, 1, 0)
FEW = PairedCounts(20, 0, 0), PairedCounts(60, 0, 0)


def test_a_version_is_evaluated_with_a_table_and_an_exit_code(run, written):
    written.on("POST", PATH, evaluation(state="queued", verdict=None), 202)
    written.on("GET", f"{PATH}/ev_1", evaluation(state="running", verdict=None))
    written.on("GET", f"{PATH}/ev_1", evaluation(WORSE, FEW))
    asked = ["evaluate", "letters@5", "--dataset", "ds_1", "--baseline", "letters@production"]
    shown = run(*asked, "--tolerance", "0.02", STMS_URL=written.address)
    assert shown.exit_code == 0, shown.stderr
    assert written.requests[0].json == {
        "version": "letters@5",
        "dataset_id": "ds_1",
        "baseline": "letters@production",
        "part": "all",
        "tolerance": 0.02,
        "alpha": 0.05,
        "unknown_classes": "drop",
    }
    first, _, worse, few, verdict = shown.stdout.splitlines()
    assert first.endswith(
        "letters@5 against letters@3 on 1100 rows (left out: 7 trained on, 2 unknown class)"
    )
    assert "−90 +2" in worse
    assert worse.rstrip().endswith("worse")
    assert "rows would decide" in few
    assert verdict == "verdict: worse"


@pytest.mark.parametrize(("verdict", "code"), [("worse", 1), ("undecided", 0), ("not_worse", 0)])
def test_with_a_gate_only_a_worse_version_fails(run, written, verdict: str, code: int):
    written.on("POST", PATH, evaluation(state="queued"), 202)
    written.on("GET", f"{PATH}/ev_1", evaluation(WORSE, verdict=verdict))
    asked = ["evaluate", "letters@5", "--dataset", "ds_1", "--baseline", "letters@3", "--gate", "--json"]
    result = run(*asked, STMS_URL=written.address)
    assert result.exit_code == code
    assert json.loads(result.stdout)["verdict"] == verdict


def test_an_evaluation_that_fails_says_why(run, written):
    written.on("POST", PATH, evaluation(state="queued"), 202)
    failed = evaluation(state="failed", error_code="no_common_rows", error_message="3 rows are left.")
    written.on("GET", f"{PATH}/ev_1", failed)
    result = run("evaluate", "letters@5", "--dataset", "ds_1", STMS_URL=written.address)
    assert result.exit_code == 1
    assert "ended failed: 3 rows are left." in result.stderr
    shown = run("evaluations", "show", "ev_1", STMS_URL=written.address)
    assert "no_common_rows" in shown.stdout


def test_evaluations_are_listed_shown_cancelled_and_deleted(run, written):
    page = {"data": [evaluation()], "has_more": False}
    written.on("GET", PATH, page)
    written.on("GET", f"{PATH}/ev_1", evaluation(baseline=None, verdict=None))
    written.on("POST", f"{PATH}/ev_1/cancel", evaluation(state="cancelled"), 202)
    written.on("DELETE", f"{PATH}/ev_1", None, 204)
    listed = run("evaluations", "list", "--version", "letters@5", STMS_URL=written.address)
    assert "ev_1" in listed.stdout
    shown = run("evaluations", "show", "ev_1", STMS_URL=written.address).stdout
    assert "No class was evaluated." in shown
    assert "verdict" not in shown
    assert "is cancelled" in run("evaluations", "cancel", "ev_1", STMS_URL=written.address).stdout
    assert "is deleted" in run("evaluations", "delete", "ev_1", STMS_URL=written.address).stdout


def test_a_gate_is_set_shown_and_deleted(run, written):
    path = "/v1/models/letters/aliases/production/gate"
    gate = {"model": "letters", "alias": "production", "rule": "no_class_worse", "dataset_id": "ds_1"}
    gate |= {"tolerance": 0.01, "alpha": 0.05, "least_rows": 100, "revision": 3}
    written.on("GET", path, gate)
    written.on("PUT", path, gate)
    written.on("DELETE", path, None, 204)
    asked = ["aliases", "gate", "letters", "production"]
    options = ["--dataset", "ds_1", "--rule", "no_class_worse", "--least-rows", "100"]
    assert run(*asked, *options, STMS_URL=written.address).exit_code == 0
    sent = next(one for one in written.requests if one.method == "PUT")
    assert sent.json == {
        "dataset_id": "ds_1",
        "rule": "no_class_worse",
        "tolerance": 0.01,
        "alpha": 0.05,
        "least_rows": 100,
    }
    assert sent.headers["If-Match"] == '"3"'
    assert "no_class_worse" in run(*asked, STMS_URL=written.address).stdout
    refused = run(*asked, "--rule", "no_class_worse", STMS_URL=written.address)
    assert (refused.exit_code, "Give --dataset" in refused.stderr) == (1, True)
    gone = run("aliases", "ungate", "letters", "production", STMS_URL=written.address)
    assert "has no gate any more" in gone.stdout


def test_a_class_without_a_figure_has_a_dash():
    columns = dict(module._MEASURES)
    assert columns["recall"](MEASURES) == "–"
    assert columns["precision"](MEASURES) == "0.5000 (0.4000 to 0.6000)"
