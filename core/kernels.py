"""Compiles what default jobs compute with, ahead of the first one: ``python -m core.kernels``.

numba compiles a kernel when it first meets the types of its arguments, which takes up to a second, and keeps
it on disk for this processor. An installation runs this program once. Without it the first jobs take some
seconds longer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

_WORDS: Final = ("red", "green", "blue", "late", "early", "nice", "broken", "new")


def compile_kernels() -> None:
    """Train on small tables of every form: numbers, texts, and both, of two classes and of more."""
    from core.estimators.classifiers import STMSClassifier

    for columns, labels in _tables():
        STMSClassifier().fit(pa.table(columns), labels)


def _tables() -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Columns and labels of tables that no tree and no plane decides alone."""
    rng = np.random.default_rng(0)
    for classes, rows, numbers in ((2, 150, 3), (3, 150, 4)):
        codes = np.arange(rows) % classes
        X = rng.standard_normal((rows, numbers)) + codes[:, np.newaxis] / 2.0
        columns = {f"x{k}": X[:, k] for k in range(numbers)}
        drawn = rng.choice(_WORDS, (rows, 4)).tolist()
        note = [
            " ".join([*words, f"word{code}", str(k)])
            for k, (words, code) in enumerate(zip(drawn, codes, strict=True))
        ]
        labels = [f"class {code}" for code in codes]
        yield columns, labels
        yield {"note": note}, labels
        yield columns | {"note": note}, labels


def main() -> int:
    """Compile the kernels; returns the exit code."""
    began = time.monotonic()
    compile_kernels()
    sys.stdout.write(f"The kernels are compiled: {time.monotonic() - began:.1f} s.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
