"""Operating the service: keys, servers, workers, quotas and the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal

from stms_client import calls
from stms_client.aio.connection import Connection
from stms_client.documents import Audit, Key, NewKey, Server, TokenRevocation, Usage, WhoAmI, Worker
from stms_client.errors import StmsError
from stms_client.events import Patience


class Operation(Connection):
    """Most of it needs a key of an administrator or operator."""

    async def whoami(self) -> WhoAmI:
        """What the API key may do, and which server answers."""
        return await self.do(calls.get("/v1/whoami", WhoAmI))

    def api_keys(self) -> AsyncIterator[Key]:
        """All API keys, without their secrets, oldest first."""
        return self._listed("/v1/keys", Key)

    async def create_key(
        self,
        name: str,
        *,
        scopes: Sequence[str] = ("query",),
        models: Sequence[str] = (),
        expires_in_seconds: float | None = None,
        rate_limit: float | None = None,
        rate_burst: int | None = None,
        samples: str | None = None,
    ) -> NewKey:
        """Create an API key. Its text, ``key`` of the result, is shown only here.

        scopes: operator, admin, train or query. models: that a query key may ask; empty for all. rate_limit:
        requests a second, 0 for no limit. rate_burst: requests at once. None: the default of the server.
        samples: "never" if monitors may choose none of its answers.
        """
        body = {
            "name": name,
            "scopes": list(scopes),
            "models": list(models),
            "expires_in_seconds": expires_in_seconds,
            "rate_limit": rate_limit,
            "rate_burst": rate_burst,
            "samples": samples,
        }
        return await self.do(calls.post("/v1/keys", calls.without_none(body), NewKey, repeatable=False))

    async def rotate_key(self, key_id: str, *, overlap_seconds: float = 0.0) -> NewKey:
        """Replace the secret of an API key. The new one, ``key`` of the result, is shown only here."""
        path, body = f"/v1/keys/{calls.segment(key_id)}/rotate", {"overlap_seconds": overlap_seconds}
        return await self.do(calls.post(path, body, NewKey, repeatable=False))

    async def revoke_key(self, key_id: str) -> Key:
        """Revoke an API key; a second call changes nothing."""
        return await self.do(calls.revoke_key(key_id))

    async def revoke_tokens(
        self, issuer: str, *, sub: str | None = None, jti: str | None = None, reason: str | None = None
    ) -> TokenRevocation:
        """Revoke the token with the id ``jti``, or all that were issued to the subject ``sub`` until now."""
        body = calls.without_none({"issuer": issuer, "sub": sub, "jti": jti, "reason": reason})
        return await self.do(calls.post("/v1/token-revocations", body, TokenRevocation))

    def token_revocations(self) -> AsyncIterator[TokenRevocation]:
        """Revocations of tokens that could be valid otherwise, oldest first."""
        return self._listed("/v1/token-revocations", TokenRevocation)

    def servers(self) -> AsyncIterator[Server]:
        """Groups of server processes with their live figures, for operators."""
        return self._listed("/v1/servers", Server)

    def workers(self) -> AsyncIterator[Worker]:
        """Worker processes and what each does, for operators."""
        return self._listed("/v1/workers", Worker)

    def usage(self, tenant: str | None = None) -> AsyncIterator[Usage]:
        """What tenants use and may use: the key's own; for operators another one, or all without a name."""
        return self._listed("/v1/usage", Usage, tenant=tenant)

    async def set_quotas(self, tenant: str, quotas: Mapping[str, int | None]) -> Usage:
        """Change quotas of a tenant, for operators. None means the default of the server's settings."""
        return await self.do(calls.patch("/v1/quotas", dict(quotas), Usage, tenant=tenant))

    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        object: str | None = None,  # noqa: A002 - the server's parameter name
        since: float | None = None,
        until: float | None = None,
        order: Literal["asc", "desc"] | None = None,
        after: str | None = None,
    ) -> AsyncIterator[Audit]:
        """Audit records, newest first.

        since, until: seconds since the epoch. order: ``"asc"`` for the oldest first. after: id of a record
        that this order has before them.
        """
        filters = {"actor": actor, "action": action, "object": object, "since": since, "until": until}
        return self._listed("/v1/audit", Audit, **filters, order=order, after=after)

    async def follow_audit(
        self,
        *,
        after: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        object: str | None = None,  # noqa: A002 - the server's parameter name
        since: float | None = None,
        patience: float = 60.0,
        pause: float = 1.0,
    ) -> AsyncIterator[Audit]:
        """Audit records, oldest first, and then those that are added, without an end.

        after: id of the last record that the caller has; the next call goes on there. patience: seconds
        without the server before its error is raised. pause: seconds between two looks.
        """
        waiting = Patience(patience)
        while True:
            page = self.audit(
                actor=actor, action=action, object=object, since=since, order="asc", after=after
            )
            try:
                async for record in page:
                    waiting.answered()
                    after = record["id"]
                    yield record
                waiting.answered()
            except StmsError as error:
                waiting.connection_lost(error)
            await asyncio.sleep(pause)
