"""Where an object store is: `STMS_BLOBS` and the settings beside it, in a form that a solver is sent, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.settings import Settings


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """Bucket and prefix of an object store, and how it is reached.

    endpoint: empty for that of the region. public_endpoint: in addresses for clients; empty for the same.
    key_id, secret: empty where the surroundings of the process give the credentials.
    """

    bucket: str
    prefix: str
    endpoint: str = ""
    public_endpoint: str = ""
    region: str = ""
    key_id: str = ""
    secret: str = field(default="", repr=False)

    @classmethod
    def of(cls, settings: Settings) -> ObjectAddress | None:
        """That of an installation; None if it keeps all bytes in the database."""
        if not settings.blobs:
            return None
        bucket, _, prefix = settings.blobs.removeprefix("s3://").partition("/")
        secret = "" if settings.blobs_secret is None else settings.blobs_secret.get_secret_value()
        return cls(
            bucket,
            prefix.strip("/"),
            settings.blobs_endpoint,
            settings.blobs_public_endpoint,
            settings.blobs_region,
            settings.blobs_key_id,
            secret,
        )
