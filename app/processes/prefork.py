"""`stms api --workers N`: server processes on one listening socket, kept and replaced by their parent.

The parent holds the socket open, so that nobody who knocks is turned away while processes come and go. A
process that dies, or whose event loop stands still, is started again, later each time it dies young. SIGHUP
replaces all processes one after the other, each only once its successor serves; when a successor does not
get that far, those that are left stay. SIGTERM ends all in order.
"""

from __future__ import annotations

import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final

from app.processes.scoreboard import Board, Seat, State
from app.processes.supervisor import Child, RestartPolicy

_POLL_SECONDS: Final = 0.05
_START_SECONDS: Final = 60.0
"""How long a process may take until it serves."""
_SILENT_SECONDS: Final = 30.0
"""How long a process's event loop may stand still."""
_END_SECONDS: Final = 5.0
"""On top of the time for requests under way, before a process is killed."""
_FIRST_PAUSE: Final = 0.25


class Member:
    """One process in its seat, and when it is to be started again."""

    def __init__(self, child: Child, seat: Seat, policy: RestartPolicy) -> None:
        self.child = child
        self.seat = seat
        self.policy = policy
        self.start_at: float | None = None
        self.kill_at: float | None = None

    def start(self) -> None:
        """Start it in its seat."""
        self.start_at = None
        self.seat.beat()
        self.seat.state = State.STARTING
        self.child.start()

    def end(self, seconds: float) -> None:
        """Ask it to end within so many seconds."""
        self.child.terminate()
        self.kill_at = time.monotonic() + seconds

    def is_gone(self) -> bool:
        """Whether it has ended; kills it when its time is over."""
        if self.child.running:
            if self.kill_at is None or time.monotonic() < self.kill_at:
                return False
            self.child.kill()
        self.seat.leave()
        return True

    def is_stuck(self) -> bool:
        """Whether it runs and yet does nothing."""
        limit = _START_SECONDS if self.seat.state is State.STARTING else _SILENT_SECONDS
        return self.child.running and self.seat.silence > limit


class Fleet:
    """The processes. ``report`` gets lines for people; grace: seconds for requests under way at an end."""

    def __init__(
        self,
        listener: socket.socket,
        environment: Mapping[str, str],
        report: Callable[[str], None],
        *,
        size: int,
        grace: float,
    ) -> None:
        # While one is replaced, both need a seat; twice as many leave some for those that end slowly.
        self._board = Board.shared(2 * size)
        self._board.wanted = size
        self._listener = listener
        self._environment = environment
        self._report = report
        self._grace = grace + _END_SECONDS
        self._members: list[Member] = []
        self._leaving: list[Member] = []
        self._to_replace: deque[Member] = deque()
        self._successor: Member | None = None
        self._has_served = False
        self._stop_signals = 0
        self._hangups = 0
        for _ in range(size):
            self._members.append(self._member())

    def run(self) -> int:
        """Exit code of the whole: 0 after a signal, 1 when no process could be brought to serve."""
        handlers = {
            signal.SIGTERM: self._on_stop,
            signal.SIGINT: self._on_stop,
            signal.SIGHUP: self._on_hangup,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            for member in self._members:
                member.start()
            while not self._stop_signals:
                if not self._keep():
                    return 1
                self._replace()
                time.sleep(_POLL_SECONDS)
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)
        return 0

    def _member(self) -> Member:
        taken = {member.seat.index for member in [*self._members, *self._leaving]}
        seat = next(seat for seat in self._board.seats if seat.index not in taken)
        files = (self._listener.fileno(), self._board.file or 0)
        place = ":".join(map(str, (*files, seat.index)))
        child = Child("api", self._environment, "--place", place, files=files)
        return Member(child, seat, RestartPolicy(_FIRST_PAUSE))

    def _keep(self) -> bool:
        """Look after everybody; False when the first start failed, as another one would."""
        self._leaving = [member for member in self._leaving if not member.is_gone()]
        if not self._has_served and len(self._board.serving()) == len(self._members):
            self._has_served = True
            self._report(f"{len(self._members)} processes serve.")
        for member in self._members:
            if member.start_at is not None:
                if time.monotonic() >= member.start_at:
                    member.start()
            elif member.is_stuck():
                self._report(f"Process {member.child.pid} stands still and is killed.")
                member.child.kill()
            elif not member.child.running and not self._restart_later(member):
                return False
        return True

    def _restart_later(self, member: Member) -> bool:
        was = member.seat.state
        member.seat.leave()
        if not self._has_served and was is State.STARTING:
            self._report(f"A process could not start: exit code {member.child.exit_code}.")
            return False
        pause = member.policy.pause_after(member.child.age)
        self._board.deaths += 1
        self._report(
            f"Process {member.child.pid} ended with exit code {member.child.exit_code};"
            f" next start in {pause:g} s."
        )
        member.start_at = time.monotonic() + pause
        return True

    def _replace(self) -> None:
        """One step of a rolling restart: a successor, and once it serves, the end of its predecessor."""
        if self._hangups and not self._to_replace:
            self._hangups = 0
            self._to_replace = deque(self._members)
            self._report("Replacing the processes one after the other.")
        if self._leaving or not self._to_replace:
            return
        if self._successor is None:
            self._successor = self._member()
            self._successor.start()
        elif self._successor.seat.state is State.SERVING:
            old, new = self._to_replace.popleft(), self._successor
            self._successor = None
            self._members[self._members.index(old)] = new
            self._leaving.append(old)
            old.end(self._grace)
            self._report(f"Process {new.child.pid} has replaced process {old.child.pid}.")
        elif self._successor.is_stuck() or not self._successor.child.running:
            self._successor.child.kill()
            self._successor.seat.leave()
            self._successor = None
            self._to_replace.clear()
            self._report("The new process did not get ready; those that are left go on.")

    def _end(self) -> None:
        # The kernel refuses newcomers once the last process has closed the socket, too.
        self._listener.close()
        everybody = [*self._members, *self._leaving, *([self._successor] if self._successor else [])]
        for member in everybody:
            member.end(self._grace)
        # A second signal means: at once.
        while everybody and self._stop_signals < 2:
            everybody = [member for member in everybody if not member.is_gone()]
            time.sleep(_POLL_SECONDS)
        for member in everybody:
            member.child.kill()
        self._board.close()

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_signals += 1

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._hangups += 1
