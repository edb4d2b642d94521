"""Generated from `stms_client/aio/operation.py` by ``make client``: do not edit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from stms_client import calls
from stms_client.documents import Audit, Key, NewKey, Server, TokenRevocation, Usage, WhoAmI, Worker
from stms_client.errors import StmsError
from stms_client.events import Patience
from stms_client.sync.connection import Connection


class Operation(Connection):
    """Most of it needs a key of an administrator or operator."""

    def whoami(self) -> WhoAmI:
        """What the API key may do, and which server answers."""
        return self.do(calls.get("/v1/whoami", WhoAmI))

    def api_keys(self) -> Iterator[Key]:
        """All API keys, without their secrets, oldest first."""
        return self._listed("/v1/keys", Key)

    def create_key(
        self,
        name: str,
        *,
        scopes: Sequence[str] = ("query",),
        models: Sequence[str] = (),
        expires_in_seconds: float | None = None,
        rate_limit: float | None = None,
        rate_burst: int | None = None,
    ) -> NewKey:
        """Create an API key. Its text, ``key`` of the result, is shown only here.

        scopes: operator, admin, train or query. models: that a query key may ask; empty for all. rate_limit:
        requests a second, 0 for no limit. rate_burst: requests at once. None: the default of the server.
        """
        body = {
            "name": name,
            "scopes": list(scopes),
            "models": list(models),
            "expires_in_seconds": expires_in_seconds,
            "rate_limit": rate_limit,
            "rate_burst": rate_burst,
        }
        return self.do(calls.create_key(body))

    def rotate_key(self, key_id: str, *, overlap_seconds: float = 0.0) -> NewKey:
        """Replace the secret of an API key. The new one, ``key`` of the result, is shown only here."""
        return self.do(calls.rotate_key(key_id, overlap_seconds))

    def revoke_key(self, key_id: str) -> Key:
        """Revoke an API key; a second call changes nothing."""
        return self.do(calls.revoke_key(key_id))

    def revoke_tokens(
        self, issuer: str, *, sub: str | None = None, jti: str | None = None, reason: str | None = None
    ) -> TokenRevocation:
        """Revoke the token with the id ``jti``, or all that were issued to the subject ``sub`` until now."""
        body = {"issuer": issuer, "sub": sub, "jti": jti, "reason": reason}
        return self.do(calls.revoke_tokens(body))

    def token_revocations(self) -> Iterator[TokenRevocation]:
        """Revocations of tokens that could be valid otherwise, oldest first."""
        return self._listed("/v1/token-revocations", TokenRevocation)

    def servers(self) -> Iterator[Server]:
        """Groups of server processes with their live figures, for operators."""
        return self._listed("/v1/servers", Server)

    def workers(self) -> Iterator[Worker]:
        """Worker processes and what each does, for operators."""
        return self._listed("/v1/workers", Worker)

    def usage(self, tenant: str | None = None) -> Iterator[Usage]:
        """What tenants use and may use: the key's own; for operators another one, or all without a name."""
        return self._listed("/v1/usage", Usage, tenant=tenant)

    def set_quotas(self, tenant: str, quotas: Mapping[str, int | None]) -> Usage:
        """Change quotas of a tenant, for operators. None means the default of the server's settings."""
        return self.do(calls.set_quotas(tenant, quotas))

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
    ) -> Iterator[Audit]:
        """Audit records, newest first.

        since, until: seconds since the epoch. order: ``"asc"`` for the oldest first. after: id of a record
        that this order has before them.
        """
        filters = {"actor": actor, "action": action, "object": object, "since": since, "until": until}
        return self._listed("/v1/audit", Audit, **filters, order=order, after=after)

    def follow_audit(
        self,
        *,
        after: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        object: str | None = None,  # noqa: A002 - the server's parameter name
        since: float | None = None,
        patience: float = 60.0,
        pause: float = 1.0,
    ) -> Iterator[Audit]:
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
                for record in page:
                    waiting.answered()
                    after = record["id"]
                    yield record
                waiting.answered()
            except StmsError as error:
                waiting.connection_lost(error)
            time.sleep(pause)
