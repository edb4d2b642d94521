"""A network namespace, a small disk and a fake clock, with which faults hit only the processes under test."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

_CLOCK_SOURCE = Path(__file__).with_name("clock.c")
_BLOCK = 1 << 16


class NotSupported(Exception):
    """This machine does not support it; the message gives the reason."""


class Network:
    """A network namespace, connected to the host by a veth pair. Raises NotSupported.

    host: the host's address, to which programs in the namespace connect. range: addresses of the pair.
    """

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise NotSupported("a network namespace needs root")
        number = os.getpid() % 2**14
        self._name = f"stms{number}"
        self._cable = f"stms{number}h"
        third, last = divmod(number * 4, 256)
        self.host, inside = f"10.231.{third % 256}.{last + 1}", f"10.231.{third % 256}.{last + 2}"
        self.range = f"10.231.{third % 256}.{last}/30"
        try:
            _ip("netns", "add", self._name)
            _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self._name)
            _ip("addr", "add", f"{self.host}/30", "dev", self._cable)
            _ip("link", "set", self._cable, "up")
            _ip("-n", self._name, "addr", "add", f"{inside}/30", "dev", "eth0")
            _ip("-n", self._name, "link", "set", "eth0", "up")
            _ip("-n", self._name, "link", "set", "lo", "up")
        except NotSupported:
            self.close()
            raise

    def enter(self) -> list[str]:
        """Prefix for a command that is to run in the namespace."""
        return [str(shutil.which("ip")), "netns", "exec", self._name]

    def disconnect(self) -> None:
        """Take the link down; packets are dropped in both directions."""
        _ip("link", "set", self._cable, "down")

    def reconnect(self) -> None:
        """Bring the link up again."""
        _ip("link", "set", self._cable, "up")

    def close(self) -> None:
        """Remove the namespace and the link."""
        with contextlib.suppress(NotSupported):
            _ip("netns", "del", self._name)
        with contextlib.suppress(NotSupported):
            _ip("link", "del", self._cable)


class Disk:
    """A small file system in memory, mounted at ``folder``. Raises NotSupported."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        if os.geteuid() != 0:
            raise NotSupported("mounting a small disk needs root")
        self.folder = folder
        self._ballast = folder / "ballast"
        folder.mkdir(parents=True, exist_ok=True)
        _run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(folder)])

    def fill(self) -> None:
        """Write until the file system is full."""
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(_BLOCK))

    def free(self) -> None:
        """Release the space taken by `fill`."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it, which deletes its files."""
        with contextlib.suppress(NotSupported):
            _run(["umount", "--lazy", str(self.folder)])


class Clock:
    """A wall clock with an offset, for programs started with `environ`. library: made by `build`."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file = file
        self._library = library
        self._file.write_bytes(struct.pack("d", 0.0))

    @staticmethod
    def build(folder: Path) -> Path:
        """Compile the preloaded library. Raises NotSupported without a C compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise NotSupported("a fake clock needs a C compiler")
        library = folder / "clock.so"
        flags = ["-shared", "-fPIC", "-O2", "-o", str(library), str(_CLOCK_SOURCE), "-lm"]
        _run([compiler, *flags])
        return library

    def environ(self) -> dict[str, str]:
        """Environment variables of a program that is to use this clock."""
        return {"LD_PRELOAD": str(self._library), "STMS_CHAOS_CLOCK": str(self._file)}

    def step(self, seconds: float) -> None:
        """Set the offset from the machine's clock; a negative one puts it behind."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("d", seconds))


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    except FileNotFoundError as error:
        raise NotSupported(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise NotSupported(f"{' '.join(command[:4])} …: {error.stderr.strip()}") from error
