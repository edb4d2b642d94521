"""Bytes of blobs in an S3-compatible object store, through obstore: the only module that knows this library.

Objects are named ``blobs/<two digits>/<SHA-256>`` below the prefix, files of clients ``inbox/<token>``. An
object is visible as a whole or not at all; it counts only if its row in `blobs` says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from app.domain.errors import Unavailable
from app.domain.object_address import ObjectAddress
from app.store.bodies import BlobBodies, Inbox, Place, damaged, exactly, missing

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

logger = logging.getLogger(__name__)

PART_BYTES: Final = 8 * 1024**2
"""One part of an upload, and one range of a download. S3 takes 10 000 parts: 78 GiB."""

_BLOBS: Final = "blobs"
_INBOX: Final = "inbox"
_PARTS_AT_ONCE: Final = 4
_PAGE: Final = 1000
_DIGITS: Final = 64
_DEFAULT_REGION: Final = "us-east-1"


class ObjectBodies(BlobBodies):
    """`BlobBodies` in a bucket, below a prefix. Thread-safe.

    seconds: longest wait for one request with its repetitions. The connection is opened on first use: the
    library starts threads then, which a process that forks must not have.
    """

    def __init__(self, address: ObjectAddress, seconds: float = 60.0) -> None:
        self._address = address
        self._seconds = seconds
        self.inbox: Inbox = ObjectInbox(address, seconds)

    @cached_property
    def _store(self) -> S3Store:
        return _open(self._address, self._address.endpoint, self._seconds)

    def put(self, digest: str, size: int, chunks: Iterable[bytes]) -> None:
        if self.size(digest) == size:
            return
        pieces = exactly(digest, size, chunks)
        if size > PART_BYTES:
            self._put_in_parts(_key(digest), pieces)
            return
        content = b"".join(pieces)
        with _as_unavailable():
            try:
                obstore.put(self._store, _key(digest), content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                if self.size(digest) != size:
                    obstore.put(self._store, _key(digest), content, use_multipart=False)

    def _put_in_parts(self, key: str, pieces: Iterator[bytes]) -> None:
        """Put an object that is visible once it is whole. Two writers of one digest write the same bytes."""
        stopped: list[BaseException] = []

        def noted() -> Iterator[bytes]:
            # The library hides the exception that ends the iteration, such as the cancellation of a job.
            try:
                yield from pieces
            except BaseException as error:
                stopped.append(error)
                raise

        try:
            with _as_unavailable():
                obstore.put(
                    self._store,
                    key,
                    noted(),
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )
        except Exception:
            if stopped:
                raise stopped[0] from None
            raise

    def size(self, digest: str) -> int | None:
        return _size(self._store, _key(digest))

    def chunks(self, digest: str, size: int) -> Iterator[bytes]:
        stored = self.size(digest)
        if stored is None:
            raise missing(digest, Place.OBJECTS)
        if stored != size:
            raise damaged(digest, Place.OBJECTS)
        try:
            yield from _ranges(self._store, _key(digest), size)
        except FileNotFoundError as error:
            raise missing(digest, Place.OBJECTS) from error

    def delete(self, digests: Collection[str]) -> None:
        _delete(self._store, [_key(digest) for digest in digests])

    def strays(
        self, named: Callable[[Collection[str]], Collection[str]], before: float
    ) -> Iterator[tuple[str, int]]:
        for page in _pages(self._store, _BLOBS):
            old = {name: size for name, size, at in page if at < before and len(name) == _DIGITS}
            kept = set(named(old)) if old else set()
            yield from ((digest, size) for digest, size in old.items() if digest not in kept)

    def ping(self) -> None:
        # An object that is absent: the store answers so only if it knows the bucket and the credentials.
        self.size("ping")


class ObjectInbox(Inbox):
    """`Inbox` in the same bucket; arguments as `ObjectBodies`."""

    def __init__(self, address: ObjectAddress, seconds: float) -> None:
        self._address = address
        self._seconds = seconds

    @cached_property
    def _store(self) -> S3Store:
        return _open(self._address, self._address.endpoint, self._seconds)

    @cached_property
    def _signer(self) -> S3Store:
        """The store by the endpoint that clients reach."""
        endpoint = self._address.public_endpoint or self._address.endpoint
        return _open(self._address, endpoint, self._seconds)

    def address(self, token: str, seconds: float) -> str:
        with _as_unavailable():
            return obstore.sign(self._signer, "PUT", f"{_INBOX}/{token}", timedelta(seconds=seconds))

    def size(self, token: str) -> int | None:
        return _size(self._store, f"{_INBOX}/{token}")

    def chunks(self, token: str, size: int) -> Iterator[bytes]:
        try:
            yield from _ranges(self._store, f"{_INBOX}/{token}", size)
        except FileNotFoundError as error:
            raise Unavailable("The uploaded file was deleted.", code="blob_missing") from error

    def delete(self, tokens: Collection[str]) -> None:
        _delete(self._store, [f"{_INBOX}/{token}" for token in tokens])

    def left(self, before: float) -> Iterator[str]:
        for page in _pages(self._store, _INBOX):
            yield from (name for name, _, at in page if at < before)


def _open(address: ObjectAddress, endpoint: str, seconds: float) -> S3Store:
    """The store of a bucket. Empty values are taken from the environment of the process (AWS_…)."""
    given = {
        "endpoint": endpoint,
        "region": address.region or (_DEFAULT_REGION if endpoint else ""),
        "access_key_id": address.key_id,
        "secret_access_key": address.secret,
    }
    config: S3Config = {name: value for name, value in given.items() if value}  # type: ignore[assignment]
    wait = timedelta(seconds=seconds)
    client: ClientConfig = {"timeout": wait, "connect_timeout": min(wait, timedelta(seconds=5))}
    if endpoint.startswith("http://"):
        client["allow_http"] = True
    retry: RetryConfig = {"max_retries": 4, "retry_timeout": wait}
    return S3Store(
        address.bucket,
        prefix=address.prefix or None,
        config=config,
        client_options=client,
        retry_config=retry,
    )


def _key(digest: str) -> str:
    return f"{_BLOBS}/{digest[:2]}/{digest}"


def _size(store: S3Store, key: str) -> int | None:
    with _as_unavailable():
        try:
            return obstore.head(store, key)["size"]
        except FileNotFoundError:
            return None


def _ranges(store: S3Store, key: str, size: int) -> Iterator[bytes]:
    """The bytes of an object. Raises FileNotFoundError if it has been deleted."""
    for start in range(0, size, PART_BYTES):
        with _as_unavailable():
            piece = obstore.get_range(store, key, start=start, end=min(start + PART_BYTES, size))
        yield piece.to_bytes()


def _delete(store: S3Store, keys: list[str]) -> None:
    with _as_unavailable():
        if keys:
            obstore.delete(store, keys)


def _pages(store: S3Store, prefix: str) -> Iterator[list[tuple[str, int, float]]]:
    """Name without folders, size, and time of writing in seconds since the epoch, of all below a prefix."""
    pages = obstore.list(store, prefix, chunk_size=_PAGE)
    while True:
        with _as_unavailable():
            page = next(pages, None)
        if page is None:
            return
        yield [
            (each["path"].rpartition("/")[2], each["size"], each["last_modified"].timestamp())
            for each in page
        ]


@contextmanager
def _as_unavailable() -> Iterator[None]:
    """Convert errors of the library to Unavailable; the log has their details, which name the bucket."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError, ValueError) as error:
        logger.warning("object store: %s", str(error).partition("\n")[0][:500])
        raise Unavailable("The object store cannot be used.", code="object_store_unavailable") from error
