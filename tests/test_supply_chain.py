"""What the service is made of: licences of the locked packages, and a bill of materials with all of them."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUNTIME = ROOT / "requirements" / "runtime.txt"
ACCEPTED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "LGPL-3.0-only",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "PSF-2.0",
    "Zlib",
}
"""Licences under which a service may be run and shipped in an image without publishing its own source."""


def locked() -> set[tuple[str, str]]:
    """Names and versions in the lock file."""
    return set(re.findall(r"^([a-z0-9.-]+)==([^\s;\\]+)", RUNTIME.read_text(encoding="utf-8"), re.MULTILINE))


def listed() -> dict[str, str]:
    """Licence by package, from the list in the repository."""
    lines = (ROOT / "requirements" / "licences.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines if not line.startswith("#"))


def test_every_locked_package_has_an_accepted_licence():
    licences = listed()
    assert set(licences) == {name for name, _ in locked()}
    parts = {part for licence in licences.values() for part in licence.split(" AND ")}
    assert parts <= ACCEPTED


def test_the_list_agrees_with_what_the_packages_declare():
    compared = 0
    for name, licence in listed().items():
        try:
            declared = importlib.metadata.metadata(name).get("License-Expression")
        except importlib.metadata.PackageNotFoundError:
            continue
        if declared is not None:
            assert licence == declared, name
            compared += 1
    assert compared > 20


@pytest.mark.long
def test_the_bill_of_materials_has_every_locked_package(tmp_path: Path):
    target = tmp_path / "sbom.json"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--of", "JSON", "-o", target, RUNTIME]
    subprocess.run(command, check=True, capture_output=True)
    document = json.loads(target.read_text(encoding="utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    assert {(part["name"], part["version"]) for part in document["components"]} == locked()
