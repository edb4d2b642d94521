"""Use case: import a linear head as a version of a model, whose rows are students ready for queries."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from app.domain.entities import ModelVersion
from app.domain.names import check_alias, check_model_name
from app.ingest.orders import HeadContent, HeadOrder
from app.ingest.reading import read_head, temporary_paths
from app.services import models
from app.services.models import DEFAULT_ALIAS, LISTED_CLASSES
from app.services.quotas import require_room, room_for
from app.services.retention import discarding_if_refused
from app.settings import Settings
from app.store.blob_cache import BlobCache, FileWriter
from app.store.large_blobs import LARGE_CHUNK_BYTES, put_large
from app.store.unit_of_work import Store
from core.packed.head import Kind

_COPIED_BYTES = 1024**2


class ImportedHead(NamedTuple):
    """The version of a head, whether it is new, and the alias that was moved to it, if any.

    warnings: code and text of each.
    """

    version: ModelVersion
    is_new: bool
    alias: str | None
    warnings: tuple[tuple[str, str], ...] = ()


def import_head(
    store: Store,
    files: BlobCache,
    source: Path,
    *,
    model: str,
    kind: Kind = "head",
    alias: str | None = DEFAULT_ALIAS,
    alias_revision: int | None = None,
    rivals: int = 0,
    row_norm: float | None = None,
    allow_schema_change: bool = False,
    limits: Settings,
    read: Callable[[HeadOrder], HeadContent] = read_head,
) -> ImportedHead:
    """Validate a head and publish it as the next version of ``model``.

    source: safetensors or .npz, see `app.ingest.linear_head`. kind: "head", rows of a teacher, or "linear",
    students trained elsewhere. alias_revision: of the alias when the import was requested, by default now. An
    alias that an operator has moved since then is not moved. Importing the same content again returns the
    existing version and moves no alias. rivals: of each class in its student, at most 64. row_norm: length of
    a typical row, from which heads without thresholds get one. allow_schema_change: move the alias also where
    the head refuses what its present version answers. read: carries out the reading, by default in this
    process.

    The packed head is copied to the model cache, and from there to the database in transactions of a few MiB
    each. Readers see nothing before the last of them.

    Raises InvalidRequest naming field, row and column, TooLarge, UnsupportedFormat, Unavailable, and Conflict
    beyond the tenant's quota and as `app.services.models.point_alias`.
    """
    check_model_name(model)
    if alias is not None:
        check_alias(alias)
    if alias_revision is None:
        alias_revision = models.alias_revision(store, model, alias)
    with temporary_paths(files.folder, "labels", "weights") as (labels, weights):
        order = HeadOrder(
            source=str(source),
            weights=str(weights),
            labels=str(labels),
            kind=kind,
            listed=LISTED_CLASSES,
            max_classes=limits.max_classes,
            max_columns=limits.max_columns,
            max_bytes=limits.max_head_bytes,
            rivals=rivals,
            row_norm=row_norm,
        )
        head = read(order)
        with _copied(files, labels) as label_file, _copied(files, weights) as weight_file:
            wanted = _version(store.tenant, model, head, order, weight_file.digest, label_file.digest)
            known = _known(store, wanted)
            if known is not None:
                return ImportedHead(known, False, None, head.warnings)
            size = label_file.size + weight_file.size
            room_for(store, limits, "versions", size)
            for writer in (label_file, weight_file):
                files.commit(writer)
                put_large(store, writer.digest, writer.size, writer.chunks(LARGE_CHUNK_BYTES))
            stored = label_file.digest, weight_file.digest
    with discarding_if_refused(store, stored):
        published = _publish(
            store, wanted, alias, alias_revision, size, limits, allow_schema_change=allow_schema_change
        )
    return published._replace(warnings=head.warnings)


@contextmanager
def _copied(files: BlobCache, path: Path) -> Iterator[FileWriter]:
    """A copy of a file in the model cache, removed after the block unless it was committed."""
    with files.writing(f"import-{secrets.token_hex(8)}.tmp") as writer:
        with path.open("rb") as source:
            while piece := source.read(_COPIED_BYTES):
                writer.write(piece)
        yield writer


def _version(
    tenant: str, model: str, head: HeadContent, order: HeadOrder, weights: str, labels: str
) -> ModelVersion:
    options = {"rivals": order.rivals or None, "row_norm": order.row_norm}
    return ModelVersion(
        model=model,
        version=0,
        job_id=None,
        dataset_digest=None,
        method=order.kind,
        classes=head.classes,
        columns=head.columns,
        teacher_digest=weights,
        metrics={name: value for name, value in options.items() if value is not None},
        created_at=time.time(),
        class_count=head.count,
        class_table=labels,
        tenant=tenant,
    )


def _known(store: Store, wanted: ModelVersion) -> ModelVersion | None:
    with store.read() as uow:
        return uow.models.same_import(wanted)


def _publish(
    store: Store,
    wanted: ModelVersion,
    alias: str | None,
    alias_revision: int,
    size: int,
    limits: Settings,
    *,
    allow_schema_change: bool,
) -> ImportedHead:
    with store.begin() as uow:
        uow.quotas.lock(store.tenant)
        number = uow.models.next_version(wanted.model)
        known = uow.models.same_import(wanted)
        if known is not None:
            return ImportedHead(known, False, None)
        require_room(uow, limits, store.tenant, "versions", size)
        for digest in (wanted.class_table, wanted.teacher_digest):
            uow.blobs.finish_large(str(digest))
        version = dataclasses.replace(wanted, version=number)
        alias, forced = models.release_import(uow, version, alias, alias_revision, allow_schema_change)
        details = {"kind": version.method, "alias": alias, **version.metrics, **forced}
        uow.audit.append("model.import", f"{version.model}@{number}", details=details)
    return ImportedHead(version, True, alias)
