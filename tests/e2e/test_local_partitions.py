"""Local evaluation beside a server that is cut off: answers go on for `max_stale`, fail, and come back."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from app.store.unit_of_work import Store
from stms_client import Client, Retry
from stms_client.errors import Stale
from stms_client.sync.local import Local
from tests.app.api.conftest import publish_pets
from tests.app.api.test_process import Server, server

__all__ = ["server"]

POLL, MAX_STALE = 0.2, 2.0
ROW = [1.0, 2.0, 3.0]
NOTICED = 0.2
"""Seconds in which a cut takes effect."""


class Network:
    """Forwards connections to a port; a cut makes all that there are silent for ever, and refuses none."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Swallow what is sent on present and further connections."""
        self._is_cut = True

    def heal(self) -> None:
        """Forward new connections; those of before stay silent."""
        self._is_cut = False

    def close(self) -> None:
        """Close everything."""
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                lost = threading.Event()
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(*ends, lost), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self._is_cut:
                    lost.set()
                if not lost.is_set():
                    target.sendall(data)


@pytest.fixture
def network(server: Server) -> Iterator[Network]:
    made = Network(server.port)
    yield made
    made.close()


def answered_until_stale(local: Local, version: int) -> list[float]:
    """When calls were made that were answered by this version, until one fails."""
    times = []
    while True:
        now = time.monotonic()
        try:
            decision = local.query("cat", ROW)
        except Stale:
            return times
        assert (decision.version, decision.score) == (version, 1.0)
        times.append(now)
        time.sleep(0.01)


def until_answered(local: Local) -> int:
    """The version that answers again."""
    deadline = time.monotonic() + 30
    while True:
        with suppress(Stale):
            return local.query("cat", ROW).version
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.long
@pytest.mark.parametrize("way", ["stopped", "silent", "killed"])
def test_answers_go_on_for_max_stale_and_come_back(
    server: Server, network: Network, store: Store, way: str
) -> None:
    publish_pets(store)

    def send(number: signal.Signals) -> Callable[[], None]:
        return lambda: [os.kill(pid, number) for pid in server.children()] and None

    cut, heal = {
        "stopped": (send(signal.SIGSTOP), send(signal.SIGCONT)),
        "silent": (network.cut, network.heal),
        # The manager starts the processes again.
        "killed": (send(signal.SIGKILL), lambda: None),
    }[way]
    url = network.url if way == "silent" else server.url
    with (
        Client(url, "", retry=Retry(attempts=1)) as stms,
        stms.local("pets", ["cat"], poll=POLL, max_stale=MAX_STALE) as local,
    ):
        assert local.query("cat", ROW).version == 1
        cut()
        left, begun = MAX_STALE - local.age, time.monotonic()
        if way == "killed":
            assert until_answered(local) == 1
        else:
            times = answered_until_stale(local, 1)
            assert times[-1] - begun <= MAX_STALE + NOTICED, "nothing is answered later than promised"
            assert times[-1] - begun >= left - 1.0, "silence is borne"
            with pytest.raises(Stale):
                local.is_class("cat", ROW)
        heal()
        publish_pets(store)
        deadline = time.monotonic() + 30
        while until_answered(local) == 1:
            assert time.monotonic() < deadline
        assert local.age <= MAX_STALE
