"""Takes out of a virtual environment what the running service never opens. Used while the image is built.

    python3 container/trim.py /opt/venv

What goes: the tests of other people's packages, sources and headers of extension modules, parts of Arrow that
speak to servers elsewhere, and symbol tables. Whatever stays must still find all that it is linked with, or
this ends with exit code 1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

UNUSED = (
    # Arrow: remote procedure calls and object stores, and what extensions of it would be compiled with.
    "pyarrow/*flight*",
    "pyarrow/*s3*",
    "pyarrow/*gcsfs*",
    "pyarrow/*azurefs*",
    "pyarrow/_pyarrow_cpp_tests*",
    "pyarrow/include",
    "pyarrow/includes",
    "pyarrow/src",
    # The wheel holds these three times; whoever needs one names the second, libarrow_….so.2600.
    "pyarrow/libarrow_python*.so",
    "pyarrow/libarrow_python*.so.*.*.*",
    # For those who build or test, or for sciences other than ours.
    "numpy/_core/include",
    "numpy/_core/lib",
    "numpy/_core/_simd.*",
    "scipy/io/_fast_matrix_market/_fmm_core.*",
    "scipy/cluster",
    "scipy/odr",
    "scipy/signal",
    "sklearn/datasets/images",
    "sqlalchemy/testing",
    # Colours for several hundred languages; rich asks for one when it shows a traceback, which we never do.
    "pygments/lexers/[!_]*",
    "pygments/lexers/_*_builtins.py",
)
TESTED = ("numpy", "scipy", "sklearn", "numba", "llvmlite", "pyarrow", "joblib", "greenlet", "croniter")
"""Packages that carry their own tests."""
SOURCES = {
    ".pyx",
    ".pxd",
    ".pxi",
    ".pyi",
    ".tp",
    ".c",
    ".cc",
    ".cpp",
    ".h",
    ".hpp",
    ".cuh",
    ".f",
    ".f90",
    ".a",
}
ABSENT = {"libtbb.so.12"}
"""Libraries that are optional and were never there."""

_AT_ONCE = 32


def trim(packages: Path) -> None:
    """Make a folder of installed packages smaller. Raises SystemExit when something that stays is broken."""
    for path in set(unused(packages)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # gone with a folder it was in
    for path in packages.rglob("*"):
        if path.suffix in SOURCES and path.is_file():
            path.unlink()
    # Libraries in a folder ….libs were edited after the link, when their wheel was made: strip would damage
    # them. They are looked at through the modules that need them.
    libraries = sorted(path for path in packages.rglob("*.so*") if path.parent.suffix != ".libs")
    subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)
    if faults := unloadable(libraries):
        sys.exit("\n".join(faults))


def unused(packages: Path) -> Iterator[Path]:
    """Files and folders that go whole."""
    for pattern in UNUSED:
        found = list(packages.glob(pattern))
        # A pattern without a match speaks of a package that has changed: somebody should look.
        if not found:
            sys.exit(f"Nothing matches {pattern} any more.")
        yield from found
    for package in TESTED:
        folders = [path for path in (packages / package).rglob("tests") if path.is_dir()]
        yield from (path for path in folders if "tests" not in path.relative_to(packages).parts[:-1])


def unloadable(libraries: Sequence[Path]) -> list[str]:
    """What the loader says against shared objects: a library that is not there, or a damaged file."""
    groups = [libraries[start : start + _AT_ONCE] for start in range(0, len(libraries), _AT_ONCE)]
    with ThreadPoolExecutor() as pool:
        outputs = pool.map(_loader_says, groups)
        return [fault for output in outputs for fault in faults_of(output)]


def faults_of(output: str) -> list[str]:
    """The complaints in what ldd prints for several files."""
    file, faults = "", []
    for line in output.splitlines():
        if not line.startswith(("\t", " ")):
            file = line.rstrip(":")
            if not line.endswith(":"):
                faults.append(line)
        elif "not found" in line and line.split()[0] not in ABSENT:
            faults.append(f"{file}: {line.strip()}")
    return faults


def _loader_says(files: Sequence[Path]) -> str:
    # It ends with another code for the first odd file, yet tells of all of them.
    run = subprocess.run(
        ["ldd", *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return run.stdout


if __name__ == "__main__":
    [environment] = sys.argv[1:]
    [site] = Path(environment).glob("lib/python3*/site-packages")
    trim(site)
