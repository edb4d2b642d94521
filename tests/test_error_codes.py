"""Every code by which a program knows an error, a warning or a decision is asserted by some test.

The codes are collected from the source of ``app`` and ``core``:

- the argument for a parameter or field ``code`` of anything defined there, such as `InputFault`;
- the value of a class attribute or local variable ``code``, and of the key ``"code"``;
- the first part of a pair of a word and a sentence, such as ``("bad_label", "A label is empty.")``.

The kinds of errors that pydantic finds are not among them.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = re.compile("[a-z][a-z0-9]*(_[a-z0-9]+)*")
IN_QUOTES = re.compile("(?<=[\"'])[a-z0-9_]+(?=[\"'])")
SENTENCE = re.compile(r"\S+ \S+ \S")

COMPOSED = {
    "f'ambiguous_{field}'": {"ambiguous_label_column", "ambiguous_index_column"},
    "f'no_{field}'": {"no_label_column", "no_index_column"},
    "f'no_{missing[0]}'": {"no_privileged", "no_teacher_scores", "no_views"},
    "f'quota_{noun}'": {"quota_datasets", "quota_versions", "quota_keys"},
    "f'remote_{kind}'": {"remote_input", "remote_output"},
    "f'too_many_{what}'": {"too_many_rows", "too_many_columns", "too_many_classes"},
    "f'unknown_{noun}'": {"unknown_parameter", "unknown_field"},
    "error.reason.replace('remote_', 'source_')": {
        "source_address",
        "source_bad_answer",
        "source_changed",
        "source_redirect",
        "source_refused",
    },
}
"""The codes that arise from expressions."""


@cache
def modules() -> dict[str, ast.Module]:
    """The modules of ``app`` and ``core`` by their paths."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for folder in ("app", "core")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def text_of(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def place_of_code(node: ast.FunctionDef | ast.ClassDef) -> int | None:
    """The position of the argument ``code`` for a call; None if there is none that is a text."""
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        if made:
            return place_of_code(made[0])
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
        names = [ast.unparse(one) for one in fields if "ClassVar" not in ast.unparse(one.annotation)]
    else:
        names = [ast.unparse(one) for one in (*node.args.posonlyargs, *node.args.args)]
        names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    return next((k for k, name in enumerate(names) if re.match("code: str\\b", name)), None)


def places_in(tree: ast.Module, *, public_only: bool = False) -> dict[str, int]:
    """The positions of the arguments ``code`` by the name of what is called.

    public_only: only of classes and functions that other modules can call.
    """
    nodes = tree.body if public_only else ast.walk(tree)
    called = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    places = {
        node.name: place_of_code(node) for node in called if not (public_only and node.name.startswith("_"))
    }
    return {name: place for name, place in places.items() if place is not None}


@cache
def public_places() -> dict[str, int]:
    """The positions of the arguments ``code`` of what any module may call."""
    trees = modules().values()
    return {name: place for tree in trees for name, place in places_in(tree, public_only=True).items()}


@cache
def constants() -> dict[str, str]:
    """The constants of the modules that are codes."""
    assigned = (node for tree in modules().values() for node in tree.body if isinstance(node, ast.AnnAssign))
    found = ((ast.unparse(node.target), text_of(node.value)) for node in assigned)
    return {name: text for name, text in found if text is not None and CODE.fullmatch(text)}


def values_of_code(tree: ast.Module, places: dict[str, int]) -> Iterator[ast.expr]:
    """The expressions whose values are codes. places: of the arguments ``code`` by what is called."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
                yield from (one.value for one in node.keywords if one.arg in {"code", "error_code"})
                place = places.get(called, len(node.args))
                yield from node.args[place : place + 1]
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                yield from (value for key, value in pairs if text_of(key) == "code")
            case ast.Assign(targets=[ast.Name(id="code")], value=value):
                yield value
            case ast.AnnAssign(target=ast.Name(id="code"), value=ast.expr() as value):
                yield value
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id="code"), *_])], value=ast.Tuple(elts=[value, *_])
            ):
                yield value
            case ast.Tuple(elts=[ast.Constant() as word, ast.Constant() | ast.JoinedStr() as text]):
                if SENTENCE.search(ast.unparse(text)):
                    yield word
            case ast.Tuple(elts=[ast.Constant() as word, ast.Name(id="text" | "message")]):
                yield word


def codes_of(value: ast.expr) -> set[str] | None:
    """The codes that an expression can have; None if that is not known."""
    match value:
        case ast.Constant(value=str(code)):
            return {code} if CODE.fullmatch(code) else set()
        case ast.IfExp():
            return (codes_of(value.body) or set()) | (codes_of(value.orelse) or set())
        case ast.Name(id=name) if name in constants():
            return {constants()[name]}
        case _:
            return COMPOSED.get(ast.unparse(value))


@cache
def codes() -> dict[str, list[str]]:
    """The places in the source where each code arises. Raises AssertionError for text composed otherwise."""
    found: dict[str, list[str]] = defaultdict(list)
    trees = modules()
    public = public_places()
    for module, tree in trees.items():
        for value in values_of_code(tree, public | places_in(tree)):
            known, place = codes_of(value), f"{module}:{value.lineno}"
            assert known is not None or not isinstance(value, ast.JoinedStr), (
                f"{place}: list in COMPOSED which codes {ast.unparse(value)} stands for"
            )
            for code in known or ():
                found[code].append(place)
    return found


@cache
def literals() -> frozenset[str]:
    """The words in quotes in the other tests, also within JSON."""
    paths = (path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    return frozenset(word for path in paths for word in IN_QUOTES.findall(path.read_text()))


def test_every_code_is_asserted_by_a_test():
    found = codes()
    missing = [
        f"{code}, which arises at {', '.join(places)}"
        for code, places in sorted(found.items())
        if code not in literals()
    ]
    assert not missing, "no test asserts these codes:\n" + "\n".join(missing)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('InputFault("X", "bad_row", "Row 1 is bad.")', {"bad_row"}),
        ('raise Conflict("Row 1 is bad.", code="bad_row" if row else "bad_table")', {"bad_row", "bad_table"}),
        ('raise _unfit("bad_row", "Row 1 is bad.")\ndef _unfit(code: str, text: str): ...', {"bad_row"}),
        ('class BadRow(Error):\n    code: ClassVar[str] = "bad_row"', {"bad_row"}),
        ('code, text = "bad_row", "row"', {"bad_row"}),
        ('yield "bad_row", f"Row {row} is bad."', {"bad_row"}),
        ('answer = {"code": "bad_row", "message": error.message}', {"bad_row"}),
        ('raise Conflict("Row 1 is bad.", code=error.reason)', set()),
    ],
)
def test_the_search_for_codes_finds_them(source: str, expected: set[str]):
    tree = ast.parse(source)
    places = public_places() | places_in(tree)
    found = [codes_of(value) for value in values_of_code(tree, places)]
    assert set().union(*(known for known in found if known is not None)) == expected
