"""One child that encodes, seen from the process that asks it; no caller waits for ever."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.child_environment import child_environment
from app.domain.errors import Unavailable
from app.encoders.faults import EncoderFailed, PictureFault
from app.encoders.messages import (
    FAILED,
    FAULT,
    FAULT_ANSWER,
    HEAD,
    LENGTH,
    MAX_ANSWER,
    READY,
    READY_ANSWER,
    VECTOR,
    Order,
    Ready,
)
from app.encoders.sandbox import Sandbox
from app.encoders.specification import EncoderSpecification

COMMAND: Final = (sys.executable, "-P", "-m", "app.encoders.child")
_MIB: Final = 1024**2
_MEMORY: Final = {True: 256 * _MIB, False: 768 * _MIB}
"""Bytes that a child may take beyond its libraries, by whether its encoder is a built-in one."""
SECONDS: Final = 2.0
"""Processor time of one question."""
_CLOCK_SECONDS: Final = 3 * SECONDS + 30
_START_CLOCK_SECONDS: Final = 120.0
_POLL_MILLISECONDS: Final = 500


class ChildLost(Exception):
    """The child ended, or was ended, without an answer.

    exit_code: as of `subprocess.Popen`. was_ready: whether it had begun to answer questions. is_late: whether
    it was ended because it stood still.
    """

    def __init__(self, exit_code: int, *, was_ready: bool, is_late: bool = False) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code
        self.was_ready = was_ready
        self.is_late = is_late


@dataclass(slots=True)
class _Child:
    popen: subprocess.Popen[bytes]
    connection: socket.socket
    ready: Ready | None = None


class EncoderProcess:
    """A child that answers one question at a time, and is started for the first one; one thread asks it.

    file: returns the bytes of the encoder's file, which a built-in one has not.
    """

    def __init__(
        self,
        encoder: EncoderSpecification,
        sandbox: Sandbox,
        file: Callable[[], bytes],
        *,
        is_trial: bool = False,
    ) -> None:
        self._encoder = encoder
        self._order = Order(encoder, _MEMORY[encoder.is_built_in], SECONDS, sandbox, is_trial)
        self._file = file
        self._child: _Child | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the child; None if there is none."""
        return None if self._child is None else self._child.popen.pid

    def start(self) -> Ready:
        """Start the child unless it runs, and return what it says of itself.

        Raises ChildLost, EncoderFailed, and Unavailable with the code encoder_differs or sandbox_missing.
        """
        child = self._child
        if child is None or child.popen.poll() is not None or child.ready is None:
            self.end()
            child = self._child = self._started()
            if self._closed:
                raise self._lost()
            deadline = time.monotonic() + _START_CLOCK_SECONDS
            order = msgspec.json.encode(self._order)
            message = LENGTH.pack(len(order)) + order
            if not self._encoder.is_built_in:
                file = self._file()
                message += LENGTH.pack(len(file)) + file
            kind, body = self._exchange(child, message, deadline)
            if kind == FAULT:
                self.end()
                fault = FAULT_ANSWER.decode(body)
                raise EncoderFailed(fault.code, fault.message)
            child.ready = self._checked(kind, body)
        return child.ready

    def ask(self, data: bytes) -> NDArray[np.float32] | PictureFault:
        """The vector (width) of a picture, or what is wrong with it. Raises as `start` does."""
        self.start()
        child = self._child
        if child is None:
            raise ChildLost(0, was_ready=False)
        deadline = time.monotonic() + _CLOCK_SECONDS
        kind, body = self._exchange(child, LENGTH.pack(len(data)) + data, deadline)
        if kind == FAULT:
            fault = FAULT_ANSWER.decode(body)
            return PictureFault(fault.code, fault.message)
        if kind == FAILED:
            failed = FAULT_ANSWER.decode(body)
            raise EncoderFailed(failed.code, failed.message)
        vector = np.frombuffer(body, "<f4") if kind == VECTOR and len(body) % 4 == 0 else np.empty(0, "<f4")
        if vector.size != self._encoder.width or not np.isfinite(vector).all():
            raise self._lost()
        return vector

    def end(self) -> int:
        """End the child; returns its exit code, 0 if there is none."""
        child, self._child = self._child, None
        if child is None:
            return 0
        child.popen.kill()
        code = child.popen.wait()
        child.connection.close()
        return code

    def close(self) -> None:
        """End the child while another thread may be asking it, which then raises ChildLost."""
        self._closed = True
        if (child := self._child) is not None:
            child.popen.kill()

    def _started(self) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            popen = subprocess.Popen(  # noqa: S603
                COMMAND,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=child_environment({"TOKENIZERS_PARALLELISM": "false"}),
                start_new_session=True,
            )
        ours.setblocking(False)
        return _Child(popen, ours)

    def _checked(self, kind: int, body: bytes) -> Ready:
        if kind != READY:
            raise self._lost()
        ready = READY_ANSWER.decode(body)
        encoder = self._encoder
        if not encoder.is_built_in and ready.sandbox != self._order.sandbox:
            self.end()
            text = (
                "This system cannot refuse system calls of a process (seccomp), so that own encoders do "
                "not run here. STMS_ENCODER_SANDBOX=limits accepts limits of memory and time alone."
            )
            raise Unavailable(text, code="sandbox_missing", retry_after=None)
        if encoder.probe not in {"", ready.probe}:
            self.end()
            text = (
                f"The encoder {encoder.name} does not compute here what it computed in training "
                f"({ready.libraries} here). Install the libraries of the training, or train again."
            )
            raise Unavailable(text, code="encoder_differs", retry_after=60.0)
        return ready

    def _exchange(self, child: _Child, message: bytes, deadline: float) -> tuple[int, bytes]:
        """Send a message and return the kind and the body of the answer. Raises ChildLost."""
        unsent, received, wanted = memoryview(message), bytearray(), HEAD.size
        poll = select.poll()
        while len(received) < wanted:
            poll.register(child.connection, select.POLLIN | (select.POLLOUT if unsent else 0))
            if not poll.poll(_POLL_MILLISECONDS):
                if time.monotonic() > deadline or _is_stopped(child.popen.pid):
                    raise self._lost(is_late=True)
                continue
            try:
                unsent = unsent[_sent(child.connection, unsent) :]
                received += _available(child.connection, wanted - len(received))
            except OSError:
                raise self._lost() from None
            if wanted == HEAD.size == len(received):
                wanted += HEAD.unpack(received)[1]
                if wanted > MAX_ANSWER:
                    raise self._lost()
        return received[0], bytes(received[HEAD.size :])

    def _lost(self, *, is_late: bool = False) -> ChildLost:
        was_ready = self._child is not None and self._child.ready is not None
        if self._child is not None and not is_late:
            self._wait_a_little(self._child.popen)
        return ChildLost(self.end(), was_ready=was_ready, is_late=is_late)

    def _wait_a_little(self, popen: subprocess.Popen[bytes]) -> None:
        """Let a child end by itself, so that its exit code tells why: its socket is closed just before."""
        try:
            popen.wait(1.0)
        except subprocess.TimeoutExpired:
            popen.kill()


def _sent(connection: socket.socket, message: memoryview) -> int:
    """Send what the socket takes now; returns how many bytes."""
    try:
        return connection.send(message) if message else 0
    except BlockingIOError:
        return 0


def _available(connection: socket.socket, most: int) -> bytes:
    """What has come, at most so many bytes. Raises ConnectionError at the end."""
    try:
        data = connection.recv(most)
    except BlockingIOError:
        return b""
    if not data:
        raise ConnectionError
    return data


def _is_stopped(pid: int) -> bool:
    """Whether a signal stopped the process, so that it will not answer."""
    flags = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_PID, pid, flags) is not None
    except ChildProcessError:
        return False
