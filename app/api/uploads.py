"""A data set on its way in: raw or as a form, put down in a temporary file piece by piece."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from app.api.multipart import FormReader, boundary_of
from app.http.body import declared_length, stream_body
from app.store.blob_cache import BlobCache

_WRITE_BYTES: Final = 1 << 20
_FORM_OVERHEAD: Final = 1 << 17
"""What a form may have around its file: boundaries, headers and the text fields."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file at rest for the length of a request. fields: the text fields that came with it."""

    path: Path
    filename: str | None
    content_type: str
    fields: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def received(request: Request, limit: int, files: BlobCache) -> AsyncIterator[Upload]:
    """The upload, at most ``limit`` bytes, in a file in the folder of ``files`` that is gone after the block.

    Raises TooLarge as soon as the limit is passed, InvalidRequest when the body ends early or is no form,
    Unavailable when there is no room for it.
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
            await _pass_on(pieces, form.feed)
            form.finish()
            upload = Upload(file.path, form.filename, form.content_type, form.fields)
        else:
            await _pass_on(pieces, file.write)
            upload = Upload(file.path, None, content_type)
        yield upload


async def _pass_on(pieces: AsyncIterator[bytes], take: Callable[[bytes], object]) -> None:
    """Hand on away from the event loop, a good deal at a time."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        if len(held) >= _WRITE_BYTES:
            await run_in_threadpool(take, bytes(held))
            held.clear()
    if held:
        await run_in_threadpool(take, bytes(held))
