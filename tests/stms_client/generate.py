"""Generates ``make client``: ``stms_client/sync`` from ``stms_client/aio``, the documents, and
``stms_client/_packed``, the copy of what evaluates students.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

from tests.stms_client.documents import documents

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "stms_client"
COPY = "_packed"
COPIED = ("core.packed.student", "core.packed.record_rows", "core.packed.head")
"""What the client evaluates students with; all that they import is copied with them."""
REPLACED = {
    "AsyncClient": "Client",
    "AsyncIterator": "Iterator",
    "AsyncJob": "Job",
    "AsyncLocal": "Local",
    "AsyncRepeated": "Repeated",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aio": "sync",
    "aiter_bytes": "iter_bytes",
    "aiter_lines": "iter_lines",
    "aread": "read",
    "async_file_pieces": "file_pieces",
    "asynccontextmanager": "contextmanager",
    "asyncio": "time",
}


def generate(name: str) -> str:
    """The source of one module of the blocking client, made from that of the asyncio client."""
    source = (FOLDER / "aio" / name).read_text("utf-8")
    lines = source.splitlines(keepends=True)
    # Backwards, so that the positions of earlier tokens remain valid.
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        row, start, end = token.start[0] - 1, token.start[1], token.end[1]
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            lines[row] = lines[row][:start] + lines[row][end:].lstrip(" ")
        elif token.type == tokenize.NAME and token.string in REPLACED:
            lines[row] = lines[row][:start] + REPLACED[token.string] + lines[row][end:]
    text = "".join(lines).replace('"AsyncClient", "AsyncJob"', '"Client", "Job"')
    docstring = f'"""Generated from `stms_client/aio/{name}` by ``make client``: do not edit."""'
    text = re.sub(r'^""".*?"""', docstring, text, count=1, flags=re.DOTALL)
    text = text.replace(
        "`Client` has the same methods without ``await``, and may be shared by threads.",
        "Threads may share it. `AsyncClient` has the same methods for asyncio.",
    )
    return formatted(text, FOLDER / "sync" / name)


def formatted(text: str, target: Path) -> str:
    """The source as ruff writes it."""
    for command in (["check", "--select=I,F401", "--fix", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(target), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def generate_documents() -> str:
    """The source of the types of the service's JSON."""
    return formatted(documents(), FOLDER / "documents.py")


def copied_modules() -> dict[str, Path]:
    """The files of `COPIED` and of all modules of the core that they import, by the name of their copy."""
    found: dict[str, Path] = {}
    waiting = list(COPIED)
    while waiting:
        module = waiting.pop()
        path = ROOT / f"{module.replace('.', '/')}.py"
        name = module.rpartition(".")[2]
        if found.setdefault(name, path) != path:
            raise ValueError(f"Two modules of the core are called {name}.")
        if not path.exists():
            # Compiled code does not belong to the client, only its types do.
            found[name] = path.with_suffix(".pyi")
            continue
        imported = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if _is_of_core(node)]
        waiting += {node.module for node in imported} - {_module_of(path) for path in found.values()}
    return dict(sorted(found.items()))


def _is_of_core(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "core"


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def generate_copy(path: Path) -> str:
    """The source of the copy of one module, which imports the other copies."""
    source = path.read_text("utf-8")
    imports = re.compile(r"^(\s*)from core(?:\.\w+)*\.(\w+) import", re.MULTILINE)
    text = imports.sub(rf"\1from stms_client.{COPY}.\2 import", source)
    note = f"# Copied from `{path.relative_to(ROOT)}` by ``make client``: do not edit.\n"
    return formatted(note + text, FOLDER / COPY / path.name)


def names() -> list[str]:
    """Names of the modules that are generated."""
    return sorted(path.name for path in (FOLDER / "aio").glob("*.py"))


if __name__ == "__main__":
    (FOLDER / "documents.py").write_text(generate_documents(), "utf-8")
    for copied, original in copied_modules().items():
        (FOLDER / COPY / f"{copied}{original.suffix}").write_text(generate_copy(original), "utf-8")
    for module in names():
        (FOLDER / "sync" / module).write_text(generate(module), "utf-8")
