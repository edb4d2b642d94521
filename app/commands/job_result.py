"""What a training job has made: the figures of each class, and the command that asks about one."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from rich.markup import escape

from app.commands.output import Column, Table, field, say
from app.commands.remote import DEFAULT_SERVER, ServerProblem
from app.domain.shown_figures import percent, share
from stms_client import Client

_CLASSES: Final = 20
"""Classes that are listed; of more, those with the smallest F."""
_LONGEST_TEXT: Final = 120
"""Characters of an example's text that are printed."""
_LONGEST_EXAMPLE: Final = 1500
"""Characters of an example that is printed; a longer one is left to a file."""


def print_result(server: Client, job: Mapping[str, Any]) -> None:
    """Print a table by class of a job that succeeded, and the next command if it published a version."""
    rows = list(islice(server.students(job["id"], sort="f1"), _CLASSES + 1))
    if any(_is_measured(row) for row in rows):
        Table(_COLUMNS, [row for row in rows[:_CLASSES] if _is_measured(row)], empty="").print()
        if len(rows) > _CLASSES:
            say(f"These have the smallest F; `stms jobs students {job['id']}` lists all classes.")
    else:
        say("Nothing was measured: no rows were held out. --set evaluation.test_fraction=0.2 holds some out.")
    if job.get("version") is not None:
        say(f"Next:  {escape(_query_command(server, job))}")


def _is_measured(row: Mapping[str, Any]) -> bool:
    return "tp" in (row.get("metrics") or {})


def _part(name: str, of: Sequence[str], shown: Callable[[float | None], str]) -> Callable[..., str]:
    """A cell with the counts of a kind of rows as a part of those of several kinds."""

    def value(row: Mapping[str, Any]) -> str:
        counts = row["metrics"]
        total = sum(counts[kind] for kind in of)
        return shown(sum(counts[kind] for kind in name.split("+")) / total if total else None)

    return value


_ALL: Final = ("tp", "fp", "tn", "fn")
_COLUMNS: Final[Sequence[Column]] = (
    field("label", "class"),
    ("F", lambda row: share(row["metrics"]["f1"])),
    ("precision", _part("tp", ("tp", "fp"), share)),
    ("recall", _part("tp", ("tp", "fn"), share)),
    ("rows of it", _part("tp+fn", _ALL, percent)),
    ("says yes to", _part("tp+fp", _ALL, percent)),
)
"""Of students that were measured on a test part."""


def _query_command(server: Client, job: Mapping[str, Any]) -> str:
    """A command that asks the published version about a row that it was trained on."""
    label, question = _example(server, job) or ("CLASS", "--file FILE")
    words = ["stms", "query", job["model"], shlex.quote(label), question]
    if server.address != DEFAULT_SERVER and "STMS_URL" not in os.environ:
        words += ["--server", server.address]
    return " ".join(words)


def _example(server: Client, job: Mapping[str, Any]) -> tuple[str, str] | None:
    """The class of a row of the data set, and the option that asks about it.

    None without such a row: the data set may have been deleted, the key may not read it, the row may have no
    label or be too long for a terminal.
    """
    try:
        row = next(server.dataset_rows(job["dataset_id"], page=1))
        question = _question(row["x"], _record_columns(server, job))
    except ServerProblem:
        return None
    return None if row["label"] is None or len(question) > _LONGEST_EXAMPLE else (row["label"], question)


def _record_columns(server: Client, job: Mapping[str, Any]) -> list[str]:
    """The columns of the records that the version takes; none if its rows are numbers."""
    if server.version(job["model"], job["version"]).get("encoder_digest") is None:
        return []
    return [*server.record_schema(job["model"], job["version"])["properties"]]


def _is_picture(value: Any) -> bool:
    """Whether a cell of a row stands for a picture, of which rows show the digest and the size."""
    return isinstance(value, dict) and value.keys() == {"sha256", "bytes"}


def _question(x: Any, columns: Sequence[str]) -> str:
    """The option of `stms query` that asks about a row of a data set."""
    if columns:
        x = {name: value[:_LONGEST_TEXT] if isinstance(value, str) else value for name, value in x.items()}
        if len(columns) == 1 and isinstance(x[columns[0]], str):
            return f"--text {shlex.quote(x[columns[0]])}"
        if len(columns) == 1 and _is_picture(x[columns[0]]):
            return "--image FILE"
        record = {
            name: {"b64": "…"} if _is_picture(value) else value
            for name, value in x.items()
            if name in columns
        }
        return f"--record {shlex.quote(json.dumps(record, ensure_ascii=False))}"
    if isinstance(x, list):
        return f"--row {','.join(f'{value:g}' for value in x)}"
    return f"--row {shlex.quote(json.dumps(x))}"
