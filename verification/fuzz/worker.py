"""Fuzzes one target in this process: ``python -m verification.fuzz.worker TARGET FOLDER SECONDS``.

Atheris (libFuzzer) mutates the inputs, guided by the branches of ``app`` and ``core`` that they reach. Each
execution is checked for errors that are not documented, for processor time and for growth of the memory.
The file ``result.json`` of the folder has the counts and findings, and is written every second.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import atheris

_MAX_CPU_SECONDS: Final = 1.0
_MAX_GROWTH: Final = 96 * 1024**2
_MEMORY: Final = 3 * 1024**3
_MAX_FINDINGS: Final = 50
_WATCHED: Final = ("zipfile", "csv", "python_multipart", "app", "core")
_WATCHED_OF: Final = {"cost": ("zipfile",)}
"""Packages whose branches guide the fuzzer, and those of single targets.

The input of ``cost`` is a seed, which no branch can guide, and Atheris keeps the results of comparisons of
arrays: gigabytes.
"""


class Run:
    """Executions of one target and what they found. findings: the first input of each kind."""

    def __init__(
        self, target: Any, allowed: tuple[type[Exception], ...], folder: Path, seconds: float
    ) -> None:
        self._target = target
        self._allowed = allowed
        self._folder = folder
        self._end = time.monotonic() + seconds
        self._written = time.monotonic()
        self._peak = _peak_bytes()
        self.executions = 0
        self.findings: dict[str, dict[str, str]] = {}

    def __call__(self, data: bytes) -> None:
        """One execution."""
        if not data:
            return
        self.executions += 1
        seconds = self._execute(data)
        if seconds > _MAX_CPU_SECONDS:
            # Once more, for a collection of garbage may have fallen into it.
            seconds = min(seconds, self._execute(data))
        if seconds > _MAX_CPU_SECONDS:
            self._add("slow", f"{seconds:.1f} s of processor time", data)
        peak = _peak_bytes()
        if peak - self._peak > _MAX_GROWTH and self.executions > 1:
            self._add("memory", f"{(peak - self._peak) // 1024**2} MiB", data)
        self._peak = peak
        self._report()

    def _execute(self, data: bytes) -> float:
        """Run the target, and note an error that it does not document; returns seconds of processor time."""
        started = time.process_time()
        try:
            with suppress(*self._allowed):
                self._target.run(data, self._folder)
        except Exception as error:  # noqa: BLE001 - that is what is searched for
            frames = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in frames if "/app/" in frame.filename or "/core/" in frame.filename]
            place = (ours or frames)[-1]
            self._add(
                f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}", str(error), data
            )
        return time.process_time() - started

    def _add(self, kind: str, text: str, data: bytes) -> None:
        if kind not in self.findings and len(self.findings) < _MAX_FINDINGS:
            self.findings[kind] = {"text": text[:500], "input": base64.b64encode(data).decode()}
            self._written = 0.0

    def _report(self) -> None:
        now = time.monotonic()
        if now < self._end and now - self._written < 1.0:
            return
        self._written = now
        partial = self._folder / "result.partial"
        done = now >= self._end
        result = {"executions": self.executions, "findings": self.findings, "done": done}
        partial.write_text(json.dumps(result), encoding="utf-8")
        partial.rename(self._folder / "result.json")
        if done:
            # libFuzzer does not return.
            os._exit(0)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Fuzz until the time is over; ends the process."""
    name, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    with atheris.instrument_imports(include=_WATCHED_OF.get(name, _WATCHED)):
        from verification.fuzz.targets import ALLOWED, MAX_BYTES, TARGETS
    target = TARGETS[name]
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(target.seeds()):
        # A seed must be valid, or the fuzzer would begin with nothing.
        (corpus / f"seed{number}").write_bytes(seed)
        target.run(seed, folder)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    run = Run(target, ALLOWED, folder, seconds)
    options = [f"-max_len={MAX_BYTES}", "-timeout=60", "-rss_limit_mb=0", "-seed=14", "-verbosity=0"]
    atheris.Setup([sys.argv[0], str(corpus), f"-artifact_prefix={folder}/", *options], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
