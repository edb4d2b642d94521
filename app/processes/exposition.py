"""The counters of models and routes in the text format of Prometheus, or as OpenMetrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

# fmt: off
BUCKETS: Final = (
    50e-6, 75e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6, 750e-6, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7.5e-3,
    10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)
"""Upper bounds in seconds: the lowest is below the fastest query, the highest above the slowest."""
# fmt: on
_LIMITS: Final = [*map(repr, BUCKETS), "+Inf"]


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """Counters of one model or one route, summed over all processes.

    statuses: requests by HTTP status, without statuses that never occurred. rows: rows decided.
    predictions: answers of the full teacher. seconds: total time of the requests in ``buckets``.
    buckets: requests by time, not cumulative; the last entry beyond `BUCKETS` is for slower ones. For a model
    they are the successful queries, for a route all requests. Rows and predictions of a route are 0.
    unusual: values of records by kind, see `UNUSUAL`. local: queries that clients report to have answered.
    """

    statuses: dict[str, float]
    rows: float
    predictions: float
    seconds: float
    buckets: list[float]
    unusual: dict[str, float] = field(default_factory=dict)
    local: float = 0.0


def model_text(counts: Mapping[str, ModelCounts], *, open_metrics: bool = False) -> str:
    """The series of all models as text; prometheus_client takes half a second for a thousand models."""
    total = _suffix(open_metrics)
    queries = _head(f"stms_queries{total}", "Queries answered.", "counter")
    rows = _head(f"stms_query_rows{total}", "Rows decided.", "counter")
    predictions = _head(f"stms_predictions{total}", "Requests to the full teacher answered.", "counter")
    unusual = _head(
        f"stms_input_unusual{total}",
        "Values of records that are missing, of categories that training did not have, outside the range of"
        " training, or of texts that were cut.",
        "counter",
    )
    local = _head(
        f"stms_local_queries{total}",
        "Queries that clients answered themselves with downloaded students, as they report.",
        "counter",
    )
    seconds = _head(
        "stms_query_seconds",
        "Time from the arrival of a query to its response, of successful queries.",
        "histogram",
    )
    for name, model_counts in counts.items():
        model = f'model="{_escaped(name)}"'
        for status, number in model_counts.statuses.items():
            queries.append(f'stms_queries_total{{{model},status="{status}"}} {number!r}')
        if any(model_counts.buckets):
            rows.append(f"stms_query_rows_total{{{model}}} {model_counts.rows!r}")
            seconds += _histogram("stms_query_seconds", model, model_counts)
        unusual += (
            f'stms_input_unusual_total{{{model},kind="{kind}"}} {number!r}'
            for kind, number in model_counts.unusual.items()
        )
        if model_counts.predictions:
            predictions.append(f"stms_predictions_total{{{model}}} {model_counts.predictions!r}")
        if model_counts.local:
            local.append(f"stms_local_queries_total{{{model}}} {model_counts.local!r}")
    return "\n".join([*queries, *rows, *predictions, *unusual, *local, *seconds, ""])


def route_text(counts: Mapping[tuple[str, str], ModelCounts], *, open_metrics: bool = False) -> str:
    """The series of all routes, by (method, path template), as text."""
    description = "Requests answered that are no queries."
    requests = _head(f"stms_requests{_suffix(open_metrics)}", description, "counter")
    seconds = _head(
        "stms_request_seconds",
        "Time from the arrival of a request that is no query to the start of its response.",
        "histogram",
    )
    for (method, path), route_counts in counts.items():
        route = f'method="{_escaped(method)}",route="{_escaped(path)}"'
        for status, number in route_counts.statuses.items():
            requests.append(f'stms_requests_total{{{route},status="{status}"}} {number!r}')
        if any(route_counts.buckets):
            seconds += _histogram("stms_request_seconds", route, route_counts)
    return "\n".join([*requests, *seconds, ""])


def _histogram(name: str, labels: str, counts: ModelCounts) -> list[str]:
    return [
        *(
            f'{name}_bucket{{le="{limit}",{labels}}} {total!r}'
            for limit, total in zip(_LIMITS, accumulate(counts.buckets), strict=True)
        ),
        f"{name}_count{{{labels}}} {sum(counts.buckets)!r}",
        f"{name}_sum{{{labels}}} {counts.seconds!r}",
    ]


def _suffix(open_metrics: bool) -> str:
    """The suffix of the name of a counter's family; its series end with ``_total`` in both formats."""
    return "" if open_metrics else "_total"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
