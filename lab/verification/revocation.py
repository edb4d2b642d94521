"""How long a revocation takes to hold on a server that has many keys and serves many references.

A server process in this program follows the registry of a database, as `app.main` sets it up, while another
connection revokes keys and moves aliases. On SQLite, and on PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from app.auth.authenticator import Authenticator
from app.domain.entities import ModelVersion
from app.domain.errors import NotAuthenticated
from app.services.keys import create_key, revoke_key
from app.services.models import alias_revision, point_alias
from app.serving.cache import ModelCache
from app.serving.loader import DatabaseSource
from app.serving.refresher import Refresher
from app.serving.servable import make_servable
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.tables import aliases, api_keys, model_versions
from app.store.unit_of_work import Store
from tests.system.postgres import postgres
from tests.system.published import linear_student, linear_teacher, publish

KEYS: Final = 10_000
REFERENCES: Final = 100_000
ROUNDS: Final = 20
LIMIT_SECONDS: Final = 1.0
_WAIT_SECONDS: Final = 120.0
_ROWS: Final = 5000


def measure(quick: bool) -> dict[str, float]:
    """``revocation_s``: the longest of the times from a commit until the key is refused, in seconds.

    Also the same by database, the longest time until a moved alias was followed, and how many keys and
    references there are.
    """
    keys, references = (1000, 5000) if quick else (KEYS, REFERENCES)
    figures: dict[str, float] = {"revocation_keys": keys, "revocation_references": references}
    with tempfile.TemporaryDirectory() as folder, postgres() as server:
        addresses = {
            "sqlite": f"sqlite:///{folder}/stms.sqlite",
            "postgresql": server.create_database("revocation"),
        }
        for name, address in addresses.items():
            revoked, moved = _on(address, Path(folder) / name, keys, references)
            figures |= {f"revocation_{name}_s": max(revoked), f"move_{name}_s": max(moved)}
    figures["revocation_s"] = max(figures["revocation_sqlite_s"], figures["revocation_postgresql_s"])
    return figures


def _on(address: str, folder: Path, keys: int, references: int) -> tuple[Sequence[float], Sequence[float]]:
    """Seconds of each revocation and of each move on one database."""
    upgrade(address)
    store = Store(open_engine(address))
    try:
        _publish(store, references)
        texts = _make_keys(store, keys)
        return asyncio.run(_serve(address, folder, store, texts))
    finally:
        store.dispose()


def _publish(store: Store, count: int) -> None:
    """Model m0 with two versions, and copies of its first version under other names."""
    students, teacher = {"a": linear_student("a", [1.0])}, linear_teacher(["a"], [[1.0]])
    for alias in ("latest", None):
        publish(store, "m0", students, teacher, alias=alias)
    with store.begin() as uow:
        connection = uow.connection
        version = dict(connection.execute(sa.select(model_versions)).mappings().first() or {})
        alias_row = dict(connection.execute(sa.select(aliases)).mappings().one())
        for first in range(1, count, _ROWS):
            names = [f"m{number}" for number in range(first, min(first + _ROWS, count))]
            rows = [version | {"model": name, "job_id": None} for name in names]
            connection.execute(sa.insert(model_versions), rows)
            connection.execute(sa.insert(aliases), [alias_row | {"model": name} for name in names])


def _make_keys(store: Store, count: int) -> list[tuple[str, str]]:
    """(id, text) of the keys to revoke, among ``count`` keys."""
    made = [create_key(store, "camera", ["query"]) for _ in range(ROUNDS)]
    with store.begin() as uow:
        row = dict(uow.connection.execute(sa.select(api_keys)).mappings().first() or {})
        rows = [row | {"id": f"key_{number:024x}", "cell": None} for number in range(count - ROUNDS)]
        uow.connection.execute(sa.insert(api_keys), rows)
    return [(key.id, text) for key, text in made]


async def _serve(
    address: str, folder: Path, store: Store, texts: Sequence[tuple[str, str]]
) -> tuple[Sequence[float], Sequence[float]]:
    settings = Settings(data_dir=folder, require_keys=True)
    own = Store(open_engine(address, part="api"), tenant=None)
    source = DatabaseSource(own, BlobCache(settings.cache_folder, settings.cache_disk_bytes))
    authenticator = Authenticator(settings)
    cache = ModelCache(source, budget=settings.cache_bytes, serve=make_servable)
    refresher = Refresher(source, authenticator, cache, seconds=settings.refresh_seconds)
    await refresher.start()
    try:
        await asyncio.to_thread(_follow_all, store, source, cache)
        await cache.student("default/m0", "a")
        revoked, moved = [], []
        for number, (key_id, text) in enumerate(texts):
            headers = {b"authorization": b"Bearer " + text.encode()}
            authenticator.identify(headers)
            await asyncio.to_thread(revoke_key, store, key_id)
            revoked.append(await _until(lambda headers=headers: _is_refused(authenticator, headers)))
            version = 2 - number % 2
            revision = alias_revision(store, "m0", "latest")
            await asyncio.to_thread(point_alias, store, settings, "m0", "latest", version, revision)
            moved.append(await _until(lambda version=version: _serves(cache, version)))
        return revoked, moved
    finally:
        await refresher.stop()
        cache.close()
        own.dispose()


def _follow_all(store: Store, source: DatabaseSource, cache: ModelCache) -> None:
    """Have the server follow a reference to each model, as after a query of each."""
    with store.read() as uow:
        names = list(uow.connection.execute(sa.select(aliases.c.model)).scalars())
    versions: dict[str, ModelVersion] = dict(source.resolve_all([f"default/{name}" for name in names]))
    for reference, version in versions.items():
        cache._references.put(reference, version)
    if cache.reference_count != len(names):
        raise RuntimeError(f"The server follows {cache.reference_count} of {len(names)} references.")


def _is_refused(authenticator: Authenticator, headers: dict[bytes, bytes]) -> bool:
    try:
        authenticator.identify(headers)
    except NotAuthenticated:
        return True
    return False


def _serves(cache: ModelCache, version: int) -> bool:
    student = cache.get("default/m0", "a")
    return student is not None and student.version == version


async def _until(holds: Callable[[], bool]) -> float:
    """Seconds until a condition holds. Raises TimeoutError."""
    started = time.perf_counter()
    while not holds():
        if time.perf_counter() - started > _WAIT_SECONDS:
            raise TimeoutError("The server did not follow.")
        await asyncio.sleep(0.001)
    return time.perf_counter() - started


def main() -> int:
    """0 if every revocation holds within a second."""
    parser = argparse.ArgumentParser(prog="python -m lab.verification.revocation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer keys and references")
    figures = measure(parser.parse_args().quick)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    return int(figures["revocation_s"] > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
