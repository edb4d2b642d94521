"""The cache on disk: whole files or none, damage is noticed, one fetch for all, a budget that holds."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import NotFound, Unavailable
from app.store import blob_cache, cache_usage
from app.store.blob_cache import BLOCK_BYTES, SMALL_BYTES, BlobCache, CacheFull
from core.errors import InvalidPackage
from tests.refusals import refused_as

SMALL = os.urandom(1000)
LARGE = os.urandom(SMALL_BYTES + 3 * BLOCK_BYTES + 17)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Shelf:
    """Gives one blob in uneven pieces, and counts."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.fetches = 0

    def __call__(self) -> Iterator[bytes]:
        self.fetches += 1
        at, step = 0, 1
        while at < len(self.data):
            yield self.data[at : at + step]
            at, step = at + step, step * 3 + 1


@pytest.fixture
def files(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 2**40)


@pytest.mark.parametrize("data", [b"", b"x", SMALL, b"y" * BLOCK_BYTES, b"z" * SMALL_BYTES, LARGE])
def test_a_blob_is_fetched_once_and_then_read_from_disk(files: BlobCache, data: bytes):
    shelf, digest = Shelf(data), digest_of(data)
    for _ in range(3):
        assert bytes(files.open(digest, shelf).whole()) == data
    assert shelf.fetches == 1
    assert files.path(digest).name.startswith(digest)
    leftovers = [path.name for path in files.folder.iterdir() if path.suffix == ".tmp"]
    assert leftovers == []


@pytest.mark.parametrize("data", [SMALL, LARGE])
@pytest.mark.parametrize("harm", ["cut", "longer", "footer", "table", "empty"])
def test_a_file_that_was_harmed_is_fetched_again_when_opened(files: BlobCache, data: bytes, harm: str):
    shelf, digest = Shelf(data), digest_of(data)
    files.open(digest, shelf)
    path = files.path(digest)
    content = bytearray(path.read_bytes())
    if harm == "cut":
        content = content[:-1]
    elif harm == "longer":
        content += b"\0"
    elif harm == "footer":
        content[-20] ^= 1
    elif harm == "table":
        content[len(data) + 1] ^= 1
    else:
        content = bytearray()
    path.write_bytes(content)
    assert bytes(files.open(digest, shelf).whole()) == data
    assert shelf.fetches == 2


def test_a_small_file_that_was_altered_is_fetched_again_when_opened(files: BlobCache):
    shelf, digest = Shelf(SMALL), digest_of(SMALL)
    files.open(digest, shelf)
    content = bytearray(files.path(digest).read_bytes())
    content[500] ^= 1
    files.path(digest).write_bytes(content)
    assert bytes(files.open(digest, shelf).whole()) == SMALL
    assert shelf.fetches == 2


def test_an_altered_block_of_a_large_file_is_noticed_before_it_is_used(files: BlobCache):
    shelf, digest = Shelf(LARGE), digest_of(LARGE)
    files.open(digest, shelf)
    with files.path(digest).open("r+b") as file:
        file.seek(10 * BLOCK_BYTES + 5)
        byte = file.read(1)[0]
        file.seek(10 * BLOCK_BYTES + 5)
        file.write(bytes([byte ^ 1]))
    opened = files.open(digest, shelf)
    assert shelf.fetches == 1, "nobody reads a large file to open it"
    for look in (opened.read, opened.view, opened.read):
        for start, stop in ((0, 10 * BLOCK_BYTES), (11 * BLOCK_BYTES, len(LARGE)), (7, 9), (4095, 4097)):
            assert bytes(look(start, stop)) == LARGE[start:stop]
    for start, stop in ((10 * BLOCK_BYTES, 10 * BLOCK_BYTES + 1), (10 * BLOCK_BYTES - 1, 11 * BLOCK_BYTES)):
        for look in (opened.read, opened.view):
            with pytest.raises(InvalidPackage):
                look(start, stop)
    with pytest.raises(InvalidPackage):
        opened.whole()
    files.discard(digest)
    assert bytes(files.open(digest, shelf).whole()) == LARGE


def test_a_large_file_that_is_cut_off_in_place_is_noticed_by_who_reads_it(files: BlobCache):
    opened = files.open(digest_of(LARGE), Shelf(LARGE))
    end = len(LARGE)
    assert bytes(opened.read(end - 10, end)) == LARGE[-10:]
    os.truncate(files.path(digest_of(LARGE)), end - 5)
    for start, stop in ((end - 10, end), (end - 2 * BLOCK_BYTES, end)):
        with pytest.raises(InvalidPackage):
            opened.read(start, stop)


def test_a_small_file_is_read_from_memory(files: BlobCache):
    opened = files.open(digest_of(SMALL), Shelf(SMALL))
    files.discard(digest_of(SMALL))
    assert bytes(opened.read(10, 20)) == bytes(opened.view(10, 20)) == SMALL[10:20]


def test_who_has_a_file_open_keeps_it_when_it_goes(files: BlobCache):
    opened = files.open(digest_of(LARGE), Shelf(LARGE))
    files.discard(digest_of(LARGE))
    assert bytes(opened.whole()) == LARGE


def test_other_bytes_than_promised_are_refused_and_not_kept(files: BlobCache):
    with pytest.raises(Unavailable, match="damaged"):
        files.open(digest_of(b"other"), Shelf(SMALL))
    assert not files.path(digest_of(b"other")).exists()
    assert not files.path(digest_of(SMALL)).exists()


def test_a_fetch_that_fails_leaves_nothing(files: BlobCache):
    def fetch() -> Iterator[bytes]:
        yield b"some"
        raise NotFound("There is no such blob.")

    with pytest.raises(NotFound):
        files.open(digest_of(SMALL), fetch)
    assert [path for path in files.folder.iterdir() if path.is_file()] == []


def test_threads_that_miss_together_fetch_once(files: BlobCache):
    shelf = Shelf(LARGE)
    found: list[bytes] = []

    def slow() -> Iterator[bytes]:
        time.sleep(0.1)
        yield from shelf()

    threads = [
        threading.Thread(target=lambda: found.append(bytes(files.open(digest_of(LARGE), slow).whole())))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [LARGE] * 4
    assert shelf.fetches == 1


def _open_in_a_process(folder: str, fetched: str) -> None:
    def fetch() -> Iterator[bytes]:
        with Path(fetched).open("ab") as log:
            log.write(b"f")
        time.sleep(0.2)
        yield b"a" * 5000

    opened = BlobCache(Path(folder), 2**40).open(digest_of(b"a" * 5000), fetch)
    assert bytes(opened.whole()) == b"a" * 5000


def test_processes_that_miss_together_fetch_once(tmp_path: Path):
    start = multiprocessing.get_context("spawn").Process
    children = [
        start(target=_open_in_a_process, args=(str(tmp_path / "cache"), str(tmp_path / "fetched")))
        for _ in range(3)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
        assert child.exitcode == 0
    assert (tmp_path / "fetched").read_bytes() == b"f"


def test_the_files_opened_longest_ago_go_first(tmp_path: Path):
    files = BlobCache(tmp_path / "cache", 3 * BLOCK_BYTES + 2000)
    blobs = [bytes([number]) * 900 for number in range(3)]
    for age, data in enumerate(reversed(blobs)):
        files.open(digest_of(data), Shelf(data))
        long_ago = time.time() - 1000 - age
        os.utime(files.path(digest_of(data)), (long_ago, long_ago))
    files.open(digest_of(blobs[0]), Shelf(blobs[0]))
    files.open(digest_of(SMALL), Shelf(SMALL))
    there = [files.path(digest_of(data)).exists() for data in (*blobs, SMALL)]
    assert there == [True, False, True, True]
    assert allocated(files) <= 3 * BLOCK_BYTES + 2000


def allocated(files: BlobCache) -> int:
    return sum(512 * path.stat().st_blocks for path in files.folder.glob("*/*.packed"))


def test_the_budget_counts_allocated_blocks_and_not_bytes(tmp_path: Path):
    files = BlobCache(tmp_path / "cache", 10 * BLOCK_BYTES)
    for number in range(50):
        files.open(digest_of(b"%d" % number), Shelf(b"%d" % number))
        assert allocated(files) <= 10 * BLOCK_BYTES
    assert len(list(files.folder.glob("*/*.packed"))) >= 8


def test_a_cold_blob_lists_the_folder_only_when_the_budget_is_exceeded(
    files: BlobCache, monkeypatch: pytest.MonkeyPatch
):
    scans: list[Path] = []
    scandir = os.scandir

    def count(folder: Any) -> Any:
        scans.append(Path(folder))
        return scandir(folder)

    monkeypatch.setattr(cache_usage.os, "scandir", count)
    files.open(digest_of(SMALL), Shelf(SMALL))
    assert scans, "the first file finds out what is there"
    scans.clear()
    for number in range(100):
        files.open(digest_of(b"%d" % number), Shelf(b"%d" % number))
    assert scans == []


def _fill(folder: str, first: int) -> None:
    files = BlobCache(Path(folder), 40 * BLOCK_BYTES)
    for number in range(first, first + 100):
        files.open(digest_of(b"%d" % number), Shelf(b"%d" % number))


@pytest.mark.long
def test_processes_share_one_budget(tmp_path: Path):
    start = multiprocessing.get_context("spawn").Process
    children = [start(target=_fill, args=(str(tmp_path / "cache"), 1000 * child)) for child in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
        assert child.exitcode == 0
    # One process may add files while the other evicts.
    assert allocated(BlobCache(tmp_path / "cache", 0)) <= 60 * BLOCK_BYTES


def test_discarded_files_do_not_count(tmp_path: Path):
    files = BlobCache(tmp_path / "cache", 4 * BLOCK_BYTES)
    kept = digest_of(SMALL)
    files.open(kept, Shelf(SMALL))
    for number in range(20):
        digest = digest_of(b"%d" % number)
        files.open(digest, Shelf(b"%d" % number))
        files.discard(digest)
    assert files.path(kept).exists()


def test_the_newest_file_stays_even_if_it_alone_is_too_large(tmp_path: Path):
    files = BlobCache(tmp_path / "cache", 10)
    files.open(digest_of(SMALL), Shelf(SMALL))
    assert files.path(digest_of(SMALL)).exists()
    files.open(digest_of(b"b"), Shelf(b"b"))
    assert not files.path(digest_of(SMALL)).exists()


def test_what_a_crash_left_half_written_is_removed_later(files: BlobCache):
    old, new = files.folder / "import-1.tmp", files.folder / "import-2.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1.0, 1.0))
    files.open(digest_of(SMALL), Shelf(SMALL))
    assert (old.exists(), new.exists()) == (False, True)


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    files = BlobCache(tmp_path / "file" / "cache", 10)
    with refused_as(Unavailable, "cache_unusable", match="cache on disk"):
        files.open(digest_of(SMALL), Shelf(SMALL))
    with pytest.raises(Unavailable):
        _ = files.folder


def test_what_was_written_is_read_again_in_pieces(files: BlobCache):
    with files.writing("import-3.tmp") as writer:
        writer.write(LARGE[:5000])
        writer.write(memoryview(LARGE)[5000:])
        files.commit(writer)
        assert b"".join(writer.chunks(4096)) == LARGE
    assert bytes(files.open(digest_of(LARGE), Shelf(b"")).whole()) == LARGE


class FullDisk:
    """Replacement for `_write_all`: a disk with a limited number of free bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self._write = blob_cache._write_all
        monkeypatch.setattr(blob_cache, "_write_all", self.write)

    def write(self, file: Any, piece: Any) -> None:
        used = sum(path.stat().st_size for path in Path(file.name).parent.glob("**/*.*"))
        if used + len(piece) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._write(file, piece)


def test_a_full_disk_makes_half_of_the_cache_give_way(files: BlobCache, monkeypatch: pytest.MonkeyPatch):
    FullDisk(monkeypatch, 4000)
    blobs = [bytes([number]) * 900 for number in range(4)]
    for age, data in enumerate(blobs):
        files.open(digest_of(data), Shelf(data))
        long_ago = time.time() - 1000 + age
        os.utime(files.path(digest_of(data)), (long_ago, long_ago))
    last = b"last" * 200
    shelf = Shelf(last)
    assert bytes(files.open(digest_of(last), shelf).whole()) == last
    assert [files.path(digest_of(data)).exists() for data in blobs] == [False, False, True, True]
    assert not list(files.folder.glob("*.tmp"))


def test_a_disk_that_stays_full_is_told_and_what_is_open_goes_on(
    files: BlobCache, monkeypatch: pytest.MonkeyPatch
):
    large = os.urandom(SMALL_BYTES + 100)
    opened = files.open(digest_of(large), Shelf(large))
    FullDisk(monkeypatch, 10)
    with pytest.raises(CacheFull) as caught:
        files.open(digest_of(SMALL), Shelf(SMALL))
    assert (caught.value.reason, caught.value.retry_after) == ("cache_full", 10.0)
    assert not files.path(digest_of(large)).exists()
    assert bytes(opened.whole()) == large
    with pytest.raises(CacheFull), files.writing("upload.tmp") as writer:
        writer.write(SMALL)
    assert not list(files.folder.glob("*.tmp"))
