"""A short run of the fuzzer: every target accepts its seeds, and some thousand inputs find nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.domain.file_formats import FileFormat
from app.gate import relay
from app.server.fast_path import FastPath
from verification.fuzz import known_heads as fuzz_known_heads
from verification.fuzz import relay as fuzz_relay
from verification.fuzz.__main__ import SHARES, fuzz
from verification.fuzz.heads import HEADS, Disagreement, compare_heads
from verification.fuzz.targets import TARGETS


def test_every_target_has_a_share_and_accepts_its_seeds(tmp_path: Path):
    assert set(TARGETS) == set(SHARES)
    assert set(FileFormat) <= set(TARGETS), "files of every format are read"
    for target in TARGETS.values():
        for seed in target.seeds():
            target.run(seed, tmp_path)


def test_the_heads_are_complete_requests_for_both_parsers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("verification.fuzz.heads._read_by_h11", lambda data: (b"GET", b"/", None))
    for head in HEADS:
        with pytest.raises(Disagreement):
            compare_heads(head, tmp_path)


def find(name: str, folder: Path) -> list[str]:
    """What the seeds of a target find."""
    found = []
    for seed in TARGETS[name].seeds():
        try:
            TARGETS[name].run(seed, folder)
        except (fuzz_known_heads.Disagreement, fuzz_relay.Disagreement) as error:
            found.append(str(error))
    return found


def test_a_head_that_is_kept_with_another_meaning_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def keep(self: FastPath, head: bytes, prepared: Any) -> None:
        self.known[head] = fuzz_known_heads._Understood(b"/other", [(b"content-length", b"4")])

    monkeypatch.setattr(FastPath, "_keep", keep)
    assert find("known_heads", tmp_path)


@pytest.mark.parametrize(
    ("target", "name", "value", "finding"),
    [
        ("relay_response", "_NOT_SENT_ON", frozenset(), "is sent on"),
        ("relay_requests", "_NOT_RELAYED", frozenset({b"x-request-id"}), "A header of one connection"),
        ("relay_requests", "OWN_HEADERS", b"own-", "are not there once"),
    ],
)
def test_a_relay_that_lets_a_header_pass_is_found(
    target: str, name: str, value: Any, finding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(relay, name, value)
    assert any(finding in text for text in find(target, tmp_path))


@pytest.mark.long
def test_a_planted_fault_is_found(tmp_path: Path):
    code = """
import sys
from pathlib import Path
import verification.fuzz.targets as targets
from verification.fuzz import worker
def run(data, folder):
    if len(data) > 6:
        raise KeyError("planted")
targets.TARGETS["form"] = targets.Target(run, lambda: [b"abc"])
worker.main()
"""
    folder = tmp_path / "run"
    folder.mkdir()
    subprocess.run([sys.executable, "-c", code, "form", str(folder), "3"], check=True, capture_output=True)
    [kind] = json.loads((folder / "result.json").read_text())["findings"]
    assert kind.startswith("KeyError")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_some_thousand_inputs_find_nothing():
    figures = fuzz(list(SHARES), 14.0, 0)
    assert figures["findings"] == []
    assert all(figures["fuzz_targets"].values())
    assert figures["fuzz_executions"] > 5000
