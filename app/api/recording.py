"""What a request leaves in the audit log: whatever it changed, and, summed up, what it was refused."""

from __future__ import annotations

from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from app.api.dependencies import Runtime
from app.auth.audit_writer import is_audited, what_of
from app.domain.audit_context import Deed
from app.http.problem import Problem

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_QUERY: Final = ":predict"
UNCHANGED: Final = "request.unchanged"


def deed_of(scope: Scope, request_id: str) -> Deed:
    """The deed of a request; before the application is open, one from nowhere."""
    runtime = _runtime(scope)
    return Deed(request_id=request_id) if runtime is None else runtime.witness.deed_of(scope, request_id)


async def record(scope: Scope, deed: Deed) -> None:
    """Write down how a request ended that changes something, unless a use case did so with the change itself.

    What is refused is noted; of requests that change nothing only those for want of a key or of its scope.
    """
    runtime = _runtime(scope)
    if runtime is None:
        return
    changes = scope["method"] not in _SAFE and not scope["path"].endswith(_QUERY)
    problem: Problem | None = scope["state"].get("problem")
    if problem is not None and (changes or is_audited(problem)):
        runtime.witness.refused(scope, problem.code, deed.request_id or "")
    elif changes and not deed.recorded:
        await run_in_threadpool(runtime.witness.tell, UNCHANGED, what_of(scope), "unchanged", deed)


def _runtime(scope: Scope) -> Runtime | None:
    app = scope.get("app")
    return None if app is None else getattr(app.state, "runtime", None)
