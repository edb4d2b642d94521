"""Listening sockets, and what a server process is given to start with."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from app.processes.scoreboard import Board, Seat
from app.settings import Settings

_BACKLOG = 2048


class CannotListen(Exception):
    """The address is in use, or it does not belong to this machine."""


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What a server process is given: the listening socket, and its slot of the scoreboard."""

    listener: socket.socket
    board: Board
    seat: Seat

    @classmethod
    def single(cls, settings: Settings) -> ProcessContext:
        """For the only process of a service. Raises CannotListen."""
        board = Board.alone()
        return cls(listen(settings.host, settings.port), board, board.seats[0])

    @classmethod
    def inherited(cls, listener: int, board: int, seat: int) -> ProcessContext:
        """From the parent: open files by number. Raises BoardMismatch."""
        opened = Board.inherited(board)
        return cls(socket.socket(fileno=listener), opened, opened.seats[seat])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises CannotListen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise CannotListen(f"Cannot listen at {host} port {port}: {reason}.") from error


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
