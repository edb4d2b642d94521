"""Use cases of uploads that bypass the API: plan one, take its file from the object store, end it.

A client plans an upload, puts the file at the presigned address, and names the upload in the request instead
of sending the file. Plans count in their tenant's quota until they end or expire; results of the file count
as usual.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from app.domain.entities import PlannedUpload, new_id
from app.domain.errors import Conflict, InvalidRequest, Overloaded, TooLarge, Unprocessable
from app.services.quotas import require_room
from app.settings import Settings
from app.store.bodies import Inbox
from app.store.unit_of_work import Store

EXPIRE_SECONDS: Final = 3600.0
"""How long the address of an upload is valid, and its file can become a data set."""
MAX_OF_TENANT: Final = 100
"""Planned uploads of a tenant at a time."""
MOST_BYTES: Final = 5 * 1024**3
"""Largest size of a PUT to S3."""


def plan_upload(
    store: Store, settings: Settings, size: int, sha256: str, *, created_by: str
) -> tuple[PlannedUpload, str]:
    """Plan the upload of a file of ``size`` bytes; returns it with the address for the PUT of the file.

    Raises Conflict without an object store and beyond the quota, InvalidRequest, TooLarge, Overloaded beyond
    `MAX_OF_TENANT`, and Unavailable.
    """
    inbox, now = _inbox(store), time.time()
    most = min(settings.max_upload_bytes, MOST_BYTES)
    if size > most:
        raise TooLarge(f"The file is larger than the limit of {most} bytes.", code="file_too_large")
    if size == 0:
        raise InvalidRequest("The file is empty.", code="empty_file")
    upload = PlannedUpload(
        id=new_id("upl", now),
        tenant=store.tenant,
        bytes=size,
        sha256=sha256,
        created_by=created_by,
        created_at=now,
        expires_at=now + EXPIRE_SECONDS,
    )
    address = inbox.address(upload.id, EXPIRE_SECONDS)
    with store.begin() as uow:
        uow.quotas.lock(store.tenant)
        count, planned = uow.uploads.unexpired(now)
        if count >= MAX_OF_TENANT:
            message = f"The tenant has {count} uploads that have not ended, which is the most."
            raise Overloaded(message, code="too_many_uploads", retry_after=60.0)
        require_room(uow, settings, store.tenant, "datasets", planned + size)
        uow.uploads.add(upload)
        uow.audit.append("upload.create", upload.id, details={"bytes": size, "sha256": sha256})
    return upload, address


def get_upload(store: Store, upload_id: str) -> PlannedUpload:
    """An upload whose file can be taken. Raises NotFound, and Conflict if it has expired."""
    _inbox(store)
    with store.read() as uow:
        upload = uow.uploads.get(upload_id)
    if upload.expires_at <= time.time():
        raise Conflict(f"Upload {upload_id} has expired. Plan another one.", code="upload_expired")
    return upload


def read_upload(store: Store, upload: PlannedUpload, write: Callable[[bytes], None]) -> None:
    """Pass on the file of an upload, as it is in the object store; ``write`` hashes it.

    Raises Conflict before it has arrived, Unprocessable if it has another size than was planned, and
    Unavailable.
    """
    inbox = _inbox(store)
    size = inbox.size(upload.id)
    if size is None:
        text = f"The file of upload {upload.id} has not arrived: send it to its address first."
        raise Conflict(text, code="upload_missing")
    if size != upload.bytes:
        raise refused(store, upload, "upload_size", f"It has {size} bytes, and not {upload.bytes}.")
    for piece in inbox.chunks(upload.id, size):
        write(piece)


def check_digest(store: Store, upload: PlannedUpload, digest: str) -> None:
    """Raise Unprocessable if the file of an upload has another digest than was planned."""
    if digest != upload.sha256:
        raise refused(store, upload, "upload_digest", f"It has the SHA-256 {digest}.")


def refused(store: Store, upload: PlannedUpload, code: str, reason: str) -> Unprocessable:
    """The error for a file that is not the planned one, which is deleted."""
    _inbox(store).delete([upload.id])
    text = f"The file of upload {upload.id} is not the one that was planned, and was deleted. {reason}"
    return Unprocessable(text, code=code)


def end_upload(store: Store, upload_id: str) -> None:
    """Delete an upload and its file, which has become a data set. Raises Unavailable."""
    with store.begin() as uow:
        uow.uploads.delete(upload_id)
    _inbox(store).delete([upload_id])


def clean_uploads(store: Store, now: float) -> None:
    """Delete files that no request has taken, and forget uploads some time after they have expired."""
    with store.begin() as uow:
        uow.uploads.delete_expired(now - EXPIRE_SECONDS)
    if store.objects is not None and store.objects.inbox is not None:
        # Files that arrived that long ago belong to expired uploads.
        left = list(store.objects.inbox.left(now - 2 * EXPIRE_SECONDS))
        store.objects.inbox.delete(left)


def _inbox(store: Store) -> Inbox:
    """The inbox. Raises Conflict if clients cannot put files."""
    if store.objects is None or store.objects.inbox is None:
        text = "This installation has no object store. Send the file itself: POST /v1/datasets."
        raise Conflict(text, code="no_object_store")
    return store.objects.inbox
