"""The tutorial and the page about texts are run step by step, against a server of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.system.deployment import Deployment

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
TEXTS = ROOT / "docs" / "texts.md"
ADDRESS = "http://127.0.0.1:8000"
SECONDS = 400


@dataclass(frozen=True)
class Step:
    """A block of a page. kind: sh or python. output: what is shown below it, with … for anything."""

    page: str
    line: int
    kind: str
    code: str
    output: str | None


def steps(page: Path) -> list[Step]:
    """All blocks that a reader is to run, in order, each with the output that follows it."""
    text = page.read_text(encoding="utf-8")
    blocks = [
        (text[: match.start()].count("\n") + 1, match[1], match[2])
        for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]
    assert {kind for _, kind, _ in blocks} == {"sh", "python", "text"}
    return [
        Step(page.name, line, kind, code, following if following_kind == "text" else None)
        for (line, kind, code), (_, following_kind, following) in zip(
            blocks, [*blocks[1:], (0, "", "")], strict=True
        )
        if kind != "text"
    ]


def agrees(output: str, expected: str) -> bool:
    """Whether a program has printed what the page shows; … stands for any text, also for several lines."""
    lines = [line.rstrip() for line in output.strip().splitlines()]
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, "\n".join(lines), re.DOTALL) is not None


def run(step: Step, folder: Path, server: Deployment) -> str:
    """What a step prints. The environment is that of a reader whose terminal is in ``folder``."""
    code = step.code.replace(ADDRESS, server.url)
    if step.kind == "sh":
        # The environment of the tests is active already.
        command = ["bash", "-euo", "pipefail", "-c", code.replace(". .venv/bin/activate\n", "")]
    else:
        command = [sys.executable, "-W", "error", "-c", code]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "STMS_URL": server.url,
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{step.page}:{step.line}\n{step.code}\n{done.stdout}\n{server.said()}"
    return done.stdout


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("a 1 b\n", "a … b", True),
        ("a\nx\ny\nb", "a\n…\nb", True),
        ("a 1 b c", "a … b", False),
        ("", "a", False),
    ],
)
def test_dots_stand_for_any_text(output: str, expected: str, same: bool):
    assert agrees(output, expected) is same


def test_the_tutorial_begins_with_the_start_of_the_service():
    first, second, *_ = steps(PAGE)
    assert first == Step(PAGE.name, first.line, "sh", "make serve\n", None)
    assert second.code.startswith(". .venv/bin/activate\n")
    assert "\nserve: $(VENV)/.runtime ##" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_step_of_the_tutorial_and_of_the_page_about_texts_does_what_it_says(tmp_path: Path):
    page = PAGE.read_text(encoding="utf-8")
    settings = {"STMS_DATA_DIR": str(tmp_path / "stms-data")}
    with Deployment(tmp_path, serve=True, is_new=False, settings=settings) as server:
        for step in [*steps(PAGE)[1:], *steps(TEXTS)]:
            output = run(step, tmp_path, server)
            if step.output is not None:
                assert agrees(output, step.output), f"{step.page}:{step.line} prints\n{output}"
        assert_pages_open(server, set(re.findall(rf"{ADDRESS}(/[\w/]*)\b(?!.*curl)", page)))


def assert_pages_open(server: Deployment, paths: set[str]) -> None:
    """The pages of the dashboard to which the tutorial leads open for a person who has signed in."""
    pages = {path for path in paths if path.startswith("/ui/")}
    assert len(pages) >= 2
    with httpx.Client(base_url=server.url, trust_env=False, follow_redirects=True) as browser:
        signed_in = browser.post(
            "/ui/sign-in", headers={"sec-fetch-site": "same-origin"}, data={"key": server.first_key}
        )
        assert signed_in.status_code == 200
        for path in ["/", *sorted(pages)]:
            answer = browser.get(path)
            assert answer.status_code == 200, path
            assert "Sign in" not in answer.text
