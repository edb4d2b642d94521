"""Quotas of tenants: what they use, what they may use, and the errors beyond it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from app.domain.entities import Resources
from app.domain.errors import Conflict, Overloaded, TooLarge
from app.settings import Settings
from app.store.unit_of_work import Store, UnitOfWork

_NOUNS: Final = {"datasets": "data sets", "versions": "versions of models", "keys": "valid API keys"}


class Usage(NamedTuple):
    """What a tenant uses, and what it may use."""

    tenant: str
    used: Resources
    allowed: Resources


def usage(uow: UnitOfWork, settings: Settings, tenant: str) -> Usage:
    """Use and quotas of one tenant."""
    defaults = Resources(
        stored_bytes=settings.quota_stored_bytes,
        datasets=settings.quota_datasets,
        versions=settings.quota_versions,
        unfinished_jobs=settings.quota_unfinished_jobs,
        keys=settings.quota_keys,
    )
    allowed = dataclasses.replace(defaults, **uow.quotas.quotas(tenant))
    return Usage(tenant, uow.quotas.used(tenant), allowed)


def list_usage(
    store: Store, settings: Settings, *, limit: int, after: str | None = None
) -> tuple[Sequence[Usage], bool]:
    """Use and quotas of all tenants, by name after ``after``, and whether more follow."""
    with store.read() as uow:
        tenants, has_more = uow.quotas.tenants(limit=limit, after=after)
        return [usage(uow, settings, tenant) for tenant in tenants], has_more


def get_usage(store: Store, settings: Settings, tenant: str) -> Usage:
    """Use and quotas of one tenant, which need not have anything."""
    with store.read() as uow:
        return usage(uow, settings, tenant)


def set_quotas(store: Store, settings: Settings, tenant: str, quotas: Mapping[str, int | None]) -> Usage:
    """Change quotas of a tenant, by name; None means the default. What exists already stays."""
    with store.begin() as uow:
        uow.quotas.lock(tenant)
        uow.quotas.set_quotas(tenant, {**uow.quotas.quotas(tenant), **quotas})
        uow.audit.append("quota.set", tenant, details=dict(quotas))
        return usage(uow, settings, tenant)


def room_for(store: Store, settings: Settings, noun: str, more_bytes: int = 0) -> int:
    """Bytes that the tenant of ``store`` may still store, before one more of ``noun`` is received.

    noun: "datasets" or "versions", or another word for what is not counted. more_bytes: what it will take at
    least. Raises Conflict and TooLarge.
    """
    with store.read() as uow:
        return require_room(uow, settings, store.tenant, noun, more_bytes)


def require_room(uow: UnitOfWork, settings: Settings, tenant: str, noun: str, more_bytes: int = 0) -> int:
    """As `room_for`, in a transaction; the caller has locked the tenant's quotas if it stores something."""
    is_counted = noun in _NOUNS
    found = require_one_more(uow, settings, tenant, noun) if is_counted else usage(uow, settings, tenant)
    _, used, allowed = found
    left = allowed.stored_bytes - used.stored_bytes
    if left <= more_bytes:
        raise storage_exceeded(allowed.stored_bytes, used.stored_bytes)
    return left


def require_one_more(uow: UnitOfWork, settings: Settings, tenant: str, noun: str) -> Usage:
    """Use and quotas of a tenant that may have one more of ``noun``; raises Conflict if it may not.

    noun: "datasets", "versions" or "keys". The caller has locked the tenant's quotas if it stores something.
    """
    found = usage(uow, settings, tenant)
    used, allowed = getattr(found.used, noun), getattr(found.allowed, noun)
    if used >= allowed:
        message = f"The tenant has {used} {_NOUNS[noun]}; its quota is {allowed}."
        raise Conflict(message, code=f"quota_{noun}")
    return found


def has_bytes(store: Store, settings: Settings, tenant: str) -> bool:
    """Whether a tenant has not used up its bytes."""
    _, used, allowed = get_usage(store, settings, tenant)
    return used.stored_bytes < allowed.stored_bytes


def require_bytes(uow: UnitOfWork, settings: Settings, tenant: str) -> None:
    """Raise TooLarge if the tenant has used up its bytes. It locks its quotas until the end."""
    uow.quotas.lock(tenant)
    check_bytes(usage(uow, settings, tenant))


def check_bytes(found: Usage) -> None:
    """Raise TooLarge if a tenant has used up its bytes."""
    if found.used.stored_bytes >= found.allowed.stored_bytes:
        raise storage_exceeded(found.allowed.stored_bytes, found.used.stored_bytes)


def require_room_for_job(uow: UnitOfWork, settings: Settings, tenant: str) -> None:
    """Raise Conflict, TooLarge and Overloaded if the tenant may not have one more unfinished job."""
    found = usage(uow, settings, tenant)
    used, allowed = found.used, found.allowed
    if used.unfinished_jobs >= allowed.unfinished_jobs:
        message = (
            f"The tenant has {used.unfinished_jobs} unfinished jobs; its quota is {allowed.unfinished_jobs}."
        )
        raise Overloaded(message, code="quota_unfinished_jobs", retry_after=30.0)
    # Its jobs are to publish a version each.
    if used.versions + used.unfinished_jobs >= allowed.versions:
        message = (
            f"The tenant has {used.versions} versions of models and {used.unfinished_jobs} unfinished jobs; "
            f"its quota is {allowed.versions} versions."
        )
        raise Conflict(message, code="quota_versions")
    check_bytes(found)


def storage_exceeded(allowed: int, used: int) -> TooLarge:
    """The error for more bytes than the tenant may store."""
    message = (
        f"The tenant stores {used} bytes; its quota of {allowed} bytes does not suffice. Delete something."
    )
    return TooLarge(message, code="quota_stored_bytes")
