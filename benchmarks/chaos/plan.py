"""When which fault comes: drawn from a seed, so that a run can be made again."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.chaos.faults import Faults, Kind
from benchmarks.chaos.journal import Journal

_TRIES = 20
_AGAIN_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault at a moment, in seconds since the faults began. seed: of what it draws itself."""

    at: float
    kind: str
    seed: int


def plan(kinds: Sequence[Kind], number: int, seconds: float, seed: int) -> list[Planned]:
    """So many faults in so many seconds: each kind at least once if there is room, then by weight."""
    rng = random.Random(seed)
    drawn = [kind.name for kind in rng.sample(kinds, min(number, len(kinds)))]
    counts = Counter(drawn)
    while len(drawn) < number:
        allowed = [kind for kind in kinds if not kind.most or counts[kind.name] < kind.most]
        (kind,) = rng.choices(allowed, [kind.weight for kind in allowed])
        drawn.append(kind.name)
        counts[kind.name] += 1
    rng.shuffle(drawn)
    # Those that can come but once take long: not at the very end.
    rare = {kind.name for kind in kinds if kind.most}
    drawn.sort(key=lambda name: name in rare)
    for _ in range(sum(name in rare for name in drawn)):
        drawn.insert(rng.randrange(len(drawn) // 4, 3 * len(drawn) // 4 + 1), drawn.pop())
    step = seconds / number
    return [
        Planned((place + rng.random()) * step, name, rng.randrange(2**32)) for place, name in enumerate(drawn)
    ]


def carry_out(faults: Faults, planned: Sequence[Planned], kinds: Sequence[Kind], journal: Journal) -> None:
    """Each fault at its time, in a thread of its own; returns when the last one is over.

    Where there is nothing to do one to, another moment or another kind is tried.
    """
    started = time.monotonic()
    threads = []
    for place, each in enumerate(planned, 1):
        time.sleep(max(0.0, started + each.at - time.monotonic()))
        thread = threading.Thread(target=_inject, args=(faults, each, list(kinds)), daemon=True)
        thread.start()
        threads.append(thread)
        if place % 20 == 0:
            journal.say(f"{place} of {len(planned)} faults: {dict(faults.done)}")
    for thread in threads:
        thread.join()


def _inject(faults: Faults, planned: Planned, kinds: list[Kind]) -> None:
    rng = random.Random(planned.seed)
    kind = planned.kind
    for attempt in range(_TRIES):
        try:
            if faults.inject(kind, rng):
                return
        except Exception as error:  # noqa: BLE001 - whatever broke here is no fault of the service
            faults.broken.append(f"{kind}: {error!r}")
            return
        time.sleep(_AGAIN_SECONDS)
        if attempt >= _TRIES // 4:
            kind = rng.choice([each.name for each in kinds if not each.most])
