"""What the service is made of: licences of the locked packages, and a bill of materials with all of them."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "requirements"
RUNTIME = LOCKS / "runtime.txt"
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
    "MIT-CMU",
    "MPL-2.0",
    "PSF-2.0",
    "Zlib",
}
"""Licences under which a service may be run and shipped in an image without publishing its own source."""


def locked(lock: Path = RUNTIME) -> set[tuple[str, str]]:
    """Names and versions in a lock file."""
    return {(one.name, str(one.specifier).removeprefix("==")) for one in requirements(lock)}


def requirements(lock: Path) -> list[Requirement]:
    """The pinned packages of a lock file, with their extras."""
    lines = re.findall(
        r"^([a-z0-9.-]+(?:\[[^]]+\])?==[^\s;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE
    )
    return [Requirement(line) for line in lines]


def listed() -> dict[str, str]:
    """Licence by package, from the list in the repository."""
    lines = (ROOT / "requirements" / "licences.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines if not line.startswith("#"))


def test_every_locked_package_has_an_accepted_licence():
    licences = listed()
    extras = [locked(LOCKS / f"{extra}.txt") for extra in ("oidc", "grpc", "objects", "images", "encoders")]
    assert set(licences) == {name for name, _ in set().union(*extras)}
    parts = {part for licence in licences.values() for part in re.split(" AND | OR ", licence)}
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


@pytest.mark.parametrize(
    "lock",
    [
        LOCKS / f"{name}.txt"
        for name in ("runtime", "serving", "oidc", "grpc", "objects", "images", "encoders", "dev", "docs")
    ],
    ids=lambda lock: lock.stem,
)
def test_packages_are_locked_with_the_extras_that_others_need(lock: Path):
    """Otherwise pip takes the newest release for ``package[extra]``, and refuses it for want of a hash."""
    pinned = {canonicalize_name(one.name): one for one in requirements(lock)}
    for name, own in pinned.items():
        try:
            needed = [Requirement(text) for text in importlib.metadata.requires(name) or []]
        except importlib.metadata.PackageNotFoundError:
            continue
        for other in needed:
            applies = any(
                other.marker is None or other.marker.evaluate({"extra": extra}) for extra in {"", *own.extras}
            )
            if other.extras and applies and (found := pinned.get(canonicalize_name(other.name))):
                assert other.extras <= found.extras, f"{name} needs {other}"


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("oidc", {"cryptography", "pyjwt"}),
        ("grpc", {"grpcio", "protobuf"}),
        ("objects", {"obstore"}),
        ("images", {"pillow"}),
        ("encoders", {"flatbuffers", "onnxruntime", "packaging", "pillow", "protobuf"}),
    ],
)
def test_an_image_with_an_extra_has_these_packages_more_in_the_versions_of_the_tests(extra, packages):
    more = locked(LOCKS / f"{extra}.txt") - locked()
    assert {name for name, _ in more} == packages
    assert more <= locked(LOCKS / "dev.txt")


def test_what_serves_is_a_part_of_the_whole():
    serving = locked(LOCKS / "serving.txt")
    assert serving < locked()
    assert not {name for name, _ in serving} & {"dbos", "joblib", "numba", "pyarrow", "scikit-learn", "scipy"}
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = {Requirement(line).name for line in document["dependency-groups"]["serving"]}
    assert named < {Requirement(line).name for line in document["project"]["dependencies"]} | {"setuptools"}


@pytest.mark.long
def test_the_bill_of_materials_has_every_locked_package(tmp_path: Path):
    target = tmp_path / "sbom.json"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--of", "JSON", "-o", target, RUNTIME]
    subprocess.run(command, check=True, capture_output=True)
    document = json.loads(target.read_text(encoding="utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    assert {(part["name"], part["version"]) for part in document["components"]} == locked()
