"""What the protocol calls the model repository: which models there are, how they look, which are loaded.

Every published version is READY: a student that is not in memory is loaded by the first request for it. So
loading only spares that request the wait, and unloading only frees memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from app.api.dependencies import AppContext
from app.domain.entities import ApiKey, Json, ModelVersion
from app.domain.errors import InvalidRequest, NotFound
from app.services import models
from app.serving.open_inference.paths import ParsedPath
from app.serving.open_inference.requests import CLASS, DEFAULT_OUTPUTS, OUTPUTS, ROWS, how_to_name
from app.serving.open_inference.responses import (
    InferenceIndexEntry,
    InferenceModel,
    InferenceModelReady,
    InferenceTensor,
)
from app.serving.open_inference.tensors import DTYPES

InThread = Callable[..., Awaitable[Any]]

MAX_LOADED: Final = 256
"""Most students that one load reads."""
MAX_NAMED: Final = 100
"""Most classes that the metadata of a model name."""
MAX_LISTED: Final = 10_000
"""Most versions in the index."""

PLATFORM: Final = "stms_student"
_AT_ONCE: Final = 16


class _Options(msgspec.Struct):
    parameters: Json | None = None


_OPTIONS: Final = msgspec.json.Decoder(_Options)


class Repository:
    """The answers; `in_thread` runs what reads the database."""

    def __init__(self, runtime: AppContext, in_thread: InThread) -> None:
        self._store, self._files = runtime.store, runtime.files
        self._cache = runtime.cache
        self._in_thread = in_thread

    async def index(self, caller: ApiKey, body: bytes) -> list[InferenceIndexEntry]:
        """All versions of the models that the caller may ask."""
        _options(body)
        found: list[tuple[str, int]] = await self._in_thread(self._numbers, None)
        return [
            {"name": model, "version": str(version), "state": "READY", "reason": ""}
            for model, version in found
            if not caller.models or model in caller.models
        ]

    async def metadata(self, path: ParsedPath) -> InferenceModel:
        """Inputs and outputs, and how to name a class. Raises NotFound."""
        version = await self.version(path)
        found: list[tuple[str, int]] = await self._in_thread(self._numbers, path.model)
        classes = await self._in_thread(self._classes, version, MAX_NAMED)
        probable = await self._has_probability(version, path.label, classes)
        rows: InferenceTensor = {"name": ROWS, "datatype": "FP64", "shape": [-1, version.columns]}
        parameters = {"optional": True}
        target: InferenceTensor = {
            "name": CLASS,
            "datatype": "BYTES",
            "shape": [-1],
            "parameters": parameters,
        }
        return {
            "name": path.name,
            "versions": [str(number) for _, number in found],
            "platform": PLATFORM,
            "inputs": [rows] if path.label is not None else [rows, target],
            "outputs": [_output(name) for name in OUTPUTS if name != "probability" or probable],
            "parameters": {
                "datatypes": list(DTYPES),
                "class": path.label if path.label is not None else how_to_name(path),
                "classes": classes,
                "class_count": version.class_count,
            },
        }

    async def ready(self, path: ParsedPath) -> InferenceModelReady:
        """That the model, or its student, can answer. Raises NotFound and Unavailable."""
        if path.label is None:
            await self.version(path)
        else:
            await self._cache.student(path.reference, path.label)
        return {"name": path.name, "ready": True}

    async def load(self, path: ParsedPath, body: bytes) -> Json:
        """Read the student of a class, or the first of a model, so that the next request need not wait.

        Raises NotFound, and InvalidRequest for options that would change the model.
        """
        if _options(body):
            raise InvalidRequest("A model is loaded as it was published: no parameters.", code="wrong_body")
        version = await self.version(path)
        labels = (
            [path.label]
            if path.label is not None
            else await self._in_thread(self._classes, version, MAX_LOADED)
        )
        for first in range(0, len(labels), _AT_ONCE):
            loads = (self._cache.student(path.reference, label) for label in labels[first : first + _AT_ONCE])
            for result in await asyncio.gather(*loads, return_exceptions=True):
                # Of all classes of a model, one whose training failed has no student to load.
                is_gap = isinstance(result, NotFound) and path.label is None
                if isinstance(result, BaseException) and not is_gap:
                    raise result
        return {}

    async def unload(self, path: ParsedPath, body: bytes) -> Json:
        """Drop what is loaded of a class, a version or a model. Raises NotFound."""
        _options(body)
        version = await self.version(path)
        number = version.version if "@" in path.reference else None
        self._cache.drop(path.model, number, path.label)
        return {}

    async def _has_probability(self, version: ModelVersion, label: str | None, classes: list[str]) -> bool:
        """Whether the student of a class is calibrated; without a class, whether the first one is."""
        asked = label if label is not None else classes[0]
        try:
            served = await self._cache.student(f"{version.model}@{version.version}", asked)
        except NotFound:
            if label is not None:
                raise
            return False
        return served.student.calibration is not None

    async def version(self, path: ParsedPath) -> ModelVersion:
        """The version that is meant now. Raises NotFound."""
        found: ModelVersion = await self._in_thread(self._resolve, path.reference)
        return found

    def _resolve(self, reference: str) -> ModelVersion:
        with self._store.read() as uow:
            return models.resolve(uow, reference)

    def _classes(self, version: ModelVersion, limit: int) -> list[str]:
        """The first classes of a version."""
        return [label for _, label in models.list_classes(self._store, self._files, version, limit=limit)[0]]

    def _numbers(self, model: str | None) -> list[tuple[str, int]]:
        with self._store.read() as uow:
            return list(uow.models.numbers(model, limit=MAX_LISTED))


def _options(body: bytes) -> Json:
    """Parameters of a request to the repository; its body may be empty. Raises InvalidRequest."""
    if not body.strip():
        return {}
    try:
        return _OPTIONS.decode(body).parameters or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"The body must be empty, or a JSON object: {error}."
        raise InvalidRequest(message, code="wrong_body") from error


def _output(name: str) -> InferenceTensor:
    tensor: InferenceTensor = {"name": name, "datatype": "BOOL" if name == "match" else "FP64", "shape": [-1]}
    if name not in DEFAULT_OUTPUTS:
        tensor["parameters"] = {"on_request": True}
    return tensor
