"""What no module may do, as checks that tests apply to the sources of the product and of the laboratory."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
UNPICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle"}
MODULE_LINES = 600
FUNCTION_LINES = 60


def modules_of(*folders: str) -> dict[str, Path]:
    """The files of every module in these folders of the project by its dotted name."""
    found = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def findings(
    check: Callable[[ast.Module], Iterable[object]], modules: Mapping[str, Path]
) -> dict[str, list[object]]:
    """What a check reports of each module, without the modules of which it reports nothing."""
    return {name: found for name, path in modules.items() if (found := list(check(tree(path))))}


def in_a_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WATCH = """
import builtins, importlib, json, os, sys
ours = tuple(os.path.join(os.getcwd(), folder) + os.sep for folder in FOLDERS)
seen = []

def culprit():
    # From the inside out: our own code, or the import system at work for somebody else's module?
    frame = sys._getframe(2)
    through = []
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return None
        if name.startswith(ours):
            # numba looks for its cache folder when a kernel is declared; it belongs to the byte code
            return None if any(os.sep + "numba" + os.sep in inner for inner in through) else name
        through.append(name)
        frame = frame.f_back
    return None

EVENTS = ("open", "socket.", "sqlite3.connect", "subprocess.Popen", "os.fork", "os.posix_spawn", "os.mkdir",
          "_thread.start", "signal.", "os.putenv", "os.remove")

def hook(event, arguments):
    if event.startswith(EVENTS):
        name = culprit()
        if name is not None:
            seen.append([name, event, repr(arguments)[:120]])

import sqlalchemy
real = sqlalchemy.create_engine
def create_engine(*arguments, **keywords):
    seen.append(["?", "create_engine", repr(arguments)])
    return real(*arguments, **keywords)
sqlalchemy.create_engine = create_engine
import fastapi
class App(fastapi.FastAPI):
    def __init__(self, *arguments, **keywords):
        seen.append(["?", "FastAPI()", ""])
        super().__init__(*arguments, **keywords)
fastapi.FastAPI = App
sys.addaudithook(hook)
for module in MODULES:
    importlib.import_module(module)
print(json.dumps(seen))
"""


def seen_at_import(modules: Sequence[str], folders: Sequence[str]) -> list[Any]:
    """What code in ``folders`` does while a process imports ``modules``: (file, event, arguments) each."""
    seen: list[Any] = json.loads(
        in_a_new_process(f"MODULES, FOLDERS = {list(modules)!r}, {list(folders)!r}\n{WATCH}")
    )
    return seen


def long_modules(modules: Mapping[str, Path]) -> dict[str, int]:
    """The lengths of those that are too long to have one subject."""
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules.items()}
    return {name: lines for name, lines in lengths.items() if lines > MODULE_LINES}


def long_functions(root: ast.AST) -> Iterator[str]:
    for node in ast.walk(root):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > FUNCTION_LINES:
            yield f"{node.name} has {body_lines(node)} lines"


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    docstring = ast.get_docstring(node, clean=False)
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1 - (docstring.count("\n") + 1 if docstring else 0)


def pickling(root: ast.AST) -> Iterator[str]:
    """Ways to unpickle: the modules, NumPy's and joblib's files, pandas, and a Connection's recv()."""
    for node in ast.walk(root):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (f"imports {name}" for name in names if name.partition(".")[0] in UNPICKLERS)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            if node.func.attr == "load" and owner in {"np", "numpy"}:
                allowed = keywords.get("allow_pickle")
                if not (isinstance(allowed, ast.Constant) and allowed.value is False):
                    yield f"line {node.lineno}: numpy.load without allow_pickle=False"
            if node.func.attr in {"load", "dump", "read_pickle"} and owner in {"joblib", "pd", "pandas"}:
                yield f"line {node.lineno}: {owner}.{node.func.attr}"
            if node.func.attr == "recv" and not node.args and not node.keywords:
                yield f"line {node.lineno}: Connection.recv() unpickles; recv_bytes() does not"


def swallowing(root: ast.AST) -> Iterator[str]:
    """Handlers that hide errors."""
    for node in ast.walk(root):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield f"line {node.lineno}: except without a type"
            if all(is_nothing(statement) for statement in node.body):
                yield f"line {node.lineno}: except and pass"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"suppress", "contextlib.suppress"}:
            wide = {"Exception", "BaseException"} & {ast.unparse(argument) for argument in node.args}
            yield from (f"line {node.lineno}: suppress({name})" for name in wide)


def is_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
