"""The model repository of the protocol: index, metadata, readiness, load and unload.

Every published version is READY: the first request for a student loads it. So loading only spares that
request the wait, and unloading only frees memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import msgspec

from app.domain.entities import ApiKey, Json, ModelVersion
from app.domain.errors import InvalidRequest, NotFound
from app.domain.names import qualified
from app.services import models
from app.serving.cache import ModelCache
from app.serving.columns.decoders import Named
from app.serving.columns.of_version import columns_of
from app.serving.open_inference.inputs import DATATYPES
from app.serving.open_inference.paths import ParsedPath
from app.serving.open_inference.requests import CLASS, DEFAULT_OUTPUTS, OUTPUTS, ROWS, how_to_name
from app.serving.open_inference.responses import (
    InferenceConfigTensor,
    InferenceIndexEntry,
    InferenceModel,
    InferenceModelConfig,
    InferenceModelParameters,
    InferenceModelReady,
    InferenceTensor,
)
from app.serving.open_inference.tensors import DTYPES
from app.serving.servable import ServableStudent
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.packed.encoded_columns import VectorColumn

InThread = Callable[..., Awaitable[Any]]

MAX_LOADED: Final = 256
"""Largest number of students that one load operation reads."""
MAX_NAMED: Final = 100
"""Largest number of classes in the metadata of a model."""
MAX_LISTED: Final = 10_000
"""Largest number of versions in the index."""

PLATFORM: Final = "stms_student"
_CONCURRENT_LOADS: Final = 16


class _Options(msgspec.Struct):
    parameters: Json | None = None


_OPTIONS: Final = msgspec.json.Decoder(_Options)


class Repository:
    """Computes the answers. in_thread: runs a blocking function, because most read the database."""

    def __init__(self, store: Store, files: BlobCache, cache: ModelCache, in_thread: InThread) -> None:
        self._store, self._files, self._cache = store, files, cache
        self._in_thread = in_thread

    async def index(self, caller: ApiKey, body: bytes) -> list[InferenceIndexEntry]:
        """All versions of the models that the caller may query."""
        _options(body)
        numbers: list[tuple[str, int]] = await self._in_thread(
            self._numbers, caller.tenant, None, caller.models
        )
        return [
            {"name": model, "version": str(version), "state": "READY", "reason": ""}
            for model, version in numbers
        ]

    async def metadata(self, path: ParsedPath) -> InferenceModel:
        """Inputs, outputs and classes of a model. Raises NotFound."""
        version = await self.version(path)
        numbers: list[tuple[str, int]] = await self._in_thread(self._numbers, path.tenant, path.model)
        classes = await self._in_thread(self._classes, version, MAX_NAMED)
        served = await self._first_student(version, path.label, classes)
        probable = served is not None and served.student.calibration is not None
        columns = columns_of(version) if served is None else served.columns
        given: list[InferenceTensor]
        if columns.is_table or columns.named is None:
            given = [{"name": ROWS, "datatype": "FP64", "shape": [-1, version.columns]}]
        else:
            given = tensors_of(columns.named)
        parameters = {"optional": True}
        target: InferenceTensor = {
            "name": CLASS,
            "datatype": "BYTES",
            "shape": [-1],
            "parameters": parameters,
        }
        described: InferenceModelParameters = {
            "datatypes": list(DTYPES),
            "class": path.label if path.label is not None else how_to_name(path),
            "classes": classes,
            "class_count": version.class_count,
        }
        if columns.names is not None:
            described["columns"] = list(columns.names)
        return {
            "name": path.name,
            "versions": [str(number) for _, number in numbers],
            "platform": PLATFORM,
            "inputs": given if path.label is not None else [*given, target],
            "outputs": [_output(name) for name in OUTPUTS if name != "probability" or probable],
            "parameters": described,
        }

    async def config(self, path: ParsedPath, max_rows: int) -> InferenceModelConfig:
        """The metadata as a configuration of Triton, for clients that request one. Raises NotFound.

        max_rows: of one request. It has only what clients read and this server supports.
        """
        metadata = await self.metadata(path)
        return {
            "name": metadata["name"],
            "platform": PLATFORM,
            "backend": "stms",
            "max_batch_size": max_rows,
            "input": [_configured(tensor) for tensor in metadata["inputs"]],
            "output": [_configured(tensor) for tensor in metadata["outputs"]],
        }

    async def ready(self, path: ParsedPath) -> InferenceModelReady:
        """Readiness of a model or of a student. Raises NotFound and Unavailable."""
        if path.label is None:
            await self.version(path)
        else:
            await self._cache.student(path.cache_reference, path.label)
        return {"name": path.name, "ready": True}

    async def load(self, path: ParsedPath, body: bytes) -> Json:
        """Load the student of a class, or up to `MAX_LOADED` students of a model.

        Raises NotFound, and InvalidRequest for parameters, which could only change the model.
        """
        if _options(body):
            raise InvalidRequest("A model is loaded as it was published: no parameters.", code="wrong_body")
        version = await self.version(path)
        labels = (
            [path.label]
            if path.label is not None
            else await self._in_thread(self._classes, version, MAX_LOADED)
        )
        for first in range(0, len(labels), _CONCURRENT_LOADS):
            loads = (
                self._cache.student(path.cache_reference, label)
                for label in labels[first : first + _CONCURRENT_LOADS]
            )
            for result in await asyncio.gather(*loads, return_exceptions=True):
                # A class whose training failed has no student; that is no error when a whole model is loaded.
                is_gap = isinstance(result, NotFound) and path.label is None
                if isinstance(result, BaseException) and not is_gap:
                    raise result
        return {}

    async def unload(self, path: ParsedPath, body: bytes) -> Json:
        """Unload a class, a version or a model. Raises NotFound."""
        _options(body)
        version = await self.version(path)
        number = version.version if "@" in path.reference else None
        self._cache.drop(path.tenant, path.model, number, path.label)
        return {}

    async def _first_student(
        self, version: ModelVersion, label: str | None, classes: list[str]
    ) -> ServableStudent | None:
        """The student of ``label``; without a label, the student of the first class, or None."""
        asked = label if label is not None else classes[0]
        try:
            return await self._cache.student(
                qualified(version.tenant, f"{version.model}@{version.version}"), asked
            )
        except NotFound:
            if label is not None:
                raise
            return None

    async def version(self, path: ParsedPath) -> ModelVersion:
        """The version that the path resolves to. Raises NotFound."""
        version: ModelVersion = await self._in_thread(self._resolve, path.tenant, path.reference)
        return version

    def _resolve(self, tenant: str, reference: str) -> ModelVersion:
        with self._store.of_tenant(tenant).read() as uow:
            return models.resolve(uow.models, reference)

    def _classes(self, version: ModelVersion, limit: int) -> list[str]:
        """The first classes of a version."""
        return [label for _, label in models.list_classes(self._store, self._files, version, limit=limit)[0]]

    def _numbers(self, tenant: str, model: str | None, among: Collection[str] = ()) -> list[tuple[str, int]]:
        with self._store.of_tenant(tenant).read() as uow:
            return list(uow.models.numbers(model, limit=MAX_LISTED, among=among))


def tensors_of(named: Named) -> list[InferenceTensor]:
    """The inputs of a model of records, one for each column; inputs that may be missing are optional."""
    tensors: list[InferenceTensor] = []
    of_name = {column.name: column for column in named.rows.columns}
    for name in named.encoder.names:
        column = of_name[name]
        shape = [-1, len(column.fallback)] if isinstance(column, VectorColumn) else [-1]
        tensor: InferenceTensor = {"name": name, "datatype": DATATYPES[column.kind], "shape": shape}
        tensors.append(tensor if column.required else tensor | {"parameters": {"optional": True}})
    return tensors


def _options(body: bytes) -> Json:
    """The parameters in a body, which may be empty. Raises InvalidRequest."""
    if not body.strip():
        return {}
    try:
        return _OPTIONS.decode(body).parameters or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"The body must be empty, or a JSON object: {error}."
        raise InvalidRequest(message, code="wrong_body") from error


def _configured(tensor: InferenceTensor) -> InferenceConfigTensor:
    """A tensor of the metadata as a configuration describes it: without its first dimension, the rows."""
    kind = "TYPE_STRING" if tensor["datatype"] == "BYTES" else f"TYPE_{tensor['datatype']}"
    configured: InferenceConfigTensor = {
        "name": tensor["name"],
        "data_type": kind,
        "dims": tensor["shape"][1:],
    }
    if not configured["dims"]:
        configured |= {"dims": [1], "reshape": {"shape": []}}
    if tensor.get("parameters", {}).get("optional"):
        configured["optional"] = True
    return configured


def _output(name: str) -> InferenceTensor:
    tensor: InferenceTensor = {"name": name, "datatype": "BOOL" if name == "match" else "FP64", "shape": [-1]}
    if name not in DEFAULT_OUTPUTS:
        tensor["parameters"] = {"on_request": True}
    return tensor
