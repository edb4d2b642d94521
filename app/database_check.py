"""What a service needs of its database before any of its processes starts."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from app.auth.authenticator import check_binding
from app.domain.errors import Unavailable
from app.services.first_key import FirstKey, provide_first_key
from app.settings import Settings
from app.store.migrate import require_current_schema
from app.store.opening import open_store, require_objects


def check_database(settings: Settings) -> FirstKey:
    """Raise NoFirstKey if no first key can be made, InsecureBinding if the address needs keys and there is no
    valid one, Unavailable if the database cannot be reached, SchemaOutdated if it was not upgraded, and
    NoObjectStore if blobs need an object store that cannot be used.

    Makes or stores the first API key if keys are required and there never was one.
    """
    store = open_store(settings, "api")
    try:
        require_current_schema(store.engine)
        require_objects(store)
        first = provide_first_key(store, settings)
        check_binding(settings, store)
    except SQLAlchemyError as error:
        raise Unavailable("The database cannot be reached.", code="database_unavailable") from error
    finally:
        store.dispose()
    return first
