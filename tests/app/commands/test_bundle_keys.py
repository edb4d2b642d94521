"""A server that cannot verify signatures of bundles, although its settings ask for it, does not start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(("content", "said"), [(None, "cannot read"), (b"no key", "0 public keys")])
def test_keys_that_cannot_be_used_stop_the_start(run: Any, tmp_path: Path, content: bytes | None, said: str):
    keys = tmp_path / "keys.pem"
    if content is not None:
        keys.write_bytes(content)
    result = run("api", STMS_BUNDLE_KEYS=str(keys), STMS_DATA_DIR=str(tmp_path))
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())


def test_a_missing_package_stops_the_start_and_names_the_extra(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    monkeypatch.delitem(sys.modules, "app.ingest.bundle_signature", raising=False)
    result = run("serve", STMS_BUNDLE_KEYS=str(tmp_path / "keys.pem"), STMS_DATA_DIR=str(tmp_path))
    assert result.exit_code == 1
    assert "pip install 'stms[signing]'" in result.stderr
