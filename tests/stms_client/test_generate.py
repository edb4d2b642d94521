"""The blocking client is what `generate` makes of the one for asyncio."""

from __future__ import annotations

import pytest

from tests.stms_client.generate import (
    COPY,
    FOLDER,
    copied_modules,
    generate,
    generate_copy,
    generate_documents,
    names,
)


@pytest.mark.parametrize("name", names())
def test_the_blocking_client_is_generated_from_the_one_for_asyncio(name: str):
    assert (FOLDER / "sync" / name).read_text("utf-8") == generate(name), "run: make client"


def test_the_documents_are_those_of_the_service():
    assert (FOLDER / "documents.py").read_text("utf-8") == generate_documents(), "run: make client"


def test_the_blocking_client_has_no_other_modules():
    assert sorted(path.name for path in (FOLDER / "sync").glob("*.py")) == names()


@pytest.mark.parametrize("name", copied_modules())
def test_the_client_evaluates_students_with_a_copy_of_the_core(name: str):
    original = copied_modules()[name]
    copy = (FOLDER / COPY / f"{name}{original.suffix}").read_text("utf-8")
    assert copy == generate_copy(original), "run: make client"


def test_the_copy_has_no_other_modules():
    assert {path.stem for path in (FOLDER / COPY).glob("*.py*")} == {"__init__", *copied_modules()}
