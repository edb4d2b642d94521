"""Tables of the other parts: compact curves, probabilities, sparse queries; what was run, and its time."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.curves import Curve
from experiments.gathered import Gathered
from experiments.probabilities import ISOTONIC_NEEDS
from experiments.reliabilities import Calibrated, DataSetProbabilities
from experiments.results import Record
from experiments.table import Table


def compact(curves: Mapping[str, Curve]) -> Table:
    """Mean F and the time of a query for each number of landmarks."""
    rows = []
    for data_set, curve in curves.items():
        teacher = (f"{curve.teacher_f1:.2f}", f"{curve.teacher_auc:.2f}", "1", "–", "1")
        micro = f"{1e6 * curve.teacher_seconds_per_query:.1f}"
        rows.append((data_set, "teacher", *teacher, micro, "–", "–"))
        rows += [
            (
                data_set,
                str(point.landmarks),
                f"{point.f1:.2f} [{point.f1_low:.2f}, {point.f1_high:.2f}]",
                f"{point.auc:.2f}",
                f"{point.relative_time:.3f}",
                f"{point.relative_to_remark_2:.3f}",
                f"{point.relative_cost:.3f}",
                f"{1e6 * point.seconds_per_query:.1f}",
                f"{point.gate_r2:.3f}",
                f"{point.training_seconds:.0f}",
            )
            for point in curve.points
        ]
    note = (
        "Means over the classes, at threshold 0, with the 95 % bootstrap interval over test rows. Time of"
        " one query, raw row in, yes or no out, over the teacher's, which computes all scores; and over the"
        " teacher's that stops early (Remark 2): one process, one thread, in turns, median over the"
        " classes. Multiplications are counted. The teacher is one of a fixed map (see below), not that of"
        " the tables above."
    )
    columns = (
        "data set", "landmarks", "mean F, %", "mean AUC, %", "time / teacher", "time / Remark 2",
        "multiplications / teacher", "query, µs", "gate R²", "training, s",
    )  # fmt: skip
    return Table("Compact students: cost against F", note, columns, tuple(rows), tuple(_maps(curves)))


def _maps(curves: Mapping[str, Curve]) -> list[str]:
    """How each curve was made."""
    lines = []
    for data_set, curve in curves.items():
        features = curve.plan["features"]
        lines.append(
            f"{data_set}: {curve.rows} training rows and {curve.test_rows} test rows, all {curve.classes}"
            f" classes; teacher on {features['kind']} {features['n_components']}, {features['scaling']}"
            f" scaling, γ {features['gamma']:.3g}, C {curve.plan['teacher_C']:g}; {curve.plan['steps']}"
            " steps a student"
        )
    return lines


def probabilities(found: Mapping[str, DataSetProbabilities]) -> Table:
    """Brier scores and calibration errors."""
    rows = []
    for data_set, one in found.items():
        rows += [(data_set, *_calibrated(calibrated, one.n_classes)) for calibrated in one.kinds.values()]
        sigmoid, isotonic = one.kinds.get("sigmoid"), one.kinds.get("isotonic")
        if sigmoid and isotonic and len(isotonic.classes) < one.n_classes:
            labels = [each.label for each in isotonic.classes]
            same = f"{sigmoid.of(labels):.4f}"
            size = f"{len(labels)} of {one.n_classes}"
            rows.append((data_set, "sigmoid, classes of isotonic", size, same, "–", "–", "–", "–", "–"))
    note = (
        "gSVM of the open grid, split 0. Fitted on held-out folds of the training part, measured on the test"
        " part; means over classes. Base: the Brier score of the class's share in the test part as"
        " everybody's probability. Skill: 1 − Brier / base. Calibration error: mean |probability − share of"
        f" yes| over tenths. Isotonic where class and rest have {ISOTONIC_NEEDS} training rows at least."
    )
    columns = (
        "data set", "calibration", "classes", "Brier", "base Brier", "skill", "calibration error",
        "the same, classes pooled", "classes better than base",
    )  # fmt: skip
    return Table("Probabilities", note, columns, tuple(rows))


def _calibrated(one: Calibrated, n_classes: int) -> tuple[str, ...]:
    return (
        one.kind,
        f"{len(one.classes)} of {n_classes}",
        f"{one.brier:.4f}",
        f"{one.base_brier:.4f}",
        f"{1 - one.brier / one.base_brier:.3f}",
        f"{one.error:.4f}",
        f"{one.pooled_error:.4f}",
        f"{one.better_than_base} of {len(one.classes)}",
    )


def sparse(found: Mapping[str, Record]) -> Table:
    """Time of a query against the non-zeros of its row."""
    rows = []
    for data_set, record in found.items():
        for group in record["groups"]:
            micro = {name: 1e6 * value for name, value in group["seconds"].items()}
            rows.append(
                (
                    data_set,
                    f"{group['nonzeros']:.0f} of {record['columns']}",
                    f"{micro['sparse']:.2f}",
                    f"{micro['dense']:.2f}",
                    f"{micro['sparse'] / micro['dense']:.3f}",
                    f"{micro['sparse_served']:.2f}",
                    f"{micro['dense_served']:.2f}",
                )
            )
    note = (
        "One gSVM student, test rows in five groups by their number of non-zeros; median over the rows of a"
        " group, one thread, in turns. A sparse query reads the coefficients of the row's non-zero columns"
        " and no others. As served: with the checks of input."
    )
    columns = (
        "data set", "non-zeros, median", "sparse, µs", "dense, µs", "sparse / dense", "sparse as served, µs",
        "dense as served, µs",
    )  # fmt: skip
    lines = tuple(
        f"{data_set}: a sparse query takes {1e6 * record['seconds_a_query']:.2f} µs and"
        f" {1e9 * record['seconds_a_nonzero']:.2f} ns for each non-zero (least squares over the rows)"
        for data_set, record in found.items()
    )
    return Table("One query of sparse text", note, columns, tuple(rows), lines)


def covered(gathered: Gathered) -> Table:
    """Every data set of every part that is not complete."""
    rows = tuple(
        (one.data_set, one.part, one.grid, one.state) for one in gathered.covered if not one.complete
    )
    complete = len(gathered.covered) - len(rows)
    note = f"{complete} of {len(gathered.covered)} planned runs are complete; the others are listed."
    return Table("Not run, or not complete", note, ("data set", "part", "grid", "state"), rows)


def times(gathered: Gathered) -> Table:
    """Wall time of what is shown."""
    seconds = gathered.seconds()
    rows = [(part, f"{value / 60:.1f}") for part, value in seconds.items() if value]
    rows.append(("all", f"{sum(seconds.values()) / 60:.1f}"))
    note = "Wall time of the records that are shown, stopped and resumed runs added up."
    return Table("Time that each part took", note, ("part", "minutes"), tuple(rows))
