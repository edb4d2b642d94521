"""The harness that starts the service: what it notices at the end, and what it says after a failure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system import deployment as module
from tests.system.deployment import Deployment, environment
from tests.system.processes import is_alive, wait_for

ENDS_WELL = (
    "import signal, time; signal.signal(15, lambda *_: exit()); print('up', flush=True); time.sleep(600)"
)
FAULTS = {
    "ended by itself": "raise SystemExit(3)",
    "ended with 7": ENDS_WELL.replace("exit()", "exit(7)"),
    "logged a traceback": f"print('Traceback (most recent call last):'); {ENDS_WELL}",
}
Start = Callable[[str], Deployment]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Start:
    """A deployment of one worker, which is a program of a line."""
    monkeypatch.setattr(Deployment, "wait_until_ready", lambda _: None)

    def make(code: str) -> Deployment:
        monkeypatch.setattr(module, "stms", lambda *_: [sys.executable, "-c", code])
        return Deployment(tmp_path, workers=1, is_new=False, is_clean=True)

    return make


@pytest.mark.parametrize("fault", FAULTS)
def test_a_process_that_does_not_end_well_is_reported(start: Start, fault: str):
    deployment = start(FAULTS[fault])
    worker = deployment["worker-0"]
    with pytest.raises(AssertionError, match=f"worker-0 {fault}"), deployment:
        wait_for(lambda: not worker.is_running or "up" in worker.said())


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_process_that_was_killed_or_ends_well_is_no_fault(start: Start, is_killed: bool):
    with start(ENDS_WELL) as deployment:
        worker = deployment["worker-0"]
        wait_for(lambda: "up" in worker.said())
        if is_killed:
            worker.kill()
    assert not is_alive(worker.pid)


def test_a_failure_within_the_block_has_the_logs_and_leaves_no_process(start: Start):
    def fail() -> None:
        with deployment:
            wait_for(lambda: "up" in deployment["worker-0"].said())
            raise ValueError("it")

    deployment = start(ENDS_WELL)
    with pytest.raises(ValueError, match="it") as failure:
        fail()
    assert failure.value.__notes__ == ["worker-0 said:\nup\n"]
    assert not deployment["worker-0"].is_running


def test_settings_of_the_caller_are_not_those_of_the_service(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STMS_DATABASE_URL", "sqlite:///elsewhere")
    given = environment({"STMS_PORT": "1"})
    assert {name for name in given if name.startswith("STMS_")} == {"STMS_PORT"}
