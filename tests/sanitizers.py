"""Runs the project's C code under the address and undefined-behaviour sanitizers."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.compiled import CAN_COMPILE

LOADED = """
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader(sys.argv[2], sys.argv[1])
module = importlib.util.module_from_spec(importlib.util.spec_from_loader(sys.argv[2], loader))
"""


def run_sanitized(source: Path, program: str, folder: Path) -> None:
    """Compile a module of C, and run a program that finds it as ``module``; the sanitizers find nothing."""
    if not CAN_COMPILE:
        pytest.skip("There is no C compiler, or there are no headers of Python.")
    compiler, headers = "cc", sysconfig.get_path("include")
    library = folder / f"{source.stem}.so"
    flags = ["-shared", "-fPIC", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([compiler, *flags, *sanitizers, f"-I{headers}", source, "-o", library], check=True)
    asan = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    )
    environment = {
        "LD_PRELOAD": asan.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        # Otherwise small objects share blocks of memory, whose borders are not watched.
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, "-I", "-c", f'{LOADED}{program}\nprint("finished")', library, source.stem]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert (done.stdout, done.returncode) == ("finished\n", 0), done.stderr[-3000:]
