"""Figures 2 to 4 of the paper with our results, and those of the other parts, as SVG by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from experiments.paper import MEASURE_TITLES, MEASURES, METHOD_TITLES, METHODS
from experiments.stats import Outcome
from experiments.store import Record

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


def class_bars(outcome: Outcome) -> bytes:
    """Figure 2: accuracy, F and AUC of every class, one bar a method."""
    K = len(outcome["classes"])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(max(6.0, 0.45 * K + 2.0), 7.5), layout="constrained")
        for axes, measure in zip(figure.subplots(len(MEASURES), 1, sharex=True), MEASURES, strict=True):
            lowest = 100.0
            for place, method in enumerate(METHODS):
                values = [record["metrics"][measure] for record in outcome["per_class"][method]]
                heights = np.array([np.nan if value is None else 100.0 * value for value in values])
                lowest = min(lowest, float(np.nanmin(heights)))
                where = np.arange(K) + (place - 1.5) * _BAR
                axes.bar(where, heights, _BAR, color=COLOURS[method], label=METHOD_TITLES[method])
            axes.set_ylabel(f"{MEASURE_TITLES[measure]}, %")
            axes.set_ylim(max(0.0, lowest - 0.1 * (100.0 - lowest) - 0.1), 100.0)
        axes.set_xticks(
            np.arange(K), outcome["classes"], rotation=45 if max(map(len, outcome["classes"])) > 3 else 0
        )
        axes.set_xlabel("class")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(METHODS))
        return _svg(figure)


def roc_curves(outcome: Outcome) -> bytes:
    """Figure 3: ROC curves of the two hardest classes, one panel each."""
    codes = outcome.hardest()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.2 * len(codes), 3.8), layout="constrained")
        for axes, code in zip(figure.subplots(1, len(codes), squeeze=False)[0], codes, strict=True):
            for method in METHODS:
                curve = outcome["per_class"][method][code]["roc"]
                axes.plot(
                    curve["false_positive_rate"],
                    curve["true_positive_rate"],
                    color=COLOURS[method],
                    label=METHOD_TITLES[method],
                    linewidth=1.4,
                )
            axes.set_title(f"class {outcome['classes'][code]}")
            axes.set_xlabel("false-positive rate")
            axes.set_ylabel("true-positive rate")
            axes.legend(loc="lower right")
        return _svg(figure)


def inference_bars(outcomes: Sequence[Outcome]) -> bytes:
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
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(max(7.5, 1.2 * widest + 2.0), 3.2 * len(grids) + 0.6), layout="constrained")
        for axes, grid in zip(figure.subplots(len(grids), 1, squeeze=False)[:, 0], grids, strict=True):
            shown = [one for one in outcomes if one.grid == grid]
            where = np.arange(len(shown))
            for place, (title, (kind, who, colour)) in enumerate(bars.items()):
                heights = [one["inference"][kind][who] / one["inference"][kind]["teacher"] for one in shown]
                axes.bar(where + (place - 1) * 0.25, heights, 0.25, color=colour, label=title)
            counted = [one["inference"]["classes_evaluated"] / one["inference"]["classes"] for one in shown]
            axes.plot(
                where - 0.25, counted, "o", color="#c0392b", label="Remark 2, scores counted", markersize=4
            )
            axes.axhline(1.0, color=COLOURS["teacher"], linewidth=1.0, label="teacher")
            axes.set_xticks(where, [f"{one.data_set}\n{len(one['classes'])} classes" for one in shown])
            axes.set_ylabel("time relative to the teacher")
            axes.set_title(f"{grid} grid")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
        return _svg(figure)


def compact_curves(curves: Sequence[Record]) -> bytes:
    """Mean F over the classes against the cost of a query, timed and counted; one panel a data set."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.2 * len(curves), 3.8), layout="constrained")
        for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
            values = [point["f1"] for point in curve["points"]]
            low, high = ([point[end] for point in curve["points"]] for end in ("f1_low", "f1_high"))
            times = [point["relative_time"] for point in curve["points"]]
            counted = [point["relative_cost"] for point in curve["points"]]
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
            axes.set_xlim(0.6 * min(*times, *counted), 1.6)
            axes.set_title(f"{curve['data_set']}, {curve['classes']} classes")
            axes.set_xlabel("one query over the teacher's")
            axes.set_ylabel("mean F, %")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
        return _svg(figure)


def reliability(record: Record) -> bytes:
    """Share of yes against probability, pooled over classes, and below how many rows there are of each."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.6, 4.8), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color=COLOURS["teacher"], linewidth=0.8, linestyle=":", label="perfect")
        for place, (kind, one) in enumerate(record["kinds"].items()):
            colour = _KINDS[kind]
            label = f"{kind}, {len(one['classes'])} of {record['n_classes']} classes"
            upper.plot(
                [each["probability"] for each in one["bins"]],
                [each["observed"] for each in one["bins"]],
                marker="o",
                markersize=4,
                linewidth=1.2,
                color=colour,
                label=label,
            )
            middles = [0.5 * (each["low"] + each["high"]) + (place - 0.5) * 0.035 for each in one["bins"]]
            lower.bar(middles, [each["count"] for each in one["bins"]], 0.035, color=colour)
        upper.set_ylabel("share of yes")
        upper.legend(loc="upper left")
        lower.set_yscale("log")
        lower.set_ylabel("rows")
        lower.set_xlabel("probability")
        return _svg(figure)


def sparse_queries(found: Mapping[str, Record]) -> bytes:
    """Time of a query against the non-zeros of its row, of the stored entries and of the row written out."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.6 * len(found), 3.6), layout="constrained")
        panels = figure.subplots(1, len(found), squeeze=False)[0]
        for axes, (data_set, record) in zip(panels, found.items(), strict=True):
            nonzeros = [group["nonzeros"] for group in record["groups"]]
            for name, colour in (("sparse", COLOURS["gsvm"]), ("dense", COLOURS["svm"])):
                micro = [1e6 * group["seconds"][name] for group in record["groups"]]
                axes.plot(nonzeros, micro, marker="o", markersize=4, color=colour, label=name)
            axes.set_xlabel(f"non-zeros of the row (of {record['columns']} columns)")
            axes.set_ylabel("one query, µs")
            axes.set_ylim(bottom=0.0)
            axes.set_title(data_set)
            axes.legend()
        return _svg(figure)


def _svg(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()
