"""Results in an append-only JSONL file, one record a line, so that a stopped run continues where it was.

Two files have this form. The records of all splits, classes and methods are in ``records.jsonl`` of the work
folder, which may become large. What the report shows of them is in ``results.jsonl`` beside the report, one
line for each data set and part, and is committed with it.
"""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Record: TypeAlias = dict[str, Any]

PROTOCOL_VERSION = 1
"""Part of every recipe. To be raised when a change of code changes what the protocol chooses or measures."""

_DIGITS = 7
_COMMAND = "command/"
_HEAD = ("key", "recipe", "code")


class Run(NamedTuple):
    """One data set, grid and split; its records have keys that begin with all three."""

    data_set: str
    grid: str
    split: int

    def key(self, name: str) -> str:
        return f"{self.data_set}/{self.grid}/{self.split}/{name}"


class NeedsProtocol(Exception):
    """The records of the protocol that a part starts from do not exist; the message names them."""


def recipe_of(*parts: object) -> str:
    """SHA-256 of JSON-ready ``parts`` and of ``PROTOCOL_VERSION``: everything that a record depends on."""
    return hashlib.sha256(json.dumps([PROTOCOL_VERSION, *parts], sort_keys=True).encode()).hexdigest()


@cache
def code_version() -> str:
    """The first 12 digits of the SHA-256 of all sources of ``core`` and ``lab/experiments``."""
    root, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    for path in sorted([*(root / "core").rglob("*.py"), *(root / "lab" / "experiments").rglob("*.py")]):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


class Store:
    """One JSONL file, read when it is opened. Of several lines with the same key the last one counts.

    Raises ValueError for a file that this class has not written. An incomplete last line, left by a process
    that was killed while it wrote, is overwritten.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[str, Record] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole, _, rest = text.rpartition("\n")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                record = json.loads(line)
                self._records[record["key"]] = record
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}, line {number}, is not a record of this program") from error
        if rest:
            path.write_text(text.removesuffix(rest), encoding="utf-8")

    def read(self, key: str, recipe: str | None = None) -> Record | None:
        """The record with a key, or None. recipe: if given, the record must have been made by it."""
        record = self._records.get(key)
        return record if record is None or recipe in (None, record["recipe"]) else None

    def write(self, key: str, recipe: str, record: Mapping[str, Any]) -> None:
        """Append a record with the present version of the code, unless the same record is stored already.

        Raises ValueError for numbers that JSON does not have.
        """
        head = dict(zip(_HEAD, (key, recipe, code_version()), strict=True))
        line = json.dumps(head | dict(record), ensure_ascii=False, allow_nan=False)
        stored = self._records.get(key)
        new: Record = json.loads(line)
        if stored is not None and stored | {"code": ""} == new | {"code": ""}:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
        self._records[key] = new

    def remember(self, command: str) -> None:
        """Store a command line that made records, once."""
        self.write(_COMMAND + command, "", {})

    def commands(self) -> list[str]:
        """All command lines in the order of their first use."""
        return [key.removeprefix(_COMMAND) for key in self._records if key.startswith(_COMMAND)]


class Work(ABC):
    """The records of one run of one part. recipe: what they depend on."""

    def __init__(self, run: Run, store: Store, recipe: str) -> None:
        self.run, self.store, self.recipe = run, store, recipe

    @abstractmethod
    def names(self) -> list[str]:
        """Names of all records of this run, in the order in which they are made."""

    @abstractmethod
    def make(self, name: str) -> Record:
        """One record, JSON-ready. Raises NeedsProtocol, InvalidProblem."""

    def steps(self) -> Iterator[tuple[str, bool]]:
        """Make the missing records, each with the wall time that it took in seconds.

        Yields the name of every record and whether it was made now.
        """
        for name in self.names():
            key = self.run.key(name)
            new = self.store.read(key, self.recipe) is None
            if new:
                started = time.perf_counter()
                record = self.make(name)
                seconds = round(time.perf_counter() - started, 3)
                self.store.write(key, self.recipe, {**record, "seconds": seconds})
            yield name, new


def make_missing(works: Iterable[Work]) -> float:
    """Make every record that is missing, and print each; returns the wall seconds of all, earlier ones too.

    Raises DataMissing, InvalidProblem.
    """
    seconds = 0.0
    for work in works:
        for name, new in work.steps():
            record: Record = work.store.read(work.run.key(name), work.recipe) or {}
            seconds += float(record["seconds"])
            state = "made" if new else "stored"
            print(f"{work.run.key(name)}: {state}, {record['seconds']:.1f} s", flush=True)
    return seconds


def body(record: Record) -> Record:
    """A stored record without its key, recipe and version of the code."""
    return {name: value for name, value in record.items() if name not in _HEAD}


def short(value: Any) -> Any:
    """The value JSON-ready with numbers of seven digits; NaN becomes None."""
    if isinstance(value, float):
        return None if np.isnan(value) else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: short(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [short(one) for one in value]
    return value
