"""The counters of models in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    """Counters of one model, summed over all processes.

    statuses: queries by HTTP status, without statuses that never occurred. rows: rows decided.
    predictions: answers of the full teacher. seconds: total time of successful queries.
    buckets: successful queries by time, not cumulative; one more entry than `BUCKETS` for slower ones.
    """

    statuses: dict[str, float]
    rows: float
    predictions: float
    seconds: float
    buckets: list[float]


def model_text(counts: Mapping[str, ModelCounts]) -> str:
    """The series of all models as text; prometheus_client takes half a second for a thousand models."""
    queries = _head("stms_queries_total", "Queries answered.", "counter")
    rows = _head("stms_query_rows_total", "Rows decided.", "counter")
    predictions = _head("stms_predictions_total", "Requests to the full teacher answered.", "counter")
    seconds = _head(
        "stms_query_seconds",
        "Time from the arrival of a query to its response, of successful queries.",
        "histogram",
    )
    for name, model_counts in counts.items():
        model = 'model="' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        for status, number in model_counts.statuses.items():
            queries.append(f'stms_queries_total{{{model},status="{status}"}} {number!r}')
        if any(model_counts.buckets):
            rows.append(f"stms_query_rows_total{{{model}}} {model_counts.rows!r}")
            seconds += [
                f'stms_query_seconds_bucket{{le="{limit}",{model}}} {total!r}'
                for limit, total in zip(_LIMITS, accumulate(model_counts.buckets), strict=True)
            ]
            seconds.append(f"stms_query_seconds_count{{{model}}} {sum(model_counts.buckets)!r}")
            seconds.append(f"stms_query_seconds_sum{{{model}}} {model_counts.seconds!r}")
        if model_counts.predictions:
            predictions.append(f"stms_predictions_total{{{model}}} {model_counts.predictions!r}")
    return "\n".join([*queries, *rows, *predictions, *seconds, ""])


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
