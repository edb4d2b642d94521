"""The memory that server processes share."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.processes import scoreboard as module
from app.processes.scoreboard import Board, BoardMismatch, State

CHILD = """
import os, sys
from app.processes.scoreboard import Board, State
board = Board.inherited(int(sys.argv[1]))
seat = board.seats[1]
seat.take(State.SERVING)
seat.connections = 7
seat.numbers[0] += 5
print(os.getpid())
"""


@pytest.fixture
def board():
    made = Board.shared(3)
    yield made
    made.close()


@pytest.mark.parametrize("named", [True, False], ids=["memfd", "file"])
def test_a_child_writes_in_its_seat_and_the_parent_reads_it(monkeypatch, named):
    if not named:
        monkeypatch.delattr(os, "memfd_create")
    board = Board.shared(2)
    for turn in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(board.file)],
            pass_fds=[board.file],
            check=True,
            capture_output=True,
            text=True,
        )
        seat = board.seats[1]
        assert seat.state is State.SERVING
        assert seat.pid == int(done.stdout)
        assert seat.connections == 7
        assert 0 <= seat.silence < 20
        assert seat.numbers[0] == 5 * turn, "a successor goes on counting"
        assert board.serving() == [seat]
        assert board.seats[0].state is State.FREE
    seat.leave()
    assert (seat.state, seat.connections) == (State.FREE, 0)
    assert board.serving() == []
    board.close()
    board.close()


def test_seats_do_not_touch_each_other(board):
    for seat in board.seats:
        for place in range(module.SEAT_NUMBERS):
            seat.numbers[place] = seat.index
        seat.take(State.STARTING)
    assert [seat.index for seat in board.seats] == [0, 1, 2]
    for seat in board.seats:
        assert seat.pid == os.getpid()
        assert set(seat.numbers) == {seat.index}


def test_a_board_of_another_release_is_refused(board, tmp_path):
    board._head[0] = 1.0
    with pytest.raises(BoardMismatch, match="another release"):
        Board.inherited(board.file)
    with (tmp_path / "small").open("w+b") as small:
        small.write(b"\0" * 100)
        small.flush()
        with pytest.raises(BoardMismatch):
            Board.inherited(small.fileno())


def test_a_process_alone_has_a_board_of_its_own():
    board = Board.alone()
    assert len(board.seats) == 1
    assert board.file is None
    assert board.wanted == 0
    board.close()


def test_numbers_of_another_release_are_forgotten(board):
    seat = board.seats[0]
    seat.arrange(1.0)
    seat.numbers[5] = 7.0
    seat.arrange(1.0)
    assert seat.numbers[5] == 7.0
    seat.arrange(2.0)
    assert (seat.numbers[5], seat.layout) == (0.0, 2.0)
