"""The last line and the exit code of a run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from deploy.container.engines import EngineFailed, Missing
from deploy.container.report import Refuted, Report, tell


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_a_run_that_holds_ends_with_its_figures(capsys):
    def run(report: Report) -> None:
        report.figure(queries_ok=3)
        report.holds(True, "It holds.")

    assert tell(run) == 0
    said = last_line(capsys)
    assert (said["ok"], said["queries_ok"]) == (True, 3)


@pytest.mark.parametrize(
    ("fault", "code", "name"),
    [
        (Missing("no engine"), 3, "missing"),
        (Refuted("It has a compiler."), 1, "failed"),
        (EngineFailed("podman build\nlog"), 1, "failed"),
        (ConnectionError("gone"), 1, "failed"),
    ],
)
def test_every_other_end_has_its_code_and_still_its_last_line(capsys, fault, code, name):
    def run(_: Report) -> None:
        raise fault

    assert tell(run) == code
    said = last_line(capsys)
    assert said["ok"] is False
    assert str(fault).splitlines()[0] in str(said[name])


def test_the_first_thing_that_does_not_hold_ends_a_run(capsys):
    def run(report: Report) -> None:
        report.holds(False, "Nothing is lost.")
        report.figure(reached=True)

    assert tell(run) == 1
    captured = capsys.readouterr()
    assert "FAILED: Nothing is lost." in captured.err
    assert "reached" not in captured.out


def test_a_run_that_is_told_to_end_clears_up():
    cleared = []

    def run(_: Report) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            cleared.append(True)

    with pytest.raises(SystemExit) as ended:
        tell(run)
    assert (ended.value.code, cleared) == (143, [True])
