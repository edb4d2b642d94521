"""Receives uploaded files, as the raw body or in a form, and describes them in the OpenAPI document."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

from anyio import CapacityLimiter, from_thread, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from app.api.dependencies import AppContext
from app.api.multipart import FormReader, boundary_of
from app.auth.shares import Admission, counting
from app.domain.entities import ApiKey, Json, PlannedUpload
from app.domain.errors import TooLarge, Unavailable, Unprocessable
from app.domain.file_formats import MEDIA_TYPES, FileFormat
from app.domain.names import DISPLAY_NAME, MAX_DISPLAY_NAME
from app.domain.origins import AllowedServers
from app.http.body import declared_length, stream_body
from app.remote.download import Download
from app.remote.errors import RemoteFailed, RemoteUnavailable
from app.services import quotas, uploads
from app.store.blob_cache import BlobCache, FileWriter
from app.store.unit_of_work import Store

Result = TypeVar("Result")

_WRITE_BYTES: Final = 1 << 20
_FORM_OVERHEAD: Final = 1 << 17
"""Bytes that a form may have in addition to its file: boundaries, part headers and text fields."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A complete upload. file: its bytes on disk, hashed while they arrived. fields: text fields of the form.

    filename, content_type: as the client stated them; content_type is in lower case, without parameters.
    """

    file: FileWriter
    filename: str | None
    content_type: str
    fields: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def receive_upload(
    request: Request,
    context: AppContext,
    caller: ApiKey,
    noun: str,
    limit: int,
    fields: Collection[str] = (),
    lists: Collection[str] = (),
) -> AsyncIterator[Upload]:
    """Write the upload to a temporary file in the cache folder, deleted at the end of the block.

    noun: what it becomes, "datasets" or "versions", for the quota of the caller's tenant. limit: bytes of the
    file. fields, lists: those that a form may have besides its file, see `FormReader`. Limits are checked
    before the first byte is taken if the length is declared, otherwise as soon as they are exceeded.

    Raises TooLarge, Conflict and Overloaded beyond the limits, InvalidRequest when the body ends early or is
    not a valid form, and Unavailable when the disk is full.
    """
    room = await run_in_threadpool(_room_for, context, caller, noun)
    admission = context.budgets.of_upload(caller)
    try:
        admission.enter()
        async with _received(request, context.files, limit, room, fields, lists, admission) as upload:
            yield upload
    finally:
        admission.close()


def _room_for(context: AppContext, caller: ApiKey, noun: str) -> int:
    """Bytes that the tenant may still store. Workers are told that a job is likely after a data set."""
    room = quotas.room_for(context.store_of(caller), context.settings, noun)
    if noun == "datasets":
        context.queue.expect_job()
    return room


@asynccontextmanager
async def _received(
    request: Request,
    files: BlobCache,
    limit: int,
    room: int,
    fields: Collection[str],
    lists: Collection[str],
    admission: Admission,
) -> AsyncIterator[Upload]:
    """As `receive_upload`. room: bytes that the tenant may still store."""
    header = request.headers.get("content-type", "")
    content_type = header.partition(";")[0].strip().lower()
    is_form = content_type == "multipart/form-data"
    most = limit + _FORM_OVERHEAD if is_form else limit
    length = declared_length(request.headers.get("content-length", "").encode("latin-1") or None, most)
    if length is not None:
        _check_room(length, room)
        admission.hold(length)
        receive = request.receive
    else:
        receive = counting(request.receive, admission)
    pieces = _within(stream_body(receive, most, length=length), room)
    with files.writing(f"stms-upload-{secrets.token_hex(8)}.tmp") as file:
        if is_form:
            form = FormReader(boundary_of(header), fields, file.write, lists)
            await _write_to(form.feed, pieces)
            form.finish()
            upload = Upload(file, form.filename, form.content_type, form.fields)
        else:
            await _write_to(file.write, pieces)
            upload = Upload(file, None, content_type)
        yield upload


@asynccontextmanager
async def fetch_upload(
    request: Request,
    context: AppContext,
    caller: ApiKey,
    noun: str,
    limit: int,
    url: str,
    sha256: str | None,
) -> AsyncIterator[Upload]:
    """As `receive_upload` for a file that is fetched from an address instead of sent.

    sha256: that the file must have, or None. While it arrives, the request takes only the place of an upload.
    Raises Unprocessable if the source cannot be used, and Unavailable also if it does not answer.
    """
    room = await run_in_threadpool(_room_for, context, caller, noun)
    admission, place = context.budgets.of_upload(caller), request.scope["state"]["admission"]
    allowed = AllowedServers.of(context.settings.dataset_sources)
    try:
        admission.enter()
        with context.files.writing(f"stms-upload-{secrets.token_hex(8)}.tmp") as file:

            def write(piece: bytes) -> None:
                _check_room(file.size + len(piece), room)
                from_thread.run_sync(admission.hold, len(piece))
                file.write(piece)

            place.leave()
            try:
                await while_connected(request, lambda gone: Download(url, allowed, write, limit, gone).run())
            except RemoteFailed as error:
                if error.reason == "remote_too_large":
                    raise TooLarge(error.message, code="file_too_large") from error
                raise Unprocessable(error.message, code=error.reason.replace("remote_", "source_")) from error
            except RemoteUnavailable as error:
                message = f"The source of the data set does not answer as it should: {error}"
                raise Unavailable(message, code="source_unavailable") from error
            place.reenter()
            if sha256 is not None and file.digest != sha256:
                message = f"The file that was fetched has the SHA-256 {file.digest}, and not the one wanted."
                raise Unprocessable(message, code="source_digest")
            yield Upload(file, PurePosixPath(unquote(urlsplit(url).path)).name or None, "")
    finally:
        admission.close()


@asynccontextmanager
async def take_upload(
    request: Request, context: AppContext, caller: ApiKey, noun: str, upload_id: str
) -> AsyncIterator[Upload]:
    """As `receive_upload` for a file that the client has put into the object store.

    While it is read, the request takes only the place of an upload. Raises NotFound, also for an upload of
    another tenant, Conflict if it has expired or its file has not arrived, and Unprocessable if the file is
    not the one that was planned.
    """
    store = context.store_of(caller)
    upload = await run_in_threadpool(uploads.get_upload, store, upload_id)
    await run_in_threadpool(_room_for, context, caller, noun)
    admission, place = context.budgets.of_upload(caller), request.scope["state"]["admission"]
    try:
        admission.enter()
        admission.hold(upload.bytes)
        with context.files.writing(f"stms-upload-{secrets.token_hex(8)}.tmp") as file:
            place.leave()
            await while_connected(request, lambda gone: _take(store, upload, file, gone))
            place.reenter()
            yield Upload(file, None, "")
    finally:
        admission.close()


def _take(store: Store, upload: PlannedUpload, file: FileWriter, is_gone: Callable[[], bool]) -> None:
    """Write the file of an upload, as long as the client waits. Raises as `take_upload`."""

    def write(piece: bytes) -> None:
        if is_gone():
            raise Unavailable("The client disconnected while its file was read.", code="reading_cancelled")
        file.write(piece)

    uploads.read_upload(store, upload, write)
    uploads.check_digest(store, upload, file.digest)


async def while_connected(request: Request, work: Callable[[Callable[[], bool]], Result]) -> Result:
    """Call ``work`` in a thread with a function that returns whether the client has disconnected.

    The body must have been received completely. The request has the place of an upload, and a thread of its
    own: many may wait for a source, or for the reader of files, and take no threads from other requests.
    """
    gone = threading.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue
        gone.set()

    watching = asyncio.create_task(watch())
    try:
        return await to_thread.run_sync(work, gone.is_set, limiter=CapacityLimiter(1))
    finally:
        watching.cancel()


async def _within(pieces: AsyncIterator[bytes], room: int) -> AsyncIterator[bytes]:
    """The pieces, as long as they are at most ``room`` bytes. Raises TooLarge."""
    size = 0
    async for piece in pieces:
        size += len(piece)
        _check_room(size, room)
        yield piece


def _check_room(size: int, room: int) -> None:
    # A form has some bytes besides its file; the services check the exact size once it is known.
    if size > room + _FORM_OVERHEAD:
        raise TooLarge(f"The tenant may store {room} bytes more.", code="quota_stored_bytes")


async def _write_to(write: Callable[[bytes], object], pieces: AsyncIterator[bytes]) -> None:
    """Call ``write`` in a worker thread, with about 1 MiB at a time."""
    buffer = bytearray()
    async for piece in pieces:
        buffer += piece
        if len(buffer) >= _WRITE_BYTES:
            await run_in_threadpool(write, bytes(buffer))
            buffer.clear()
    if buffer:
        await run_in_threadpool(write, bytes(buffer))


UPLOAD_ID: Final = "^[A-Za-z0-9_-]{1,64}$"
ANY_FILE: Final = "application/octet-stream"
"""Content type of a file whose format is detected."""
_FILE: Final[Json] = {"type": "string", "format": "binary"}

NAME_OR_EMPTY: Final[Json] = {"pattern": f"^$|{DISPLAY_NAME}", "maxLength": MAX_DISPLAY_NAME}
"""The name of a data set; an empty one means the name of its file."""
FORMAT: Final[Json] = {"pattern": f"^({'|'.join(FileFormat)})?$"}
LABEL_COLUMN: Final[Json] = {"maxLength": 400}
HEADER: Final[Json] = {"pattern": "^(auto|yes|no)?$"}
SEPARATOR: Final[Json] = {"pattern": "^(auto|comma|semicolon|tab|pipe|space|[,;|\\t ])?$"}
DECIMAL: Final[Json] = {"pattern": "^(auto|point|comma|[.,])?$"}
INDEX_BASE: Final[Json] = {"pattern": "^(auto|0|1)?$"}
MAX_LIST: Final = 4000
"""Characters of a list of names or tokens."""
LIST: Final[Json] = {"maxLength": MAX_LIST}
SKIP_LINES: Final[Json] = {"pattern": "^([0-9]{1,3}|1000)?$"}
ENCODING: Final[Json] = {"pattern": "^(auto|utf-8|latin-1|windows-1252)?$"}
RARE_CLASSES: Final[Json] = {"pattern": "^(auto|refuse|drop|keep)?$"}
UNLABELLED: Final[Json] = {"pattern": "^(auto|refuse|accept|drop)?$"}

_CSV_EXAMPLE: Final = (
    "sepal,petal,species\n5.1,1.4,setosa\n7.0,4.7,versicolor\n4.9,1.4,setosa\n6.4,4.5,versicolor\n"
)
_SVMLIGHT_EXAMPLE: Final = "+1 1:5.1 2:1.4\n-1 1:7.0 2:4.7\n+1 1:4.9 2:1.4\n-1 1:6.4 2:4.5\n"
_EXAMPLES: Final = {"text/csv": _CSV_EXAMPLE, "application/x-svmlight": _SVMLIGHT_EXAMPLE}


def _file(media_type: str) -> Json:
    content: Json = {"schema": {**_FILE, "contentMediaType": media_type}}
    if media_type in _EXAMPLES:
        content["example"] = _EXAMPLES[media_type]
    return content


def _form(media_types: Iterable[str], fields: Json) -> Json:
    """A form with one file of one of the content types."""
    schema: Json = {"type": "object", "required": ["file"], "properties": {"file": _FILE, **fields}}
    return {
        "schema": schema | {"additionalProperties": False},
        "encoding": {"file": {"contentType": ", ".join(media_types)}},
    }


def _body(media_types: Iterable[str], fields: Json) -> Json:
    types = list(media_types)
    content = {media_type: _file(media_type) for media_type in [*types, ANY_FILE]}
    return {"required": True, "content": {**content, "multipart/form-data": _form(types, fields)}}


DATASET_BODY: Final = _body(
    MEDIA_TYPES,
    {
        "name": {"type": "string", **NAME_OR_EMPTY},
        "format": {"type": "string", **FORMAT},
        "label_column": {"type": "string", **LABEL_COLUMN},
        "header": {"type": "string", **HEADER},
        "separator": {"type": "string", **SEPARATOR},
        "decimal": {"type": "string", **DECIMAL},
        "index_column": {"type": "string", **LABEL_COLUMN},
        "index_base": {"type": "string", **INDEX_BASE},
        "columns": {"type": "string", **LIST},
        "null_values": {"type": "string", **LIST},
        "skip_lines": {"type": "string", **SKIP_LINES},
        "column_names": {"type": "string", **LIST},
        "encoding": {"type": "string", **ENCODING},
        "rare_classes": {"type": "string", **RARE_CLASSES},
        "unlabelled": {"type": "string", **UNLABELLED},
    },
)
HEAD_BODY: Final = _body(["application/x-safetensors", "application/x-npz"], {})
BUNDLE_BODY: Final = _body(["application/x-tar"], {})
ENCODER_BODY: Final = _body(["application/vnd.onnx"], {})
