"""The page of two versions beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.api.models import ModelName
from app.auth.authenticator import authorise
from app.domain.entities import ModelVersion
from app.domain.names import MAX_CLASS_NAME
from app.services import comparison, models
from app.services.curves import find_curve
from app.services.schema_changes import compare_schemas
from app.store.repositories.comparisons import Pair
from app.store.unit_of_work import Store
from app.web.charts import SIDE, Mark
from app.web.curves import drawn
from app.web.models import MEASURES, differences
from app.web.rendering import page

router = APIRouter(route_class=BorderRoute)

_LISTED: Final = 10
_SAMPLED: Final = 2000

Version = Annotated[int, Query(ge=1, le=2**31 - 1)]
Metric = Annotated[str, Query(max_length=16)]
Label = Annotated[str, Query(alias="class", max_length=MAX_CLASS_NAME)]


@router.get("/ui/models/{model}/compare")
def compare_page(
    model: ModelName,
    request: Request,
    context: Context,
    caller: Trainer,
    a: Version,
    b: Version,
    metric: Metric = "f1",
    label: Label = "",
) -> Response:
    """Version ``b`` against ``a``. metric: by which classes are compared. label: whose curves are shown."""
    authorise(caller, "query", model)
    store = context.store_of(caller)
    before, after = models.get_version(store, model, a), models.get_version(store, model, b)
    found, scatter, curves = None, {}, None
    errors: dict[str, tuple[float | None, bool]] = {}
    if not (before.imported or after.imported):
        found = comparison.compare_classes(store, before, after, metric, listed=_LISTED, sampled=_SAMPLED)
        for pair in (*found.losers, *found.winners):
            error = comparison.class_error(store, before, after, pair.label, metric)
            errors[pair.label] = error, comparison.is_noise(pair.change, error)
        scatter = scattered(found.sample, [*found.losers, *found.winners])
        first = next(iter([*found.losers, *found.winners, *found.sample]), None)
        label = label or ("" if first is None else first.label)
        curves = _curves(store, before, after, label)
    return page(
        request,
        "compare.html",
        model=model,
        before=before,
        after=after,
        metric=metric,
        metrics=MEASURES,
        means=differences(store, before, after),
        same_rows=comparison.same_rows(before, after),
        errors=errors,
        parameters=comparison.parameter_differences(store, before, after),
        schemas=compare_schemas(store, before, after),
        found=found,
        scatter=scatter,
        label=label,
        curves=curves,
        side=SIDE,
    )


def scattered(sample: Sequence[Pair], named: Sequence[Pair]) -> dict[str, Any]:
    """The classes as points, before against after, between the next tenths around them.

    sample: as one path of dots. named: as marks, with a description each.
    """
    values = [value for pair in (*sample, *named) for value in (pair.before, pair.after)] or [0.0, 1.0]
    low, high = floor(10 * min(values)) / 10, ceil(10 * max(values)) / 10
    scale = SIDE / (high - low or 0.1)

    def placed(pair: Pair) -> tuple[float, float]:
        return round(scale * (pair.before - low), 1), round(SIDE - scale * (pair.after - low), 1)

    return {
        "low": low,
        "high": high,
        "dots": " ".join(f"M{x} {y}h0" for x, y in map(placed, sample)),
        "marks": [
            (pair, Mark(*placed(pair), 5.0, f"{pair.label}: {pair.before:.4f} → {pair.after:.4f}"))
            for pair in named
        ],
    }


def _curves(
    store: Store, before: ModelVersion, after: ModelVersion, label: str
) -> list[dict[str, Any]] | None:
    """ROC and precision-recall of a class in both versions; None unless both have curves of it."""
    found = []
    for version in (before, after):
        row = comparison.student_of(store, version, label)
        curve = None if row is None else find_curve(store, row.job_id, row.class_index, row.method)
        if row is None or curve is None:
            return None
        found.append(drawn(curve, row.threshold or 0.0, 1.0) | {"version": version, "row": row})
    return found
