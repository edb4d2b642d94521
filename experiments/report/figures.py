"""Figures 2 to 4 of the paper with our results, and those of the other parts, as SVG by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from experiments.paper import MEASURE_TITLES, MEASURES, METHOD_TITLES, METHODS
from experiments.stats import Outcome
from experiments.store import Record

P = ParamSpec("P")

COLOURS = {"teacher": "#4d4d4d", "svm": "#d8973c", "gsvm0": "#5b9bd5", "gsvm": "#1b6b3a"}
_KINDS = {"sigmoid": "#1b6b3a", "isotonic": "#d8973c"}
_BAR = 0.2
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "stms",  # the same figure gives the same bytes
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def _as_svg(draw: Callable[P, Figure]) -> Callable[P, bytes]:
    """Draw in our style and return the figure's SVG, always the same bytes for the same results."""

    @wraps(draw)
    def svg(*args: P.args, **kwargs: P.kwargs) -> bytes:
        stream = io.BytesIO()
        with mpl.rc_context(_STYLE):
            draw(*args, **kwargs).savefig(stream, format="svg", metadata={"Date": None})
        return stream.getvalue()

    return svg


@_as_svg
def class_bars(outcome: Outcome) -> Figure:
    """Figure 2: accuracy, F and AUC of every class, one bar a method."""
    classes = outcome["classes"]
    K = len(classes)
    figure = _figure(max(6.0, 0.45 * K + 2.0), 7.5)
    for axes, measure in zip(figure.subplots(len(MEASURES), 1, sharex=True), MEASURES, strict=True):
        lowest = 100.0
        for place, method in enumerate(METHODS):
            values = [record["metrics"][measure] for record in outcome["per_class"][method]]
            heights = 100.0 * np.array(values, dtype=np.float64)  # None becomes NaN
            lowest = min(lowest, float(np.nanmin(heights)))
            where = np.arange(K) + (place - 1.5) * _BAR
            axes.bar(where, heights, _BAR, color=COLOURS[method], label=METHOD_TITLES[method])
        bottom = max(0.0, lowest - 0.1 * (100.0 - lowest) - 0.1)
        axes.set(ylabel=f"{MEASURE_TITLES[measure]}, %", ylim=(bottom, 100.0))
    axes.set_xticks(np.arange(K), classes, rotation=45 if max(map(len, classes)) > 3 else 0)
    axes.set_xlabel("class")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(METHODS))
    return figure


@_as_svg
def roc_curves(outcome: Outcome) -> Figure:
    """Figure 3: ROC curves of the two hardest classes, one panel each."""
    codes, rates = outcome.hardest(), ("false_positive_rate", "true_positive_rate")
    figure = _figure(4.2 * len(codes), 3.8)
    for axes, code in zip(_row(figure, len(codes)), codes, strict=True):
        for method in METHODS:
            curve = [outcome["per_class"][method][code]["roc"][rate] for rate in rates]
            axes.plot(*curve, color=COLOURS[method], label=METHOD_TITLES[method], linewidth=1.4)
        title = f"class {outcome['classes'][code]}"
        axes.set(title=title, xlabel="false-positive rate", ylabel="true-positive rate")
        axes.legend(loc="lower right")
    return figure


@_as_svg
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
    figure = _figure(max(7.5, 1.2 * widest + 2.0), 3.2 * len(grids) + 0.6)
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


@_as_svg
def compact_curves(curves: Sequence[Record]) -> Figure:
    """Mean F over the classes against the cost of a query, timed and counted; one panel a data set."""
    figure = _figure(4.2 * len(curves), 3.8)
    for axes, curve in zip(_row(figure, len(curves)), curves, strict=True):
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


@_as_svg
def reliability(record: Record) -> Figure:
    """Share of yes against probability, pooled over classes, and below the number of rows of each tenth."""
    figure = _figure(4.6, 4.8)
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


@_as_svg
def sparse_queries(records: Mapping[str, Record]) -> Figure:
    """Time of a query against the non-zeros of its row, of the stored entries and of the dense row."""
    figure = _figure(4.6 * len(records), 3.6)
    for axes, (data_set, record) in zip(_row(figure, len(records)), records.items(), strict=True):
        nonzeros = [group["nonzeros"] for group in record["groups"]]
        for name, colour in (("sparse", COLOURS["gsvm"]), ("dense", COLOURS["svm"])):
            micro = [1e6 * group["seconds"][name] for group in record["groups"]]
            axes.plot(nonzeros, micro, marker="o", markersize=4, color=colour, label=name)
        xlabel = f"non-zeros of the row (of {record['columns']} columns)"
        axes.set(xlabel=xlabel, ylabel="one query, µs", title=data_set)
        axes.set_ylim(bottom=0.0)
        axes.legend()
    return figure


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def _row(figure: Figure, panels: int) -> Any:
    """The axes of so many panels beside each other."""
    return figure.subplots(1, panels, squeeze=False)[0]
