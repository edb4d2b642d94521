"""Floods of health probes get the newest answer again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.api import probe_answers
from app.api.probe_answers import MADE_PER_SECOND, ProbeAnswers


class Endpoint:
    """Answers each request with its number, through a `ProbeAnswers` on a clock that stands still."""

    def __init__(self) -> None:
        self.now, self.made = 100.0, 0
        self.answers = ProbeAnswers(lambda: self.now)

    def ask(self, path: str = "/readyz", query: bytes = b"", method: str = "GET") -> list[dict[str, Any]]:
        return asyncio.run(self._ask({"path": path, "query_string": query, "method": method, "headers": []}))

    async def _ask(self, scope: dict[str, Any]) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            message["completed"] = True
            sent.append(message)

        if not await self.answers.repeat(scope, send):
            self.made += 1
            body = {"type": "http.response.body", "body": b"%d" % self.made}
            keeping = self.answers.keeping(scope, send)
            await keeping({"type": "http.response.start", "status": 503, "headers": []})
            await keeping(body)
        return sent


def test_beyond_some_a_second_the_newest_answer_is_repeated():
    endpoint = Endpoint()
    answers = [endpoint.ask() for _ in range(50)]
    # The first one of all is made before there is anything to count.
    assert endpoint.made == MADE_PER_SECOND + 1
    assert answers[-1] == answers[MADE_PER_SECOND]
    assert answers[-1][0]["status"] == 503
    assert answers[-1][1]["body"] == b"%d" % endpoint.made


def test_an_answer_is_repeated_for_a_second_at_most():
    endpoint = Endpoint()
    for _ in range(50):
        endpoint.ask()
    made = endpoint.made
    endpoint.now += probe_answers.OLDEST_SECONDS
    assert endpoint.ask()[1]["body"] == b"%d" % (made + 1)


@pytest.mark.parametrize(
    ("path", "query", "method"),
    [("/readyz", b"other=1", "GET"), ("/version", b"", "GET"), ("/readyz", b"", "HEAD")],
)
def test_other_requests_are_always_answered_anew(path: str, query: bytes, method: str):
    endpoint = Endpoint()
    for _ in range(50):
        endpoint.ask()
    made = endpoint.made
    for _ in range(50):
        endpoint.ask(path, query, method)
    assert endpoint.made == made + 50


def test_each_path_has_its_own_answer():
    endpoint = Endpoint()
    for _ in range(20):
        ready, verbose = endpoint.ask(), endpoint.ask(query=b"verbose")
    assert ready[1]["body"] != verbose[1]["body"]


def test_a_flood_of_probes_gets_answers_with_ids_of_their_own(client: Any):
    answers = [client.get("/readyz?verbose") for _ in range(40)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["x-request-id"] for answer in answers}) == 40
    assert all(answer.json()["checks"] for answer in answers)
    assert {answer.headers["cache-control"] for answer in answers} == {"no-store"}
