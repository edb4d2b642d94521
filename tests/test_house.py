"""The rules of the house, checked on every source file: who may import whom, and what no module may do."""

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

import pytest

from tests.prose import avoided_words, broken_lines

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
DECLARATIONS = {
    "core.features",
    "core.features.spec",
    "core.labelling",
    "core.labelling.base",
    "core.labelling.odmc",
    "core.labelling.ssodm",
    "core.model_selection",
    "core.model_selection.options",
    "core.model_selection.tuning_spec",
    "core.students",
    "core.students.base",
    "core.students.compact",
    "core.students.gated",
    "core.students.gaussian",
    "core.students.grid",
    "core.students.multiview",
    "core.students.odm",
    "core.students.privileged",
    "core.students.svm_plus",
    "core.students.trees",
    "core.teachers",
    "core.teachers.base",
    "core.teachers.boosting",
    "core.teachers.forest",
    "core.teachers.interpolation",
    "core.teachers.mcodm",
    "core.teachers.outside",
    "core.teachers.ssvm",
    "core.training",
    "core.training.config",
}
"""Declarations of hyper-parameters, which the domain reads, and their packages: they load NumPy at most."""
APP_LAYERS = (
    {"app.domain", "app.secret_files"},
    {"app.settings", "app.logs", "app.plugins", "app.tracing", "app.import_path"},
    {"app.http", "app.store", "app.ingest", "app.remote"},
    {"app.services", "app.processes"},
    {"app.auth"},
    {"app.serving", "app.server", "app.jobs"},
    {"app.api", "app.gate", "app.query_parts", "app.database_check", "app.bundle_server"},
    {"app.web"},
    {"app.main", "app.query_process"},
    {"app.commands"},
    {"app.cli"},
)
"""From the bottom up: a package imports only packages of lower layers."""
CORE_LAYERS = (
    {"core.types", "core.errors"},
    {"core.parameters", "core.registry", "core.run"},
    {"core.data"},
    {"core.solvers", "core.packed"},
    {"core.encoding", "core.features"},
    {"core.teachers", "core.students", "core.labelling"},
    {"core.learners"},
    {"core.model_selection"},
    {"core.training"},
    {"core.estimators"},
)
ONE_PLACE = {
    "uvicorn": {"app.server"},
    "dbos": {"app.jobs.engine", "app.jobs.workflow.workflows", "app.jobs.worker"},
}
"""Libraries whose private names we use, and the only places that know them."""
WEB = {"fastapi", "starlette", "uvicorn", "httpx", "typer", "click"}
DATABASE = {"sqlalchemy", "alembic", "psycopg", "sqlite3", "dbos"}
UNPICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle"}
MODULE_LINES = 600
FUNCTION_LINES = 60


FOLDERS = (
    "app",
    "core",
    "stms_client",
    "experiments",
    "benchmarks",
    "container",
    "deploy",
    "docs_site",
    "migrations",
    "tests",
)


@cache
def texts() -> dict[str, str]:
    """Every file whose docstrings and comments are checked; `prose.py` has the avoided words themselves."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in paths
        if path.name != "prose.py"
    }


def findings(check: Callable[[str], Iterable[object]], places: Iterable[str]) -> dict[str, list[object]]:
    """What a check reports of each place, without the places of which it reports nothing."""
    return {place: found for place in places if (found := list(check(place)))}


@cache
def sources() -> dict[str, Path]:
    """Every module of the program by its dotted name."""
    found = {}
    for package in ("core", "app", "stms_client", "experiments", "benchmarks", "migrations"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(text_of(module))


def text_of(module: str) -> str:
    return texts()[str(sources()[module].relative_to(ROOT))]


def nodes(root: ast.AST, *, at_import_only: bool) -> Iterator[ast.AST]:
    """Nodes that can run: type-checking blocks never, bodies of functions only when called."""
    for child in ast.iter_child_nodes(root):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from nodes(other, at_import_only=at_import_only)
        elif at_import_only and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        else:
            yield child
            yield from nodes(child, at_import_only=at_import_only)


@cache
def imports(module: str, *, at_import_only: bool = False) -> frozenset[str]:
    """Dotted names that ``module`` imports; of our own modules also the packages around them."""
    found: set[str] = set()
    package = module if sources()[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes(tree(module), at_import_only=at_import_only):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            found.add(base)
            found |= {f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in sources()}
    return frozenset(parent for name in found for parent in with_parents(name))


def with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def reach(module: str) -> dict[str, str]:
    """All that importing ``module`` pulls in, by the AST: name -> the module that asked for it."""
    asked = dict.fromkeys(with_parents(module), "")
    waiting = list(asked)
    while waiting:
        current = waiting.pop()
        if current not in sources():
            continue
        for name in sorted(imports(current, at_import_only=current != module)):
            if name not in asked:
                asked[name] = current
                waiting.append(name)
    return asked


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


def part_of(module: str) -> str:
    """The package or root module below app or core that ``module`` belongs to: "app.api", "core.types"."""
    return ".".join(module.split(".")[:2])


@cache
def part_imports() -> dict[tuple[str, str], list[str]]:
    """Imports between the parts of app and of core: (importing, imported) -> the imports themselves."""
    pairs: dict[tuple[str, str], list[str]] = {}
    for module in [*within("app"), *within("core")]:
        for name in imports(module):
            pair = part_of(module), part_of(name)
            if name in sources() and "." in name and pair[0] != pair[1] and "." in pair[0]:
                pairs.setdefault(pair, []).append(f"{module} imports {name}")
    return pairs


def test_core_never_imports_app():
    wrong = {
        (module, name)
        for module in within("core")
        for name in imports(module)
        if is_in(name, {"app", "benchmarks"})
    }
    assert not wrong


OPTIONAL = {"stms_client.mlflow": {"mlflow", "pandas"}}
"""Modules for those who have these packages, which this environment has not."""


def test_the_client_imports_no_other_part_and_only_the_commands_import_it():
    """It is installed without the service, beside packages of the user that may be called app or core."""
    allowed = set(sys.stdlib_module_names) | {
        "stms_client",
        "httpx",
        "msgspec",
        "numpy",
        "matplotlib",
        "pyarrow",
        "safetensors",
    }
    wrong = {
        (module, name)
        for module in within("stms_client")
        if not is_in(module, {"stms_client.build_steps"})  # which is in no wheel
        for name in imports(module)
        if name.partition(".")[0] not in allowed | OPTIONAL.get(module, set())
    }
    assert not wrong
    users = {module for module in within("app") if is_in("stms_client", set(imports(module)))}
    assert users
    assert all(is_in(module, {"app.commands"}) for module in users)
    assert not any("stms_client" in imports(module) for module in within("core"))


@pytest.mark.parametrize("layers", [APP_LAYERS, CORE_LAYERS], ids=["app", "core"])
def test_packages_import_only_packages_of_lower_layers(layers: tuple[set[str], ...]):
    height = {part: number for number, layer in enumerate(layers) for part in layer}
    top = next(iter(height)).partition(".")[0]
    wrong = [
        text
        for (importing, imported), texts in part_imports().items()
        if importing.startswith(f"{top}.") and imported.startswith(f"{top}.")
        for text in texts
        if height[importing] <= height[imported]
    ]
    assert not wrong


def test_every_package_has_a_layer():
    known = set().union(*APP_LAYERS, *CORE_LAYERS)
    assert {part_of(module) for module in [*within("app"), *within("core")]} == known | {"app", "core"}


def test_no_two_packages_import_each_other():
    """Also below app and core: for any two packages, only one imports from the other."""
    pairs = set()
    for module in [*within("app"), *within("core"), *within("experiments"), *within("benchmarks")]:
        for name in imports(module):
            if name in sources():
                pairs.add((package_of(module), package_of(name)))
    mutual = {pair for pair in pairs if pair[0] < pair[1] and pair[::-1] in pairs}
    # A package and one inside of it are one part: `app.jobs.worker` starts `app.jobs.engine`.
    assert {pair for pair in mutual if not pair[1].startswith(f"{pair[0]}.")} == set()


def package_of(module: str) -> str:
    return module if sources()[module].name == "__init__.py" else module.rpartition(".")[0]


@pytest.mark.parametrize("library", sorted(ONE_PLACE))
def test_a_library_that_we_depend_on_closely_is_imported_in_one_place(library: str):
    wrong = {
        module
        for module in [*within("app"), *within("core")]
        if not is_in(module, ONE_PLACE[library]) and any(is_in(name, {library}) for name in imports(module))
    }
    assert not wrong


@pytest.mark.parametrize("library", sorted(ONE_PLACE))
def test_a_library_whose_private_names_are_used_is_pinned_to_one_minor_version(library: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [requirement] = [line for line in project["dependencies"] if re.match(rf"{library}\W", line)]
    bounds = re.fullmatch(rf"{library}>=(\d+)\.(\d+)[.\d]*,<(\d+)\.(\d+)", requirement)
    assert bounds is not None, requirement
    major, minor, next_major, next_minor = map(int, bounds.groups())
    assert (next_major, next_minor) == (major, minor + 1)


def test_sentences_use_the_words_of_the_field():
    assert findings(lambda path: avoided_words(texts()[path]), texts()) == {}


def test_no_docstring_line_breaks_a_sentence():
    assert findings(lambda path: broken_lines(texts()[path]), texts()) == {}


@pytest.mark.parametrize(
    "code",
    ["# Whoever asks is told.", 'def f():\n    """It is told to nobody."""', "x = 1\n'The deed of x.'"],
)
def test_the_search_for_avoided_words_finds_them(code: str):
    assert avoided_words(code)


def test_the_search_for_broken_lines_finds_them():
    code = '"""Say.\n\nA line that is as long as a line may be, and then\na stub\nfollows it.\n"""'
    assert broken_lines(code) == ["line 4: 'a stub'"]


def test_nothing_in_app_or_core_imports_tests_or_benchmarks():
    wrong = {
        (module, name)
        for module in [*within("core"), *within("app")]
        for name in imports(module)
        if is_in(name, {"tests", "benchmarks"})
    }
    assert not wrong


QUERY_PACKAGES = ("core.packed", "app.serving", "app.server", "app.auth", "app.http")


@pytest.mark.parametrize("package", QUERY_PACKAGES)
def test_what_answers_queries_reaches_no_training_code(package: str):
    for module in within(package):
        wrong = {
            f"{name}, asked for by {asked_by}"
            for name, asked_by in reach(module).items()
            if is_in(name, TRAINING_LIBRARIES | TRAINING_MODULES) and name not in DECLARATIONS
        }
        assert not wrong, f"{module} reaches {sorted(wrong)}"


def test_a_process_that_answers_queries_has_loaded_no_training_code():
    loaded = loaded_by([name for package in QUERY_PACKAGES for name in within(package)])
    training = TRAINING_LIBRARIES | TRAINING_MODULES
    wrong = {name: by for name, by in loaded.items() if is_in(name, training) and name not in DECLARATIONS}
    assert wrong == {}


def test_the_domain_knows_neither_web_nor_database():
    for module in within("app.domain"):
        wrong = {name for name in reach(module) if is_in(name, WEB | DATABASE)}
        assert not wrong, f"{module} reaches {sorted(wrong)}"


def test_the_domain_imports_no_other_part_of_the_service():
    wrong = {
        (module, name)
        for module in within("app.domain")
        for name in imports(module)
        if is_in(name, {"app"}) and not is_in(name, {"app.domain"}) and name != "app"
    }
    assert not wrong


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


def test_web_code_is_reached_by_the_web_part_and_the_roots_only():
    web_parts = {
        "app.api",
        "app.processes",
        "app.server",
        "app.main",
        "app.cli",
        "app.commands",
        "app.web",
    }
    wrong = {
        (module, name)
        for module in within("app")
        if not is_in(module, web_parts)
        for name in imports(module)
        if is_in(name, WEB)
    }
    assert not wrong


def test_only_the_roots_wire_things_together():
    roots = {"app.main", "app.cli", "app.commands"}
    wrong = {
        (module, name)
        for module in within("app")
        if not is_in(module, roots)
        for name in imports(module)
        if is_in(name, roots)
    }
    assert not wrong


WATCH = """
import builtins, importlib, json, os, sys
parts = ("app", "core", "stms_client", "benchmarks")
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
