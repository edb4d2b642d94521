"""Who is asking: the API key of a request, checked for the scope that an endpoint needs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from app.api.dependencies import RuntimeDep
from app.domain.entities import ApiKey


class Requires:
    """Dependency that gives the caller's key. Raises NotAuthenticated, NotAuthorised and RateLimited."""

    def __init__(self, scope: str) -> None:
        self._scope = scope

    async def __call__(self, request: Request, runtime: RuntimeDep) -> ApiKey:
        return runtime.gate.admit(request.scope, self._scope)


Administrator = Annotated[ApiKey, Depends(Requires("admin"))]
Trainer = Annotated[ApiKey, Depends(Requires("train"))]
Reader = Annotated[ApiKey, Depends(Requires("query"))]
"""May look at models and ask them; which models, each endpoint checks by `authorise`."""
