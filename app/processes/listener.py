"""Listening sockets, and what a server process needs to start: its socket and its scoreboard slot."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from app.domain.errors import SetupError
from app.processes.scoreboard import Scoreboard, Slot

_BACKLOG = 2048


class CannotListen(SetupError):
    """The address is in use, or it does not belong to this machine."""


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The listening socket of a server process, and its slot of the scoreboard."""

    listener: socket.socket
    scoreboard: Scoreboard
    slot: Slot

    @classmethod
    def inherited(cls, listener: int, scoreboard: int, slot: int) -> ProcessContext:
        """Open what the parent passes to a child: two file descriptors and the index of a slot.

        Raises ScoreboardMismatch.
        """
        opened = Scoreboard.inherited(scoreboard)
        return cls(socket.socket(fileno=listener), opened, opened.slots[slot])


def listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Open a listening socket. Raises CannotListen.

    is_shared: whether other processes may listen there, too; the kernel then distributes the connections.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=is_shared)
    except OSError as error:
        reason = error.strerror or error
        raise CannotListen(f"Cannot listen at {host} port {port}: {reason}.") from error


def listen_locally(path: Path) -> socket.socket:
    """Open a listening Unix socket at a path that does not exist yet. Raises CannotListen."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or f"{error}; TMPDIR can name a shorter folder"
        raise CannotListen(f"Cannot listen at {path}: {reason}.") from error
    return listener


def require_free(host: str, port: int) -> int:
    """Return ``port``, or a free one for 0. Raises CannotListen if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CannotListen(f"Cannot listen at {host} port {port}: {error.strerror}.") from error
        return int(probe.getsockname()[1])
