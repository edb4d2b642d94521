"""Records the files of app/ whose functions run while real requests and jobs pass through real processes.

`tracing` starts the recording in every Python process of an environment, by a `sitecustomize` of its own. A
process records only calls below one of the functions of `ENTRIES`: the start of a process and threads that
poll in the background belong to no request. It records while the file ``on`` exists, and appends each
function that it sees for the first time to a file of its own, so that a killed process loses no records.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[1]
FOLDER = "PYTHON_TRACE_FILES_FOLDER"
"""The process that reads files gets no variables but those of Python."""
ENTRIES = {
    ("app/server/exchange.py", "run"),
    ("app/server/connection.py", "data_received"),
    ("anyio/_backends/_asyncio.py", "run"),
    ("dbos/_core.py", "_execute_workflow_wthread"),
    ("concurrent/futures/thread.py", "run"),
    ("app/processes/file_reader_main.py", "_work"),
    ("app/jobs/solver/process.py", "_read_answers"),
    ("app/jobs/solver/main.py", "serve"),
}
"""(end of a file's path, function): requests, endpoints, workflows, and both ends of a solver's pipe."""

BACKGROUND = ("stms-revision", "stms-audit", "stms-load")
"""Prefixes of the names of threads whose work belongs to no request."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A folder of recordings. environment: variables for the processes to trace."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {FOLDER: str(self.folder), "PYTHONPATH": os.pathsep.join(paths)}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs inside this block."""
        switch = self.folder / "on"
        switch.touch()
        try:
            yield
        finally:
            switch.unlink()

    def functions(self) -> dict[str, set[str]]:
        """Names of the recorded functions by file, relative to the root. Constructors are left out."""
        files: dict[str, set[str]] = {}
        for record in self.folder.glob("*.calls"):
            for line in record.read_text(encoding="utf-8").splitlines():
                file, _, function = line.partition(" ")
                if not function.endswith("__init__"):
                    files.setdefault(file, set()).add(function)
        return files


def tracing(folder: Path) -> Trace:
    """Prepare a new folder for the recordings of processes that get the trace's environment."""
    folder.mkdir()
    code = f"import runpy\nrunpy.run_path({str(Path(__file__))!r})['record_calls']()\n"
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    return Trace(folder)


def record_calls() -> None:
    """Record the calls of this process, in every thread that starts from now on."""
    folder = Path(os.environ[FOLDER])
    app = str(ROOT / "app") + os.sep
    names = {name for _, name in ENTRIES}
    known: dict[CodeType, tuple[str | None, bool]] = {}
    seen: set[CodeType] = set()
    local = threading.local()

    def classify(code: CodeType) -> tuple[str | None, bool]:
        path, name = code.co_filename, code.co_name
        file = str(Path(path).relative_to(ROOT)) if path.startswith(app) and name != "<module>" else None
        is_entry = name in names and any(path.endswith(end) and name == entry for end, entry in ENTRIES)
        return known.setdefault(code, (file, is_entry))

    def on_event(frame: FrameType, event: str, _argument: object) -> None:
        if event not in {"call", "return"}:
            return
        code = frame.f_code
        file, is_entry = known.get(code) or classify(code)
        if is_entry:
            local.depth = getattr(local, "depth", 0) + (1 if event == "call" else -1)
        if file is None or event == "return" or code in seen or getattr(local, "depth", 0) <= 0:
            return
        if (folder / "on").exists() and not threading.current_thread().name.startswith(BACKGROUND):
            seen.add(code)
            with (folder / f"{os.getpid()}.calls").open("a", encoding="utf-8") as record:
                record.write(f"{file} {code.co_qualname}\n")

    threading.setprofile(on_event)
    sys.setprofile(on_event)
