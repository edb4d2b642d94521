"""The matrix of `verification.isolation` with two callers, and that it can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from app.store.repositories.audit import Audit
from verification import isolation

CALLERS = ("train", "token", "limited")


def _compare(folder: Path, callers: Sequence[str] = CALLERS) -> isolation.Result:
    with isolation.databases_in(folder, quick=True) as [addresses]:
        return asyncio.run(isolation.compare(folder, addresses, callers=callers))


def test_no_route_tells_anything_of_another_tenant(tmp_path: Path) -> None:
    result = _compare(tmp_path)
    assert result.leaks == []
    assert result.unmapped == set(), "every route of the OpenAPI document needs a probe"
    assert result.combinations > 300


@pytest.mark.long
def test_a_leak_and_a_route_without_a_probe_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = "GET /v1/workers"
    some = {route: probes for route, probes in isolation.routes().items() if "/v1/datasets" in route}
    missing = set(isolation.routes()) - set(some)
    monkeypatch.setattr(isolation, "routes", lambda: some)
    with isolation.planted_leak():
        result = _compare(tmp_path)
    assert result.unmapped == missing
    assert left_out in missing
    assert any("GET /v1/datasets/{dataset} {}: status 200 instead of 404" in leak for leak in result.leaks)
    assert any("names payroll-of-acme" in leak or "body" in leak for leak in result.leaks)


@pytest.mark.parametrize("leaks", [False, True])
@pytest.mark.long
def test_the_audit_log_is_compared_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, leaks: bool
) -> None:
    probes = isolation.routes()
    audit = "GET /v1/audit"
    # Each of the first probes is denied, which adds a row of the asking administrator to the audit log.
    denied = "POST /v1/keys"
    some = {denied: probes[denied] * 3, audit: probes[audit]}
    monkeypatch.setattr(isolation, "routes", lambda: some)
    with isolation.planted_leak(Audit) if leaks else nullcontext():
        result = _compare(tmp_path, ("admin",))
    assert all(leak.startswith(f"admin: {audit}") for leak in result.leaks)
    assert bool(result.leaks) == leaks
