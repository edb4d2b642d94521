"""Lists and runs the programs of a package, such as ``python -m verification [NAME [OPTIONS]]``."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.system.checkout import ROOT


def title(module: str) -> str:
    """First line of a program's description."""
    path = ROOT / module.replace(".", "/")
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").splitlines()[0]


def run(package: str, modules: Mapping[str, str], of_all: Sequence[str], arguments: Sequence[str]) -> int:
    """List the programs, or run one of them with its options, which ``--help`` shows, or ``all``.

    modules: by the name of their program. of_all: names of what ``all`` runs.
    Returns the exit code: 0, 1 after a failure, 2 for an unknown name.
    """
    if not arguments:
        print("".join(f"{name:24} {title(module)}\n" for name, module in modules.items()), end="")
        return 0
    name, *options = arguments
    if name != "all" and name not in modules:
        print(f"There is no {name}; python -m {package} lists all.", file=sys.stderr)
        return 2
    codes = [
        subprocess.run([sys.executable, "-m", modules[each], *options], check=False).returncode
        for each in (of_all if name == "all" else [name])
    ]
    return int(any(codes))
