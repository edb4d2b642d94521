"""The blocking client is what `generate` makes of the one for asyncio."""

from __future__ import annotations

from tests.stms_client.generate import FOLDER, generate


def test_the_blocking_client_is_generated_from_the_one_for_asyncio():
    source = (FOLDER / "aio.py").read_text("utf-8")
    assert (FOLDER / "sync.py").read_text("utf-8") == generate(source), "run: make client"
