"""The benchmark of budgets of seconds."""

from __future__ import annotations

import json

import pytest

from lab.studies.budgets import main, summary


def test_a_run_keeps_its_budget_if_it_succeeds_within_a_fifth_more():
    runs = [
        {"seconds": 24.0, "f1": 95.0, "state": "succeeded"},
        {"seconds": 24.1, "f1": 96.0, "state": "succeeded"},
        {"seconds": 3.0, "f1": 94.0, "state": "failed"},
    ]
    found = summary(runs, 20.0)
    assert found == {"runs": 3, "kept": 1, "longest": 1.205, "worst_f1": 94.0, "by_run": runs}
    assert summary([runs[0] | {"f1": None}], 20.0)["worst_f1"] is None


@pytest.mark.long
def test_jobs_with_a_budget_are_measured_over_http(tmp_path, capsys):
    arguments = ["--data", str(tmp_path), "--set", "iris", "--seconds", "600", "--runs", "2"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["runs"], found["kept"]) == (2, 2)
    assert found["worst_f1"] > 80.0
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path), "--set", "none"])
