"""Use case: the student of one class of a version as an ONNX model."""

from __future__ import annotations

from typing import Final

from app.domain.entities import ModelVersion
from app.domain.errors import InputFault, TooLarge, Unavailable, Unprocessable
from app.services.models import open_head, open_student, served_student, unknown_class
from app.store.blob_cache import BlobCache, open_blob
from app.store.unit_of_work import Store
from core.errors import InvalidPackage, InvalidProblem
from core.packed import PackedStudent
from core.packed.encoder import Encoder
from core.packed.onnx import onnx_model
from core.packed.onnx_wire import OnnxModel

MAX_BYTES: Final = 256 * 1024**2
"""Most bytes of a student with its map."""
MAX_ENCODER_BYTES: Final = 4 * 1024**2
"""Largest size of the encoder of its records, because a graph has column names several times in memory."""


def export_onnx(store: Store, files: BlobCache, version: ModelVersion, label: str) -> OnnxModel:
    """The student of one class as an ONNX model; the same student always gives the same bytes.

    A large student is read from the file of the cache while the model is written, and is not kept in memory.
    Raises NotFound for a class without a student, Unprocessable (``no_onnx_form``, ``reserved_name``) naming
    every column that ONNX cannot say, TooLarge beyond `MAX_BYTES` and `MAX_ENCODER_BYTES`, and Unavailable.
    """
    try:
        student = _student(store, files, version, label)
        encoder = None
        if version.encoder_digest is not None:
            digest = version.encoder_digest
            encoder = files.with_refetch(
                lambda: Encoder.from_bytes(_encoder_bytes(store, files, digest)),
                digest,
            )
    except InvalidPackage as error:
        text = f"A package of version {version.version} of model {version.model!r} is damaged."
        raise Unavailable(text, code="blob_damaged") from error
    properties = {"stms.model": version.model, "stms.version": str(version.version)}
    try:
        return onnx_model(student, encoder, properties)
    except InvalidProblem as error:
        fault = error.faults[0]
        if fault.code == "too_large":
            raise TooLarge(fault.message, code="onnx_too_large") from error
        faults = [InputFault(one.field, one.code, one.message) for one in error.faults]
        raise Unprocessable(fault.message, code=fault.code, faults=faults) from error


def _student(store: Store, files: BlobCache, version: ModelVersion, label: str) -> PackedStudent:
    """The packed student. Raises NotFound, InvalidPackage and Unavailable."""
    if version.imported:

        def of_head() -> PackedStudent:
            head = open_head(store, files, version)
            row = head.labels.find(label)
            if row is None:
                raise unknown_class(version, label, head.labels)
            student = head.student(row)
            _require_small("student", student.map.nbytes + student.form.nbytes, MAX_BYTES)
            return student

        return files.with_refetch(of_head, str(version.teacher_digest), str(version.class_table))
    stored = served_student(store, files, version, label)
    digests = [digest for digest in (stored.digest, stored.map_digest) if digest is not None]
    with store.read() as uow:
        _require_small("student", sum(uow.blobs.sizes(digests).values()), MAX_BYTES)
    return open_student(store, files, stored)


def _encoder_bytes(store: Store, files: BlobCache, digest: str) -> memoryview:
    """The package of an encoder. Raises TooLarge, InvalidPackage, NotFound and Unavailable."""
    file = open_blob(store, files, digest)
    _require_small("encoder", len(file.data), MAX_ENCODER_BYTES)
    return file.whole()


def _require_small(what: str, size: int, most: int) -> None:
    if size > most:
        text = f"The {what} has {size} bytes; at most {most} are exported as ONNX."
        raise TooLarge(text, code="onnx_too_large")
