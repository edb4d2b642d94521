"""Makes the modules of the client that have their source elsewhere, with the standard library only.

    python stms_client/build_steps/generate.py

The blocking client in `stms_client/sync` is made from the one for asyncio in `stms_client/aio`, and
`stms_client/_packed`, which evaluates students, is copied from the core. Builds of both distributions do
this, the client's and the service's.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

CLIENT = Path(__file__).parents[1]
ROOT = CLIENT.parent
COPIED = ("core.packed.student", "core.packed.record_rows", "core.packed.head")
"""What the client evaluates students with; all that they import of the core is copied with them."""
REPLACED = {
    "AsyncClient": "Client",
    "AsyncHTTPTransport": "HTTPTransport",
    "AsyncIterator": "Iterator",
    "AsyncByteStream": "SyncByteStream",
    "AsyncJob": "Job",
    "AsyncLocal": "Local",
    "AsyncOwnStream": "OwnStream",
    "AsyncRepeated": "Repeated",
    "OfLoop": "OfProcess",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aio": "sync",
    "aiter_bytes": "iter_bytes",
    "aiter_lines": "iter_lines",
    "aread": "read",
    "async_digest_of": "digest_of",
    "async_file_pieces": "file_pieces",
    "asynccontextmanager": "contextmanager",
    "asyncio": "time",
    "handle_async_request": "handle_request",
}
_IMPORT = re.compile(r"^(\s*from )(core(?:\.\w+)*?)\.(\w+)(?= import)", re.MULTILINE)
_INITIAL = "__init__.py"


def generate() -> None:
    """Write the generated modules that differ, and remove those that have no source any more."""
    modules = generated()
    for folder in {path.parent for path in modules}:
        for path in set(folder.glob("*.py*")) - {*modules, folder / _INITIAL}:
            path.unlink()
    for path, source in modules.items():
        if not path.exists() or path.read_text("utf-8") != source:
            path.write_text(source, "utf-8")


def generated() -> dict[Path, str]:
    """The source of every generated module by its path.

    A source distribution of the client contains the copies of the core but not the core: these are left out.
    Raises FileNotFoundError where there are neither.
    """
    modules = {
        CLIENT / "sync" / path.name: blocking(path)
        for path in (CLIENT / "aio").glob("*.py")
        if path.name != _INITIAL
    }
    if CLIENT == ROOT / "stms_client" and (ROOT / "core").is_dir():
        modules |= {CLIENT / "_packed" / path.name: copy(path) for path in copied_files()}
    elif not (CLIENT / "_packed" / "student.py").exists():
        raise FileNotFoundError(f"{CLIENT} needs the folder core beside it: build it in a clone of STMS.")
    return modules


def blocking(path: Path) -> str:
    """The source of one module of the blocking client, made from that of the asyncio client."""
    source = path.read_text("utf-8")
    lines = source.splitlines(keepends=True)
    # Backwards, so that the positions of earlier tokens remain valid.
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        row, start, end = token.start[0] - 1, token.start[1], token.end[1]
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            lines[row] = lines[row][:start] + lines[row][end:].lstrip(" ")
        elif token.type == tokenize.NAME and token.string in REPLACED:
            lines[row] = lines[row][:start] + REPLACED[token.string] + lines[row][end:]
    text = "".join(lines).replace(
        "`Client` has the same methods without ``await``, and may be shared by threads.",
        "Threads may share it. `AsyncClient` has the same methods for asyncio.",
    )
    return _note(path) + text


def copied_files() -> list[Path]:
    """The files of `COPIED` and of all modules of the core that they import.

    Of compiled modules these are their types. Raises ValueError if two modules have the same name.
    """
    files: dict[str, Path] = {}
    waiting = list(COPIED)
    while waiting:
        module = waiting.pop()
        if module not in files:
            path = ROOT / f"{module.replace('.', '/')}.py"
            files[module] = path if path.exists() else path.with_suffix(".pyi")
            imports = _IMPORT.findall(files[module].read_text("utf-8"))
            waiting += (f"{package}.{name}" for _, package, name in imports)
    if len({path.stem for path in files.values()}) != len(files):
        raise ValueError(f"Two of these modules have the same name: {', '.join(sorted(files))}.")
    return list(files.values())


def copy(path: Path) -> str:
    """The source of the copy of one module, which imports the other copies."""
    return _note(path) + _IMPORT.sub(r"\1stms_client._packed.\3", path.read_text("utf-8"))


def _note(path: Path) -> str:
    return f"# Made from `{path.relative_to(ROOT)}` by the build: do not edit.\n"


if __name__ == "__main__":
    generate()
