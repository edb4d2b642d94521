"""A progress bar in terminals and notebooks, without further packages."""

from __future__ import annotations

import html
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TextIO

from stms_client.transport import Progress

_PAUSE = 0.5
_WIDTH = 24


class ProgressBar:
    """One line that is written anew: in the cell of a notebook, or on a terminal.

    Where the stream is neither, each new text is printed once, without the bar. Nothing is written before the
    first call of a method that shows something. stream: standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._line_is_open = False
        self._display: Any = _notebook_display() if stream is None else None
        self._cell: Any = None
        self._shown = ""
        self._shown_at = -_PAUSE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line_is_open:
            self._stream.write("\n")
            self._stream.flush()

    def is_due(self) -> bool:
        """Whether the last text has been shown for half a second."""
        return time.monotonic() - self._shown_at >= _PAUSE

    def show_job(self, job: Mapping[str, Any]) -> None:
        """Show the stage of a job, and which percentage of its work is done."""
        stage = job["state"] if job["state"] != "running" else job["stage"]
        self.show(f"{job['model']}: {stage}", round(100 * job["progress"]["share"]), 100)

    def show(self, text: str, done: int, total: int) -> None:
        """Show a text and what is done of the total."""
        text = "".join(letter for letter in text if letter.isprintable())
        self._shown_at = time.monotonic()
        if self._display is not None:
            self._show_in_cell(_Cell(text, done, total))
        elif self._stream.isatty():
            line = f"{_bar(done, total)} {text}"[: shutil.get_terminal_size().columns - 1]
            self._stream.write(f"\r{line:<{len(self._shown)}}")
            self._shown, self._line_is_open = line, True
        elif text != self._shown:
            self._stream.write(f"{text}\n")
            self._shown = text
        self._stream.flush()

    def _show_in_cell(self, cell: _Cell) -> None:
        if self._cell is None:
            self._cell = self._display(cell, display_id=True)
        else:
            self._cell.update(cell)


@contextmanager
def upload_bar(progress: Progress | bool | None, file: Path | None) -> Iterator[Progress | None]:
    """What an upload calls with the bytes sent: the given function, or for True that of a bar."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress or file is None:
        yield None
    else:
        with ProgressBar() as bar:

            def update(sent: int, total: int) -> None:
                if bar.is_due() or sent == total:
                    text = f"uploading {file.name}" if sent < total else f"{file.name}: the server reads it"
                    bar.show(text, sent, total)

            yield update


class _Cell:
    """The line in a notebook."""

    def __init__(self, text: str, done: int, total: int) -> None:
        self._text, self._done, self._total = text, done, total

    def __repr__(self) -> str:
        return f"{_bar(self._done, self._total)} {self._text}"

    def _repr_html_(self) -> str:
        value = f' value="{self._done}" max="{self._total}"' if self._total else ""
        return f"<progress{value}></progress> {html.escape(self._text)} {self._done}/{self._total}"


def _bar(done: int, total: int) -> str:
    filled = round(_WIDTH * min(done / total, 1.0)) if total else 0
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{total}"


def _notebook_display() -> Any:
    """The function that shows something in a cell; None outside of notebooks."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if ipython is None or not hasattr(shell, "kernel"):
        return None
    return ipython.display.display
