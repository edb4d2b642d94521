"""The rules of the house, checked on every source file: what no module may do.

Who may import whom stands in ``pyproject.toml`` as contracts of import-linter, which `make lint` checks; what
these cannot say, such as what a process has loaded, is here.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import grimp
import pytest

from tests.house_rules import (
    ROOT,
    WATCH,
    findings,
    in_a_new_process,
    long_functions,
    long_modules,
    modules_of,
    pickling,
    seen_at_import,
    swallowing,
    tree,
)

FOLDERS = ("core", "app", "stms_client", "verification", "tests/system", "migrations")
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


@cache
def sources() -> dict[str, Path]:
    """Every module of the program by its dotted name."""
    return modules_of(*FOLDERS)


def within(package: str) -> list[str]:
    found = [name for name in sources() if name == package or name.startswith(f"{package}.")]
    assert found, f"there is no module {package}"
    return found


def is_in(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


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


def test_no_test_imports_the_laboratory():
    """Contracts do not see all of the tests: their folders are no packages."""
    everything = modules_of("tests", "verification", "stms", "migrations")
    assert len(everything) > 500
    imports = re.compile(r"^\s*(?:from|import) lab\b", re.MULTILINE)
    assert [name for name, path in everything.items() if imports.search(path.read_text("utf-8"))] == []


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
        for node in tree(sources()["app.domain.entities"]).body
        if isinstance(node, ast.ClassDef)
        for function in node.body
        if isinstance(function, ast.FunctionDef) and not function.name.startswith("__")
    }
    used = {
        node.attr
        for module in within("app")
        for node in ast.walk(tree(sources()[module]))
        if isinstance(node, ast.Attribute)
    }
    assert methods
    assert methods <= used, f"without a caller in app: {sorted(methods - used)}"


def test_nothing_happens_when_a_module_is_imported():
    modules = [name for name in sources() if not name.startswith("migrations") and name not in OPTIONAL]
    assert not seen_at_import(modules, FOLDERS)


def test_the_watch_on_imports_sees_an_opened_file(tmp_path: Path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text(
        "handle = open(__file__)\nhandle.close()\n", encoding="utf-8"
    )
    start = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, '')"
    code = f"{start}\nMODULES, FOLDERS = ['app'], ['app']\n{WATCH}"
    assert [event for _, event, _ in json.loads(in_a_new_process(code))] == ["open"]


def test_a_module_has_one_subject():
    generated = {"stms_client.documents", "stms_client.sync", "stms_client._packed"}
    written = {name: path for name, path in sources().items() if not is_in(name, generated)}
    assert long_modules(written) == {}


def test_a_function_does_one_thing():
    assert findings(long_functions, sources()) == {}


def test_nothing_is_unpickled():
    assert findings(pickling, sources()) == {}


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


def test_no_error_is_swallowed():
    assert findings(swallowing, sources()) == {}


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
