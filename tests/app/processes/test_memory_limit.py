from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.processes.os_process import memory_limit

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1000000\n"}, 1_000_000),
        (
            "0::/kubepods/pod/container\n",
            {"memory.max": "max\n", "kubepods/pod/memory.max": "2000000\n"},
            2_000_000,
        ),
        (
            "0::/a/b\n",
            {"a/b/memory.max": "max", "a/memory.max": "3000000", "memory.max": "4000000"},
            3_000_000,
        ),
        # In a container the path is that of the host, and the own cgroup is mounted as the root.
        ("0::/docker/0123\n", {"memory.max": "5000000"}, 5_000_000),
        ("5:cpu,memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "6000000"}, 6_000_000),
        ("5:memory:/x\n", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, MACHINE),
        ("0::/\n", {}, MACHINE),
        ("", {}, MACHINE),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, own: str, files: dict[str, str], expected: int):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    assert memory_limit(tmp_path, tmp_path / "own") == expected


def test_a_machine_without_cgroups_has_its_memory(tmp_path: Path):
    assert memory_limit(tmp_path, tmp_path / "missing") == MACHINE
