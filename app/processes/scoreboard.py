"""Scoreboard in an anonymous memfd: one slot per server process, written by its owner, read by all.

The parent creates the scoreboard with more slots than processes, and its children inherit it as an open file
without a name; the kernel frees it with the last process. A process that takes over a slot continues with
the values of its predecessor, so counters never decrease.

Every value is an aligned float64, which the processor reads and writes atomically.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from enum import IntEnum
from typing import Final

from app.domain.errors import SetupError

_VERSION: Final = 20261126.4
"""To be changed with the layout of the scoreboard or of a slot."""

_HEAD: Final = 8
_SALT: Final = 3
_STOPPING: Final = 4
_STARTED: Final = 5
RATE_LIMIT_CELLS: Final = 1 << 18
"""Number of float64 cells of `app.auth.rate_limit`; they belong to no slot, and all processes write them."""
_SLOT_HEAD: Final = 8
SLOT_VALUES: Final = 120_000
"""Float64 values in a slot after its head; a page uses memory only once it was written."""
STATISTICS_BYTES: Final = 1 << 20
"""Bytes in a slot after its values, for `app.serving.open_inference.statistics`."""

_SLOT_BYTES: Final = (_SLOT_HEAD + SLOT_VALUES) * 8 + STATISTICS_BYTES

_STATE, _PID, _HEARTBEAT, _CONNECTIONS, _LAYOUT, _REVISION, _IS_CONTROL, _SIGNALS = range(8)


class ScoreboardMismatch(SetupError):
    """The scoreboard was created by another release of this program."""


class State(IntEnum):
    """State of the process that owns a slot."""

    FREE = 0
    STARTING = 1
    SERVING = 2
    DRAINING = 3


class Slot:
    """The part of a scoreboard that belongs to one process.

    values: SLOT_VALUES float64 for `Metrics`. memory: the same memory as bytes. statistics: STATISTICS_BYTES.
    """

    def __init__(self, index: int, memory: memoryview) -> None:
        self.index = index
        self._head = memory[: _SLOT_HEAD * 8].cast("d")
        self.memory = memory[_SLOT_HEAD * 8 : (_SLOT_HEAD + SLOT_VALUES) * 8]
        self.statistics = memory[(_SLOT_HEAD + SLOT_VALUES) * 8 :]
        self.values = self.memory.cast("d")

    @property
    def state(self) -> State:
        """State that the process, or its parent, set last."""
        return State(int(self._head[_STATE]))

    @state.setter
    def state(self, state: State) -> None:
        self._head[_STATE] = state

    @property
    def pid(self) -> int:
        """Process id of the last owner."""
        return int(self._head[_PID])

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since the owner's event loop last called `heartbeat`."""
        return time.monotonic() - self._head[_HEARTBEAT]

    @property
    def connections(self) -> int:
        """Open connections of the owner."""
        return int(self._head[_CONNECTIONS])

    @connections.setter
    def connections(self, number: int) -> None:
        self._head[_CONNECTIONS] = number

    @property
    def layout(self) -> float:
        """Identifies the meaning of the values; 0 in a slot that was never used."""
        return self._head[_LAYOUT]

    @property
    def revision(self) -> float:
        """The revision of the registry that the owner serves."""
        return self._head[_REVISION]

    @revision.setter
    def revision(self, revision: float) -> None:
        self._head[_REVISION] = revision

    @property
    def follows_signals(self) -> bool:
        """Whether the owner reads the registry when it is sent a signal, see `app.serving.refresher`."""
        return self._head[_SIGNALS] != 0.0

    @follows_signals.setter
    def follows_signals(self, follows: bool) -> None:
        self._head[_SIGNALS] = follows

    @property
    def is_control(self) -> bool:
        """Whether the owner is the control process, which accepts no connections of clients."""
        return self._head[_IS_CONTROL] != 0.0

    @is_control.setter
    def is_control(self, is_control: bool) -> None:
        self._head[_IS_CONTROL] = is_control

    def reset_layout(self, layout: float) -> None:
        """Set the meaning of the values; values with another meaning are zeroed."""
        if self.layout not in (0.0, layout):
            self.memory[:] = bytes(len(self.memory))
        self._head[_LAYOUT] = layout

    def claim(self, state: State) -> None:
        """Make this process the owner; the values of the previous owner stay."""
        self._head[_PID] = os.getpid()
        self.connections = 0
        self.revision = -1.0
        self.follows_signals = False
        self.heartbeat()
        self.state = state

    def release(self) -> None:
        """Mark the slot as free."""
        self.connections = 0
        self.follows_signals = False
        self.state = State.FREE

    def heartbeat(self) -> None:
        """Record that the process is alive."""
        self._head[_HEARTBEAT] = time.monotonic()


class Scoreboard:
    """All slots of a service.

    file: file descriptor of the shared memory for child processes; None if the scoreboard is private.
    rate_limit_cells: RATE_LIMIT_CELLS float64 that all processes write.
    salt: eight random bytes that all processes share.
    """

    def __init__(self, memory: mmap.mmap, file: int | None = None) -> None:
        self.file = file
        view = memoryview(memory)
        self._head = view[: _HEAD * 8].cast("d")
        self.salt = view[_SALT * 8 : (_SALT + 1) * 8]
        self.rate_limit_cells = view[_HEAD * 8 : (_HEAD + RATE_LIMIT_CELLS) * 8].cast("d")
        step = _SLOT_BYTES
        starts = range((_HEAD + RATE_LIMIT_CELLS) * 8, len(view) - step + 1, step)
        self.slots = [Slot(index, view[start : start + step]) for index, start in enumerate(starts)]

    @classmethod
    def private(cls) -> Scoreboard:
        """Create a scoreboard with one slot, claimed by this process and not shared."""
        scoreboard = cls(mmap.mmap(-1, _size(1)))
        scoreboard.salt[:] = os.urandom(8)
        scoreboard.slots[0].claim(State.SERVING)
        return scoreboard

    @classmethod
    def shared(cls, slots: int) -> Scoreboard:
        """Create a scoreboard for a parent and its children, which inherit its ``file``."""
        file = _anonymous_file()
        os.ftruncate(file, _size(slots))
        scoreboard = cls(mmap.mmap(file, _size(slots)), file)
        scoreboard._head[0] = _VERSION
        scoreboard.salt[:] = os.urandom(8)
        return scoreboard

    @classmethod
    def inherited(cls, file: int) -> Scoreboard:
        """Open the scoreboard that a parent created. Raises ScoreboardMismatch."""
        size = os.fstat(file).st_size
        scoreboard = cls(mmap.mmap(file, size)) if size >= _size(1) else None
        if scoreboard is None or scoreboard._head[0] != _VERSION or _size(len(scoreboard.slots)) != size:
            raise ScoreboardMismatch(
                "The parent process runs another release; stop and start the whole service."
            )
        return scoreboard

    @property
    def crash_count(self) -> int:
        """Number of processes that ended without a request to do so, since the parent started."""
        return int(self._head[1])

    @crash_count.setter
    def crash_count(self, number: int) -> None:
        self._head[1] = number

    @property
    def target_size(self) -> int:
        """Number of query processes that the parent keeps running; 0 if the scoreboard is private."""
        return int(self._head[2])

    @target_size.setter
    def target_size(self, number: int) -> None:
        self._head[2] = number

    @property
    def has_started(self) -> bool:
        """Whether the control process has served since the parent started."""
        return self._head[_STARTED] != 0.0

    @has_started.setter
    def has_started(self, has_started: bool) -> None:
        self._head[_STARTED] = has_started

    @property
    def is_stopping(self) -> bool:
        """Whether the parent has begun to stop all processes."""
        return self._head[_STOPPING] != 0.0

    @is_stopping.setter
    def is_stopping(self, is_stopping: bool) -> None:
        self._head[_STOPPING] = is_stopping

    def serving(self) -> list[Slot]:
        """Slots of the processes that accept connections of clients."""
        return [slot for slot in self.slots if slot.state is State.SERVING and not slot.is_control]

    def close(self) -> None:
        """Close the file; the memory lives until the last process that maps it has ended."""
        if self.file is not None:
            os.close(self.file)
            self.file = None


def _size(slots: int) -> int:
    return 8 * (_HEAD + RATE_LIMIT_CELLS) + slots * _SLOT_BYTES


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stms-scoreboard")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
