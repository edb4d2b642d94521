"""Use cases of shadows: another version that answers a share of an alias's queries, unseen."""

from __future__ import annotations

import time
from typing import Final

from app.domain.entities import new_id
from app.domain.errors import Conflict, InputFault, InvalidRequest
from app.domain.installation import require_training
from app.domain.shadows import (
    MAX_SHADOWS,
    ClassAgreement,
    Shadow,
    ShadowCounts,
    ShadowReport,
    ShadowSettings,
)
from app.store.unit_of_work import Store

TOLD_CLASSES: Final = 100
"""Classes of which a report tells: those with the largest share of different answers."""
_DAY: Final = 86_400.0


def put_shadow(store: Store, model: str, alias: str, wanted: ShadowSettings, created_by: str) -> Shadow:
    """Let a version answer a share of an alias's queries as well, in place of the present shadow.

    Its counts begin at 0. Raises NotFound for an unknown alias or version, and Conflict for the version that
    the alias points to and beyond `MAX_SHADOWS`.
    """
    with store.begin() as uow:
        uow.registry.lock()
        present = uow.models.alias(model, alias).version
        candidate = uow.models.version(model, wanted.version).version
        if candidate == present:
            text = f"Alias {alias!r} points to version {candidate} already: name another one as its shadow."
            raise Conflict(text, code="same_version")
        if uow.shadows.find(model, alias) is None and uow.shadows.count() >= MAX_SHADOWS:
            text = f"The tenant has {MAX_SHADOWS} shadows, which is the most. Delete one first."
            raise Conflict(text, code="too_many_shadows")
        now = time.time()
        shadow = Shadow(
            id=new_id("shd"), model=model, alias=alias, version=candidate, share=wanted.share,
            started_at=now, until=now + _DAY * wanted.days, created_by=created_by, tenant=store.tenant,
        )  # fmt: skip
        uow.shadows.replace(shadow)
        details = {"version": candidate, "share": wanted.share, "days": wanted.days}
        uow.audit.append("shadow.put", f"{model}@{alias}", details=details)
    return shadow


def delete_shadow(store: Store, model: str, alias: str) -> None:
    """Delete a shadow with its counts. Raises NotFound."""
    with store.begin() as uow:
        uow.registry.lock()
        uow.models.alias(model, alias)
        shadow = uow.shadows.get(model, alias)
        uow.shadows.delete(shadow)
        uow.audit.append("shadow.delete", f"{model}@{alias}", details={"version": shadow.version})


def shadow_report(store: Store, model: str, alias: str) -> ShadowReport:
    """How often a shadow gave the answers of the version that the alias points to.

    Raises NotFound, also without a shadow, and OnlyServes without the packages that compute intervals.
    """
    require_training()
    with store.read() as uow:
        present = uow.models.alias(model, alias).version
        shadow = uow.shadows.get(model, alias)
        counts, last_at = uow.shadows.counts(shadow, present)
    classes = sorted(map(_agreement, counts), key=lambda one: (_equal(one), one.label))
    return ShadowReport(
        shadow=shadow,
        present=present,
        active=time.time() < shadow.until and shadow.version != present,
        asked=sum(one.asked for one in classes),
        failed=sum(one.failed for one in counts),
        dropped=sum(one.dropped for one in counts),
        last_asked_at=last_at,
        classes=classes[:TOLD_CLASSES],
        left_out=len(classes[TOLD_CLASSES:]),
    )


def find_report(store: Store, model: str, alias: str) -> ShadowReport | None:
    """As `shadow_report`; None without a shadow."""
    with store.read() as uow:
        known = uow.shadows.find(model, alias)
    return None if known is None else shadow_report(store, model, alias)


def _agreement(one: ShadowCounts) -> ClassAgreement:
    from core.monitoring.intervals import share_interval

    equal = one.both_yes + one.both_no
    asked = equal + one.only_present + one.only_candidate
    return ClassAgreement(
        one.label,
        asked,
        one.both_yes,
        one.only_present,
        one.only_candidate,
        one.both_no,
        share_interval(equal, asked).as_dict() if asked else None,
    )


def _equal(one: ClassAgreement) -> float:
    return (one.both_yes + one.both_no) / one.asked if one.asked else 1.0


def settings_of(version: int, share: float | None, days: float | None) -> ShadowSettings:
    """The settings that a form says; None for the default. Raises InvalidRequest."""
    said = {"version": version, "share": share, "days": days}
    try:
        return ShadowSettings.model_validate({name: one for name, one in said.items() if one is not None})
    except ValueError as error:
        message = "A shadow has a version, a share from 0 to 1 and 1 to 90 days."
        raise InvalidRequest(message, faults=[InputFault("share", "out_of_range", message)]) from error
