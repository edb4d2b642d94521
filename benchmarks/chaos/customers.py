"""Clients that submit training jobs and follow them to their end while faults are injected.

Each client runs one scenario after the other. A job is submitted once; submitted several times because the
first answers were lost; cancelled; or cancelled and retried. Each call picks a server at random and is
repeated until one answers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from app.client import (
    Client,
    Conflict,
    Problem,
    Retry,
    ServerFault,
    StmsError,
    TooBusy,
    Unavailable,
    Unreachable,
)
from benchmarks.chaos.house import House
from benchmarks.chaos.journal import Journal
from benchmarks.chaos.recipes import Recipe

T = TypeVar("T")

STORIES = ("plain", "plain", "plain", "answer_lost", "answer_lost", "cancelled", "cancelled_and_retried")
ENDED = frozenset({"succeeded", "partially_succeeded", "failed", "cancelled"})
_LOOK_SECONDS = 0.4
_CALL_SECONDS = 8.0
_MOST_RETRIES = 5


class GaveUp(Exception):
    """The run is over before the story was."""


@dataclass(slots=True)
class Accepted:
    """A job the service has promised to do. wanted: the state it has to end in.

    given_up: how often it ended because solvers were killed again and again, and was taken up again.
    """

    id: str
    tenant: str
    model: str
    recipe: str
    story: str
    key: str
    wanted: str = "succeeded"
    given_up: int = 0
    cancelled: bool = False
    retried: bool = False


class Customers:
    """Several clients in threads, until `finish_at`. accepted: jobs by id. refused: what was not.

    doubled: jobs that came of another job's Idempotency-Key. faults: answers that blame the server. refusals:
    calls that had to be made again. moves: grows while jobs come any further.
    """

    def __init__(self, house: House, recipes: Sequence[Recipe], *, number: int, seed: int) -> None:
        self._house, self._recipes = house, list(recipes)
        self._journal: Journal = house.journal
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._enough = sys.maxsize
        self._over = threading.Event()
        self.accepted: dict[str, Accepted] = {}
        self.doubled: list[str] = []
        self.refused: list[str] = []
        self.faults: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.submissions = 0
        self.moves = 0
        self._seed = seed
        self._threads = [
            threading.Thread(target=self._serve, args=(index,), daemon=True) for index in range(number)
        ]
        for thread in self._threads:
            thread.start()

    def finish_at(self, jobs: int) -> None:
        """Begin no other job, once so many have been accepted."""
        self._enough = jobs

    def give_up(self) -> None:
        """Wait for nothing any more."""
        self._over.set()
        for thread in self._threads:
            thread.join(_CALL_SECONDS + 5)

    @property
    def under_way(self) -> int:
        """Clients that still wait for something."""
        return sum(thread.is_alive() for thread in self._threads)

    def _serve(self, index: int) -> None:
        rng = random.Random(self._seed * 1000 + index)
        tenants = sorted(self._house.keys)
        tenant = tenants[index % len(tenants)]
        # Each thread has connections of its own, and tries nothing twice by itself: the answers are counted.
        clients = [
            Client(api.url, self._house.keys[tenant], timeout=_CALL_SECONDS, retry=Retry(attempts=1))
            for api in self._house.apis
        ]
        try:
            while len(self.accepted) < self._enough:
                Story(self, clients, tenant, next(self._numbers), rng).run()
        except GaveUp:
            return
        finally:
            for client in clients:
                client.close()

    def accept(self, job: Accepted) -> None:
        """Remember a job that the service has promised to do."""
        with self._lock:
            self.accepted[job.id] = job
        self._journal.note("accepted", job=job.id, model=job.model, story=job.story, tenant=job.tenant)

    def count(self, fault: str) -> None:
        """Remember an answer that no client should get."""
        with self._lock:
            self.faults[fault] += 1
        self._journal.note("server_fault", fault=fault)

    def tried_again(self, error: StmsError) -> None:
        """Remember an answer that means later, or none at all."""
        with self._lock:
            self.refusals[type(error).__name__] += 1

    def pause(self, seconds: float) -> None:
        """Wait. Raises GaveUp when the run is over."""
        if self._over.wait(seconds):
            raise GaveUp

    @property
    def house(self) -> House:
        """Where they are customers."""
        return self._house

    def recipe(self, rng: random.Random) -> Recipe:
        """Any of them."""
        return rng.choice(self._recipes)


class Story:
    """One job from its submission to its end."""

    def __init__(
        self, customers: Customers, clients: list[Client], tenant: str, number: int, rng: random.Random
    ) -> None:
        self._customers, self._clients, self._rng = customers, clients, rng
        self._journal = customers.house.journal
        recipe = customers.recipe(rng)
        self._recipe = recipe
        self._seen: tuple[Any, ...] = ()
        self._job = Accepted(
            "", tenant, f"{recipe.name}-{number}", recipe.name, rng.choice(STORIES), f"{rng.random()}"
        )

    def run(self) -> None:
        """To the end. Raises GaveUp when the run is over before."""
        job = self._job
        if not self._submit():
            return
        if job.story.startswith("cancelled"):
            self._cancel()
        if job.story == "cancelled_and_retried" and job.cancelled:
            self._until_ended()
            self._retry()
        document = self._until_ended()
        while job.given_up < _MOST_RETRIES and self._solvers_were_killed(document):
            job.given_up += 1
            self._retry()
            document = self._until_ended()
        self._journal.note(
            "ended_for_client", job=job.id, state=document["state"], error=document.get("error")
        )
        if job.story == "answer_lost":
            self._send_again()

    def _submit(self) -> bool:
        """Send it until an answer comes; False if it was refused."""
        if self._job.story == "answer_lost":
            for _ in range(self._rng.randint(1, 3)):
                self._send_and_hang_up()
        try:
            document = self._call(self._sending())
        except Problem as problem:
            self._customers.refused.append(str(problem))
            self._journal.note("refused", model=self._job.model, problem=str(problem))
            return False
        self._job.id = str(document["id"])
        self._customers.accept(self._job)
        return True

    def _sending(self) -> Callable[[Client], dict[str, Any]]:
        job, recipe = self._job, self._recipe
        self._customers.submissions += 1
        return lambda client: client.submit_job(
            recipe.dataset_id, job.model, recipe.hyperparameters, idempotency_key=job.key
        )

    def _send_again(self) -> None:
        document = self._call(self._sending())
        if document["id"] != self._job.id:
            self._customers.doubled.append(f"{self._job.id} and {document['id']}")

    def _send_and_hang_up(self) -> None:
        """Send the whole request, and close the connection without reading the answer."""
        job, recipe = self._job, self._recipe
        content = json.dumps(
            {"dataset_id": recipe.dataset_id, "model": job.model, "hyperparameters": recipe.hyperparameters},
            separators=(",", ":"),
        ).encode()
        address = urlsplit(self._rng.choice(self._clients).address)
        lines = [
            "POST /v1/training-jobs HTTP/1.1",
            f"Host: {address.netloc}",
            f"Authorization: Bearer {self._customers.house.keys[job.tenant]}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
            f"Idempotency-Key: {job.key}",
        ]
        self._customers.submissions += 1
        with contextlib.suppress(OSError):
            where = (str(address.hostname), int(address.port or 80))
            with socket.create_connection(where, timeout=2) as connection:
                connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
                time.sleep(self._rng.uniform(0, 0.05))

    def _cancel(self) -> None:
        """At some moment of its life."""
        units = self._rng.uniform(0.0, 0.8)
        while True:
            document = self._call(lambda client: client.job(self._job.id))
            self._notice(document)
            progress = document["progress"]
            if document["state"] in ENDED or progress["done"] >= units * progress["total"]:
                break
            self._customers.pause(_LOOK_SECONDS)
        try:
            self._call(lambda client: client.cancel_job(self._job.id))
        except Conflict:
            # It has ended: by itself, or by a call before this one, whose answer was lost.
            state = self._call(lambda client: client.job(self._job.id))["state"]
            if state != "cancelled":
                return
        self._job.cancelled = True
        self._job.wanted = "cancelled"
        self._journal.note("cancelled", job=self._job.id)

    def _retry(self) -> None:
        """Take it up again; its last attempt has ended."""
        try:
            self._call(lambda client: client.retry_job(self._job.id))
        except Conflict as conflict:
            # A call before this one, whose answer was lost, has put it in the queue.
            if conflict.code != "job_not_retriable":
                raise
        self._job.retried = True
        self._job.wanted = "succeeded"
        self._journal.note("retried", job=self._job.id)

    def _until_ended(self) -> dict[str, Any]:
        while True:
            document = self._call(lambda client: client.job(self._job.id))
            self._notice(document)
            if document["state"] in ENDED:
                return document
            self._customers.pause(_LOOK_SECONDS)

    def _notice(self, document: dict[str, Any]) -> None:
        seen = (document["state"], document["stage"], document["progress"]["done"])
        if seen != self._seen:
            self._seen = seen
            self._customers.moves += 1

    def _solvers_were_killed(self, document: dict[str, Any]) -> bool:
        """Whether the job ended as one does whose solver dies of the same class again and again."""
        if document["state"] not in {"failed", "partially_succeeded"}:
            return False
        error = document.get("error") or {}
        return error.get("code") == "solver_died" or "solver" in error.get("message", "").lower()

    def _call(self, ask: Callable[[Client], T]) -> T:
        """What a server answers, however long it takes. Raises Problem, and GaveUp when the run is over."""
        wait = 0.1
        while True:
            client = self._rng.choice(self._clients)
            try:
                return ask(client)
            except (Unreachable, Unavailable, TooBusy) as error:
                self._customers.tried_again(error)
            except ServerFault as fault:
                self._customers.count(f"{fault.status} {fault.code}")
            except Problem:
                raise
            except StmsError as error:
                self._customers.count(repr(error))
            self._customers.pause(self._rng.uniform(0.5, 1.0) * wait)
            wait = min(2 * wait, 2.0)
