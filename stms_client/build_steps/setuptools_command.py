"""Steps of setuptools; `pyproject.toml` of both distributions, the client's and the service's, names them.

In a wheel of the service `app`, `core` and `migrations` are parts of `stms`, since many
projects have packages of these names. Their sources import each other by the short names, which are
rewritten. An editable installation leaves them as they are.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
from pathlib import Path
from typing import Final

from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

FOLDER = Path(__file__).parent
NAME: Final = "stms"
MOVED: Final = ("app", "core", "migrations")
_MOVED: Final = "|".join(MOVED)
_IMPORT: Final = re.compile(rf"^(\s*(?:from|import) )(?=(?:{_MOVED})(?:\.\w| import | as ))", re.MULTILINE)
_STRING: Final = re.compile(rf"(?<=[\"'])(?=(?:{_MOVED})\.[a-z_]+[\w.{{}}]*[\"'])")


class GenerateAndBuild(build_py):  # type: ignore[misc] # setuptools has no types
    """Generates the modules before they are listed: for wheels, source distributions, editable installs."""

    def finalize_options(self) -> None:
        runpy.run_path(str(FOLDER / "generate.py"), run_name="__main__")
        super().finalize_options()

    def get_source_files(self) -> list[str]:
        """What a source distribution contains: also this folder, which is no package and in no wheel."""
        own = (os.path.relpath(path) for path in sorted(FOLDER.glob("*.py")))
        return [*super().get_source_files(), *own]


class BuildUnderOneName(GenerateAndBuild):
    """Moves the built packages of the service into `stms`."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        built = Path(self.build_lib)
        for name in MOVED:
            shutil.rmtree(built / NAME / name, ignore_errors=True)
            shutil.move(built / name, built / NAME / name)
        for path in [*(built / NAME).rglob("*.py"), *(built / NAME).rglob("*.pyi")]:
            path.write_text(under_one_name(path.read_text("utf-8")), "utf-8")


class CompileUnderOneName(build_ext):  # type: ignore[misc] # setuptools has no types
    """Puts compiled modules where `BuildUnderOneName` has moved their packages."""

    def get_ext_fullpath(self, ext_name: str) -> str:
        """The file of a compiled module."""
        return str(super().get_ext_fullpath(ext_name if self.editable_mode else f"{NAME}.{ext_name}"))


def under_one_name(source: str) -> str:
    """A module's source with imports, and names of modules in strings, that begin with `stms`."""
    return _STRING.sub(f"{NAME}.", _IMPORT.sub(rf"\g<1>{NAME}.", source))
