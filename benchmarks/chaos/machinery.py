"""What faults need of the machine: a network of its own, a small disk, a clock. Each says if it cannot be."""

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


class NotPossible(Exception):
    """This machine cannot do it; the message says why."""


class Network:
    """A network namespace joined to this machine by a cable that can be pulled. Raises NotPossible.

    host: our end's address, to which the inside connects.
    """

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise NotPossible("a network of its own needs root")
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
        except NotPossible:
            self.close()
            raise

    def enter(self) -> list[str]:
        """What to put before a command so that it runs inside."""
        return [str(shutil.which("ip")), "netns", "exec", self._name]

    def pull(self) -> None:
        """Nothing gets through, either way."""
        _ip("link", "set", self._cable, "down")

    def plug(self) -> None:
        """Everything gets through again."""
        _ip("link", "set", self._cable, "up")

    def close(self) -> None:
        """Remove it; its cable goes with it."""
        with contextlib.suppress(NotPossible):
            _ip("netns", "del", self._name)
        with contextlib.suppress(NotPossible):
            _ip("link", "del", self._cable)


class Disk:
    """A small file system in memory, mounted at ``folder``. Raises NotPossible."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        if os.geteuid() != 0:
            raise NotPossible("a small disk needs root, to mount it")
        self.folder = folder
        self._ballast = folder / "ballast"
        folder.mkdir(parents=True, exist_ok=True)
        _run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(folder)])

    def fill(self) -> None:
        """Take all that is free, to the last byte, again and again until nothing is left."""
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(_BLOCK))

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it; what it held is gone."""
        with contextlib.suppress(NotPossible):
            _run(["umount", "--lazy", str(self.folder)])


class Clock:
    """A wall clock for programs that are started with `environ`. Raises NotPossible without a C compiler."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file = file
        self._library = library
        self._file.write_bytes(struct.pack("d", 0.0))

    @staticmethod
    def build(folder: Path) -> Path:
        """Compile the library that steps clocks."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise NotPossible("stepping a clock needs a C compiler")
        library = folder / "clock.so"
        flags = ["-shared", "-fPIC", "-O2", "-o", str(library), str(_CLOCK_SOURCE), "-lm"]
        _run([compiler, *flags])
        return library

    def environ(self) -> dict[str, str]:
        """For the environment of a program."""
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
        raise NotPossible(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise NotPossible(f"{' '.join(command[:4])} …: {error.stderr.strip()}") from error
