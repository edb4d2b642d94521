"""Checks a recorded history of changes and queries against the consistency that the service promises.

Each alias, and each API key, is a register of its own. Its writer makes one change after the other, so their
order is known; when a change took effect is known to lie between its request and its response. A query shows
the value of a register on one server process. The promises, for each register:

- *Existence*: a process never shows a value that no change has set yet.
- *Order*: of two queries of one process, one after the other, the second never shows an earlier change. That
  holds across a restart of the process, too.
- *Own changes*: a process that has confirmed a change shows it, or a later one, from then on.
- *Bounded staleness*: no process shows a value that was replaced longer ago than a bound.

A value may be set several times, so the check looks for an assignment of queries to changes that keeps all
promises. It takes queries by the time of their request, each with the earliest change that is possible. Every
other valid assignment has the same or a later change everywhere, so if this one fails, there is none.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

EXISTENCE: Final = "existence"
ORDER: Final = "order"
OWN_CHANGES: Final = "own changes"
STALENESS: Final = "staleness"

REFUSED: Final = 0
ACCEPTED: Final = 1
"""Values of a key, as queries see them; those of an alias are versions."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a register, between the times ``invoked`` and ``answered`` in seconds.

    process: the one that confirmed it; None if it did not, and the change was seen to be stored later.
    """

    value: int
    invoked: float
    answered: float
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One answer of a process that showed the value of a register. Times in seconds."""

    register: str
    process: int
    value: int
    invoked: float
    answered: float


@dataclass(frozen=True, slots=True)
class Violation:
    """A query that no assignment explains, and the promise that it breaks."""

    promise: str
    query: Query


@dataclass(slots=True)
class Verdict:
    """staleness: of each query that was explained, in seconds: for how long its value was surely replaced."""

    violations: list[Violation] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)


def check(changes: Mapping[str, Sequence[Change]], queries: Iterable[Query], bound: float) -> Verdict:
    """Check all registers.

    changes: by register, in their order; the first is the initial value. bound: of the staleness, in seconds.
    """
    verdict = Verdict()
    grouped: defaultdict[tuple[str, int], list[Query]] = defaultdict(list)
    for query in queries:
        grouped[query.register, query.process].append(query)
    for (register, process), some in grouped.items():
        _check_process(changes[register], process, some, bound, verdict)
    return verdict


def _check_process(
    changes: Sequence[Change], process: int, queries: Sequence[Query], bound: float, verdict: Verdict
) -> None:
    """Check the queries of one register on one process.

    ended: (time of the response, number of the change, whether it is the process's own change) of what has
    begun but may not have ended before the next query begins.
    """
    own = [
        (change.answered, number, True) for number, change in enumerate(changes) if change.process == process
    ]
    ended: list[tuple[float, int, bool]] = own.copy()
    heapq.heapify(ended)
    least, least_own = 0, 0
    for query in sorted(queries, key=lambda query: query.invoked):
        while ended and ended[0][0] < query.invoked:
            _, number, is_own = heapq.heappop(ended)
            least = max(least, number)
            least_own = max(least_own, number) if is_own else least_own
        possible = _possible(changes, query)
        recent = [number for number in possible if _staleness(changes, number, query) <= bound]
        number = next((number for number in recent if number >= least), None)
        if number is None:
            verdict.violations.append(Violation(_broken(possible, recent, least_own), query))
            continue
        verdict.staleness.append(_staleness(changes, recent[-1], query))
        heapq.heappush(ended, (query.answered, number, False))


def _possible(changes: Sequence[Change], query: Query) -> list[int]:
    """Numbers of the changes that set the value of a query and began before its response, ascending."""
    return [
        number
        for number, change in enumerate(changes)
        if change.value == query.value and change.invoked <= query.answered
    ]


def _staleness(changes: Sequence[Change], number: int, query: Query) -> float:
    """For how long a change had surely been replaced when the query began, in seconds."""
    if number + 1 == len(changes):
        return 0.0
    return max(0.0, query.invoked - changes[number + 1].answered)


def _broken(possible: Sequence[int], recent: Sequence[int], least_own: int) -> str:
    """The promise that a query without an explanation breaks."""
    if not possible:
        return EXISTENCE
    if not recent:
        return STALENESS
    return OWN_CHANGES if recent[-1] < least_own else ORDER
