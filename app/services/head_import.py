"""Use case: import a linear head as a version of a model, whose rows are students ready for queries."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.domain.entities import ModelVersion
from app.domain.names import check_alias, check_model_name
from app.ingest.linear_head import HeadFile, HeadLimits, as_invalid_request, head_file
from app.services.models import DEFAULT_ALIAS, LISTED_CLASSES
from app.settings import Settings
from app.store.blob_cache import BlobCache, FileWriter
from app.store.large_blobs import LARGE_CHUNK_BYTES, put_large
from app.store.unit_of_work import Store
from core.errors import InvalidProblem
from core.packed import PackedLabels
from core.packed.codec import encode_front
from core.packed.head import Kind, head_header, head_shapes


def import_head(
    store: Store,
    files: BlobCache,
    source: Path,
    *,
    model: str,
    kind: Kind = "head",
    alias: str | None = DEFAULT_ALIAS,
    limits: Settings,
) -> tuple[ModelVersion, bool]:
    """Validate a head and publish it as the next version of ``model``; returns it and whether it is new.

    source: safetensors or .npz, see `app.ingest.linear_head`. kind: "head", rows of a teacher, or "linear",
    students trained elsewhere. Importing the same content again returns the existing version and moves no
    alias.

    The weights are written in blocks to a file of the model cache, and from there to the database in
    transactions of a few MiB each. Readers see nothing before the last of them.

    Raises InvalidRequest naming field, row and column, TooLarge, UnsupportedFormat and Unavailable.
    """
    check_model_name(model)
    if alias is not None:
        check_alias(alias)
    accepted = HeadLimits(limits.max_classes, limits.max_columns, limits.max_head_bytes)
    with head_file(source, accepted) as head:
        try:
            table = PackedLabels.of(head.labels).to_bytes()
        except InvalidProblem as error:
            raise as_invalid_request(error) from error
        with _new_file(files) as labels, _new_file(files) as weights:
            labels.write(table)
            _write(weights, head, kind)
            wanted = _version(model, kind, head, weights.digest, labels.digest)
            known = _known(store, wanted)
            if known is not None:
                return known, False
            for writer in (labels, weights):
                files.commit(writer)
                put_large(store, writer.digest, writer.size, writer.chunks(LARGE_CHUNK_BYTES))
    return _publish(store, wanted, alias)


def _new_file(files: BlobCache) -> AbstractContextManager[FileWriter]:
    return files.writing(f"import-{secrets.token_hex(8)}.tmp")


def _write(writer: FileWriter, head: HeadFile, kind: Kind) -> None:
    """Write the packed head in the format of `core.packed.PackedHead`."""
    shapes = head_shapes(len(head.labels), head.columns, head.dtype, head.threshold is not None)
    front, places = encode_front(head_header(kind), shapes)
    writer.write(front)
    for name in places:
        for block in _array(head, name):
            writer.write(np.ascontiguousarray(block).data.cast("B"))


def _array(head: HeadFile, name: str) -> Iterator[NDArray[Any]]:
    if name == "weights":
        yield from head.blocks()
    else:
        yield getattr(head, name)


def _version(model: str, kind: Kind, head: HeadFile, weights: str, labels: str) -> ModelVersion:
    count = len(head.labels)
    return ModelVersion(
        model=model,
        version=0,
        job_id=None,
        dataset_digest=None,
        method=kind,
        classes=tuple(head.labels) if count <= LISTED_CLASSES else (),
        columns=head.columns,
        teacher_digest=weights,
        metrics={},
        created_at=time.time(),
        class_count=count,
        class_table=labels,
    )


def _known(store: Store, wanted: ModelVersion) -> ModelVersion | None:
    with store.read() as uow:
        return uow.models.same_import(wanted)


def _publish(store: Store, wanted: ModelVersion, alias: str | None) -> tuple[ModelVersion, bool]:
    with store.begin() as uow:
        number = uow.models.next_version(wanted.model)
        known = uow.models.same_import(wanted)
        if known is not None:
            return known, False
        for digest in (str(wanted.class_table), wanted.teacher_digest):
            uow.blobs.finish_large(digest)
        version = dataclasses.replace(wanted, version=number)
        uow.models.publish(version)
        if alias is not None:
            uow.models.point(version.model, alias, number)
        details = {"kind": version.method, "alias": alias}
        uow.audit.append("model.import", f"{version.model}@{number}", details=details)
    return version, True
