"""Results as small JSON files, one a data set, grid, split, class and method: a stopped run can go on."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]
_FORMAT = "stms.reproduction.1"


def recipe_of(parts: object) -> str:
    """SHA-256 of JSON-ready ``parts``: what a result depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_whole(path: Path, form: str) -> Record | None:
    """The object in a JSON file, None without one. Raises ValueError if its ``format`` is not ``form``."""
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(record, dict) or record.get("format") != form:
        raise ValueError(f"{path} is not a result of this program")
    return record


def write_whole(path: Path, text: str) -> None:
    """Put a file there, in the place of what was, whole or not at all; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=".", suffix=".part", delete=False, encoding="utf-8"
    ) as part:
        part.write(text)
    os.replace(part.name, path)  # noqa: PTH105  the name is text


@dataclass(frozen=True, slots=True)
class Run:
    """Where the results of one data set, grid and split belong."""

    data_set: str
    grid: str
    split: int

    @property
    def folder(self) -> Path:
        return Path(self.data_set) / self.grid / f"split-{self.split:02d}"


@dataclass(frozen=True, slots=True)
class ResultStore:
    """A folder of records. A record written with another recipe does not count: it is read as absent."""

    root: Path

    def read(self, run: Run, name: str, recipe: str | None = None) -> Record | None:
        """The record ``name`` of a run, None without one. recipe: what it must have been made by, if given.

        Raises ValueError for a file that is not a record: it was not written here, and is not overwritten.
        """
        record = read_whole(self._path(run, name), _FORMAT)
        if record is None or recipe is None or record.get("recipe") == recipe:
            return record
        return None

    def write(self, run: Run, name: str, recipe: str, record: Record) -> None:
        """Put a record there whole or not at all. Raises ValueError for what JSON cannot hold, as NaN."""
        path = self._path(run, name)
        write_whole(path, json.dumps({"format": _FORMAT, "recipe": recipe, **record}, allow_nan=False))

    def runs(self) -> Iterator[Run]:
        """All runs that have a folder here, in order."""
        for folder in sorted(self.root.glob("*/*/split-[0-9]*")):
            data_set, grid, split = folder.relative_to(self.root).parts
            yield Run(data_set, grid, int(split.removeprefix("split-")))

    def _path(self, run: Run, name: str) -> Path:
        return self.root / run.folder / f"{name}.json"


def student_name(code: int, method: str) -> str:
    """Name of the record of class ``code`` and a method."""
    return f"class-{code:03d}-{method}"


def tuning_name(method: str) -> str:
    """Name of the record of the point that the students of a method share."""
    return f"tuning-{method}"
