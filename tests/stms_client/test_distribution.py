"""What the distributions of client and service declare about the client, and what its page says."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

from stms_client import Client, Curve, Job

ROOT = Path(__file__).parents[2]


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def test_both_distributions_have_all_packages_of_the_client():
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "stms_client").rglob("__init__.py")
    }
    client, service = project(ROOT / "stms_client"), project(ROOT)
    assert set(client["tool"]["setuptools"]["packages"]) == packages
    assert packages <= set(service["tool"]["setuptools"]["packages"]["find"]["include"])


def test_the_service_needs_all_that_its_client_needs():
    client, service = project(ROOT / "stms_client")["project"], project(ROOT)["project"]
    assert {text.partition(">")[0] for text in client["dependencies"]} == {"httpx", "msgspec"}
    assert set(client["dependencies"]) <= set(service["dependencies"])
    assert client["version"] == service["version"]


def methods(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}.union(*map(methods, kind.__bases__))


def test_the_page_of_the_client_names_all_methods_and_no_others():
    page = (ROOT / "docs" / "python-client.md").read_text(encoding="utf-8")
    table = page[page.index("## All methods") :]
    named = set(re.findall(r"`(\w+)`", table[: table.index("## Errors")]))
    known = methods(Client) - {"address", "close", "streaming"}
    assert named == known, "name the methods of stms_client/aio in the table, then run: make client"
    called = {"stms": Client, "job": Job, "curve": Curve}
    seen = set()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in called
            ):
                assert hasattr(called[node.value.id], node.attr), f"{node.value.id}.{node.attr}"
                seen.add((node.value.id, node.attr))
    own = methods(Job) - methods(dict)
    assert own - {name for owner, name in seen if owner == "job"} <= {"id", "model", "wait"}
