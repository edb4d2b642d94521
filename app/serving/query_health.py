"""Whether queries should be sent to this process, for `/readyz/queries` and `/v2/health/ready`."""

from __future__ import annotations

from typing import Protocol

from app.domain.checks import Check, CheckFailed, check
from app.processes.metrics import Metrics
from app.serving.refresher import Refresher
from app.settings import Settings


class Process(Protocol):
    """The state that the checks read."""

    @property
    def settings(self) -> Settings: ...

    @property
    def refresher(self) -> Refresher: ...

    @property
    def metrics(self) -> Metrics: ...


def query_checks(process: Process) -> list[Check]:
    """Results of the checks on which queries of loaded models depend; no check waits."""
    return [
        check("keys", lambda: _keys(process)),
        check("registry", lambda: _registry_age(process)),
        check("process", lambda: accepts_requests(process.metrics)),
    ]


def accepts_requests(metrics: Metrics) -> str:
    """Raise CheckFailed if the process, or the whole service, is shutting down."""
    if metrics.processes().draining:
        raise CheckFailed("is shutting down; try again over a new connection")
    return "accepts requests"


def _keys(process: Process) -> str:
    if not process.refresher.was_read:
        raise CheckFailed("could not be read yet")
    return "were read"


def _registry_age(process: Process) -> str:
    age, limit = process.refresher.age_seconds, process.settings.max_stale_seconds
    if limit and age > limit:
        raise CheckFailed(f"was read {age:.1f} s ago; STMS_MAX_STALE_SECONDS permits {limit:g} s")
    return f"was read {age:.1f} s ago"
