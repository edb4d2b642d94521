"""Figures of matplotlib, if it is installed. None of them is shown or kept by pyplot."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from stms_client.curves import Curve
from stms_client.errors import MissingPackage, StmsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def roc(curve: Curve, axes: Axes | None = None) -> Figure:
    """True- against false-positive rate. Raises MissingPackage, as all functions of this module do."""
    axes = axes or _new_axes()
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=1, linestyle="--")
    return _draw(curve, axes, [0.0, *curve.false_positive_rate, 1.0], [0.0, *curve.recall, 1.0], 1)


def precision_recall(curve: Curve, axes: Axes | None = None) -> Figure:
    """Precision against recall."""
    axes = axes or _new_axes()
    figure = _draw(curve, axes, curve.recall, curve.precision, 0)
    axes.set(xlabel="recall", ylabel="precision")
    return figure


def reliability(student: Mapping[str, Any], axes: Axes | None = None) -> Figure:
    """Predicted probabilities against observed shares; the area of a point is its number of rows.

    Raises StmsError for a student that is not calibrated or has no test part.
    """
    bins = student["metrics"].get("reliability")
    if not bins:
        raise StmsError(f"The student of class {student['label']!r} has no measured probabilities.")
    axes = axes or _new_axes()
    most = max(part["count"] for part in bins)
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=1, linestyle="--")
    axes.scatter(
        [part["probability"] for part in bins],
        [part["observed"] for part in bins],
        s=[20 + 180 * part["count"] / most for part in bins],
        alpha=0.7,
    )
    axes.set(xlabel="predicted probability", ylabel="observed share", title=_plain(student["label"]))
    return _figure_of(axes)


def classes(students: Sequence[Mapping[str, Any]], metric: str, axes: Axes | None = None) -> Figure:
    """A metric of several students as bars. Raises StmsError if none of them has it."""
    shown = [row for row in students if row["metrics"].get(metric) is not None]
    if not shown:
        raise StmsError(f"No student has the metric {metric!r}.")
    axes = axes or _new_axes(height=1.0 + 0.22 * len(shown))
    places = range(len(shown))
    axes.barh(places, [row["metrics"][metric] for row in shown])
    axes.set_yticks(places, [_plain(row["label"]) for row in shown])
    axes.invert_yaxis()
    axes.set(xlabel=metric)
    return _figure_of(axes)


def _draw(curve: Curve, axes: Axes, x: Sequence[float], y: Sequence[float], before: int) -> Figure:
    """Draw a line and the point in use. before: points of the line that precede those of the curve."""
    axes.plot(x, y, label=_plain(f"{curve.label} ({curve.method})"))
    if curve.threshold is not None:
        point = curve.point_at(curve.threshold) + before
        axes.plot(x[point], y[point], "o", label=f"threshold {curve.threshold:.4g}")
    axes.set(
        xlabel="false-positive rate", ylabel="true-positive rate", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02)
    )
    axes.legend()
    return _figure_of(axes)


def _plain(label: str) -> str:
    """A label in which matplotlib looks for no formulas."""
    return label.replace("$", r"\$")


def _new_axes(height: float = 4.5) -> Axes:
    axes: Axes = _figure_class()(figsize=(5.0, height), layout="constrained").subplots()
    return axes


def _figure_of(axes: Axes) -> Figure:
    return cast("Figure", axes.get_figure(root=True))


@cache
def _figure_class() -> type[Any]:
    """A figure that notebooks show although pyplot does not know it."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingPackage("Figures need matplotlib: pip install matplotlib") from error

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return NotebookFigure
