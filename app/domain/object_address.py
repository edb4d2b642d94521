"""Where an object store is: `STMS_BLOBS` and the settings beside it, in a form that a solver is sent, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self


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
    def of(cls, url: str, *others: str) -> Self:
        """From ``s3://bucket/prefix``, which has been checked. others: the other fields in their order."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        return cls(bucket, prefix.strip("/"), *others)
