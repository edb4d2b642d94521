"""Receives an uploaded file, as the raw body or in a form, into a temporary file while it arrives."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from app.api.multipart import FormReader, boundary_of
from app.http.body import declared_length, stream_body
from app.store.blob_cache import BlobCache, FileWriter

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
async def receive_upload(request: Request, limit: int, files: BlobCache) -> AsyncIterator[Upload]:
    """Write the upload to a temporary file in the folder of ``files``, deleted at the end of the block.

    limit: bytes of the file. Raises TooLarge as soon as they are exceeded, InvalidRequest when the body ends
    early or is not a valid form, and Unavailable when the disk is full.
    """
    header = request.headers.get("content-type", "")
    content_type = header.partition(";")[0].strip().lower()
    is_form = content_type == "multipart/form-data"
    most = limit + _FORM_OVERHEAD if is_form else limit
    length = declared_length(request.headers.get("content-length", "").encode("latin-1") or None, most)
    pieces = stream_body(request.receive, most, length=length)
    with files.writing(f"stms-upload-{secrets.token_hex(8)}.tmp") as file:
        if is_form:
            form = FormReader(boundary_of(header), file.write)
            await _write_to(form.feed, pieces)
            form.finish()
            upload = Upload(file, form.filename, form.content_type, form.fields)
        else:
            await _write_to(file.write, pieces)
            upload = Upload(file, None, content_type)
        yield upload


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
