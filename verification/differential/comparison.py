"""Compares the outcomes of many cases at two servers; each difference is of a listed kind, or a fault."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from verification.differential.conversation import Outcome, Response, converse
from verification.differential.requests import Case, Generator

_AT_ONCE: Final = 24
_SECONDS: Final = (0.4, 2.0, 15.0)
"""How long an answer is waited for at each try; on a busy machine some take long."""
_BUSY: Final = 429
"""No rates are limited here."""
_PAUSES: Final = (0.5, 1.0, 3.0, 10.0)
_EXAMPLES: Final = 40
_SHOWN: Final = 600


@dataclass(frozen=True, slots=True)
class Kind:
    """A difference that is meant. explains: whether it is the one between two responses, or two outcomes."""

    name: str
    reason: str
    explains: Callable[[Case, Outcome, Outcome], bool]


@dataclass(slots=True)
class Findings:
    """requests: number of them. listed: cases with a difference of each kind. passing: cases that were
    different once, and not again. unexplained: the others with a difference. statuses: of the first server.
    """

    requests: int = 0
    cases: int = 0
    listed: Counter[str] = field(default_factory=Counter)
    passing: int = 0
    unexplained: list[str] = field(default_factory=list)
    unexplained_count: int = 0
    statuses: Counter[int] = field(default_factory=Counter)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "requests": self.requests,
            "cases": self.cases,
            "unexplained": self.unexplained_count,
            "listed": dict(self.listed),
            "passing": self.passing,
            "statuses": {str(status): number for status, number in sorted(self.statuses.items())},
        }


async def compare(
    ports: tuple[int, int],
    generator: Generator,
    requests: int,
    kinds: Sequence[Kind] = (),
    report: Callable[[str], None] = lambda _line: None,
) -> Findings:
    """Send cases to both servers until there were so many requests."""
    findings, numbers = Findings(), iter(range(10**9))

    async def work() -> None:
        while findings.requests < requests:
            case = generator.case(next(numbers))
            findings.requests += len(case.methods)
            findings.cases += 1
            await _compare_case(ports, case, kinds, findings)
            if findings.cases % 1000 == 0:
                report(json.dumps(findings.document()))

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(work())
    return findings


async def _compare_case(
    ports: tuple[int, int], case: Case, kinds: Sequence[Kind], findings: Findings
) -> None:
    for attempt, seconds in enumerate(_SECONDS):
        one, other = await _both(ports, case, seconds)
        if not attempt:
            findings.statuses.update(response.status for response in one.responses)
        if one == other:
            findings.passing += attempt > 0
            return
        kind = next((kind for kind in kinds if kind.explains(case, one, other)), None)
        if kind is not None:
            findings.listed[kind.name] += 1
            return
    findings.unexplained_count += 1
    if len(findings.unexplained) < _EXAMPLES:
        findings.unexplained.append(_description(case, one, other))


async def _both(ports: tuple[int, int], case: Case, seconds: float) -> tuple[Outcome, Outcome]:
    """The outcomes at both servers, while neither refuses requests because it is busy."""
    for pause in _PAUSES:
        one, other = await asyncio.gather(*(converse(port, case, seconds) for port in ports))
        if all(response.status != _BUSY for outcome in (one, other) for response in outcome.responses):
            break
        await asyncio.sleep(pause)
    return one, other


def _description(case: Case, one: Outcome, other: Outcome) -> str:
    lines = [f"case {case.number}, {len(case.methods)} requests in {len(case.pieces)} pieces"]
    lines += [f"  sent after {pause:g} s: {_short(piece)}" for pause, piece in case.pieces]
    for name, outcome in (("old", one), ("new", other)):
        lines.append(f"  {name}: closed {outcome.is_closed}, rest {_short(outcome.rest)}")
    pairs = zip(_filled(one, other), _filled(other, one), strict=True)
    for number, (mine, theirs) in enumerate(pairs):
        if mine != theirs:
            lines += [f"  {number} old: {_short(mine)}", f"  {number} new: {_short(theirs)}"]
            break
    return "\n".join(lines)


def _filled(one: Outcome, other: Outcome) -> list[Response | None]:
    missing = max(0, len(other.responses) - len(one.responses))
    return [*one.responses, *[None] * missing]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} … {text[-_SHOWN // 2 :]}"
