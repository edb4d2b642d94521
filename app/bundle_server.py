"""A server of bundles: models and keys come from files, and a database of its own ends with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from app.processes.periodic import PeriodicWork
from app.services.bundled_models import publish_bundles
from app.services.keys_file import BadKeysFile, KeysFile
from app.settings import Settings
from app.store.opening import open_store

_SECONDS: Final = 0.5
"""Between two looks at the file of keys."""


@contextmanager
def open_bundle_server(settings: Settings, report: Callable[[str], None]) -> Iterator[None]:
    """Publish the models of the files, and follow the file of keys until the end of the block.

    The database of ``settings`` has the newest schema. report: called with sentences for the operator.
    Raises BadBundle, and BadKeysFile if keys are required and there are none.
    """
    store = open_store(settings, "command")
    ended = threading.Event()
    following = None
    try:
        publish_bundles(store, settings, report)
        if settings.require_keys:
            if settings.keys_file is None:
                raise BadKeysFile(
                    "STMS_KEYS_FILE names the file of API keys: `stms keys create NAME --offline FILE`."
                )
            file = KeysFile(store, settings.keys_file)
            file.follow()
            following = threading.Thread(
                target=_follow, args=(file, ended), name="stms-keys-file", daemon=True
            )
            following.start()
        yield
    finally:
        ended.set()
        if following is not None:
            following.join()
        store.dispose()


def _follow(file: KeysFile, ended: threading.Event) -> None:
    periodic = PeriodicWork(["keys file"])
    while not ended.wait(_SECONDS):
        periodic.run("keys file", file.follow)
