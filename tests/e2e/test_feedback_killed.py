"""Feedback through a real service whose processes are killed, until its worker gives the alarm."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.monitored import publish_watched
from tests.system.deployment import QUICK_SOLVERS, Deployment
from tests.system.processes import family

pytestmark = pytest.mark.long

ALIAS = "/v1/models/pets/aliases/latest"
MONITOR = {
    "classes": {"a": {"max_false_positive_rate": 0.01}},
    "ask": {"yes": 1.0, "floor": 1.0, "no": "uniform"},
}
ROWS = [[1.0, 0.0]] * 100
SECONDS = 60.0


def eventually(client: httpx.Client, path: str, wanted: Any, **params: Any) -> Any:
    """The answer to a request, asked until it is as ``wanted`` says."""
    deadline = time.monotonic() + SECONDS
    while True:
        answer = client.get(path, params=params).json()
        if wanted(answer):
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.2)


def test_killed_processes_lose_no_feedback_and_the_alarm_is_given(tmp_path: Path):
    settings = QUICK_SOLVERS | {"STMS_REQUIRE_KEYS": "false", "STMS_QUERY_SAMPLES": "ids"}
    with (
        Deployment(
            tmp_path,
            api=1,
            workers=1,
            arguments=["--api-processes", "2"],
            settings=settings,
            prepare=publish_watched,
        ) as service,
        httpx.Client(base_url=service.url, trust_env=False, timeout=60) as client,
    ):
        assert client.put(f"{ALIAS}/monitor", json=MONITOR).status_code == 200
        ids = []
        for _ in range(3):
            answer = client.post("/v1/models/pets/classes/a:query", json={"rows": ROWS})
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-sample-id"]
        eventually(client, f"{ALIAS}/monitor", lambda found: found["samples"] == 300)
        after: dict[str, Any] = {}
        while page := client.get(f"{ALIAS}/samples", params={"limit": 100} | after).json()["data"]:
            ids += [one["id"] for one in page]
            after = {"after": page[-1]["id"]}
        assert len(set(ids)) == 300
        accepted = 0
        for first in range(0, 120, 20):
            items = [{"sample": one, "correct": False} for one in ids[first : first + 20]]
            answer = client.post("/v1/feedback", json={"feedback": items})
            assert answer.status_code == 200, answer.text
            accepted += answer.json()["accepted"]
            # As soon as it was accepted: everything that answers, at once.
            server = service["api-0"]
            for pid in family(server.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            server.kill()
            server.start()
            server.wait_until_ready()
        assert accepted == 120
        found = eventually(
            client,
            f"{ALIAS}/performance",
            lambda found: found["classes"][0]["broken"],
            **{"class": "a"},
        )["classes"][0]
        assert (found["asked"], found["sampled_yes"], found["labelled_yes"]) == (300, 300, 120)
        assert found["precision"]["interval"]["estimate"] == 0.0
        assert "stms_promise_broken 1.0" in client.get("/metrics").text
