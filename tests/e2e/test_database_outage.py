"""PostgreSQL is stopped under load: queries of loaded models are answered, and probes keep the server."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.system.deployment import Deployment
from tests.system.postgres import Postgres, postgres
from tests.system.query_service import digits, row

QUERIES = 10_000
THREADS = 4

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def database() -> Iterator[Postgres]:
    with postgres(settings={"fsync": "off"}) as server:
        yield server


def ask(port: int, key: str, count: int, statuses: Counter[object]) -> None:
    """Ask ``count`` times over kept connections; what is not an answer is counted by its error."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps({"x": row()})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    for _ in range(count):
        try:
            connection.request("POST", "/v1/models/digits/classes/3:query", body, headers)
            response = connection.getresponse()
            response.read()
            statuses[response.status] += 1
        except OSError as error:
            statuses[type(error).__name__] += 1
            connection.close()
    connection.close()


def test_no_query_of_a_loaded_model_is_refused_while_the_database_is_stopped(
    database: Postgres, tmp_path: Path
):
    keys = {"camera": {"query"}}
    address = database.create_database("stms")
    with Deployment(tmp_path, api=1, database=address, keys=keys, prepare=digits, is_clean=True) as server:
        url, port, key = server.url, server.port, server.keys["camera"]
        statuses: Counter[object] = Counter()
        ask(port, key, 10, statuses)
        share = QUERIES // THREADS
        threads = [threading.Thread(target=ask, args=(port, key, share, statuses)) for _ in range(THREADS)]
        database.stop()
        for thread in threads:
            thread.start()
        probes = Counter[tuple[str, int]]()
        while any(thread.is_alive() for thread in threads):
            for path in ("/readyz/queries", "/v2/health/ready"):
                probes[path, httpx.get(url + path, trust_env=False, timeout=30).status_code] += 1
            time.sleep(0.05)
        assert httpx.get(f"{url}/readyz", trust_env=False, timeout=30).status_code == 503
        assert statuses == {200: QUERIES + 10}
        assert set(probes) == {("/readyz/queries", 200), ("/v2/health/ready", 200)}
        database.start()
        deadline = time.monotonic() + 60
        while httpx.get(f"{url}/readyz", trust_env=False, timeout=30).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)
