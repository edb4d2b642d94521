"""What a run may cost, and the seed of everything random in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.resampling import Resampling


@dataclass(frozen=True, slots=True)
class Effort:
    """Seed of everything random, threads, and how the test rows are resampled."""

    seed: int = 0
    n_threads: int = 2
    resampling: Resampling = field(default_factory=Resampling)
