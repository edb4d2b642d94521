"""Pseudonyms of subjects: what is stored of whom a row, or an answer, is about.

A pseudonym is the beginning of the HMAC-SHA-256 of the subject by a random key of its tenant, which never
leaves the database.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

from app.store.unit_of_work import Store
from core.data.row_marks import SUBJECT_BYTES

MAX_SUBJECT: Final = 400
"""Characters in the name of a subject."""


def key_of(store: Store) -> bytes:
    """The key of the tenant, which is made when it is needed first. Raises Unavailable."""
    with store.read() as uow:
        key = uow.subjects.key()
    if key is not None:
        return key
    with store.begin() as uow:
        return uow.subjects.make_key()


def pseudonyms_of(store: Store, subjects: Sequence[str]) -> tuple[str, ...]:
    """The pseudonyms of some subjects in their order, hexadecimal. Raises Unavailable."""
    if not subjects:
        return ()
    key = key_of(store)
    return tuple(pseudonym(key, subject).hex() for subject in subjects)


def pseudonym(key: bytes, subject: str) -> bytes:
    """The pseudonym of one subject, by the key of a tenant."""
    return hmac.digest(key, subject.encode(), "sha256")[:SUBJECT_BYTES]
