"""Installs programs that only the tests need, in a virtual environment of their own."""

from __future__ import annotations

import shutil
import subprocess
import venv
from pathlib import Path
from typing import Final

from deploy.container.engines import ROOT, EngineFailed

FOLDER: Final = ROOT / "build" / "container-tools"
REQUIREMENTS: Final = ROOT / "requirements" / "container.txt"


def tool(name: str, folder: Path = FOLDER) -> Path:
    """Path of a program; the first call installs all of them. Raises EngineFailed."""
    installed = folder / REQUIREMENTS.name
    if not installed.is_file() or installed.read_bytes() != REQUIREMENTS.read_bytes():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        done = subprocess.run(
            [*pip, "--require-hashes", "-r", REQUIREMENTS], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise EngineFailed(f"The tools cannot be installed:\n{done.stderr[-2000:]}")
        shutil.copyfile(REQUIREMENTS, installed)
    return folder / "bin" / name


def lint(dockerfile: Path = ROOT / "Dockerfile") -> str:
    """hadolint's findings for a Dockerfile; empty if there are none. Raises EngineFailed."""
    done = subprocess.run(
        [tool("hadolint"), "--no-color", dockerfile], capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr).strip()
