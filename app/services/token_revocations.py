"""Use cases of revocations of tokens: revoke and list.

A revocation lasts as long as a token that was issued before it can be valid, for the largest ``max_age`` that
its issuer has or may have had.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from app.domain.audit_context import current_context
from app.domain.caller_rules import MAX_AGE_SECONDS, MAX_SUBJECT, TokenIssuer
from app.domain.entities import TokenRevocation, new_id
from app.domain.errors import InputFault, InvalidRequest, NotFound, Overloaded
from app.domain.names import is_display_name
from app.store.unit_of_work import Store

MAX_OF_TENANT: Final = 1000
"""Revocations of a tenant at a time: every server process has them in memory."""
MAX_REASON: Final = 200
_LASTING_SECONDS: Final = MAX_AGE_SECONDS + 60.0


def revoke_tokens(
    store: Store,
    issuers: Sequence[TokenIssuer],
    issuer: str,
    *,
    sub: str | None = None,
    jti: str | None = None,
    reason: str = "",
) -> TokenRevocation:
    """Revoke the token with the id ``jti``, or all tokens that were issued to the subject ``sub`` until now.

    issuers: those of the settings; the tenant of the store must have the one named ``issuer``. Raises
    InvalidRequest, NotFound, and Overloaded beyond `MAX_OF_TENANT` revocations.
    """
    faults = _faults(sub, jti, reason)
    if faults:
        raise InvalidRequest("The tokens cannot be revoked.", faults=faults)
    if not any((one.issuer, one.tenant) == (issuer, store.tenant) for one in issuers):
        raise NotFound(f"The tenant has no token issuer {issuer!r:.300}.", code="token_issuer_not_found")
    now = time.time()
    revocation = TokenRevocation(
        id=new_id("rev", now),
        tenant=store.tenant,
        issuer=issuer,
        sub=sub,
        jti=jti,
        reason=reason,
        created_by=current_context().actor.id,
        created_at=now,
        expires_at=now + _LASTING_SECONDS,
    )
    with store.begin() as uow:
        uow.token_revocations.add(revocation)
        if uow.token_revocations.count() > MAX_OF_TENANT:
            message = (
                f"The tenant revoked tokens {MAX_OF_TENANT} times within the last hour, which is the most."
            )
            raise Overloaded(message, code="too_many_revocations", retry_after=60.0)
        details = {"issuer": issuer, "sub": sub, "jti": jti, "reason": reason}
        uow.audit.append("token.revoke", revocation.id, details=details)
    return revocation


def list_revocations(
    store: Store, *, limit: int, after: str | None = None
) -> tuple[Sequence[TokenRevocation], bool]:
    """Revocations newer than id ``after`` that have not expired, oldest first; and whether more follow."""
    with store.read() as uow:
        return uow.token_revocations.page(limit=limit, after=after)


def _faults(sub: str | None, jti: str | None, reason: str) -> list[InputFault]:
    faults = []
    if (sub is None) == (jti is None):
        faults.append(InputFault("sub", "one_of_two", "Give either sub or jti."))
    for name, text, most in (
        ("sub", sub, MAX_SUBJECT),
        ("jti", jti, MAX_SUBJECT),
        ("reason", reason, MAX_REASON),
    ):
        if text and not is_display_name(text, most):
            faults.append(InputFault(name, "bad_name", f"It must have 1 to {most} printable characters."))
    return faults
