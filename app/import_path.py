"""Keeps modules of the working folder out of the process and out of the processes that it starts.

Where others may write files, such as /tmp, a file ``numpy.py`` would otherwise be run in place of the
library.
This module may import only what the interpreter has loaded already.
"""

from __future__ import annotations

import os
import sys


def leave_out_working_folder() -> None:
    """Search neither the working folder nor folders named relative to it, in this process and its children.

    Python searches the working folder for ``python -m`` without ``-P``, and wherever an entry of PYTHONPATH
    is empty or relative. The folder of this program stays: who can write there can change the program itself.
    """
    entries = os.environ["PYTHONPATH"].split(os.pathsep) if os.environ.get("PYTHONPATH") else []
    absolute = [entry for entry in entries if entry.startswith(os.sep)]
    unsafe = {_real(entry) for entry in entries} | {_real("")}
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    kept = {_real(entry) for entry in absolute} | {_real(own)}
    if _real(own) in unsafe and own not in absolute:
        absolute.append(own)
    sys.path[:] = [entry for entry in sys.path if _real(entry) not in unsafe - kept]
    if absolute:
        os.environ["PYTHONPATH"] = os.pathsep.join(absolute)
    else:
        os.environ.pop("PYTHONPATH", None)
    os.environ["PYTHONSAFEPATH"] = "1"


def _real(folder: str) -> str:
    return os.path.realpath(folder or os.curdir)
