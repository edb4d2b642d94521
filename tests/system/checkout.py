"""Older versions of the program in folders, and answers of their servers."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import httpx

Json = dict[str, Any]
ROOT: Final = Path(__file__).resolve().parents[2]
_UNUSED_SECONDS: Final = 24 * 3600.0


def checkout(version: str) -> Path:
    """The folder of a version: given as such, or a commit unpacked with the commit's time on every file.

    numba finds its compiled kernels by path and time of the source file, so both stay the same in every run.
    """
    if "/" in version or version == ".":
        return Path(version).resolve(strict=True)
    git = ["git", "-C", str(ROOT)]
    name = ["rev-parse", "--verify", "--end-of-options", f"{version}^{{commit}}"]
    commit = subprocess.run([*git, *name], check=True, capture_output=True, text=True).stdout.strip()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stms-digests"
    folder = cache / commit
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        for old in cache.iterdir():
            if old.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
        archive = subprocess.run([*git, "archive", commit], check=True, capture_output=True).stdout
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(Path(temporary) / commit, filter="data")
            generate = Path(temporary) / commit / "stms_client" / "build_steps" / "generate.py"
            if generate.exists():  # older commits contain the modules that it makes
                subprocess.run([sys.executable, str(generate)], check=True)
            try:
                (Path(temporary) / commit).rename(folder)
            except OSError:
                if not folder.exists():  # otherwise another run has unpacked the same commit meanwhile
                    raise
    os.utime(folder)
    return folder


def checked(response: httpx.Response) -> Json:
    """The body of a successful answer. Raises RuntimeError with the body of another."""
    if response.is_error:
        raise RuntimeError(f"{response.request.url} answered {response.status_code}: {response.text}")
    body: Json = response.json()
    return body
