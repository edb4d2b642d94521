"""The shared memory of the server processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.processes import scoreboard as module
from app.processes.scoreboard import Scoreboard, ScoreboardMismatch, State

CHILD = """
import os, sys
from app.processes.scoreboard import Scoreboard, State
scoreboard = Scoreboard.inherited(int(sys.argv[1]))
slot = scoreboard.slots[1]
slot.claim(State.SERVING)
slot.connections = 7
slot.values[0] += 5
print(os.getpid())
"""


@pytest.fixture
def scoreboard():
    created = Scoreboard.shared(3)
    yield created
    created.close()


@pytest.mark.parametrize("named", [True, False], ids=["memfd", "file"])
def test_a_child_writes_to_its_slot_and_the_parent_reads_it(monkeypatch, named):
    if not named:
        monkeypatch.delattr(os, "memfd_create")
    scoreboard = Scoreboard.shared(2)
    for run in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(scoreboard.file)],
            pass_fds=[scoreboard.file],
            check=True,
            capture_output=True,
            text=True,
        )
        slot = scoreboard.slots[1]
        assert slot.state is State.SERVING
        assert slot.pid == int(done.stdout)
        assert slot.connections == 7
        assert 0 <= slot.seconds_since_heartbeat < 20
        assert slot.values[0] == 5 * run, "a successor continues to count"
        assert scoreboard.serving() == [slot]
        assert scoreboard.slots[0].state is State.FREE
    slot.release()
    assert (slot.state, slot.connections) == (State.FREE, 0)
    assert scoreboard.serving() == []
    scoreboard.close()
    scoreboard.close()


def test_slots_do_not_overlap(scoreboard):
    for slot in scoreboard.slots:
        for index in range(module.SLOT_VALUES):
            slot.values[index] = slot.index
        slot.claim(State.STARTING)
    assert [slot.index for slot in scoreboard.slots] == [0, 1, 2]
    for slot in scoreboard.slots:
        assert slot.pid == os.getpid()
        assert set(slot.values) == {slot.index}


def test_a_scoreboard_of_another_release_is_refused(scoreboard, tmp_path):
    scoreboard._head[0] = 1.0
    with pytest.raises(ScoreboardMismatch, match="another release"):
        Scoreboard.inherited(scoreboard.file)
    with (tmp_path / "small").open("w+b") as small:
        small.write(b"\0" * 100)
        small.flush()
        with pytest.raises(ScoreboardMismatch):
            Scoreboard.inherited(small.fileno())


def test_a_private_scoreboard_has_one_slot_and_no_file():
    scoreboard = Scoreboard.private()
    assert len(scoreboard.slots) == 1
    assert scoreboard.file is None
    assert scoreboard.target_size == 0
    scoreboard.close()


def test_values_of_another_layout_are_zeroed(scoreboard):
    slot = scoreboard.slots[0]
    slot.reset_layout(1.0)
    slot.values[5] = 7.0
    slot.reset_layout(1.0)
    assert slot.values[5] == 7.0
    slot.reset_layout(2.0)
    assert (slot.values[5], slot.layout) == (0.0, 2.0)
