"""Removes files that the running service never opens from a virtual environment, during the image build.

    python3 deploy/container/trim.py /opt/venv

It removes the tests of installed packages, sources and headers of extension modules, Arrow's network clients
and symbol tables. The exit code is 1 if a remaining library no longer finds a library that it is linked with.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

UNUSED = (
    # Arrow: remote procedure calls, object stores, and files for compiling extensions.
    "pyarrow/*flight*",
    "pyarrow/*s3*",
    "pyarrow/*gcsfs*",
    "pyarrow/*azurefs*",
    "pyarrow/_pyarrow_cpp_tests*",
    "pyarrow/include",
    "pyarrow/includes",
    "pyarrow/src",
    # The wheel contains three copies; programs load the second, libarrow_….so.2600.
    "pyarrow/libarrow_python*.so",
    "pyarrow/libarrow_python*.so.*.*.*",
    # Another page of documentation than the one that is served.
    "fastapi_offline/static/redoc*",
    # Packages for building and testing, or for other fields of science.
    "numba/cuda",
    "numpy/_core/include",
    "numpy/_core/lib",
    "numpy/_core/_simd.*",
    "numpy/distutils",
    "scipy/io/_fast_matrix_market/_fmm_core.*",
    "scipy/cluster",
    "scipy/odr",
    "scipy/signal",
    "sklearn/cluster",
    "sklearn/datasets/images",
    "sklearn/manifold",
    "sqlalchemy/testing",
    # Syntax highlighting for hundreds of languages; rich uses it only for tracebacks, which are never shown.
    "pygments/lexers/[!_]*",
    "pygments/lexers/_*_builtins.py",
)
TESTED = ("numpy", "scipy", "sklearn", "numba", "llvmlite", "pyarrow", "joblib", "greenlet", "croniter")
"""Packages that include their own tests."""
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
"""Optional libraries that were never installed."""

_AT_ONCE = 32


def trim(packages: Path) -> None:
    """Trim a folder of installed packages. Raises SystemExit if a remaining library is broken."""
    for path in set(unused(packages)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # removed with a parent folder
    for path in packages.rglob("*"):
        if path.suffix in SOURCES and path.is_file():
            path.unlink()
    # Libraries in a folder ….libs were edited after linking when the wheel was built; strip would damage
    # them. They are checked through the modules that load them.
    libraries = sorted(path for path in packages.rglob("*.so*") if path.parent.suffix != ".libs")
    subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)
    if faults := unloadable(libraries):
        sys.exit("\n".join(faults))


def unused(packages: Path) -> Iterator[Path]:
    """Files and folders that are removed completely."""
    for pattern in UNUSED:
        if not (packages / pattern.partition("/")[0]).is_dir():
            # A set for serving lacks some packages.
            continue
        found = list(packages.glob(pattern))
        # A pattern without a match means that a package has changed and this list needs an update.
        if not found:
            sys.exit(f"Nothing matches {pattern} any more.")
        yield from found
    for package in TESTED:
        folders = [path for path in (packages / package).rglob("tests") if path.is_dir()]
        yield from (path for path in folders if "tests" not in path.relative_to(packages).parts[:-1])


def unloadable(libraries: Sequence[Path]) -> list[str]:
    """The loader's errors for shared objects: a missing library or a damaged file."""
    groups = [libraries[start : start + _AT_ONCE] for start in range(0, len(libraries), _AT_ONCE)]
    with ThreadPoolExecutor() as pool:
        outputs = pool.map(_loader_says, groups)
        return [fault for output in outputs for fault in faults_of(output)]


def faults_of(output: str) -> list[str]:
    """The errors in the output of ldd for several files."""
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
    # ldd exits with an error for the first such file, but still reports all of them.
    run = subprocess.run(
        ["ldd", *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return run.stdout


if __name__ == "__main__":
    [environment] = sys.argv[1:]
    [site] = Path(environment).glob("lib/python3*/site-packages")
    trim(site)
