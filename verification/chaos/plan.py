"""The schedule of faults, drawn from a seed so that a run can be repeated."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from verification.chaos.event_log import EventLog
from verification.chaos.faults import Faults, Kind

_TRIES = 20
_AGAIN_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Planned:
    """A scheduled fault. at: seconds since the first. seed: seed of its own random choices."""

    at: float
    kind: str
    seed: int


def plan(kinds: Sequence[Kind], number: int, seconds: float, seed: int) -> list[Planned]:
    """Schedule ``number`` faults within ``seconds``: each kind once if possible, the others by weight."""
    rng = random.Random(seed)
    drawn = [kind.name for kind in rng.sample(kinds, min(number, len(kinds)))]
    counts = Counter(drawn)
    while len(drawn) < number:
        allowed = [kind for kind in kinds if not kind.max_count or counts[kind.name] < kind.max_count]
        (kind,) = rng.choices(allowed, [kind.weight for kind in allowed])
        drawn.append(kind.name)
        counts[kind.name] += 1
    rng.shuffle(drawn)
    # Kinds with a limit take long, so they are kept away from the start and the end.
    rare = {kind.name for kind in kinds if kind.max_count}
    drawn.sort(key=lambda name: name in rare)
    for _ in range(sum(name in rare for name in drawn)):
        drawn.insert(rng.randrange(len(drawn) // 4, 3 * len(drawn) // 4 + 1), drawn.pop())
    step = seconds / number
    return [
        Planned((place + rng.random()) * step, name, rng.randrange(2**32)) for place, name in enumerate(drawn)
    ]


def carry_out(faults: Faults, planned: Sequence[Planned], kinds: Sequence[Kind], event_log: EventLog) -> None:
    """Inject each fault at its time in its own thread; returns when the last one is over.

    A fault without a target is tried again a little later, and finally replaced by another kind.
    """
    started = time.monotonic()
    threads = []
    for place, each in enumerate(planned, 1):
        time.sleep(max(0.0, started + each.at - time.monotonic()))
        thread = threading.Thread(target=_inject, args=(faults, each, list(kinds)), daemon=True)
        thread.start()
        threads.append(thread)
        if place % 20 == 0:
            event_log.report(f"{place} of {len(planned)} faults: {dict(faults.done)}")
    for thread in threads:
        thread.join()


def _inject(faults: Faults, planned: Planned, kinds: list[Kind]) -> None:
    rng = random.Random(planned.seed)
    kind = planned.kind
    for attempt in range(_TRIES):
        try:
            if faults.inject(kind, rng):
                return
        except Exception as error:  # noqa: BLE001 - an error of the injection, not of the service
            faults.broken.append(f"{kind}: {error!r}")
            return
        time.sleep(_AGAIN_SECONDS)
        if attempt >= _TRIES // 4:
            kind = rng.choice([each.name for each in kinds if not each.max_count])
