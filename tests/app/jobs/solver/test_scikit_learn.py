"""A solver's first job and its warm-up need scikit-learn at the same time, in two threads."""

from __future__ import annotations

import subprocess
import sys

_BOTH = """
import sys
sys.setswitchinterval(1e-6)
from concurrent.futures import ThreadPoolExecutor
from app.jobs.solver.scikit_learn import import_scikit_learn

def parts():
    import_scikit_learn()
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedShuffleSplit
    return HistGradientBoostingClassifier, StratifiedShuffleSplit

with ThreadPoolExecutor(2) as pool:
    first, second = [future.result() for future in [pool.submit(parts) for _ in range(2)]]
assert first == second
"""


def test_two_threads_import_scikit_learn_one_after_the_other():
    subprocess.run([sys.executable, "-c", _BOTH], check=True, timeout=120)
