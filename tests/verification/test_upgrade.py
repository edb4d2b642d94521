"""What `verification.upgrade` counts as wrong, and an upgrade of a service with few kinds of jobs."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.system.deployment import ROOT
from verification.digests import checkout
from verification.upgrade import (
    RELEASE_BEFORE,
    Outcome,
    Training,
    document,
    missing_states,
    repeated,
    upgraded,
)

A, B = ("job", "a", "gsvm"), ("job", "b", "gsvm")
STORED = {A: 10.0, B: 30.0}


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ([Training(A, 9.0)], [Training(B, 29.0)], []),
        # What was trained and not stored before the worker ended is trained again.
        ([Training(A, 9.0), Training(B, 11.0)], [Training(B, 29.0)], []),
        (
            [Training(A, 9.0)],
            [Training(A, 20.0), Training(B, 29.0)],
            [f"{A} was trained after it was stored"],
        ),
        ([], [Training(B, 28.0), Training(B, 29.0)], [f"{B} was trained again by the new release"]),
    ],
    ids=["each once", "lost with its worker", "although stored", "twice"],
)
def test_a_student_is_trained_again_only_if_it_was_not_stored(
    old: list[Training], new: list[Training], wrong: list[str]
) -> None:
    assert repeated(old, new, STORED) == wrong


def test_an_upgrade_that_has_not_met_a_state_says_so() -> None:
    met = Counter(["queued", "running", "succeeded", "partially_succeeded", "failed", "cancelled"])
    assert missing_states(met, "rolling") == []
    assert missing_states(met, "stop") == ["no job was waiting at the upgrade"]
    assert missing_states(met, "kill") == [
        "no job was cancelling at the upgrade",
        "no job was waiting at the upgrade",
    ]


def test_the_last_line_sums_up_all_upgrades() -> None:
    one = Outcome(jobs=2, students=3, states=Counter(running=2), repeated=["a"])
    other = Outcome(jobs=1, students=1, states=Counter(queued=1), lost=["b"], unfinished=["c", "d"])
    figures = document({"sqlite-stop": one, "sqlite-kill": other})
    assert (figures["jobs"], figures["students"], figures["repeated"], figures["unfinished"]) == (3, 4, 1, 2)
    assert figures["states"] == {"sqlite-stop": {"running": 2}, "sqlite-kill": {"queued": 1}}
    assert other.faults == ["b", "c", "d"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_jobs_of_the_release_before_end_after_its_worker_was_killed(tmp_path: Path) -> None:
    try:
        old = checkout(RELEASE_BEFORE)
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip(f"the history in {ROOT} does not have the commit {RELEASE_BEFORE}")
    outcome = upgraded(tmp_path / "upgrade", old, None, "kill", ("one", "digits"))
    assert outcome.faults == []
    assert outcome.students > 5
    assert outcome.untraced < outcome.students
    assert outcome.compared > 60
    assert outcome.identical == outcome.compared
