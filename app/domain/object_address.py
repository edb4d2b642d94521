"""The address of an object store: `STMS_BLOBS` and related settings, in a form also sent to solvers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Self

from app.domain.origins import Origin

_BUCKET: Final = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*/?"


def checked_bucket(url: str) -> str:
    """The address of a bucket; it may be empty. Raises ValueError for any other text."""
    if url and not re.fullmatch(_BUCKET, url):
        raise ValueError("must be s3://BUCKET or s3://BUCKET/PREFIX")
    return url


def checked_endpoint(url: str) -> str:
    """The address of a server without the last slash; it may be empty. Raises ValueError."""
    if url:
        Origin.of(url)
    return url.rstrip("/")


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
        """The address from ``s3://bucket/prefix``, already checked. others: the other fields, in order."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        return cls(bucket, prefix.strip("/"), *others)
