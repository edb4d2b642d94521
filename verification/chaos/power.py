"""Power cuts of the embedded service: what its processes wrote and did not sync is lost, or part of it."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

from verification.chaos.isolation import NotSupported
from verification.chaos.power_states import FILES, Loss, read_log, state_after

SOURCE = Path(__file__).with_name("power.c")
"""The library that records writes."""


class PowerRecorder:
    """Records the writes to the databases of a data folder. Raises NotSupported without a C compiler.

    Programs must be started with `environ`, after `begin`.
    """

    def __init__(self, folder: Path, data: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise NotSupported("recording writes needs a C compiler")
        self._library = folder / "power.so"
        self._log = folder / "power.log"
        self._data = data
        self._before: dict[str, bytes] = {}
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(self._library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)

    def begin(self) -> None:
        """Take the present content of the files as what is on disk."""
        self._before = {name: path.read_bytes() for name in FILES if (path := self._data / name).exists()}
        self._log.write_bytes(b"")

    def environ(self) -> dict[str, str]:
        """Environment variables of a program whose writes are recorded."""
        return {"LD_PRELOAD": str(self._library), "STMS_POWER_LOG": str(self._log)}

    def cut(self, rng: random.Random) -> Loss:
        """Replace the files by what a power cut leaves of them. All processes have been killed."""
        loss = rng.choice(list(Loss))
        state = state_after(self._before, read_log(self._log), loss, rng)
        for name in FILES:
            for path in (self._data / name, self._data / f"{name}-shm"):
                path.unlink(missing_ok=True)
        for name, content in state.items():
            (self._data / name).write_bytes(content)
        self.begin()
        return loss
