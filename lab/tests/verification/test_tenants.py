"""Sixteen keys of one tenant beside another tenant, with short windows for two ways of asking."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.long
def test_many_keys_of_a_tenant_delay_another_one_little_more_than_one_key():
    ways = ["query", "grpc"]
    command = [sys.executable, "-m", "lab.verification.tenants", "--quick", "--ways", *ways]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["tenants_failed"] == 0, figures
    assert list(figures["tenants_ways"]) == ways
    for figure in figures["tenants_ways"].values():
        assert figure["answers"]["200"] > 16, figure
        # It was above 14 where turns went by key; the limit itself is for an idle machine.
        assert 0 < figure["ratio"] < 6, figure
