from __future__ import annotations

from typing import Any

import pytest

UNIT = {
    "job_id": "job_1",
    "unit": 3,
    "kind": "chunk",
    "classes": 7,
    "since": "2026-01-02T03:04:05Z",
    "solver_pid": 42,
}


@pytest.fixture
def show(run, written):
    def show(workers: list[dict[str, Any]]) -> str:
        written.on("GET", "/v1/workers", {"data": workers, "has_more": False})
        result = run("workers", STMS_URL=written.address)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    return show


def worker(**changed: Any) -> dict[str, Any]:
    about = {"id": "w1", "host": "here", "pid": 7, "beat_at": "2026-01-02T03:04:05Z", "alive": True}
    return about | {"slots": 2, "units": [UNIT]} | changed


def test_workers_are_shown_with_what_they_do(show):
    preparing = UNIT | {"kind": "prepare", "unit": 0, "classes": 0}
    text = " ".join(show([worker(), worker(id="w2", alive=False, units=[preparing])]).split())
    assert "1/2 job_1 chunk 3 (7 classes)" in text
    assert "w2 here 7 no" in text
    assert "1/2 job_1 prepare" in text


def test_without_workers_one_is_told_how_to_start_one(show):
    assert "stms worker" in show([])
