"""The step of setuptools that generates modules; `pyproject.toml` of both distributions names it."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from setuptools.command.build_py import build_py

FOLDER = Path(__file__).parent


class GenerateAndBuild(build_py):  # type: ignore[misc] # setuptools has no types
    """Generates the modules before they are listed: for wheels, source distributions, editable installs."""

    def finalize_options(self) -> None:
        runpy.run_path(str(FOLDER / "generate.py"), run_name="__main__")
        super().finalize_options()

    def get_source_files(self) -> list[str]:
        """What a source distribution contains: also this folder, which is no package and in no wheel."""
        own = (os.path.relpath(path) for path in sorted(FOLDER.glob("*.py")))
        return [*super().get_source_files(), *own]
