"""ROC and precision-recall curves of a student as pictures, and the form that publishes a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.api.models import ModelName
from app.domain.curves import Curve
from app.services.curves import publish_thresholds
from app.web.charts import SIDE
from app.web.formats import significant
from app.web.forms import read_form, see
from app.web.rendering import segment

router = APIRouter(route_class=BorderRoute)

MAX_RATIO: Final = 1e6

Name = Annotated[str, Query(max_length=100)]


@dataclass(frozen=True, slots=True)
class Plot:
    """A line as SVG path data, and the position of the present threshold on it."""

    path: str
    x: float
    y: float


@router.post("/ui/models/{model}/thresholds")
async def publish(
    model: ModelName, request: Request, context: Context, caller: Trainer, tenant: Name = ""
) -> Response:
    """Publish a version with another threshold of one class, and show it beside the alias."""
    form = await read_form(request)
    threshold = form.number("threshold")
    version = await run_in_threadpool(
        publish_thresholds,
        context.store_of(caller),
        context.files,
        context.settings,
        model,
        form.text("base"),
        {} if threshold is None else {form.exact("label"): threshold},
        caller.id,
    )
    await context.refresher.refresh(version.qualified_model)
    return see(f"/ui/models/{segment(model)}/versions/{version.version}", tenant=tenant, done="publish")


def drawn(curve: Curve, threshold: float, ratio: float, most: float | None = None) -> dict[str, Any]:
    """What the class page shows of a curve at a threshold.

    ratio: cost of a row of the class that is missed, in false positives. most: percent of the other rows that
    may be accepted: then the smallest threshold of the curve with which no more are, else its largest.
    """
    reached = None if most is None else curve.loosest_point(most)
    point, typed = _point(curve, threshold if most is None else curve.thresholds[reached or 0])
    confusion = curve.confusion(point)
    counts = range(len(curve.thresholds))
    found = [_share(tp, curve.positives) for tp in curve.tp]
    roc = [(_share(fp, curve.negatives), recall) for fp, recall in zip(curve.fp, found, strict=True)]
    pr = [(recall, _share(tp, tp + fp)) for tp, fp, recall in zip(curve.tp, curve.fp, found, strict=True)]
    cheapest = min(counts, key=lambda i: curve.confusion(i).cost(ratio))
    return {
        "curve": curve,
        "point": point,
        "typed": typed,
        "confusion": confusion,
        "ratio": ratio,
        "most": most,
        "is_unreached": most is not None and reached is None,
        "cost": confusion.cost(ratio),
        "cheapest": cheapest,
        "roc": _plot([(0.0, 0.0), *roc, (1.0, 1.0)], roc[point]),
        "pr": _plot(pr, pr[point]),
    }


def _point(curve: Curve, threshold: float) -> tuple[int, str]:
    """The number of the point that a person means by a threshold, and the text that means this point.

    Six digits are enough if no other point is shown so.
    """
    shown = [significant(value) for value in curve.thresholds]
    is_one = shown.count(significant(threshold)) == 1
    point = shown.index(significant(threshold)) if is_one else curve.point_at(threshold)
    return point, shown[point] if shown.count(shown[point]) == 1 else repr(curve.thresholds[point])


def _plot(points: list[tuple[float, float]], present: tuple[float, float]) -> Plot:
    placed = [(round(SIDE * x, 1), round(SIDE * (1.0 - y), 1)) for x, y in points]
    path = " ".join(f"{'L' if number else 'M'}{x} {y}" for number, (x, y) in enumerate(placed))
    return Plot(path, round(SIDE * present[0], 1), round(SIDE * (1.0 - present[1]), 1))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
