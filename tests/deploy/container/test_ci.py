"""What `.ci/run` calls, with small programs in the place of make and of the packages that it looks for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.container.engines import ROOT

SUMMARY = "===== 5 passed in 1.23s ====="


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    clients = ("java", "javac", "node", "npm", "curl", "wget")
    for name in ("initdb", "podman", "wrk", "prometheus", "chromium", *clients):
        script(tmp_path / "bin" / name, "exit 0")
    return tmp_path


def run(tree: Path, *arguments: str, lint: int = 0, test: int = 0) -> tuple[int, list[str]]:
    """Exit code and lines of standard output. lint, test: exit codes of the two make targets."""
    script(
        tree / "bin" / "make",
        f"""for last; do :; done; echo "make $last"
        case "$last" in lint) exit {lint};; *) echo "{SUMMARY}"; echo floors; exit {test};; esac""",
    )
    environ = os.environ | {"PATH": f"{tree / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [tree / ".ci" / "run", *arguments],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(("arguments", "target"), [((), "make test"), (("all",), "make test-all")])
def test_lint_and_tests_run_and_the_last_line_is_the_summary_of_the_tests(tree, arguments, target):
    code, lines = run(tree, *arguments)
    assert [line for line in lines if line.startswith("make")] == ["make lint", target]
    assert (code, lines[-1]) == (0, SUMMARY)


def test_a_failing_test_gives_the_exit_code(tree):
    assert run(tree, test=2)[0] == 2


def test_a_failing_lint_ends_the_run_before_the_tests(tree):
    code, lines = run(tree, lint=3)
    assert code == 3
    assert "make test" not in lines
