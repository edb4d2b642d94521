"""Lists and runs the programs of proof, speed and accuracy: ``python -m benchmarks [NAME [OPTIONS]]``.

Without a name it lists them; with ``verify``, ``bench`` or ``study`` it runs all of that group, and otherwise
the one of that name with the options, which ``--help`` shows. Ends with 1 if one of them fails.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "verify": ("chaos", "hostile", "safety"),
    "bench": (
        *("bundles", "cluster", "dashboard", "inputs", "query", "reach", "serve", "storage", "training"),
        *("solvers", "budgets", "differential", "digests", "letter_versions"),
    ),
    "study": (
        *("accuracy", "compact", "defaults", "false_positives", "learners", "rejections"),
        *("rejections.heads", "rejections.queries", "tuning", "reproduce", "protocol_2"),
    ),
}
"""Names of the programs: modules of this package, and the last two of `experiments`."""


def module_of(name: str) -> str:
    """Dotted name of a program. Raises KeyError."""
    if not any(name in names for names in GROUPS.values()):
        raise KeyError(name)
    return f"experiments.{name}" if name in ("reproduce", "protocol_2") else f"benchmarks.{name}"


def title(name: str) -> str:
    """First line of a program's description."""
    path = ROOT / module_of(name).replace(".", "/")
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").splitlines()[0]


def main(arguments: list[str]) -> int:
    """Exit code: 0, 1 after a failure, 2 for an unknown name."""
    if not arguments:
        for group, names in GROUPS.items():
            print(f"{group}:")
            print("".join(f"  {name:20} {title(name)}\n" for name in names))
        return 0
    name, *options = arguments
    try:
        modules = [module_of(each) for each in GROUPS.get(name, (name,))]
    except KeyError:
        print(f"There is no {name}; python -m benchmarks lists all.", file=sys.stderr)
        return 2
    codes = [
        subprocess.run([sys.executable, "-m", module, *options], check=False).returncode for module in modules
    ]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
