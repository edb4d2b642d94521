"""A short run of the fuzzer: every target accepts its seeds, and some thousand inputs find nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.safety.fuzz import SHARES, fuzz
from benchmarks.safety.fuzz_heads import HEADS, Disagreement, compare_heads
from benchmarks.safety.fuzz_targets import TARGETS


def test_every_target_has_a_share_and_accepts_its_seeds(tmp_path: Path):
    assert set(TARGETS) == set(SHARES)
    for target in TARGETS.values():
        for seed in target.seeds():
            target.run(seed, tmp_path)


def test_the_heads_are_complete_requests_for_both_parsers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("benchmarks.safety.fuzz_heads._read_by_h11", lambda data: (b"GET", b"/", None))
    for head in HEADS:
        with pytest.raises(Disagreement):
            compare_heads(head, tmp_path)


@pytest.mark.long
def test_a_planted_fault_is_found(tmp_path: Path):
    code = """
import sys
from pathlib import Path
import benchmarks.safety.fuzz_targets as targets
from benchmarks.safety import fuzz_worker
def run(data, folder):
    if len(data) > 6:
        raise KeyError("planted")
targets.TARGETS["form"] = targets.Target(run, lambda: [b"abc"])
fuzz_worker.main()
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
