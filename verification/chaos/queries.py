"""Continuous queries on models that the servers hold in memory; every answer is checked."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from verification.chaos.service import FaultyService, Instance
from verification.chaos.workloads import Reference

_PAUSE_SECONDS = 0.02
_TIMEOUT_SECONDS = 3.0
_MOMENT = 0.3
"""Seconds by which the record that a process is down may lag behind the fault."""
_TOLERANCE = 1e-12
_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class Query:
    """One query. began, ended: time in the event log, seconds. failure: empty for a right answer.

    warm: whether this server process had answered for this class before. server_down: whether the server was
    killed, stopped or starting at that time. control_down: the same of its control process.
    """

    began: float
    ended: float
    server: str
    failure: str
    warm: bool
    server_down: bool
    control_down: bool = False


class Queries:
    """One client per server, querying until `stop`. wrong: answers that differ from the reference run."""

    def __init__(self, deployment: FaultyService, references: Mapping[str, Reference], seed: int) -> None:
        self._deployment = deployment
        self._references = list(references.values())
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.done: list[Query] = []
        self.wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(api, random.Random(seed * 100 + place)), daemon=True)
            for place, api in enumerate(deployment.apis)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the clients."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def without_control(self) -> list[Query]:
        """The queries of warm servers while only their control process was down."""
        return [query for query in self.done if query.control_down and query.warm and not query.server_down]

    def failures(self, *, warm: bool | None = None, server_down: bool | None = None) -> Counter[str]:
        """Numbers of failed queries by kind of failure."""
        return Counter(
            query.failure
            for query in self.done
            if query.failure
            and (warm is None or query.warm is warm)
            and (server_down is None or query.server_down is server_down)
        )

    def _ask(self, api: Instance, rng: random.Random) -> None:
        address = urlsplit(api.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=_TIMEOUT_SECONDS)
        warm: set[tuple[int, str, str]] = set()
        while not self._stopping.wait(_PAUSE_SECONDS):
            reference = rng.choice(self._references)
            label = rng.choice(list(reference.scores))
            key = (api.program.starts, reference.model, label)
            began = self._deployment.event_log.now
            failure = self._once(connection, reference, label, rng.randrange(len(reference.workload.rows)))
            ended = self._deployment.event_log.now
            if failure:
                connection.close()
            server_down = bool(api.program.downtime.overlapping(began, ended, after=_MOMENT))
            # If the process was restarted during the query, it was not warm.
            known = key in warm and api.program.starts == key[0]
            control_down = bool(api.program.control_downtime.overlapping(began, ended))
            query = Query(began, ended, api.name, failure, known, server_down, control_down)
            with self._lock:
                self.done.append(query)
            if failure and known and not server_down:
                self._deployment.event_log.record("query_failed", server=api.name, failure=failure)
            if not failure:
                warm.add(key)
        connection.close()

    def _once(
        self, connection: http.client.HTTPConnection, reference: Reference, label: str, place: int
    ) -> str:
        """Query one row. Returns an empty string for the right answer, otherwise the kind of failure."""
        body = json.dumps({"x": reference.workload.rows[place].tolist()})
        path = f"/v1/models/{quote(reference.model)}/classes/{quote(label)}:query"
        headers = {
            "Authorization": f"Bearer {next(iter(self._deployment.keys.values()))}",
            "Content-Type": "application/json",
        }
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            data = response.read()
        except TimeoutError:
            return "timeout"
        except ConnectionRefusedError:
            return "refused"
        except (OSError, http.client.HTTPException):
            return "broken"
        if response.status != 200:
            return f"status {response.status}"
        score = json.loads(data)["score"]
        right = float(reference.scores[label][place])
        if abs(score - right) > _TOLERANCE * max(1.0, abs(right)):
            with self._lock:
                if len(self.wrong) < _EXAMPLES:
                    self.wrong.append(
                        f"{reference.model}, class {label}, row {place}: {score!r}, not {right!r}"
                    )
            return "wrong"
        return ""
