"""The servers that are compared: of two trees of this repository, or one process that keeps heads or not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.deployment import ROOT, environment
from benchmarks.processes import Process, free_port

_SETTINGS: Final = {
    # The addresses of all cases are the same, and their number is no property of a head.
    "STMS_AUTH_FAILURE_RATE": "0",
    "STMS_LOG_LEVEL": "ERROR",
    "STMS_CORS_ORIGINS": "https://elsewhere.example",
}


@contextmanager
def worktree(folder: Path, commit: str) -> Iterator[Path]:
    """The tree of a commit while the block lasts."""
    place = folder / "tree"
    command = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*command, "add", "--detach", str(place), commit], check=True, capture_output=True)
    try:
        yield place
    finally:
        subprocess.run([*command, "remove", "--force", str(place)], check=True)


def create_database(folder: Path, tree: Path) -> dict[str, str]:
    """Create the database with the program of a tree; returns the API keys by name."""
    folder.mkdir()
    command = [sys.executable, "-P", str(Path(__file__).with_name("database.py")), str(folder)]
    done = subprocess.run(command, env=environment(tree=tree), check=True, capture_output=True, text=True)
    keys: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return keys


@contextmanager
def both(folder: Path, old: Path, new: Path) -> Iterator[tuple[tuple[int, int], dict[str, str]]]:
    """`stms api` of two trees, each on its copy of one database; gives their ports and the API keys."""
    keys = create_database(folder / "original", old)
    with ExitStack() as stack:
        ports = []
        for name, tree in (("old", old), ("new", new)):
            shutil.copytree(folder / "original", folder / name)
            if tree != old:
                _upgrade(folder / name, tree)
            command = ["-m", "app.cli", "api", "--port"]
            ports.append(stack.enter_context(_served(folder / name, tree, command, "/readyz")))
        yield (ports[0], ports[1]), keys


@contextmanager
def knowing_and_not(folder: Path) -> Iterator[tuple[tuple[int, int], dict[str, str]]]:
    """Two query processes without a control process, of which only the first keeps heads."""
    keys = create_database(folder / "original", ROOT)
    with ExitStack() as stack:
        ports = []
        for name in ("keep", "forget"):
            shutil.copytree(folder / "original", folder / name)
            command = ["-m", "verification.differential.query_server", name]
            ports.append(stack.enter_context(_served(folder / name, ROOT, command, "/readyz/queries")))
        yield (ports[0], ports[1]), keys


def _upgrade(data: Path, tree: Path) -> None:
    """Bring the copy of the older database to the schema of a tree."""
    command = [sys.executable, "-P", "-m", "app.cli", "db", "upgrade"]
    environ = environment(_SETTINGS | {"STMS_DATA_DIR": str(data)}, tree)
    subprocess.run(command, env=environ, check=True, capture_output=True)


@contextmanager
def _served(data: Path, tree: Path, command: list[str], probe: str) -> Iterator[int]:
    port = free_port()
    environ = environment(_SETTINGS | {"STMS_DATA_DIR": str(data)}, tree)
    program = [sys.executable, "-P", *command, str(port)]
    with Process("server", program, data, environ, url=f"http://127.0.0.1:{port}{probe}"):
        yield port
