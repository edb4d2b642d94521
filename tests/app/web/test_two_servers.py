"""Two stateless server processes behind a proxy that sends each request to the other one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from app.services.keys import create_key
from app.store.unit_of_work import Store
from tests.app.api.test_process import Server
from tests.app.web.conftest import SAME_ORIGIN, Things
from tests.app.web.test_actions import fields
from tests.app.web.test_pages import addresses

pytestmark = pytest.mark.long


class Proxy:
    """Passes the connections to its port on to the servers by turns. used: connections by server."""

    def __init__(self, ports: list[int]) -> None:
        self.used = dict.fromkeys(ports, 0)
        self._next = cycle(ports)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client, next(self._next)), daemon=True).start()

    def _pass_on(self, client: socket.socket, port: int) -> None:
        self.used[port] += 1
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            there = threading.Thread(target=_pump, args=(client, server), daemon=True)
            there.start()
            _pump(server, client)
            there.join()

    def close(self) -> None:
        self._listener.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def two_servers(folder: Path, database: str) -> Iterator[Proxy]:
    started = [Server(folder / name, database, keyless=False) for name in ("one", "two")]
    try:
        for one in started:
            one.wait()
        proxy = Proxy([one.port for one in started])
        yield proxy
        proxy.close()
    finally:
        for one in started:
            one.process.kill()
            one.process.communicate()


def test_every_page_form_and_session_works_whichever_server_answers(
    tmp_path: Path, database_address: str, store: Store, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STMS_REQUIRE_KEYS", "true")
    key = create_key(store, "Ada", {"operator"})[1]
    one_connection = httpx.Limits(max_keepalive_connections=0)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with two_servers(tmp_path, database_address) as proxy:
        address = f"http://127.0.0.1:{proxy.port}"
        with httpx.Client(base_url=address, limits=one_connection, trust_env=False, timeout=60) as person:
            for _ in range(3):
                signed = person.post(
                    "/ui/sign-in", headers=SAME_ORIGIN, data={"key": key, "next": "/ui/jobs"}
                )
                assert signed.status_code == 303, signed.text
                for _ in range(2):
                    page = person.get("/ui/jobs")
                    assert page.status_code == 200, "a session that the other process has begun holds"
                assert person.post("/ui/sign-out", headers=SAME_ORIGIN).status_code == 303
                for _ in range(2):
                    assert person.get("/ui/jobs").status_code == 303, "and its end holds, too"
            person.post("/ui/sign-in", headers=SAME_ORIGIN, data={"key": key})
            for path in addresses(things):
                answers = [person.get(path) for _ in range(2)]
                assert {answer.status_code for answer in answers} == {200}, path
            form = "/ui/models/pets/aliases/latest"
            for version in (2, 1, 2, 1):
                shown = person.get(f"/ui/models/pets/move?version={version}&alias=latest").text
                moved = person.post(form, headers=SAME_ORIGIN, data=fields(shown, form))
                assert moved.status_code == 303, moved.text
                text = person.get("/ui/models/pets/aliases/latest").text
                assert f"version {version}" in text
    low, high = sorted(proxy.used.values())
    assert low > 30
    assert high - low <= 1, "both have answered by turns"
