"""Figures 2 to 4 of the paper with our figures, by matplotlib, as SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from experiments.paper import MEASURE_TITLES, MEASURES, METHOD_TITLES, METHODS
from experiments.summary import Outcome

COLOURS = {"teacher": "#4d4d4d", "svm": "#d8973c", "gsvm0": "#5b9bd5", "gsvm": "#1b6b3a"}
_BAR = 0.2
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "stms",  # the same figure gives the same bytes
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def class_bars(outcome: Outcome) -> bytes:
    """Figure 2: accuracy, F and AUC of every class, one bar a method."""
    K = len(outcome.classes)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(max(6.0, 0.45 * K + 2.0), 7.5), layout="constrained")
        for axes, measure in zip(figure.subplots(len(MEASURES), 1, sharex=True), MEASURES, strict=True):
            lowest = 100.0
            for place, method in enumerate(METHODS):
                values = [record["metrics"][measure] for record in outcome.per_class[method]]
                heights = np.array([np.nan if value is None else 100.0 * value for value in values])
                lowest = min(lowest, float(np.nanmin(heights)))
                where = np.arange(K) + (place - 1.5) * _BAR
                axes.bar(where, heights, _BAR, color=COLOURS[method], label=METHOD_TITLES[method])
            axes.set_ylabel(f"{MEASURE_TITLES[measure]}, %")
            axes.set_ylim(max(0.0, lowest - 0.1 * (100.0 - lowest) - 0.1), 100.0)
        axes.set_xticks(
            np.arange(K), outcome.classes, rotation=45 if max(map(len, outcome.classes)) > 3 else 0
        )
        axes.set_xlabel("class")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(METHODS))
        return _svg(figure)


def roc_curves(outcome: Outcome, codes: Sequence[int]) -> bytes:
    """Figure 3: ROC curves of the classes given, one panel each."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.2 * len(codes), 3.8), layout="constrained")
        for axes, code in zip(figure.subplots(1, len(codes), squeeze=False)[0], codes, strict=True):
            for method in METHODS:
                curve = outcome.per_class[method][code]["roc"]
                axes.plot(
                    curve["false_positive_rate"],
                    curve["true_positive_rate"],
                    color=COLOURS[method],
                    label=METHOD_TITLES[method],
                    linewidth=1.4,
                )
            axes.set_title(f"class {outcome.classes[code]}")
            axes.set_xlabel("false-positive rate")
            axes.set_ylabel("true-positive rate")
            axes.legend(loc="lower right")
        return _svg(figure)


def hardest_classes(outcome: Outcome, count: int = 2) -> list[int]:
    """Codes of the classes with the lowest AUC of gSVM that have a ROC curve, rising."""
    areas = {
        code: record["metrics"]["auc"]
        for code, record in enumerate(outcome.per_class["gsvm"])
        if record["roc"] is not None
    }
    return sorted(sorted(areas, key=lambda code: areas[code])[:count])


def inference_bars(outcomes: Sequence[Outcome]) -> bytes:
    """Figure 4: time of one answer relative to the teacher's: whole query, and scoring alone."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(max(6.0, 1.1 * len(outcomes) + 2.0), 3.6), layout="constrained")
        axes = figure.subplots()
        bars = {
            "teacher with Remark 2": ("seconds_per_query", "remark_2", "#8c8c8c"),
            "student (gSVM, SVM)": ("seconds_per_query", "student", COLOURS["gsvm"]),
            "student, scoring only": ("seconds_for_scoring", "student", "#9ccbb0"),
        }
        for place, (title, (kind, who, colour)) in enumerate(bars.items()):
            heights = [one.inference[kind][who] / one.inference[kind]["teacher"] for one in outcomes]
            axes.bar(np.arange(len(outcomes)) + (place - 1) * 0.25, heights, 0.25, color=colour, label=title)
        axes.axhline(1.0, color=COLOURS["teacher"], linewidth=1.0, label="teacher")
        axes.set_xticks(np.arange(len(outcomes)), [f"{one.data_set}\n{one.grid} grid" for one in outcomes])
        axes.set_ylabel("time relative to the teacher")
        axes.legend()
        return _svg(figure)


def _svg(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()
