"""The program that compiles kernels ahead of the first job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import numpy as np

from core.estimators.classifiers import STMSClassifier

rng = np.random.default_rng(1)
codes = np.arange(150) % 3
X = rng.standard_normal((150, 4)) + codes[:, None]
STMSClassifier().fit(X, codes)
"""


@pytest.mark.long
def test_a_job_after_it_compiles_nothing(tmp_path: Path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "core.kernels"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("The kernels are compiled: ")
    before = set(tmp_path.rglob("*.nbc"))
    assert before
    subprocess.run([sys.executable, "-c", JOB], env=environment, check=True, capture_output=True)
    assert set(tmp_path.rglob("*.nbc")) == before
