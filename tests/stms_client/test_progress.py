"""The progress bar in a terminal, in a notebook, and where there is neither."""

from __future__ import annotations

import io
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from stms_client import progress
from stms_client.progress import ProgressBar, upload_bar

RUNNING = {
    "model": "letters",
    "state": "running",
    "stage": "students",
    "progress": {"done": 6, "total": 24, "share": 0.251},
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_that_is_written_anew():
    terminal = Terminal()
    with ProgressBar(terminal) as bar:
        bar.show_job(RUNNING)
        assert not bar.is_due()
        bar.show("short", 24, 24)
    first, second = terminal.getvalue().split("\r")[1:]
    assert first == "[######..................] 25/100 letters: students"
    assert second.rstrip(" \n") == f"[{'#' * 24}] 24/24 short"
    assert len(second.rstrip("\n")) >= len(first)
    assert second.endswith("\n")


def test_a_file_gets_a_line_for_each_new_text():
    file = io.StringIO()
    with ProgressBar(file) as bar:
        for job in (RUNNING | {"state": "queued"}, RUNNING, RUNNING, RUNNING | {"state": "succeeded"}):
            bar.show_job(job)
    assert file.getvalue().splitlines() == ["letters: queued", "letters: students", "letters: succeeded"]


def test_a_bar_that_shows_nothing_writes_nothing():
    terminal = Terminal()
    with ProgressBar(terminal) as bar:
        assert bar.is_due()
    assert terminal.getvalue() == ""


def test_control_characters_do_not_reach_the_terminal():
    terminal = Terminal()
    with ProgressBar(terminal) as bar:
        bar.show("a\x1b[2Jb\rc", 0, 0)
    assert "\x1b" not in terminal.getvalue()


class Notebook:
    """IPython as far as the bar knows it."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def display(self, cell: Any, display_id: bool) -> Notebook:
        assert display_id
        self.shown.append(cell)
        return self

    def update(self, cell: Any) -> None:
        self.shown.append(cell)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    found = Notebook()
    module: Any = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    module.display = types.SimpleNamespace(display=found.display)
    monkeypatch.setitem(sys.modules, "IPython", module)
    return found


def test_a_notebook_gets_one_element_that_is_updated(notebook, capsys):
    with ProgressBar() as bar:
        bar.show("<b>", 0, 0)
        bar.show("<b>", 1, 2)
    first, second = notebook.shown
    assert first._repr_html_() == "<progress></progress> &lt;b&gt; 0/0"
    assert second._repr_html_() == '<progress value="1" max="2"></progress> &lt;b&gt; 1/2'
    assert repr(second) == "[############............] 1/2 <b>"
    assert capsys.readouterr() == ("", "")


def test_ipython_in_a_terminal_is_no_notebook(notebook, monkeypatch):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: types.SimpleNamespace())
    assert progress._notebook_display() is None


def test_an_upload_calls_the_given_function_a_bar_or_nothing(capsys):
    file = Path("rows.csv")
    for given in (None, print):
        with upload_bar(given, file) as update:
            assert update is given
    with upload_bar(False, file) as update:
        assert update is None
    with upload_bar(True, file) as update:
        assert update is not None
        update(1, 2)
        update(2, 2)
    assert capsys.readouterr().err.splitlines() == ["uploading rows.csv", "rows.csv: the server reads it"]
