"""Encoders that tenants add: a file, and what is known of it since its trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from app.domain.document import OWN, Document, Time
from app.domain.entities import Json

MAX_ENCODERS: Final = 100
"""Most encoders of a tenant."""
MAX_LICENCE: Final = 200


@dataclass(frozen=True, slots=True)
class OwnEncoder(Document):
    """An own encoder. digest: SHA-256 of its file. width: numbers of a vector.

    size: bytes of its file. specification: what it expects and gives, with the digest of its answers to the
    probes. licence: under which its file may be used, as the tenant says.
    """

    name: str
    digest: str
    kind: str
    width: int
    size: int
    specification: Json
    licence: str
    created_at: Time
    created_by: str
    tenant: Annotated[str, OWN] = "default"
