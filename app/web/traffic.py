"""The page of live traffic: queries, refusals and latencies by server and model, as servers report them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import zip_longest
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from app.api.border import BorderRoute
from app.api.dependencies import AppContext, Context, Operator
from app.domain.entities import Json
from app.domain.figures import ServerRow
from app.services.workers import list_servers
from app.serving.model_figures import latency_of
from app.web.charts import BAR_HEIGHT, SIDE, trend
from app.web.rendering import page, shared_fragment

router = APIRouter(route_class=BorderRoute)

_SERVERS: Final = 30
_QUERIES, _ERRORS, _P99, _REFUSED, _P50 = range(1, 6)
_ADVICE: Final = {
    "400": "The row or the request is not valid; the answer names the fault.",
    "401": "No key, or one that is not valid.",
    "403": "The key may not ask this model.",
    "404": "No such model, version or class.",
    "422": "The row does not fit the model; the answer names the fault.",
    "429": "Above the rate limit of the key: raise it, or let the program wait as long as Retry-After says.",
    "499": "The client went away before the answer.",
    "500": "A fault of the server: its log has the request id.",
    "503": "The server is overloaded or has no database: see the page of its health.",
}
"""What an operator should know about the statuses of queries without an answer."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Values of the last two minutes as a picture. path: SVG path data. text: description."""

    path: str
    text: str


@router.get("/ui/traffic")
def traffic_page(request: Request, context: Context, _caller: Operator) -> Response:
    """Live figures of all servers together, of each server, and of the models that are asked most."""
    return page(request, "traffic.html", **_traffic(context))


@router.get("/ui/fragments/traffic")
async def traffic_fragment(request: Request, context: Context, _caller: Operator) -> Response:
    """The part of `traffic_page` that changes."""
    return await shared_fragment(request, "traffic_part.html", lambda: _traffic(context))


def _traffic(context: AppContext) -> dict[str, Any]:
    servers, now = list_servers(context.store)
    answering = [server for server in servers if server.is_alive(now)]
    figures = [server.figures for server in answering]
    return {
        "servers": servers[:_SERVERS],
        "count": len(servers),
        "answering": {server.id for server in answering},
        "trends": {server.id: _trends([server.figures]) for server in servers[:_SERVERS]},
        "total": _total(figures),
        "total_trends": _trends(figures),
        "models": models_of(answering),
        "unanswered": _unanswered(figures),
        "area": (SIDE, BAR_HEIGHT),
    }


def models_of(servers: Sequence[ServerRow]) -> list[Json]:
    """The models that are asked most, summed over servers, the most asked first. trend: of their queries."""
    found: dict[str, list[Json]] = {}
    for server in servers:
        for one in server.figures["models"]:
            found.setdefault(one["model"], []).append(one)
    models = []
    for name, parts in found.items():
        queries = _sums(part["history"] for part in parts)
        models.append(
            {
                "model": name,
                "queries_per_second": sum(part["queries_per_second"] for part in parts),
                "refused_per_second": sum(part["refused_per_second"] for part in parts),
                "latency": latency_of(_sums(part["buckets"] for part in parts)),
                "trend": _trend(queries, f"Queries per second of {name}"),
            }
        )
    return sorted(
        models, key=lambda one: (-one["queries_per_second"] - one["refused_per_second"], one["model"])
    )


def _total(figures: Sequence[Json]) -> Json:
    """Rates summed over servers, and quantiles of the queries of all of them."""
    rates = ("queries_per_second", "refused_per_second", "errors_per_second")
    buckets = _sums(one["buckets"] for one in figures)
    return {name: sum(one[name] for one in figures) for name in rates} | latency_of(buckets)


def _trends(figures: Sequence[Json]) -> dict[str, Trend]:
    """Pictures of rates, summed over servers, and of the latencies of the slowest server."""
    histories = [one["history"] for one in figures]

    def column(number: int) -> list[list[float | None]]:
        return [[entry[number] for entry in history] for history in histories]

    slowest = {
        name: [
            max((value for value in values if value is not None), default=None)
            for values in _aligned(column(at))
        ]
        for name, at in (("p50", _P50), ("p99", _P99))
    }
    return {
        "queries": _trend(_sums(column(_QUERIES)), "Queries per second"),
        "refused": _trend(_sums(column(_REFUSED)), "Refused queries per second"),
        "errors": _trend(_sums(column(_ERRORS)), "Errors per second"),
        "p50": _trend([None if one is None else 1000 * one for one in slowest["p50"]], "Milliseconds, p50"),
        "p99": _trend([None if one is None else 1000 * one for one in slowest["p99"]], "Milliseconds, p99"),
    }


def _trend(values: Sequence[float | None], title: str) -> Trend:
    known = [value for value in values if value is not None]
    if not known:
        return Trend("", f"{title}: nothing yet")
    return Trend(trend(values), f"{title}: now {known[-1]:.3g}, highest {max(known):.3g} in two minutes")


def _aligned(histories: Iterable[Sequence[float | None]]) -> list[tuple[float | None, ...]]:
    """The values of several servers at the same times: their last ones are of now."""
    return list(zip_longest(*(reversed(history) for history in histories)))[::-1]


def _sums(histories: Iterable[Sequence[float | None]]) -> list[float]:
    return [sum(value or 0.0 for value in values) for values in _aligned(histories)]


def _unanswered(figures: Sequence[Json]) -> list[Json]:
    """Queries of the last minute without an answer by status, the most frequent first."""
    found: dict[str, float] = {}
    for one in figures:
        for status, number in one["unanswered"].items():
            found[status] = found.get(status, 0.0) + number
    return [
        {"status": status, "phrase": _phrase(status), "number": number, "advice": _ADVICE.get(status, "")}
        for status, number in sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ]


def _phrase(status: str) -> str:
    return HTTPStatus(int(status)).phrase if status.isdecimal() and int(status) in set(HTTPStatus) else ""
