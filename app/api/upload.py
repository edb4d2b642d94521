"""A data set on its way in: raw or as a form, put down in a temporary file piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from app.api.form import FormReader, boundary_of
from app.serving.body import declared_length, stream_body

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
async def received(
    request: Request, limit: int, folder: Callable[[], Path] | None = None
) -> AsyncIterator[Upload]:
    """The upload, at most ``limit`` bytes, in a file that is gone after the block.

    folder: where; by default the system's folder for temporary files, which may be memory.

    Raises TooLarge as soon as the limit is passed, InvalidRequest when the body ends early or is no form.
    """
    header = request.headers.get("content-type", "")
    content_type = header.partition(";")[0].strip().lower()
    is_form = content_type == "multipart/form-data"
    most = limit + _FORM_OVERHEAD if is_form else limit
    length = declared_length(request.headers.get("content-length", "").encode("latin-1") or None, most)
    pieces = stream_body(request.receive, most, length=length)
    where = None if folder is None else await run_in_threadpool(folder)
    with NamedTemporaryFile(prefix="stms-upload-", dir=where) as file:
        if is_form:
            form = FormReader(boundary_of(header), file.write)
            await _pass_on(pieces, form.feed)
            form.finish()
            upload = Upload(Path(file.name), form.filename, form.content_type, form.fields)
        else:
            await _pass_on(pieces, file.write)
            upload = Upload(Path(file.name), None, content_type)
        await run_in_threadpool(file.flush)
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
