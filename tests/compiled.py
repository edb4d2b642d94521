"""Whether the compiled modules were built: they are optional, and without them the same is done in Python."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from app.serving import row_decoder
from core.packed import single_text, trees

IS_COMPILED = row_decoder.IS_COMPILED and single_text.IS_COMPILED and trees.IS_COMPILED
CAN_COMPILE = shutil.which("cc") is not None and Path(sysconfig.get_path("include"), "Python.h").exists()

compiled = pytest.mark.skipif(
    not IS_COMPILED, reason="The package was built without a C compiler or Python's headers."
)
