"""Queries on models that the servers hold in memory, all the time; each answer must be the right one."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from benchmarks.chaos.house import House, Member
from benchmarks.chaos.recipes import Reference

_PAUSE_SECONDS = 0.02
_TIMEOUT_SECONDS = 3.0
_MOMENT = 0.3
"""Seconds by which the record that a process is down may lag behind the fault."""
_TOLERANCE = 1e-12
_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """One query. failure: empty for a right answer. warm: whether this process had answered for this class.

    troubled: whether the server itself was killed, stopped or away then. began, ended: journal's time.
    """

    began: float
    ended: float
    server: str
    failure: str
    warm: bool
    troubled: bool


class Queries:
    """A client a server, asking until `stop`. wrong: answers that were not what the undisturbed run gave."""

    def __init__(self, house: House, references: Mapping[str, Reference], seed: int) -> None:
        self._house = house
        self._references = list(references.values())
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.asked: list[Asked] = []
        self.wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(api, random.Random(seed * 100 + place)), daemon=True)
            for place, api in enumerate(house.apis)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask nothing more."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def failures(self, *, warm: bool | None = None, troubled: bool | None = None) -> Counter[str]:
        """How many failed, by kind."""
        return Counter(
            asked.failure
            for asked in self.asked
            if asked.failure
            and (warm is None or asked.warm is warm)
            and (troubled is None or asked.troubled is troubled)
        )

    def _ask(self, api: Member, rng: random.Random) -> None:
        address = urlsplit(api.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=_TIMEOUT_SECONDS)
        warm: set[tuple[int, str, str]] = set()
        while not self._stopping.wait(_PAUSE_SECONDS):
            reference = rng.choice(self._references)
            label = rng.choice(list(reference.scores))
            instance = (api.program.starts, reference.model, label)
            began = self._house.journal.now
            failure = self._once(connection, reference, label, rng.randrange(len(reference.recipe.rows)))
            ended = self._house.journal.now
            if failure:
                connection.close()
            troubled = bool(api.program.troubled.touching(began, ended, after=_MOMENT))
            # The process may have been started anew between the two looks: then it is not warm.
            known = instance in warm and api.program.starts == instance[0]
            asked = Asked(began, ended, api.name, failure, known, troubled)
            with self._lock:
                self.asked.append(asked)
            if failure and known and not troubled:
                self._house.journal.note("query_failed", server=api.name, failure=failure)
            if not failure:
                warm.add(instance)
        connection.close()

    def _once(
        self, connection: http.client.HTTPConnection, reference: Reference, label: str, place: int
    ) -> str:
        """One question about row ``place``; empty for the right answer, else what came instead."""
        body = json.dumps({"x": reference.recipe.rows[place].tolist()})
        path = f"/v1/models/{quote(reference.model)}/classes/{quote(label)}:query"
        headers = {
            "Authorization": f"Bearer {next(iter(self._house.keys.values()))}",
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
