"""`stms monitors`, `stms feedback` and `stms models performance` on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.jobs.conftest import wait_for
from tests.app.monitored import publish_watched
from tests.system.deployment import QUICK_SOLVERS, Deployment

pytestmark = pytest.mark.long
Ask = Callable[..., Any]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    settings = QUICK_SOLVERS | {"STMS_REQUIRE_KEYS": "false", "STMS_QUERY_SAMPLES": "ids"}
    with Deployment(tmp_path / "server", serve=True, settings=settings, prepare=publish_watched) as server:
        yield server.url


def test_answers_are_sampled_judged_and_shown(run: Ask, address: str, tmp_path: Path):
    def ask(*arguments: str, code: int = 0) -> str:
        result = run(*arguments, STMS_URL=address)
        assert result.exit_code == code, result.output
        return str(result.stdout + result.stderr)

    assert "monitor_not_found" in ask("monitors", "show", "pets", code=1)
    promises = ("--class", "a", "--max-fpr", "promised", "--min-precision", "0.9")
    assert "no_promise" in ask(
        "monitors", "set", "pets", "--class", "größe", "--uniform", "--max-fpr", "promised", code=1
    )
    ask("monitors", "set", "pets", *promises, "--yes", "1", "--floor", "1")
    ask("monitors", "set", "pets", "--max-fpr", "many", code=2)
    query = f"{address}/v1/models/pets/classes/a:query"
    with httpx.Client(trust_env=False) as client:
        for number in range(30):
            headers = {"x-request-id": f"order-{number}"}
            assert client.post(query, json={"x": [1.0, 0.0]}, headers=headers).status_code == 200
    wait_for(lambda: len(json.loads(ask("monitors", "samples", "pets", "--json"))) == 30, 60)
    ids = [one["id"] for one in json.loads(ask("monitors", "samples", "pets", "--json"))]
    assert "10 accepted, 0 of them in place of earlier ones" in ask("feedback", "wrong", *ids[:10])
    assert "1 accepted, 1 of them in place" in ask("feedback", "right", ids[0])
    assert "1 accepted, 0 of them in place" in ask("feedback", "truth", ids[10], "a")
    assert "unknown_sample" in ask("feedback", "wrong", "smp_" + "0" * 24)
    file = tmp_path / "answers.csv"
    file.write_text("request_id,label,correct\n" + "".join(f"order-{n},a,false\n" for n in range(11, 30)))
    assert "19 accepted" in ask("feedback", "import", str(file))
    file.write_text("request_id,label,correct\norder-1,a,perhaps\n")
    assert "Line 2: correct is 'perhaps'" in ask("feedback", "import", str(file), code=1)
    file.write_text("request_id,class,correct\norder-1,a,true\n")
    assert "has the column 'class'" in ask("feedback", "import", str(file), code=1)
    wait_for(lambda: "BROKEN" in ask("models", "performance", "pets@latest"), 60)
    [found] = json.loads(ask("models", "performance", "pets", "--class", "a", "--json"))["classes"]
    assert found["labelled_yes"] == 30
    assert found["precision"]["interval"]["estimate"] == 2 / 30
    assert "alarms are acknowledged" in ask("monitors", "acknowledge", "pets", "--note", "seen")
    assert "kept" in ask("models", "performance", "pets")
    assert "are deleted" in ask("monitors", "delete", "pets")
    assert "No calibrated class" in ask("models", "answers", "pets", "--class", "b")
