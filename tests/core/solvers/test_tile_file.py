"""A factorisation that was killed goes on from its last finished column of tiles, to the same result."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from core.errors import Cancelled
from core.run import Run, Scratch
from core.solvers.kernel import system, tile_file
from core.solvers.kernel.system import solve_kernel_system
from core.solvers.kernel.tile_file import TileFile

TILE, TILES = 16, 6


@pytest.fixture(autouse=True)
def keep_small_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_KEPT_ROWS", 10)


def solve(run: Run, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows, right = rng.normal(size=(TILE * TILES - 5, 3)), np.eye(2)[rng.integers(2, size=TILE * TILES - 5)]
    return solve_kernel_system(rows, right, jitter=1e-2, tolerance=1e-3, tile=TILE, run=run).value


def interrupted(folder: Path, columns: int, key: bytes = b"") -> None:
    """A solution that is cancelled after so many columns."""
    seen: list[object] = []
    run = Run(progress=seen.append, should_cancel=lambda: len(seen) >= columns, scratch=Scratch(folder, key))
    with pytest.raises(Cancelled):
        solve(run)


def columns_factored(folder: Path, monkeypatch: pytest.MonkeyPatch, key: bytes = b"") -> int:
    """How many a solution finishes, whose result is that of one without interruption; nothing is left."""
    added = []
    append = TileFile.append

    def count(self, column, tiles):
        added.append(column)
        append(self, column, tiles)

    with monkeypatch.context() as patched:
        patched.setattr(TileFile, "append", count)
        np.testing.assert_array_equal(solve(Run(scratch=Scratch(folder, key))), solve(Run()))
    assert not list(folder.iterdir())
    return len(added)


@pytest.mark.parametrize("columns", [1, 4, TILES])
def test_it_goes_on_behind_the_last_finished_column(tmp_path, monkeypatch, columns):
    interrupted(tmp_path, columns)
    assert columns_factored(tmp_path, monkeypatch) == TILES - columns


def test_a_killed_process_leaves_its_columns_to_the_next(tmp_path, monkeypatch):
    program = f"""
import os, sys
from pathlib import Path
from core.run import Run, Scratch
from core.solvers.kernel import system
from tests.core.solvers.test_tile_file import solve
system._KEPT_ROWS = 10
seen = []
def kill(step):
    seen.append(step)
    if len(seen) == 3:
        os.kill(os.getpid(), {int(signal.SIGKILL)})
solve(Run(progress=kill, scratch=Scratch(Path(sys.argv[1]))))
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    root = Path(__file__).parents[3]
    assert subprocess.run(command, check=False, cwd=root).returncode == -signal.SIGKILL
    assert columns_factored(tmp_path, monkeypatch) == TILES - 3


@pytest.mark.parametrize("damage", ["a byte", "the end", "another key"])
def test_columns_that_are_not_whole_are_factored_again(tmp_path, monkeypatch, damage):
    interrupted(tmp_path, 3, key=b"secret")
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    first = 4 * TILE * (TILE * TILES - 5) + 32
    if damage == "a byte":
        content[first + 7] ^= 1
    elif damage == "the end":
        del content[-1:]
    else:
        content[:] = bytes(first) + content[first:]
    path.write_bytes(content)
    expected = {"a byte": TILES - 1, "the end": TILES - 2, "another key": TILES}[damage]
    assert columns_factored(tmp_path, monkeypatch, key=b"secret") == expected


def test_another_problem_or_key_has_a_file_of_its_own(tmp_path, monkeypatch):
    interrupted(tmp_path, 3)
    (path,) = tmp_path.iterdir()
    solve(Run(scratch=Scratch(tmp_path)), seed=1)
    solve(Run(scratch=Scratch(tmp_path, b"other")))
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_another_process_writes_is_left_alone(tmp_path):
    interrupted(tmp_path, 3)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    with path.open() as file:
        tile_file.fcntl.flock(file, tile_file.fcntl.LOCK_EX)
        np.testing.assert_array_equal(solve(Run(scratch=Scratch(tmp_path))), solve(Run()))
    assert path.read_bytes() == content


def test_without_room_nothing_is_kept_and_the_log_says_so(tmp_path, monkeypatch, caplog):
    usage = os.statvfs(tmp_path)
    monkeypatch.setattr(tile_file, "_FREE_SHARE", usage.f_frsize * usage.f_blocks)
    np.testing.assert_array_equal(solve(Run(scratch=Scratch(tmp_path))), solve(Run()))
    assert not list(tmp_path.iterdir())
    assert "too little space" in caplog.text


def test_a_disk_that_gets_full_costs_the_file_and_nothing_else(tmp_path, monkeypatch, caplog):
    write, written = os.write, []

    def fail(file, content):
        written.append(len(content))
        if len(written) > 9:
            raise OSError(errno.ENOSPC, "full")
        return write(file, content)

    expected = solve(Run())
    monkeypatch.setattr(tile_file.os, "write", fail)
    np.testing.assert_array_equal(solve(Run(scratch=Scratch(tmp_path))), expected)
    assert not list(tmp_path.iterdir())
    assert "the disk is full" in caplog.text
    assert len(written) == 10


def test_small_systems_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "_KEPT_ROWS", TILE * TILES)
    opened = []
    monkeypatch.setattr(TileFile, "open", lambda *arguments: opened.append(arguments))
    solve(Run(scratch=Scratch(tmp_path)))
    assert not opened
