"""The fairness benchmark, with one short window for three of its ways."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.long
def test_a_crowd_lets_no_query_of_another_key_fail():
    command = [sys.executable, "-m", "lab.verification.fairness", "--quick", "--ways"]
    ways = ["keyless_sign_in", "keyless_connections", "key_slots"]
    done = subprocess.run([*command, *ways], capture_output=True, text=True, timeout=500, check=False)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["fairness_failed"] == 0, figures
    # The ratio itself means something on an idle machine only.
    assert figures["fairness_p99_ratio"] > 0
    assert list(figures["fairness_ways"]) == ways
    for figure in figures["fairness_ways"].values():
        assert figure["queries"] > 300
    for way in ("keyless_sign_in", "key_slots"):
        assert figures["fairness_ways"][way]["answers"]["429"] > 0
