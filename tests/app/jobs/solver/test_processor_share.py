"""When a solver counts as starving, and what it does to its session then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.jobs.solver.processor_share import ProcessorShare
from app.processes.os_process import IDLE_NICENESS

SECOND = 10**9


class Machine:
    """Gives a solver of two threads shares of the processor, two seconds at a time."""

    def __init__(self, niceness: int = 5) -> None:
        self.now, self.times = 0.0, {1: (0, 0), 2: (7 * SECOND, 7 * SECOND)}
        self.reports: list[bool] = []
        self.session: list[int] = []
        self.share = ProcessorShare(
            niceness, self.reports.append, lambda: dict(self.times), lambda: self.now, self.session.append
        )

    def passes(self, ran: float, waited: float) -> None:
        """Two seconds in each of which the first thread runs and waits so long."""
        self.now += 2.0
        before = self.times[1]
        self.times[1] = (before[0] + int(2 * ran * SECOND), before[1] + int(2 * waited * SECOND))
        self.share.poll()


def test_a_solver_that_starves_gets_the_weight_of_others_until_it_waits_no_longer_than_it_runs():
    machine = Machine()
    machine.passes(0.25, 0.75)
    assert machine.reports == [], "its usual share beside one other session"
    machine.passes(0.05, 0.95)
    assert (machine.reports, machine.session) == ([True], [0])
    machine.passes(0.3, 0.7)
    assert machine.reports == [True], "three sessions share the processor equally"
    machine.passes(0.6, 0.4)
    assert (machine.reports, machine.session) == ([True, False], [0, 5])
    machine.passes(0.0, 0.0)
    machine.passes(0.01, 0.2)
    assert machine.reports == [True, False], "it hardly wants to run"


def test_threads_that_come_and_go_count_from_when_they_are_seen():
    machine = Machine()
    del machine.times[2]
    machine.times[3] = (0, 3 * SECOND)
    machine.passes(0.0, 0.0)
    assert machine.reports == [True]
    del machine.times[3]
    machine.passes(0.0, 0.0)
    assert machine.reports == [True, False]


def test_a_solver_that_shall_compute_only_while_nothing_else_does_keeps_its_share_and_tells():
    machine = Machine(IDLE_NICENESS)
    machine.passes(0.0, 1.0)
    assert (machine.reports, machine.session) == ([True], [])


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="the kernel has no autogroups")
def test_the_kernel_counts_waiting_and_a_session_can_have_its_weight_back():
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from app.processes.os_process import deprioritise, processor_times, set_session_niceness\n"
        "def weight(): return Path('/proc/self/autogroup').read_text().split()[-1]\n"
        "deprioritise(5)\n"
        "lowered = weight()\n"
        "print(lowered, set_session_niceness(0), weight(), set_session_niceness(99))\n"
        "print(processor_times()[os.getpid()][0] > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, start_new_session=True
    )
    assert done.stdout.split() == ["5", "True", "0", "False", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="threads of this process are read from /proc")
def test_a_thread_that_ends_while_it_is_read_is_left_out(monkeypatch):
    monkeypatch.setattr("app.processes.os_process._threads", lambda: [os.getpid(), 2**22 + 1])
    from app.processes.os_process import processor_times

    assert list(processor_times()) == [os.getpid()]
