"""Folders and files that only the user of the service may read, and a cache that others cannot fill."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest

from app.domain.errors import Unavailable
from app.settings import Settings
from app.store.blob_cache import BLOCK_BYTES, SMALL_BYTES, BlobCache
from app.store.private_files import create_once, installation_key, make_private

LARGE = os.urandom(SMALL_BYTES + 2 * BLOCK_BYTES + 5)
DIGEST = hashlib.sha256(LARGE).hexdigest()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def never() -> list[bytes]:
    raise Unavailable("It would be fetched again.")


def test_everything_of_an_installation_is_private(tmp_path: Path):
    """With the usual umask 022 any local user could read data sets, models and hashes of keys."""
    os.umask(0o022)
    settings = Settings(data_dir=tmp_path / "data")
    files = BlobCache.of(settings)
    files.open(DIGEST, lambda: [LARGE])
    assert mode(settings.data_dir) == mode(settings.cache_folder) == 0o700
    assert {mode(path) for path in files.folder.rglob("*") if path.is_file()} == {0o600}
    assert mode(settings.data_dir / "cache.key") == 0o600


def test_our_own_folder_is_tightened_and_a_shared_one_stays(tmp_path: Path):
    ours, shared = tmp_path / "ours", tmp_path / "shared"
    for path, access in ((ours, 0o755), (shared, 0o1777)):
        path.mkdir()
        path.chmod(access)
        make_private(path)
    assert (mode(ours), mode(shared)) == (0o700, 0o1777)


@pytest.mark.parametrize("access", [0o770, 0o707, 0o1777])
def test_a_cache_folder_that_others_may_write_to_is_refused(tmp_path: Path, access: int):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(access)
    files = BlobCache.of(Settings(data_dir=tmp_path / "data", cache_dir=folder))
    with pytest.raises(Unavailable, match="other users may write"):
        files.open(DIGEST, lambda: [LARGE])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_cache_folder_of_another_user_is_refused(tmp_path: Path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    os.chown(folder, 12345, -1)
    files = BlobCache.of(Settings(data_dir=tmp_path / "data", cache_dir=folder))
    with pytest.raises(Unavailable, match="belongs to another user"):
        files.open(DIGEST, lambda: [LARGE])


def test_a_large_file_of_somebody_else_is_not_believed(tmp_path: Path):
    """It has other bytes, the wanted digest and right check sums, and was served as the model."""
    forged = bytearray(LARGE)
    forged[100:108] = b"EVILEVIL"

    thief = BlobCache(tmp_path / "forged", 2**40, b"a key of one's own")
    with thief.writing("x.tmp") as writer:
        writer.write(bytes(forged))
        writer._sha = hashlib.sha256(LARGE)
        thief.commit(writer)
    files = BlobCache(tmp_path / "cache", 2**40, b"the key of the installation")
    files.open(DIGEST, lambda: [LARGE])
    for content in (thief.path(DIGEST).read_bytes(), files.path(DIGEST).read_bytes()[:-1] + b"\0"):
        files.path(DIGEST).write_bytes(content)
        with pytest.raises(Unavailable, match="fetched again"):
            files.open(DIGEST, never)
    files.open(DIGEST, lambda: [LARGE])
    assert bytes(files.open(DIGEST, never).whole()) == LARGE


def test_links_in_the_cache_are_not_followed(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    data = b"abc"
    digest = hashlib.sha256(data).hexdigest()
    files = BlobCache(tmp_path / "cache", 2**40, b"key")
    (files.folder / f"{digest}.tmp").symlink_to(victim)
    assert bytes(files.open(digest, lambda: [data]).whole()) == data
    assert victim.read_bytes() == b"precious"
    assert not files.path(digest).is_symlink()
    other = hashlib.sha256(b"other").hexdigest()
    (files.folder / "locks" / other[:2]).unlink(missing_ok=True)
    (files.folder / "locks" / other[:2]).symlink_to(victim)
    with pytest.raises(Unavailable):
        files.open(other, lambda: [b"other"])
    assert victim.read_bytes() == b"precious"


def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path):
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(installation_key(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 8
    assert len(found[0]) == 32
    assert [path.name for path in tmp_path.iterdir()] == ["cache.key"]
    (tmp_path / "cache.key").chmod(0o644)
    with pytest.raises(PermissionError, match="not private"):
        create_once(tmp_path / "cache.key", b"x")
