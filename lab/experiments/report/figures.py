"""Figures 2 to 4 of the paper with our results, and those of the other parts, as SVG by matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lab.experiments.paper import MEASURE_TITLES, MEASURES, METHOD_TITLES, METHODS
from lab.experiments.report.outcomes import Outcome
from lab.experiments.report.results import Results
from lab.experiments.store import Record

COLOURS = {"teacher": "#4d4d4d", "svm": "#d8973c", "gsvm0": "#5b9bd5", "gsvm": "#1b6b3a"}
_KINDS = {"sigmoid": "#1b6b3a", "isotonic": "#d8973c"}
_BAR = 0.2
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "stms",  # the same figure gives the same bytes
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def all_figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """Title, name of the file and figure; to be drawn and saved in ``STYLE``."""
    if results.outcomes:
        title = "Figure 4: time of one answer over the teacher's, by whole queries and by scoring alone"
        yield title, "inference", inference_bars(results.outcomes)
    for outcome in results.outcomes:
        name = f"{outcome.data_set}, {outcome.grid} grid"
        title = f"Figure 2: {name}, every class (axes do not start at 0)"
        yield title, f"classes-{outcome.data_set}-{outcome.grid}", class_bars(outcome)
        if outcome.hardest():
            title = f"Figure 3: {name}, ROC curves of the classes with the lowest AUC of gSVM"
            yield title, f"roc-{outcome.data_set}-{outcome.grid}", roc_curves(outcome)
    if results.curves:
        title = "Compact students: mean F, with its interval, by the cost of a query; numbers are landmarks"
        yield title, "compact", compact_curves(list(results.curves.values()))
    for data_set, record in results.probabilities.items():
        title = f"Reliability: {data_set}, gSVM of the open grid, test part"
        yield title, f"reliability-{data_set}", reliability(record)


def class_bars(outcome: Outcome) -> Figure:
    """Figure 2: accuracy, F and AUC of every class, one bar a method."""
    classes = outcome["classes"]
    K = len(classes)
    figure = Figure(figsize=(max(6.0, 0.45 * K + 2.0), 7.5))
    for axes, measure in zip(figure.subplots(len(MEASURES), 1, sharex=True), MEASURES, strict=True):
        values = [[one["metrics"][measure] for one in outcome["per_class"][method]] for method in METHODS]
        heights = 100.0 * np.array(values, dtype=np.float64)  # None becomes NaN
        for place, method in enumerate(METHODS):
            where = np.arange(K) + (place - 1.5) * _BAR
            axes.bar(where, heights[place], _BAR, color=COLOURS[method], label=METHOD_TITLES[method])
        lowest = float(np.nanmin(heights))
        bottom = max(0.0, lowest - 0.1 * (100.0 - lowest) - 0.1)
        axes.set(ylabel=f"{MEASURE_TITLES[measure]}, %", ylim=(bottom, 100.0))
    axes.set_xticks(np.arange(K), classes, rotation=45 if max(map(len, classes)) > 3 else 0)
    axes.set_xlabel("class")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(METHODS))
    return figure


def roc_curves(outcome: Outcome) -> Figure:
    """Figure 3: ROC curves of the two hardest classes, one panel each."""
    codes, rates = outcome.hardest(), ("false_positive_rate", "true_positive_rate")
    figure = Figure(figsize=(4.2 * len(codes), 3.8))
    for axes, code in zip(figure.subplots(1, len(codes), squeeze=False)[0], codes, strict=True):
        for method in METHODS:
            curve = [outcome["per_class"][method][code]["roc"][rate] for rate in rates]
            axes.plot(*curve, color=COLOURS[method], label=METHOD_TITLES[method], linewidth=1.4)
        title = f"class {outcome['classes'][code]}"
        axes.set(title=title, xlabel="false-positive rate", ylabel="true-positive rate")
        axes.legend(loc="lower right")
    return figure


def inference_bars(outcomes: Sequence[Outcome]) -> Figure:
    """Figure 4: time of one answer relative to the teacher's: whole query, and scoring alone; a row a grid.

    The dots are counted, not timed: scores that Remark 2 needs over all classes.
    """
    grids = list(dict.fromkeys(one.grid for one in outcomes))
    widest = max(sum(one.grid == grid for one in outcomes) for grid in grids)
    bars = {
        "teacher with Remark 2": ("seconds_per_query", "remark_2", "#8c8c8c"),
        "student (gSVM, SVM)": ("seconds_per_query", "student", COLOURS["gsvm"]),
        "student, scoring only": ("seconds_for_scoring", "student", "#9ccbb0"),
    }
    figure = Figure(figsize=(max(7.5, 1.2 * widest + 2.0), 3.2 * len(grids) + 0.6))
    for axes, grid in zip(figure.subplots(len(grids), 1, squeeze=False)[:, 0], grids, strict=True):
        shown = [one for one in outcomes if one.grid == grid]
        where, timed = np.arange(len(shown)), [one["inference"] for one in shown]
        for place, (title, (kind, who, colour)) in enumerate(bars.items()):
            heights = [one[kind][who] / one[kind]["teacher"] for one in timed]
            axes.bar(where + (place - 1) * 0.25, heights, 0.25, color=colour, label=title)
        counted = [one["classes_evaluated"] / one["classes"] for one in timed]
        label = "Remark 2, scores counted"
        axes.plot(where - 0.25, counted, "o", color="#c0392b", label=label, markersize=4)
        axes.axhline(1.0, color=COLOURS["teacher"], linewidth=1.0, label="teacher")
        axes.set_xticks(where, [f"{one.data_set}\n{len(one['classes'])} classes" for one in shown])
        axes.set(ylabel="time relative to the teacher", title=f"{grid} grid")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def compact_curves(curves: Sequence[Record]) -> Figure:
    """Mean F over the classes against the cost of a query, timed and counted; one panel a data set."""
    figure = Figure(figsize=(4.2 * len(curves), 3.8))
    for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        names = ("f1", "f1_low", "f1_high", "relative_time", "relative_cost")
        values, low, high, times, counted = ([point[name] for point in curve["points"]] for name in names)
        axes.fill_between(counted, low, high, color="#9ccbb0", alpha=0.35, linewidth=0)
        axes.plot(counted, values, "o--", color="#5fa67c", markersize=4, label="multiplications")
        axes.plot(times, values, "o-", color=COLOURS["gsvm"], markersize=4, label="time")
        for point in curve["points"]:
            place = (point["relative_cost"], point["f1"])
            axes.annotate(str(point["landmarks"]), place, xytext=(-4, 6), textcoords="offset points")
        axes.plot(1.0, curve["teacher_f1"], "s", color=COLOURS["teacher"], label="teacher")
        axes.axhline(curve["teacher_f1"], color=COLOURS["teacher"], linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
        axes.minorticks_off()
        title = f"{curve['data_set']}, {curve['classes']} classes"
        axes.set(title=title, xlabel="one query over the teacher's", ylabel="mean F, %")
        axes.set_xlim(0.6 * min(*times, *counted), 1.6)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def reliability(record: Record) -> Figure:
    """Share of yes against probability, pooled over classes, and below the number of rows of each tenth."""
    figure = Figure(figsize=(4.6, 4.8))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], color=COLOURS["teacher"], linewidth=0.8, linestyle=":", label="perfect")
    for place, (kind, one) in enumerate(record["kinds"].items()):
        label = f"{kind}, {len(one['classes'])} of {record['n_classes']} classes"
        names = ("probability", "observed", "low", "high", "count")
        columns = (np.array([each[name] for each in one["bins"]]) for name in names)
        probability, observed, low, high, count = columns
        style = {"marker": "o", "markersize": 4, "linewidth": 1.2, "color": _KINDS[kind]}
        upper.plot(probability, observed, label=label, **style)
        lower.bar(0.5 * (low + high) + (place - 0.5) * 0.035, count, 0.035, color=_KINDS[kind])
    upper.set_ylabel("share of yes")
    upper.legend(loc="upper left")
    lower.set(yscale="log", ylabel="rows", xlabel="probability")
    return figure
