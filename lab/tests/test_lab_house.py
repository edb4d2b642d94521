"""The rules of the house, for the laboratory, and what it may import of the product's tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house_rules import (
    findings,
    long_functions,
    long_modules,
    modules_of,
    pickling,
    seen_at_import,
    swallowing,
)

PROGRAMS = {name: path for name, path in modules_of("lab").items() if not name.startswith("lab.tests")}
LENT = ("tests.system", "tests.reference", "tests.refusals")
"""What programs may import of the product's tests."""


def test_a_module_has_one_subject():
    assert len(PROGRAMS) > 100
    assert long_modules(PROGRAMS) == {}


@pytest.mark.parametrize("check", [long_functions, pickling, swallowing])
def test_no_module_does_what_none_may_do(check):
    assert findings(check, PROGRAMS) == {}


def test_nothing_happens_when_a_module_is_imported():
    assert not seen_at_import(list(PROGRAMS), ["lab", "app", "core", "stms_client", "tests"])


def imports_that_were_not_lent(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            name = node.module or ""
            if name.partition(".")[0] == "tests" and not name.startswith(LENT):
                yield name


def test_programs_import_of_the_tests_what_starts_a_service_and_what_computes_in_other_ways():
    assert findings(imports_that_were_not_lent, PROGRAMS) == {}
    assert list(imports_that_were_not_lent(ast.parse("from tests.core import cases"))) == ["tests.core"]
