"""The server under attack: one real process with its own database, and measurements of its resources."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.gate.relay import MAX_KEPT
from app.processes.manager import FOLDER_PREFIX
from app.store.engine import POOL_SIZE
from app.store.unit_of_work import Store
from tests.refusals.contents import LIMITS, fill, publish_models
from tests.refusals.refusal import Answer, Header
from tests.system.deployment import Deployment
from tests.system.processes import memory, open_files, reset_peaks
from verification.hostile.wire import exchange, head

DATABASE = "stms.sqlite"
KEPT_FILES = 2 * 2 * MAX_KEPT
"""Both ends of the connections that two servers keep to their control processes."""
MAX_CONNECTIONS = 2 * POOL_SIZE + 2
"""Connections to the database that a server keeps: of the pools of its query process and its control process,
the registry's poll and health checks."""
_SETTLE_SECONDS = 20.0
_SETTLED_GROWTH = 10 * 1024**2
_WARM_QUERIES = 400
_QUESTION = {"x": [1.0, 2.0, 3.0]}


class Server(Deployment):
    """A running server, which must end without a fault. keys: API keys by name.

    dataset: id of a stored data set. kept: ids that later attacks need, by name. keyless: a second server,
    with data of its own and without API keys. browsed: answers to the steps of
    `verification.hostile.browser`.
    """

    def __init__(self, folder: Path) -> None:
        self.temporary = folder / "temporary"
        settings = LIMITS | {"TMPDIR": str(self.temporary)}
        super().__init__(folder, api=1, settings=settings, prepare=self._fill)
        self.keyless = Deployment(
            folder / "keyless", api=1, settings=settings, arguments=["--no-keys"], prepare=publish_models
        )
        self.dataset = ""
        self.kept: dict[str, str] = {}
        self.browsed: dict[int, list[Answer]] = {}

    def _fill(self, store: Store) -> None:
        self.keys.update(fill(store))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", self.port

    def send(self, method: str, target: bytes | str, headers: Sequence[Header], body: bytes) -> Answer:
        """The answer to one request of these headers, on a connection of its own."""
        return exchange(self.address, [head(method, target, headers), body], method=method)

    def keyless_state(self) -> list[object]:
        """What the server without keys tells a program of this machine that it has."""
        targets = ("/v1/keys", "/v1/datasets", "/v1/training-jobs", "/v1/models", "/v1/models/pets")
        with self.keyless.client() as client:
            return [client.get(target).raise_for_status().json() for target in targets]

    def private(self) -> list[str]:
        """Strings that no answer may contain."""
        return [str(self.folder), *self.keys.values()]


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of all processes of the server. rss, peak: resident memory in bytes. left: temporary files.

    files: number of open files and sockets, without those of the database. connections: connections to the
    database; the pool keeps as many open as were once needed at the same time.
    """

    rss: int
    peak: int
    files: int
    connections: int
    left: tuple[str, ...]


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    """Context manager of two running servers, the second without API keys.

    Raises AssertionError if an exit code is not 0.
    """
    server = Server(folder)
    server.temporary.mkdir()
    (folder / "keyless").mkdir()
    with server, server.keyless:
        yield server
        for each in (server.keyless, server):
            codes = each.end()
            assert set(codes.values()) == {0}, f"{codes}\n{each.said()}"


def resources(server: Server) -> Resources:
    """Current resources of the server."""
    rss, peak = memory(_processes(server))
    opened: Counter[str] = Counter()
    database = server.data / DATABASE
    for pid in _processes(server):
        opened.update(open_files(pid))
    of_database = {target for target in opened if ".sqlite" in Path(target).name}
    left = [path.name for path in server.temporary.iterdir() if not path.name.startswith(FOLDER_PREFIX)]
    left += [path.name for path in server.folder.rglob("*.tmp")]
    files = sum(number for target, number in opened.items() if target not in of_database)
    return Resources(rss, peak, files, opened[str(database)], tuple(sorted(left)))


def _processes(server: Server) -> list[int]:
    return server.pids + server.keyless.pids


def watch_peak(server: Server) -> int:
    """Reset the peak of the resident memory. Returns its current bytes."""
    reset_peaks(_processes(server))
    return resources(server).rss


def settled(server: Server, before: Resources) -> Resources:
    """Resources once files and connections are closed and memory is released, or after a timeout."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        now = resources(server)
        is_closed = now.files <= before.files + KEPT_FILES
        closed = is_closed and now.connections <= MAX_CONNECTIONS and not now.left
        if (closed and now.rss <= before.rss + _SETTLED_GROWTH) or time.monotonic() > deadline:
            return now
        time.sleep(0.2)


def measure_query(server: Server) -> tuple[bytes, float]:
    """The answer to a valid query, and its median latency in seconds over some hundred requests."""
    seconds = []
    with server.client("query") as client:
        for _ in range(_WARM_QUERIES):
            began = time.perf_counter()
            answer = client.post("/v1/models/pets/classes/cat:query", json=_QUESTION)
            seconds.append(time.perf_counter() - began)
            answer.raise_for_status()
    return answer.content, statistics.median(seconds)
