"""Models, their versions and aliases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from stms_client import alias_calls, calls
from stms_client.aio.connection import Connection
from stms_client.arrays import ClassName, class_name
from stms_client.documents import (
    Alias,
    AliasMove,
    Answers,
    ChosenThresholds,
    Class,
    ImportedBundle,
    ImportedVersion,
    Inputs,
    Model,
    ModelSummary,
    Version,
    VersionThreshold,
)
from stms_client.errors import NotFound
from stms_client.transport import Progress

ByClass: TypeAlias = Mapping[str, float] | Mapping[int, float]
"""Numbers by class."""
Rules: TypeAlias = Mapping[str, Mapping[str, Any]] | Mapping[int, Mapping[str, Any]]
"""Rules that choose thresholds, by class."""


class Models(Connection):
    """A version is named by its number or by an alias."""

    def models(self) -> AsyncIterator[ModelSummary]:
        """All models."""
        return self._listed("/v1/models", ModelSummary)

    async def model(self, model: str) -> Model:
        """One model with its newest versions and its aliases."""
        return await self.do(calls.get(calls.model_path(model), Model))

    async def version(self, model: str, version: int | str = "latest") -> Version:
        """One version."""
        return await self.do(calls.get(calls.version_path(model, version), Version))

    def classes(
        self, model: str, version: int | str = "latest", *, after: int | None = None
    ) -> AsyncIterator[Class]:
        """The classes of a version by number, each with its number and label.

        version: number of a version, or an alias. after: number of the class before the first one.
        """
        path = f"{calls.version_path(model, version)}/classes"
        return self._listed(path, Class, limit=1000, after=after)

    async def record_schema(self, model: str, version: int | str = "latest") -> dict[str, Any]:
        """The JSON Schema of a record of a version: its columns, their kinds, and which are required."""
        return await self.do(calls.get(f"{calls.version_path(model, version)}/schema", dict[str, Any]))

    async def inputs(self, model: str, version: int | str = "latest", *, hours: int = 24) -> Inputs:
        """What the records of queries to a version were like, compared with its rows of training."""
        path = f"{calls.version_path(model, version)}/inputs"
        return await self.do(calls.get(path, Inputs, hours=hours))

    async def answers(
        self, model: str, version: int | str = "latest", *, label: ClassName | None = None, days: int = 7
    ) -> Answers:
        """What queries to a version have been answered by class, and what follows if probabilities hold.

        label: the only class to tell of, of all calibrated ones. days: to look back, at most 90.
        """
        path = f"{calls.version_path(model, version)}/answers"
        only = {} if label is None else {"class": class_name(label)}
        return await self.do(calls.get(path, Answers, days=days, **only))

    async def publish_thresholds(
        self,
        model: str,
        thresholds: ByClass | None = None,
        *,
        choose: Rules | None = None,
        base: int | str = "latest",
    ) -> Version:
        """Publish ``base`` with other thresholds, by class, as a new version. No alias is moved.

        choose: rules for further classes, see `choose_thresholds`.
        """
        body: dict[str, Any] = {"base": str(base)}
        if thresholds:
            body["thresholds"] = {class_name(label): float(value) for label, value in thresholds.items()}
        if choose:
            body["choose"] = _rules(choose)
        path = f"{calls.model_path(model)}/versions"
        return await self.do(calls.post(path, body, Version, repeatable=False))

    async def choose_thresholds(
        self, model: str, choose: Rules, *, base: int | str = "latest"
    ) -> ChosenThresholds:
        """The thresholds that rules choose for classes of ``base``, and what is expected of them.

        choose: by class, ``"*"`` for all others, one of ``{"max_false_positive_rate": 0.01}``,
        ``{"recall": 0.95}``, ``{"cost": {"false_yes": 1, "missed_yes": 20}}`` and ``{"capacity":
        {"yes_per_day": 20, "queries_per_day": 5000}}``; with ``"confidence": 0.95`` this very student keeps
        its rate or recall; ``"share"``: of the class among the rows of queries.
        """
        body = {"base": str(base), "choose": _rules(choose)}
        return await self.do(calls.post(f"{calls.model_path(model)}/thresholds", body, ChosenThresholds))

    async def change_classes(
        self,
        model: str,
        *,
        rename: Mapping[str, ClassName] | Mapping[int, ClassName] | None = None,
        remove: Iterable[ClassName] = (),
        base: int | str = "latest",
    ) -> Version:
        """Publish ``base`` with other names of classes, or without some, as a new version, without training.
        No alias is moved.

        rename: new names by the present ones. remove: classes that the new version does not have.
        """
        body = {
            "base": str(base),
            "rename": {class_name(old): class_name(new) for old, new in (rename or {}).items()},
            "remove": [class_name(label) for label in remove],
        }
        path = f"{calls.model_path(model)}/classes"
        return await self.do(calls.patch(path, body, Version, repeatable=False))

    def thresholds(self, model: str, label: ClassName) -> AsyncIterator[VersionThreshold]:
        """The threshold of a class in the versions of a model, newest first. label: of the class."""
        path = f"{calls.model_path(model)}/thresholds"
        return self._listed(path, VersionThreshold, **{"class": class_name(label)})

    async def import_head(
        self,
        file: str | Path,
        model: str,
        *,
        kind: str = "head",
        alias: str = "latest",
        rivals: int = 0,
        row_norm: float | None = None,
        allow_schema_change: bool = False,
        progress: Progress | None = None,
    ) -> ImportedVersion:
        """Upload a linear head (safetensors, .npz) as a version of a model. kind: `head` or `students`.

        rivals: a class of a head must also score higher than so many of its nearest rivals. row_norm: length
        of a typical row, from which a head without thresholds gets one. allow_schema_change: see
        `point_alias`.
        """
        head = calls.import_head(
            Path(file), model, kind, alias, rivals, row_norm, allow_schema_change=allow_schema_change
        )
        return await self.do(head, progress)

    async def export_bundle(
        self,
        model: str,
        file: str | Path,
        *,
        version: int | str = "latest",
        classes: Sequence[ClassName] | None = None,
        teacher: bool = True,
        progress: Progress | None = None,
    ) -> int:
        """Write a version as a bundle, a tar file; returns its bytes. The key needs the scope download.

        classes: only these, at most 256. teacher: whether the bundle has the teacher, without which there is
        no `predict`. The file appears under its name only when it is complete. A failed download is not
        repeated. Raises InvalidRequest for a part of a head.
        """
        params = calls.bundle_part(classes, teacher)
        path = f"{calls.version_path(model, version)}/bundle"
        return await self.save(path, Path(file), progress, params)

    async def export_onnx(
        self, model: str, label: ClassName, file: str | Path, *, version: int | str = "latest"
    ) -> int:
        """Write the student of a class as an ONNX model; returns its bytes. The key needs the scope download.

        Raises InvalidRequest for records with dates, texts or vectors, which ONNX cannot say.
        """
        path = f"{calls.version_path(model, version)}/onnx"
        return await self.save(path, Path(file), params={"class": class_name(label)})

    async def import_bundle(
        self,
        file: str | Path,
        *,
        model: str | None = None,
        alias: str = "latest",
        allow_older: bool = False,
        allow_schema_change: bool = False,
        progress: Progress | None = None,
    ) -> ImportedBundle:
        """Upload a bundle, and publish its version as the next one of a model.

        model: by default its name in the bundle. alias: moved to the version; empty for none. allow_older:
        also import an older version than one that came from the same model. allow_schema_change: see
        `point_alias`.
        """
        bundle = calls.import_bundle(Path(file), model, alias, allow_older, allow_schema_change)
        return await self.do(bundle, progress)

    async def delete_version(self, model: str, version: int) -> None:
        """Delete a version to which no alias points."""
        await self.do(calls.delete(calls.version_path(model, version)))

    async def alias(self, model: str, alias: str) -> Alias:
        """One alias: its version, and its revision, which grows with each move."""
        return await self.do(calls.get(calls.alias_path(model, alias), Alias))

    async def point_alias(
        self,
        model: str,
        alias: str,
        version: int,
        *,
        allow_schema_change: bool = False,
        override: str | None = None,
    ) -> Alias:
        """Point an alias to a version. Raises Conflict when another client moved it at the same time.

        A version that has not passed the gate of the alias is a Conflict, too, with the code
        ``gate_not_passed`` or ``gate_failed``. override: why it is moved nevertheless, for the audit log; an
        administrator may say so.

        A version that refuses questions which the present one answers is a Conflict, too, with the code
        ``schema_change`` and faults that name what it refuses, unless allow_schema_change.
        """
        try:
            current = await self.alias(model, alias)
            revision: int | None = current["revision"]
        except NotFound:
            revision = None
        move = alias_calls.point_alias(
            model, alias, version, revision, allow_schema_change=allow_schema_change, override=override
        )
        return await self.do(move)

    def alias_history(self, model: str, alias: str) -> AsyncIterator[AliasMove]:
        """Where an alias has pointed, and who moved it, newest first."""
        return self._listed(f"{calls.alias_path(model, alias)}/history", AliasMove)

    async def delete_alias(self, model: str, alias: str, *, allow_schema_change: bool = False) -> None:
        """Delete an alias; its version stays. Raises Conflict when it was moved at the same time.

        Without the alias latest the newest version answers, for which allow_schema_change is as in
        `point_alias`.
        """
        revision = (await self.alias(model, alias))["revision"]
        deletion = alias_calls.delete_alias(model, alias, revision, allow_schema_change=allow_schema_change)
        await self.do(deletion)


def _rules(choose: Rules) -> dict[str, Any]:
    return {class_name(label): {**rule} for label, rule in choose.items()}
