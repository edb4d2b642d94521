"""Memory that the server processes of one service share, so that any of them can speak for all.

The parent makes a board with more seats than processes and hands it to its children as an open file without
a name: nothing is left behind, whatever ends how. A seat belongs to one process at a time, the only one that
writes there; all read all. A successor in a seat goes on with the numbers of its predecessor, so that
counters never fall.

Every number is a float64 at an address of its own, read and written as a whole by the processor.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from enum import IntEnum
from typing import Final

_VERSION: Final = 20261121.1
"""Changes with the layout of board or seat."""

_HEAD: Final = 8
_SALT: Final = 3
TIMES: Final = 1 << 18
"""Float64 that belong to no seat: the moments of `app.auth.rate_limit`, which all processes write."""
_SEAT_HEAD: Final = 8
SEAT_NUMBERS: Final = 80_000
"""Float64 in a seat after its head; memory is used only where it was written."""

_STATE, _PID, _BEAT, _CONNECTIONS, _LAYOUT = range(5)


class BoardMismatch(Exception):
    """The board was made by another release of this program."""


class State(IntEnum):
    """What the process in a seat is doing."""

    FREE = 0
    STARTING = 1
    SERVING = 2
    DRAINING = 3


class Seat:
    """One process's part of a board. numbers: SEAT_NUMBERS float64, for `Metrics`. memory: the same bytes."""

    def __init__(self, index: int, memory: memoryview) -> None:
        self.index = index
        self._head = memory[: _SEAT_HEAD * 8].cast("d")
        self.memory = memory[_SEAT_HEAD * 8 :]
        self.numbers = self.memory.cast("d")

    @property
    def state(self) -> State:
        """As the process, or its parent, said last."""
        return State(int(self._head[_STATE]))

    @state.setter
    def state(self, state: State) -> None:
        self._head[_STATE] = state

    @property
    def pid(self) -> int:
        """Of the process that sat down here last."""
        return int(self._head[_PID])

    @property
    def silence(self) -> float:
        """Seconds since the process last said that its event loop turns."""
        return time.monotonic() - self._head[_BEAT]

    @property
    def connections(self) -> int:
        """Open connections."""
        return int(self._head[_CONNECTIONS])

    @connections.setter
    def connections(self, number: int) -> None:
        self._head[_CONNECTIONS] = number

    @property
    def layout(self) -> float:
        """What the numbers mean; 0 in a seat that nobody wrote in yet."""
        return self._head[_LAYOUT]

    def arrange(self, layout: float) -> None:
        """Write numbers of this meaning from now on; those of another release are forgotten."""
        if self.layout not in (0.0, layout):
            self.memory[:] = bytes(len(self.memory))
        self._head[_LAYOUT] = layout

    def take(self, state: State) -> None:
        """Sit down; what the predecessor counted stays."""
        self._head[_PID] = os.getpid()
        self.connections = 0
        self.beat()
        self.state = state

    def leave(self) -> None:
        """Nobody sits here any more."""
        self.connections = 0
        self.state = State.FREE

    def beat(self) -> None:
        """Say that the process is well."""
        self._head[_BEAT] = time.monotonic()


class Board:
    """All seats. file: of the shared memory, for children; None where there is nobody to share it with.

    times: TIMES float64 that all processes write. salt: eight random bytes that all of them know.
    """

    def __init__(self, memory: mmap.mmap, file: int | None = None) -> None:
        self.file = file
        view = memoryview(memory)
        self._head = view[: _HEAD * 8].cast("d")
        self.salt = view[_SALT * 8 : (_SALT + 1) * 8]
        self.times = view[_HEAD * 8 : (_HEAD + TIMES) * 8].cast("d")
        step = (_SEAT_HEAD + SEAT_NUMBERS) * 8
        starts = range((_HEAD + TIMES) * 8, len(view) - step + 1, step)
        self.seats = [Seat(index, view[start : start + step]) for index, start in enumerate(starts)]

    @classmethod
    def alone(cls) -> Board:
        """A board with one seat for a process that shares it with nobody."""
        board = cls(mmap.mmap(-1, _size(1)))
        board.salt[:] = os.urandom(8)
        board.seats[0].take(State.SERVING)
        return board

    @classmethod
    def shared(cls, seats: int) -> Board:
        """A new board for a parent and its children, who get its ``file``."""
        file = _nameless_file()
        os.ftruncate(file, _size(seats))
        board = cls(mmap.mmap(file, _size(seats)), file)
        board._head[0] = _VERSION
        board.salt[:] = os.urandom(8)
        return board

    @classmethod
    def inherited(cls, file: int) -> Board:
        """The board that a parent made. Raises BoardMismatch."""
        size = os.fstat(file).st_size
        board = cls(mmap.mmap(file, size)) if size >= _size(1) else None
        if board is None or board._head[0] != _VERSION or _size(len(board.seats)) != size:
            raise BoardMismatch("The parent process is of another release; start the service as a whole.")
        return board

    @property
    def deaths(self) -> int:
        """Processes that ended without being asked to, since the parent's start."""
        return int(self._head[1])

    @deaths.setter
    def deaths(self, number: int) -> None:
        self._head[1] = number

    @property
    def wanted(self) -> int:
        """Processes there shall be; 0 on a board that is not shared."""
        return int(self._head[2])

    @wanted.setter
    def wanted(self, number: int) -> None:
        self._head[2] = number

    def serving(self) -> list[Seat]:
        """Seats of processes that take connections."""
        return [seat for seat in self.seats if seat.state is State.SERVING]

    def close(self) -> None:
        """Close the file; the memory goes with the last process that has it."""
        if self.file is not None:
            os.close(self.file)
            self.file = None


def _size(seats: int) -> int:
    return 8 * (_HEAD + TIMES + seats * (_SEAT_HEAD + SEAT_NUMBERS))


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stms-board")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
