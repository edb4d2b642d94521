"""The memory that this process may use, of its container or machine, and a limit of its own below that."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUPS: Final = Path("/proc/self/cgroup")


def memory_limit(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUPS) -> int:
    """The smallest memory limit of this process's cgroup and of those above it, in bytes.

    Without a limit, or without cgroups (version 1 or 2), the memory of the machine. cgroups: where they are
    mounted. own: file that names the process's cgroups.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(cgroups, own)])


def limit_memory(limit: int) -> None:
    """Limit the memory of this process; an allocation beyond it raises MemoryError.

    Mapped files do not count, because their pages can be dropped. Only Linux has such a limit.
    """
    if sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _limits(cgroups: Path, own: Path) -> Iterator[int]:
    lines: list[str] = []
    with suppress(OSError):
        lines = own.read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        # Within a container its own cgroup may be mounted as the root, so the path need not exist below it.
        for folder in (inside, *inside.parents):
            # Missing files, and "max", which means no limit.
            with suppress(OSError, ValueError):
                yield int((root / folder / name).read_text(encoding="ascii"))
