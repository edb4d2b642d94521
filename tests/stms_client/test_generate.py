"""The modules of the client that are generated are those that their sources give."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

from stms_client.build_steps import generate
from tests.stms_client.generate import CLIENT, DOCUMENTS, documents


def test_the_generated_modules_are_not_older_than_their_sources():
    modules = generate.generated()
    older = {
        str(path.relative_to(CLIENT))
        for path, source in modules.items()
        if not path.exists() or path.read_text("utf-8") != source
    }
    assert older == set(), "These modules of stms_client are older than their sources. Run: make client"
    present = {path for folder in ("sync", "_packed") for path in (CLIENT / folder).glob("*.py*")}
    without = {path.relative_to(CLIENT) for path in present - set(modules) if path.name != "__init__.py"}
    assert without == set(), "These modules of stms_client have no source any more. Run: make client"


def test_the_documents_are_those_of_the_service():
    assert DOCUMENTS.read_text("utf-8") == documents(), "Run: make client"


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """The client's folder in a clone: nothing is generated yet."""
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("core", "stms_client/aio", "stms_client/build_steps"):
        shutil.copytree(generate.ROOT / name, tmp_path / name, ignore=ignore)
    for name in ("sync", "_packed"):
        (tmp_path / "stms_client" / name).mkdir()
        shutil.copy(CLIENT / name / "__init__.py", tmp_path / "stms_client" / name)
    return tmp_path / "stms_client"


def build(client: Path) -> set[str]:
    """Run what a build runs, and return the names of the modules that are generated then."""
    runpy.run_path(str(client / "build_steps" / "generate.py"), run_name="__main__")
    return {
        str(path.relative_to(client)) for name in ("sync", "_packed") for path in (client / name).iterdir()
    }


def test_a_build_writes_what_has_changed_and_removes_what_has_no_source(client: Path):
    names = build(client)
    written = client / "_packed" / "codec.py"
    assert written.read_text("utf-8") == (CLIENT / "_packed" / "codec.py").read_text("utf-8")
    written.write_text("", "utf-8")
    for name in ("sync/former.py", "_packed/_former.pyi"):
        (client / name).write_text("", "utf-8")
    unchanged = (client / "sync" / "client.py").stat().st_mtime_ns
    assert build(client) == names
    assert written.read_text("utf-8") == (CLIENT / "_packed" / "codec.py").read_text("utf-8")
    assert (client / "sync" / "client.py").stat().st_mtime_ns == unchanged


def test_a_source_distribution_is_built_with_the_copies_that_it_contains(client: Path):
    names = build(client)
    unpacked = client.rename(client.with_name("stms_client-1.0.0"))  # beside the core of some version
    (unpacked / "_packed" / "codec.py").write_text("VERSION = 1\n", "utf-8")
    assert build(unpacked) == names
    assert (unpacked / "_packed" / "codec.py").read_text("utf-8") == "VERSION = 1\n"


def test_without_the_core_and_its_copies_there_is_no_build(client: Path):
    (client.parent / "core").rename(client.parent / "other")
    with pytest.raises(FileNotFoundError, match="needs the folder core beside it"):
        build(client)


def test_two_modules_of_the_core_with_the_same_name_are_refused(client: Path):
    codec = client.parent / "core" / "packed" / "codec.py"
    codec.write_text(f"from core.data.codec import Kind\n{codec.read_text('utf-8')}", "utf-8")
    shutil.copy(codec, client.parent / "core" / "data")
    with pytest.raises(ValueError, match="Two of these modules have the same name"):
        build(client)
