"""What the paper reports: Table 3, as data.

You et al., "Learning with Single-Teacher Multi-Student". Figures are percentages. Protein is reported
separately, because only a part of that set is public.
"""

from __future__ import annotations

from itertools import product
from typing import Literal, TypeAlias

Measure: TypeAlias = Literal["accuracy", "f1", "auc"]
Statistic: TypeAlias = Literal["mean", "median"]

MEASURES: tuple[Measure, ...] = ("accuracy", "f1", "auc")
STATISTICS: tuple[Statistic, ...] = ("mean", "median")
FIGURES: tuple[tuple[Statistic, Measure], ...] = tuple(product(STATISTICS, MEASURES))
METHOD_TITLES: dict[str, str] = {"teacher": "teacher", "svm": "SVM", "gsvm0": "gSVM-0", "gsvm": "gSVM"}
METHODS = tuple(METHOD_TITLES)
MEASURE_TITLES: dict[str, str] = {"accuracy": "accuracy", "f1": "F", "auc": "AUC"}

GOAL_SETS = ("letter", "satimage", "shuttle", "vowel", "yeast")
"""The sets of Table 3 that are public in full."""


_TABLE_3 = """
letter   teacher 99.72 96.35 99.95 99.73 96.43 99.97
letter   svm     97.35 43.47 90.89 96.90 44.37 93.40
letter   gsvm0   98.41 81.75 98.64 98.47 80.19 98.70
letter   gsvm    98.88 82.26 99.72 99.16 87.50 99.81
protein  teacher 80.50 67.55 84.91 81.03 71.86 84.34
protein  svm     78.31 60.86 81.41 77.57 64.26 82.34
protein  gsvm0   78.67 63.23 82.54 78.15 63.79 82.88
protein  gsvm    81.01 69.86 85.03 81.06 68.47 85.23
satimage teacher 97.05 89.80 98.76 97.35 92.13 99.34
satimage svm     94.00 74.28 91.46 93.65 81.31 96.81
satimage gsvm0   94.33 81.95 98.54 94.12 83.56 98.95
satimage gsvm    96.28 86.76 98.55 96.55 89.29 99.08
shuttle  teacher 99.95 82.20 98.81 99.96 85.71 98.99
shuttle  svm     97.47 42.83 82.61 98.91 43.33 88.01
shuttle  gsvm0   98.13 77.54 94.86 98.34 73.66 95.02
shuttle  gsvm    99.57 80.42 99.28 99.61 83.17 99.85
vowel    teacher 91.93 53.69 92.12 93.29 55.38 93.10
vowel    svm     89.95 22.01 80.00 89.91 24.55 85.11
vowel    gsvm0   86.19 43.03 91.05 85.50 42.00 90.04
vowel    gsvm    90.93 52.49 91.96 92.21 51.72 91.92
yeast    teacher 92.04 63.59 85.52 96.49 64.12 83.28
yeast    svm     90.47 35.37 81.86 95.82 36.67 81.37
yeast    gsvm0   91.44 49.71 83.00 95.99 53.08 84.36
yeast    gsvm    91.71 51.67 83.10 96.55 55.14 85.40
"""


def published(data_set: str, method: str, statistic: Statistic, measure: Measure) -> float | None:
    """A cell of Table 3 in per cent; None where the paper has none. ``protein_val_part`` reads protein's."""
    row = _CELLS.get((data_set.removesuffix("_val_part"), method))
    return None if row is None else row[FIGURES.index((statistic, measure))]


def _read(text: str) -> dict[tuple[str, str], tuple[float, ...]]:
    rows = (line.split() for line in text.strip().splitlines())
    return {(name, method): tuple(map(float, cells)) for name, method, *cells in rows}


_CELLS = _read(_TABLE_3)
