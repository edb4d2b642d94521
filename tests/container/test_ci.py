"""What .ci/run makes of the container runs, with programs of our own in the place of all others."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from container.engines import ROOT

SUMMARY = "===== 5 passed in 1.23s ====="
TOLD = "THE CONTAINER WAS NOT TESTED"


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    for name in ("initdb", "podman"):
        script(tmp_path / "bin" / name, "exit 0")
    return tmp_path


def run(tree: Path, *, smoke: int = 0, test: int = 0) -> tuple[int, list[str], str]:
    """Exit code, lines, standard error. The arguments are the exit codes of the parts."""
    script(
        tree / "bin" / "make",
        f'for last; do :; done; echo "make $last"; '
        f'[ "$last" != test ] || {{ echo "{SUMMARY}"; echo floors; exit {test}; }}',
    )
    script(
        tree / ".venv" / "bin" / "python",
        f'echo "$2"; exit {smoke}',
    )
    environ = os.environ | {"PATH": f"{tree / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [tree / ".ci" / "run"], capture_output=True, text=True, env=environ, check=False, timeout=60
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_all_parts_run_and_the_last_line_is_that_of_the_tests(tree):
    code, lines, told = run(tree)
    parts = ["make lint", "container.smoke", "make test"]
    assert [line for line in lines if line in parts] == parts
    assert (code, lines[-1], TOLD in told) == (0, SUMMARY, False)


def test_a_machine_without_an_engine_is_told_loudly_and_passes(tree):
    code, lines, told = run(tree, smoke=3)
    assert (code, lines[-1], TOLD in told) == (0, SUMMARY, True)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({"smoke": 1}, 1),
        ({"test": 2}, 2),
        ({"smoke": 1, "test": 2}, 1),
        ({"smoke": 3, "test": 2}, 2),
    ],
)
def test_the_first_thing_that_fails_gives_the_exit_code_and_the_tests_run_all_the_same(tree, codes, expected):
    code, lines, _ = run(tree, **codes)
    assert (code, lines[-1]) == (expected, SUMMARY)
