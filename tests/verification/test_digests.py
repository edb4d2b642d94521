"""The comparison of digests: a planted difference, a missing artifact and a failed job are all reported."""

from __future__ import annotations

import json

import pytest

from verification import digests

SAME = {"linear: teacher": "aa", "linear: gsvm a": "bb", "head": digests.REFUSED}


def run(monkeypatch, capsys, before, after, failures=()):
    results = {"before": (dict(before), list(failures)), "after": (dict(after), [])}
    monkeypatch.setattr(digests, "train", lambda version, *_: results[version])
    code = digests.main([".", "--quick"])
    *table, last = capsys.readouterr().out.splitlines()
    return code, table, json.loads(last)


def test_equal_digests_pass(monkeypatch, capsys):
    code, table, report = run(monkeypatch, capsys, SAME, SAME)
    assert (code, table) == (0, [])
    assert (report["artifacts"], report["equal"], report["different"], report["missing"]) == (2, 2, 0, 0)


@pytest.mark.parametrize(
    ("after", "named", "counts"),
    [
        (SAME | {"linear: gsvm a": "cc"}, "linear: gsvm a", (1, 1, 0)),
        (SAME | {"linear: gsvm b": "dd"}, "linear: gsvm b", (2, 0, 1)),
        ({"linear: teacher": "aa", "head": digests.REFUSED}, "linear: gsvm a", (1, 0, 1)),
        (SAME | {"head": "ee"}, "head", (2, 1, 0)),
    ],
)
def test_a_planted_difference_fails_and_is_named(monkeypatch, capsys, after, named, counts):
    code, [line], report = run(monkeypatch, capsys, SAME, after)
    assert code == 1
    assert line.startswith(named)
    assert (report["equal"], report["different"], report["missing"]) == counts


def test_a_job_that_fails_in_both_versions_fails_the_comparison(monkeypatch, capsys):
    code, table, report = run(monkeypatch, capsys, SAME, SAME, failures=["before: linear: failed: null"])
    assert code == 1
    assert report["failed"] == 1
    assert table == ["before: linear: failed: null"]


def test_nothing_compared_is_no_success(monkeypatch, capsys):
    assert run(monkeypatch, capsys, {}, {})[0] == 1


@pytest.mark.parametrize("name", digests.JOBS)
def test_jobs_of_fits_only_use_no_held_out_scores(name: str):
    body = digests.fits_only(digests.JOBS[name][1])
    assert "tuning" not in body
    assert "max_f1_loss" not in body.get("compact", {})
    assert (body["threshold"]["rule"], body["calibration"]["kind"]) == ("zero", "none")
