"""Tables and figures of the other families of learners: a part for each module of `lab.studies.learners`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from matplotlib.figure import Figure

from lab.experiments.report.figures import COLOURS
from lab.experiments.report.tables import Table

Figures: TypeAlias = dict[str, Any]
"""The figures of a part, as its module of `lab.studies.learners` says."""
Interval: TypeAlias = tuple[str, float, float, float]
"""A name, a mean and the ends of its interval."""

_MEASURES: Final = {"error": "accuracy (100 less the error)"}
"""What is shown of a measure, where its name would be misread."""
_CLUSTERS: Final = ("nmi", "accuracy")
"""What is measured of clusters."""
_COLOURS: Final = (COLOURS["svm"], COLOURS["gsvm"], COLOURS["gsvm0"], COLOURS["teacher"])


@dataclass(frozen=True, slots=True)
class Family:
    """One part of the report: title, what was compared, its tables, and its figure if it has one."""

    part: str
    title: str
    text: str
    tables: Callable[[Figures], list[Table]]
    figure: Callable[[Figures], Figure] | None = None


def differences(intervals: Sequence[Interval], label: str) -> Figure:
    """Means with their intervals, one a line, beside the line of no difference."""
    figure = Figure(figsize=(6.4, 0.28 * len(intervals) + 1.0))
    axes = figure.subplots()
    places = range(len(intervals), 0, -1)
    for place, (_, mean, low, high) in zip(places, intervals, strict=True):
        colour = COLOURS["gsvm"] if low > 0.0 else COLOURS["svm"] if high < 0.0 else COLOURS["teacher"]
        axes.plot([low, high], [place, place], "-", color=colour, linewidth=1.6)
        axes.plot(mean, place, "o", color=colour, markersize=4)
    axes.axvline(0.0, color=COLOURS["teacher"], linewidth=0.8, linestyle=":")
    axes.set_yticks(list(places), [name for name, *_ in intervals])
    axes.set_xlabel(label)
    return figure


def bars(groups: dict[str, dict[str, float]], label: str) -> Figure:
    """A group of bars for each name, one for each method; the axis does not start at 0."""
    methods = list(dict.fromkeys(method for group in groups.values() for method in group))
    figure = Figure(figsize=(max(5.0, 1.1 * len(groups) + 2.0), 3.2))
    axes = figure.subplots()
    width = 0.8 / len(methods)
    for place, method in enumerate(methods):
        shown = [(at, group[method]) for at, group in enumerate(groups.values()) if method in group]
        where = [at + (place - (len(methods) - 1) / 2) * width for at, _ in shown]
        colour = _COLOURS[place % len(_COLOURS)]
        axes.bar(where, [value for _, value in shown], width, label=method, color=colour)
    values = [value for group in groups.values() for value in group.values()]
    axes.set_ylim(max(0.0, min(values) - 0.3 * (max(values) - min(values)) - 0.5), max(values) + 0.5)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel(label)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(methods))
    return figure


def _interval(mean: float, half: float) -> str:
    return f"{mean:+.2f} ± {half:.2f}"


def _interpolation(figures: Figures) -> list[Table]:
    goals = [
        ("test error, %", f"{100.0 * figures['mnist_error']:.2f}", "≤ 1.20 at 60 000 rows"),
        ("minutes", f"{figures['mnist_minutes']:.1f}", "≤ 10"),
        ("largest memory, GiB", f"{figures['mnist_peak_gib']:.1f}", "≤ 10"),
        ("students' mean F below the teacher's, points", f"{figures['mnist_students_f1_loss']:.2f}", "≤ 1.0"),
        ("time of a query, student over teacher", f"{figures['mnist_student_time_ratio']:.4f}", "≤ 0.02"),
    ]
    rows = f"{figures['mnist_rows']} rows of MNIST to learn."
    return [Table("What it takes", rows, ("figure", "measured", "goal"), tuple(goals))]


def _mcodm(figures: Figures) -> list[Table]:
    rows = [
        (
            name,
            f"{one['ssvm']:.2f}",
            f"{one['mcodm']:.2f}",
            f"{one['gain']:+.2f} [{one['interval'][0]:+.2f}, {one['interval'][1]:+.2f}]",
            f"{one['time_ratio']:.2f}",
        )
        for name, one in figures["mcodm"].items()
    ]
    low, high = figures["mcodm_gain_interval"]
    mean = f"{figures['mcodm_gain']:+.2f} [{low:+.2f}, {high:+.2f}]"
    rows.append(("mean", "", "", mean, f"{figures['mcodm_time_vs_ssvm']:.2f}"))
    columns = ("set", "SSVM, error %", "mcODM, error %", "SSVM less mcODM", "time over SSVM's")
    return [Table("By set", "", columns, tuple(rows))]


def _mcodm_gains(figures: Figures) -> Figure:
    gains = [(name, one["gain"], *one["interval"]) for name, one in figures["mcodm"].items()]
    return differences(gains, "error of SSVM less that of mcODM, points")


def _pairs(found: dict[str, dict[str, Any]]) -> list[tuple[str, str, str, Figures]]:
    """(set, method, baseline, figures) of each difference, whose key is ``method-baseline``."""
    return [
        (name, *_split(key, one), one)
        for name, one in found.items()
        for key, value in one.items()
        if isinstance(value, list)
    ]


def _split(key: str, one: dict[str, Any]) -> tuple[str, str]:
    """Method and baseline of a key; names of methods may have hyphens, too."""
    return next((key[: -len(base) - 1], base) for base in one if key.endswith(f"-{base}"))


def _margins(figures: Figures) -> list[Table]:
    rows = tuple(
        (data, method, base, f"{one[base]:.2f}", f"{one[method]:.2f}", _interval(*one[f"{method}-{base}"]))
        for data, method, base, one in _pairs(figures["margins"] | figures["privileged"])
    )
    columns = ("set", "student", "baseline", "baseline's error, %", "student's error, %", "difference")
    note = f"The slowest fit of SVM+ took {figures['privileged_seconds']:.2f} s a class (goal: ≤ 5)."
    return [Table("By set and student", note, columns, rows)]


def _margins_gains(figures: Figures) -> Figure:
    gains = []
    for data, method, base, one in _pairs(figures["margins"] | figures["privileged"]):
        mean, half = one[f"{method}-{base}"]
        gains.append((f"{data}: {method}, {base}", -mean, -mean - half, -mean + half))
    return differences(gains, "error of the baseline less that of the student, points")


def _gaussian(figures: Figures) -> list[Table]:
    columns = ("method", "error, %", "less SVM's", "less GPC's", "log-loss", "less gSVM's")
    names = ("error", "error_less_svm", "error_less_gpc", "log_loss", "log_loss_less_gsvm")
    tables = []
    for task, methods in figures["gaussian"].items():
        rows = [
            (method, *(f"{one[name][0]:.3f} ± {one[name][1]:.3f}" for name in names))
            for method, one in methods.items()
        ]
        tables.append(Table(task, "", columns, tuple(rows)))
    return tables


def _gaussian_gains(figures: Figures) -> Figure:
    gains = [
        (f"{task}: {method}", -mean, -mean - half, -mean + half)
        for task, methods in figures["gaussian"].items()
        for method, one in methods.items()
        if method != "svm"
        for mean, half in (one["error_less_svm"],)
    ]
    return differences(gains, "error of the SVM less that of the method, points")


def _measures(figures: Figures) -> list[Table]:
    rows = tuple(
        (name, _MEASURES.get(measure, measure), f"{ours:.2f}", f"{svm:.2f}", f"{ours - svm:+.2f}")
        for name, one in figures["measures"].items()
        for measure, (ours, svm) in one.items()
    )
    note = (
        f"At or above the SVM: {figures['measures_won']} of {figures['measures_compared']}. The slowest fit"
        f" of 3000 rows × 119 columns took {figures['measures_seconds']:.2f} s a class (goal: ≤ 3)."
    )
    return [Table("By set and measure", note, ("set", "measure, %", "optimised", "SVM", "difference"), rows)]


def _measures_gains(figures: Figures) -> Figure:
    gains = [
        (f"{name}: {_MEASURES.get(measure, measure)}", ours - svm, ours - svm, ours - svm)
        for name, one in figures["measures"].items()
        for measure, (ours, svm) in one.items()
    ]
    return differences(gains, "measure when optimised less that of the SVM, points")


def _outside_groups(figures: Figures) -> dict[str, dict[str, float]]:
    found = figures["outside_scores"]
    return {name: values for name, values in found.items() if name != "rows"}


def _outside(figures: Figures) -> list[Table]:
    groups = _outside_groups(figures)
    methods = list(dict.fromkeys(method for group in groups.values() for method in group))
    rows = tuple(
        (name, *(f"{group[method]:.1f}" if method in group else "" for method in methods))
        for name, group in groups.items()
    )
    note = f"Mean F in % over the classes, {figures['outside_scores']['rows']} rows of letter to learn."
    return [Table("By teacher", note, ("teacher", *methods), rows)]


def _outside_bars(figures: Figures) -> Figure:
    return bars(_outside_groups(figures), "mean F, %")


def _remote(figures: Figures) -> list[Table]:
    one = figures["remote"]
    students = [
        (f"mean F of {name}, %", f"{value:.2f}", f"{one['matrix'][name]:.2f} from the matrix")
        for name, value in one["students"].items()
    ]
    rows = (
        ("largest difference of a score", f"{one['largest_difference']:.1e}", "≤ 1e-12"),
        *students,
        ("seconds for 1000 rows", f"{one['seconds_per_1000_rows']:.2f}", ""),
    )
    return [
        Table("Beside the matrix", f"{one['rows']} rows of letter.", ("figure", "over HTTP", "beside"), rows)
    ]


def _labelling(figures: Figures) -> list[Table]:
    found = figures["labelling"]
    clusterers = ("odmc", "kmeans", "spectral")
    clusters = tuple(
        (
            name,
            *(f"{one['clusters'][f'{method} {what}']:.1f}" for method in clusterers for what in _CLUSTERS),
        )
        for name, one in found.items()
    )
    columns = ("set", *(f"{method}, {what}" for method in clusterers for what in _CLUSTERS))
    note = (
        "ODMC less the better of the other two, mean over the sets:"
        f" {figures['odmc_nmi_vs_best']:+.1f} points of normalised mutual information,"
        f" {figures['odmc_accuracy_vs_best']:+.1f} of accuracy."
    )
    counts, leads = list(figures["ssodm_accuracy_vs_best"]), figures["ssodm_accuracy_vs_best"]
    methods = list(next(iter(found.values()))[counts[0]])
    labels = tuple(
        (name, count, *(f"{one[count][method]:.1f}" for method in methods), f"{_lead(one[count]):+.1f}")
        for name, one in found.items()
        for count in counts
    )
    means = ", ".join(f"{leads[count]:+.1f} points with {count} labels a class" for count in counts)
    best = ("set", "labels a class", *methods, "ssodm less the best")
    return [
        Table("Rows without labels: normalised mutual information and accuracy, %", note, columns, clusters),
        Table(
            "Few labels: accuracy on the other rows, %",
            f"ssODM less the best of the others, mean over the sets: {means}.",
            best,
            labels,
        ),
    ]


def _lead(accuracies: dict[str, float]) -> float:
    """ssODM less the best of the others."""
    return accuracies["ssodm"] - max(value for name, value in accuracies.items() if name != "ssodm")


def _labelling_gains(figures: Figures) -> Figure:
    gains = []
    for name, one in figures["labelling"].items():
        for what in _CLUSTERS:
            values = [one["clusters"][f"{method} {what}"] for method in ("odmc", "kmeans", "spectral")]
            gains.append((f"{name}: ODMC, {what}", values[0] - max(values[1:])))
        gains += [
            (f"{name}: ssODM, {count} labels a class", _lead(one[count]))
            for count in figures["ssodm_accuracy_vs_best"]
        ]
    return differences(
        [(name, *(3 * (gain,))) for name, gain in gains], "less the best of the others, points"
    )


FAMILIES: Final = (
    Family(
        "interpolation",
        "Kernel interpolation as teacher",
        "The exact kernel on MNIST, and compact students of it with 400 landmarks.",
        _interpolation,
    ),
    Family(
        "mcodm",
        "mcODM against the structural SVM",
        "Both choose among ten points by 3 folds, on the same features; means over splits, 95 % intervals.",
        _mcodm,
        _mcodm_gains,
    ),
    Family(
        "margins",
        "ODM and SVM+ against SVM students",
        "300 rows to learn from, 200 for SVM+, C of each chosen by 3 folds; `odm-gated` and `gsvm0` have the"
        " teacher's gate. Means over the splits with 95 % intervals.",
        _margins,
        _margins_gains,
    ),
    Family(
        "gaussian",
        "SVM+, GPC and GPC+ against SVM and GPC",
        "200 rows to learn from; means over the splits with 95 % intervals. `gpc+noise` has noise as"
        " privileged columns, `svc` is scikit-learn's.",
        _gaussian,
        _gaussian_gains,
    ),
    Family(
        "measures",
        "Multi-view students that optimise a measure, against the SVM on all columns",
        "Each measure optimised by cutting planes and compared by itself; means over the classes.",
        _measures,
        _measures_gains,
    ),
    Family(
        "labelling",
        "Labels for rows that have none: ODMC and ssODM",
        "A third of each training part, at most 1000 rows (quick: 400), scaled to [0, 1]; fixed"
        " hyper-parameters, ours the defaults; means over ten seeds (quick: two).",
        _labelling,
        _labelling_gains,
    ),
    Family(
        "outside_scores",
        "Scores from outside: a forest's and a network's",
        "Students of a matrix of scores, beside students without a teacher (`none`) and of this library's"
        " own (`ssvm`).",
        _outside,
        _outside_bars,
    ),
    Family(
        "remote",
        "A remote teacher: MLServer over HTTP",
        "The same model asked by the Open Inference Protocol, and its scores sent as a matrix.",
        _remote,
    ),
)
