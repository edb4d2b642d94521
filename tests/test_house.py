"""The rules of the house, checked on every source file: what no module may do.

Who may import whom stands in ``pyproject.toml`` as contracts of import-linter; what these cannot say, such as
what a process has loaded, is here.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
TRAINING_LIBRARIES = {"numba", "sklearn", "scipy", "joblib", "cvxpy", "clarabel", "dbos"}
TRAINING_MODULES = {
    "core.solvers",
    "core.teachers",
    "core.students",
    "core.features",
    "core.labelling",
    "core.model_selection",
    "core.training",
    "core.estimators",
    "app.jobs",
}
CLOSELY_USED = ("dbos", "uvicorn")
"""Libraries whose private names we use."""
UNPICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle"}
MODULE_LINES = 600
FUNCTION_LINES = 60


def findings(check: Callable[[str], Iterable[object]], places: Iterable[str]) -> dict[str, list[object]]:
    """What a check reports of each place, without the places of which it reports nothing."""
    return {place: found for place in places if (found := list(check(place)))}


@cache
def sources() -> dict[str, Path]:
    """Every module of the program by its dotted name."""
    found = {}
    measuring = ("experiments", "benchmarks", "studies", "verification")
    for package in ("core", "app", "stms_client", *measuring, "tests/system", "migrations"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(text_of(module))


def text_of(module: str) -> str:
    return sources()[module].read_text(encoding="utf-8")


def within(package: str) -> list[str]:
    found = [name for name in sources() if name == package or name.startswith(f"{package}.")]
    assert found, f"there is no module {package}"
    return found


def is_in(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def in_a_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FIRST_LOADED = """
import importlib, json, sys
first = {}
for module in MODULES:
    importlib.import_module(module)
    for name in sys.modules:
        first.setdefault(name, module)
print(json.dumps(first))
"""


def loaded_by(modules: list[str]) -> dict[str, str]:
    """All that a new process has loaded after it imported ``modules``, each with the one that loaded it."""
    found: dict[str, str] = json.loads(in_a_new_process(f"MODULES = {modules!r}\n{FIRST_LOADED}"))
    assert set(modules) <= set(found)
    return found


OPTIONAL = {"stms_client.mlflow": {"mlflow", "pandas"}}
"""Modules for those who have these packages, which this environment has not."""


def test_every_contract_of_imports_is_kept():
    lint_imports = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_client_needs_few_libraries():
    """It is installed without the service, beside packages of the user that may be called app or core."""
    allowed = set(sys.stdlib_module_names) | {"httpx", "msgspec", "numpy"}
    allowed |= {"matplotlib", "pyarrow", "safetensors"}
    graph = grimp.build_graph(
        "stms_client", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )
    wrong = {
        (module, name)
        for module in within("stms_client")
        if not is_in(module, {"stms_client.build_steps"})  # which is in no wheel
        for name in graph.find_modules_directly_imported_by(module)
        if name.partition(".")[0] not in allowed | {"stms_client"} | OPTIONAL.get(module, set())
    }
    assert not wrong


@pytest.mark.parametrize("library", CLOSELY_USED)
def test_a_library_whose_private_names_are_used_is_pinned_to_one_minor_version(library: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [requirement] = [line for line in project["dependencies"] if re.match(rf"{library}\W", line)]
    bounds = re.fullmatch(rf"{library}>=(\d+)\.(\d+)[.\d]*,<(\d+)\.(\d+)", requirement)
    assert bounds is not None, requirement
    major, minor, next_major, next_minor = map(int, bounds.groups())
    assert (next_major, next_minor) == (major, minor + 1)


QUERY_PACKAGES = ("core.packed", "app.serving", "app.server", "app.auth", "app.http")


def test_a_process_that_answers_queries_has_loaded_no_training_code():
    loaded = loaded_by([name for package in QUERY_PACKAGES for name in within(package)])
    training = TRAINING_LIBRARIES | TRAINING_MODULES
    wrong = {name: by for name, by in loaded.items() if is_in(name, training)}
    assert wrong == {}


def test_the_api_process_loads_no_numerical_library_but_numpy():
    """The domain may import core's declarations of hyper-parameters, which load NumPy at most."""
    loaded = loaded_by(
        [name for package in ("app.domain", "app.api", "app.main") for name in within(package)]
    )
    assert {name: by for name, by in loaded.items() if is_in(name, TRAINING_LIBRARIES - {"dbos"})} == {}


def test_every_method_of_an_entity_is_used_by_the_service():
    methods = {
        function.name
        for node in tree("app.domain.entities").body
        if isinstance(node, ast.ClassDef)
        for function in node.body
        if isinstance(function, ast.FunctionDef) and not function.name.startswith("__")
    }
    used = {
        node.attr
        for module in within("app")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute)
    }
    assert methods
    assert methods <= used, f"without a caller in app: {sorted(methods - used)}"


WATCH = """
import builtins, importlib, json, os, sys
parts = ("app", "core", "stms_client", "benchmarks", "studies", "verification", "tests")
ours = tuple(os.path.join(os.getcwd(), part) + os.sep for part in parts)
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


def test_nothing_happens_when_a_module_is_imported():
    modules = [name for name in sources() if not name.startswith("migrations") and name not in OPTIONAL]
    seen = json.loads(in_a_new_process(f"MODULES = {modules!r}\n{WATCH}"))
    assert not seen


def test_the_watch_on_imports_sees_an_opened_file(tmp_path: Path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text(
        "handle = open(__file__)\nhandle.close()\n", encoding="utf-8"
    )
    start = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, '')"
    code = f"{start}\nMODULES = ['app']\n{WATCH}"
    assert [event for _, event, _ in json.loads(in_a_new_process(code))] == ["open"]


def test_a_module_has_one_subject():
    generated = {"stms_client.documents", "stms_client.sync", "stms_client._packed"}
    written = [module for module in sources() if not is_in(module, generated)]
    lengths = {module: len(text_of(module).splitlines()) for module in written}
    assert {module: lines for module, lines in lengths.items() if lines > MODULE_LINES} == {}


def long_functions(root: ast.AST) -> Iterator[str]:
    for node in ast.walk(root):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > FUNCTION_LINES:
            yield f"{node.name} has {body_lines(node)} lines"


def test_a_function_does_one_thing():
    assert findings(lambda module: long_functions(tree(module)), sources()) == {}


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


def test_nothing_is_unpickled():
    assert findings(lambda module: pickling(tree(module)), sources()) == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from dill import loads",
        "np.load(f)",
        "np.load(f, allow_pickle=x)",
        "joblib.load(f)",
        "a.recv()",
    ],
)
def test_the_search_for_pickles_finds_them(code: str):
    assert list(pickling(ast.parse(code)))


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


def test_no_error_is_swallowed():
    assert findings(lambda module: swallowing(tree(module)), sources()) == {}


@pytest.mark.parametrize(
    "code",
    [
        "try:\n  a\nexcept:\n  b",
        "try:\n  a\nexcept ValueError:\n  pass",
        "try:\n  a\nexcept ValueError:\n  ...",
        "with suppress(Exception): a",
    ],
)
def test_the_search_for_swallowed_errors_finds_them(code: str):
    assert list(swallowing(ast.parse(code)))
