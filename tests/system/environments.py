"""Cached Python environments for programs whose requirements conflict with ours."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MAKE_SECONDS = 600
_OFFLINE = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|Network is unreachable|Name or service not known|"
    r"Temporary failure in name resolution|ProxyError|MaxRetryError"
)


class Offline(Exception):
    """The packages are not installed, and no package index can be reached."""


class NotInstallable(Exception):
    """The packages cannot be installed; the message is pip's output."""


def cache_folder() -> Path:
    """Folder of the cached environments, outside the repository."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "stms-environments"


def environment(requirements: Path) -> Path:
    """Folder of an environment with the pinned packages of a requirements file; created if necessary.

    The name contains a hash of the file and the interpreter, so that a change creates a new environment.
    Raises Offline and NotInstallable.
    """
    identity = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    folder = cache_folder() / f"{requirements.stem}-{identity[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        # Concurrent processes wait for the one that creates it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _make(folder, requirements)
    return folder


def _make(folder: Path, requirements: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    # All versions are pinned, so pip resolves nothing; modules are compiled when they are imported.
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    options = ["--disable-pip-version-check", "--no-deps", "--no-compile", "--retries", "1"]
    command += [*options, "--requirement", str(requirements)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=MAKE_SECONDS)
    if done.returncode != 0:
        shutil.rmtree(folder)
        if _OFFLINE.search(done.stderr):
            raise Offline(f"The packages of {requirements.name} are neither here nor within reach.")
        raise NotInstallable(f"The packages of {requirements.name} cannot be installed:\n{done.stderr}")
    (folder / "complete").touch()
