"""Use cases of own encoders: add one after its check and its trial, list, read and delete them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from app.domain.entities import Json
from app.domain.errors import Conflict, InvalidRequest, NotAuthorised, TooLarge
from app.domain.own_encoder import MAX_ENCODERS, OwnEncoder
from app.encoders.onnx_check import check_onnx, require_picture_input
from app.encoders.picture_input import PictureInput, picture_input
from app.encoders.specification import BUILT_IN, EncoderSpecification
from app.services.quotas import require_room
from app.settings import Settings
from app.store.large_blobs import LARGE_CHUNK_BYTES, put_large
from app.store.unit_of_work import Store, UnitOfWork

Trial = Callable[[EncoderSpecification, bytes], EncoderSpecification]
_WORDS: Final = "words"


def require_own_encoders(settings: Settings) -> None:
    """Raise NotAuthorised where the operator lets nobody add encoders."""
    if not settings.user_encoders:
        text = "This installation takes no own encoders (STMS_USER_ENCODERS)."
        raise NotAuthorised(text, code="own_encoders_off")


def add_encoder(
    store: Store,
    settings: Settings,
    *,
    name: str,
    input_form: str,
    output: str,
    licence: str,
    digest: str,
    path: Path,
    size: int,
    trial: Trial,
    created_by: str,
) -> tuple[OwnEncoder, bool]:
    """Check and try an ONNX file, and store it; returns the encoder and whether it is new.

    path, digest, size: of the file that was received. trial: asks the encoder probes in a child. Sending the
    same file with the same input and output again changes nothing.

    Raises InvalidRequest for a file that is not taken, Conflict for a name that is taken and beyond
    `MAX_ENCODERS`, TooLarge beyond the tenant's quotas of bytes, and what ``trial`` raises.
    """
    require_own_encoders(settings)
    if name in {*BUILT_IN, _WORDS, "auto"}:
        raise InvalidRequest(f"{name} is the name of a built-in encoder.", code="encoder_name_taken")
    wanted = picture_input(input_form)
    with store.read() as uow:
        known = uow.own_encoders.find(name)
        if known is None:
            _require_room(uow, settings, size)
    file = path.read_bytes()[:size]
    specification = _specification(name, digest, file, wanted, output)
    if known is not None:
        return _same(known, specification), False
    complete = trial(specification, file)
    encoder = OwnEncoder(
        name=name,
        digest=digest,
        kind=complete.kind,
        width=complete.width,
        size=size,
        specification=dataclasses.asdict(complete),
        licence=licence,
        created_at=time.time(),
        created_by=created_by,
        tenant=store.tenant,
    )
    chunks = (file[at : at + LARGE_CHUNK_BYTES] for at in range(0, size, LARGE_CHUNK_BYTES))
    put_large(store, digest, size, chunks)
    with store.begin() as uow:
        uow.quotas.lock(store.tenant)
        known = uow.own_encoders.find(name)
        if known is not None:
            return _same(known, specification), False
        _require_room(uow, settings, size)
        uow.blobs.finish_large(digest)
        uow.own_encoders.add(encoder)
        uow.audit.append("encoder.add", name, details=_shown(encoder))
    return encoder, True


def list_encoders(store: Store, *, limit: int, after: str | None = None) -> tuple[Sequence[OwnEncoder], bool]:
    """Encoders behind the name ``after``, by name, and whether more follow."""
    with store.read() as uow:
        return uow.own_encoders.page(limit=limit, after=after)


def get_encoder(store: Store, name: str) -> OwnEncoder:
    """One encoder. Raises NotFound."""
    with store.read() as uow:
        return uow.own_encoders.get(name)


def delete_encoder(store: Store, name: str) -> None:
    """Delete an encoder. Raises NotFound, and Conflict while a version or an unfinished job uses it."""
    with store.begin() as uow:
        encoder = uow.own_encoders.get(name)
        user = uow.own_encoders.user_of(uow.own_encoders.specification(name))
        if user is not None:
            text = f"The encoder {name} is used by {user}; delete that first."
            raise Conflict(text, code="encoder_in_use")
        uow.own_encoders.delete(name)
        uow.audit.append("encoder.delete", name, details=_shown(encoder))


def encoder_file(store: Store) -> Callable[[str], bytes]:
    """What returns the bytes of an encoder's file by its digest, for the pool of a process."""

    def read(digest: str) -> bytes:
        with store.read() as uow:
            return b"".join(uow.blobs.chunks(digest))

    return read


def _specification(
    name: str, digest: str, file: bytes, wanted: PictureInput, output: str
) -> EncoderSpecification:
    """What a file is, before its trial. Raises InvalidRequest for a file that is not taken."""
    return EncoderSpecification(
        name,
        digest,
        0,
        side=wanted.side,
        order=wanted.order,
        scaling=wanted.scaling,
        crop=wanted.crop,
        output=require_picture_input(check_onnx(file), wanted.side, output),
        size=len(file),
    )


def _require_room(uow: UnitOfWork, settings: Settings, size: int) -> None:
    count, used = uow.own_encoders.used()
    if count >= MAX_ENCODERS:
        text = f"The tenant has {MAX_ENCODERS} encoders, which is the most. Delete one first."
        raise Conflict(text, code="too_many_encoders")
    if used + size > settings.max_tenant_encoder_bytes:
        text = (
            f"The encoders of the tenant take {used} bytes; its quota of {settings.max_tenant_encoder_bytes} "
            f"does not suffice for {size} more. Delete one first."
        )
        raise TooLarge(text, code="quota_encoder_bytes")
    require_room(uow, settings, uow.own_encoders.tenant, "encoders", size)


def _same(known: OwnEncoder, wanted: EncoderSpecification) -> OwnEncoder:
    found = EncoderSpecification(**known.specification)
    if dataclasses.replace(found, width=0, probe="") != wanted:
        text = f"There is an encoder {known.name} already, of another file or input. Choose another name."
        raise Conflict(text, code="encoder_name_taken")
    return known


def _shown(encoder: OwnEncoder) -> Json:
    return {"digest": encoder.digest, "bytes": encoder.size, "width": encoder.width}
