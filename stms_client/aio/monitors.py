"""Monitors of aliases: how often answers are right in production, by what people say of some of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from stms_client import alias_calls, calls
from stms_client.aio.connection import Connection
from stms_client.arrays import ClassName, class_name
from stms_client.documents import (
    Acknowledged,
    FeedbackResults,
    Monitor,
    Performance,
    Review,
    ReviewedDataset,
    Sample,
    Schedule,
    Shadow,
    ShadowReport,
)
from stms_client.errors import NotFound


class Monitors(Connection):
    """Needs a server with ``STMS_QUERY_SAMPLES=ids``."""

    async def monitor(self, model: str, alias: str = "latest") -> Monitor:
        """The monitor of an alias."""
        return await self.do(calls.get(alias_calls.monitor_path(model, alias), Monitor))

    async def put_monitor(
        self,
        model: str,
        alias: str = "latest",
        *,
        classes: Mapping[str, Mapping[str, Any]] | None = None,
        ask: Mapping[str, Any] | None = None,
        tolerance: float | None = None,
        alpha: float | None = None,
        retain_days: int | None = None,
        store: str | None = None,
        on_alarm: str | None = None,
    ) -> Monitor:
        """Say what an alias promises in production, and which answers people are asked about.

        Nothing from before a change counts. classes: promises by class, ``"*"`` for all others, such as
        ``{"*": {"max_false_positive_rate": "promised", "min_precision": 0.9}}``; by default none. ask: about
        which answers, such as ``{"yes": 0.5, "per_day": 200}``. tolerance: an alarm says that the rate of
        false positives is so many times the promised one. alpha: how likely a false alarm is. retain_days:
        how long samples are kept. store: "rows" to keep the rows of samples, too. on_alarm: "rollback" to let
        the alias go back to the version before, where no person moved it. What is None has the default of the
        service. Raises Conflict when another client changed it at the same time.
        """
        try:
            present = await self.monitor(model, alias)
            revision: int | None = present["revision"]
        except NotFound:
            revision = None
        settings = {
            "classes": {name: dict(one) for name, one in (classes or {"*": {}}).items()},
            "ask": None if ask is None else dict(ask),
            "tolerance": tolerance,
            "alpha": alpha,
            "retain_days": retain_days,
            "store": store,
            "on_alarm": on_alarm,
        }
        body = {name: value for name, value in settings.items() if value is not None}
        return await self.do(alias_calls.put_monitor(model, alias, body, revision))

    async def schedule(self, model: str) -> Schedule:
        """When a model is trained again by itself, and what its schedule did last."""
        return await self.do(calls.get(f"{calls.model_path(model)}/schedule", Schedule))

    async def put_schedule(
        self,
        model: str,
        *,
        base: str = "latest",
        dataset_id: str | None = None,
        every: str | None = None,
        new_rows: int | None = None,
        alarm: bool = False,
        classes: str = "all",
        alias: str | None = None,
        promote: str = "never",
        stop_after_failures: int = 3,
    ) -> Schedule:
        """Train a model again by itself: the version of the alias ``base``.

        every: ``"daily"`` or ``"weekly"``. new_rows: when the newest revision of the data set has so many
        rows more. alarm: when a monitor has given an alarm. dataset_id: of the series; by default that of the
        version. classes: ``"changed"`` trains the students of changed classes alone. alias, promote:
        ``"if_gate_passes"`` moves this alias to a version that its gate lets pass. stop_after_failures:
        failed jobs in a row. Raises Conflict when another client changed it at the same time.
        """
        try:
            revision: int | None = (await self.schedule(model))["revision"]
        except NotFound:
            revision = None
        said = {"dataset_id": dataset_id, "every": every, "new_rows": new_rows, "alias": alias}
        body: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        body |= {"base": base, "alarm": alarm, "classes": classes, "promote": promote}
        body |= {"stop_after_failures": stop_after_failures}
        return await self.do(alias_calls.put_schedule(model, body, revision))

    async def delete_schedule(self, model: str) -> None:
        """Delete the schedule of a model; a job that it has begun goes on."""
        revision = (await self.schedule(model))["revision"]
        await self.do(alias_calls.delete_schedule(model, revision))

    async def delete_monitor(self, model: str, alias: str = "latest") -> None:
        """Delete a monitor with its samples and all feedback on them."""
        revision = (await self.monitor(model, alias))["revision"]
        await self.do(alias_calls.delete_monitor(model, alias, revision))

    def samples(
        self, model: str, alias: str = "latest", *, label: ClassName | None = None
    ) -> AsyncIterator[Sample]:
        """The answers that people are asked about and nobody has said anything of, oldest first.

        label: of the only class to list.
        """
        path = f"{calls.alias_path(model, alias)}/samples"
        only = None if label is None else class_name(label)
        return self._listed(path, Sample, **{"class": only})

    async def review(
        self, model: str, alias: str = "latest", *, label: ClassName | None = None, limit: int = 20
    ) -> Review:
        """What people should look at next: those samples first whose labels make the rates exact soonest.

        label: of the only class. limit: most samples, at most 100.
        """
        only = {} if label is None else {"class": class_name(label)}
        path = f"{calls.alias_path(model, alias)}/review"
        return await self.do(calls.get(path, Review, limit=limit, **only))

    async def review_dataset(
        self, model: str, alias: str = "latest", *, name: str | None = None
    ) -> ReviewedDataset:
        """Make a data set of the rows of samples of which people said the class.

        name: of the data set. To append it to another one, see ``revise_dataset``.
        """
        path = f"{calls.alias_path(model, alias)}/review:dataset"
        return await self.do(calls.post(path, calls.without_none({"name": name}), ReviewedDataset))

    async def shadow(self, model: str, alias: str = "latest") -> ShadowReport:
        """How often the shadow of an alias gave the same answers, and how much traffic it got."""
        return await self.do(calls.get(alias_calls.shadow_path(model, alias), ShadowReport))

    async def put_shadow(
        self, model: str, alias: str, version: int, *, share: float = 0.1, days: float = 7.0
    ) -> Shadow:
        """Let another version answer a share of the queries to an alias as well; nobody sees its answers.

        days: until it ends by itself, at most 90. Another shadow of the alias begins anew.
        """
        body = {"version": version, "share": share, "days": days}
        return await self.do(alias_calls.put_shadow(model, alias, body))

    async def delete_shadow(self, model: str, alias: str = "latest") -> None:
        """Delete the shadow of an alias with its counts."""
        await self.do(alias_calls.delete_shadow(model, alias))

    async def give_feedback(self, feedback: Sequence[Mapping[str, Any]]) -> FeedbackResults:
        """Say of at most 1000 answers whether they were right. Doing so again changes nothing.

        feedback: such as ``{"sample": "smp_…", "correct": False}``, ``{"sample": "smp_…", "truth": "B"}``,
        ``{"sample": "smp_…", "skip": True}`` or
        ``{"request_id": "order-17", "label": "A", "correct": True}``. What becomes of each is in ``results``.
        """
        body = {"feedback": [dict(item) for item in feedback]}
        return await self.do(calls.post("/v1/feedback", body, FeedbackResults))

    async def performance(
        self, model: str, alias: str = "latest", *, label: ClassName | None = None, days: int = 28
    ) -> Performance:
        """How often an alias was right in the last days, with intervals, and whether its promises hold.

        label: of the only class to tell of. days: to look back, at most 365.
        """
        only = {} if label is None else {"class": class_name(label)}
        path = f"{calls.alias_path(model, alias)}/performance"
        return await self.do(calls.get(path, Performance, days=days, **only))

    async def acknowledge_alarms(
        self,
        model: str,
        alias: str = "latest",
        *,
        labels: Sequence[ClassName] | None = None,
        note: str = "",
    ) -> Acknowledged:
        """Say that alarms were seen; the evidence against their promises begins again.

        labels: of which classes; by default all. note: what was found.
        """
        named = None if labels is None else [class_name(label) for label in labels]
        path = f"{alias_calls.monitor_path(model, alias)}:acknowledge"
        body = {"labels": named, "note": note}
        return await self.do(calls.post(path, body, Acknowledged, repeatable=False))
