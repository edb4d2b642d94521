"""Opens the store of a process of the service: its database, and its object store if it has one."""

from __future__ import annotations

from app.domain.errors import SetupError
from app.domain.object_address import ObjectAddress
from app.settings import Settings
from app.store.bodies import BlobBodies
from app.store.engine import open_database
from app.store.unit_of_work import Store


class NoObjectStore(SetupError):
    """The object store of the settings cannot be used, or one that is needed is not in them."""


def open_store(
    settings: Settings,
    part: str,
    *,
    pool_size: int | None = None,
    idle: float | None = None,
    pre_ping: bool = True,
) -> Store:
    """The store of the default tenant; arguments as `open_database`. Raises NoObjectStore."""
    objects = objects_of(settings)
    engine = open_database(settings, part, pool_size=pool_size, idle=idle, pre_ping=pre_ping)
    return Store(engine, objects=objects)


def open_objects(address: ObjectAddress, seconds: float = 60.0) -> BlobBodies:
    """The object store at an address, asked on first use.

    seconds: longest wait for one request. Raises NoObjectStore if the library is missing.
    """
    try:
        from app.store.object_bodies import ObjectBodies
    except ImportError as error:
        raise NoObjectStore(
            f"STMS_BLOBS needs obstore ({error}). Install it with: pip install 'stms[objects]'"
        ) from error
    return ObjectBodies(address, seconds)


def objects_of(settings: Settings, seconds: float = 60.0) -> BlobBodies | None:
    """The object store of an installation, if it has one; arguments and errors as `open_objects`."""
    address = settings.object_address
    return None if address is None else open_objects(address, seconds)


def require_objects(store: Store) -> None:
    """Raise NoObjectStore if blobs are in an object store but the settings name none."""
    if store.objects is not None:
        return
    with store.read() as uow:
        count = uow.blobs.count_objects()
    if count:
        raise NoObjectStore(
            f"The bytes of {count} blobs are in an object store: set STMS_BLOBS to its address. To bring them"
            " into the database, run `stms db move-blobs --to database` with that setting first."
        )
