"""Pictures: ``python -m lab.benchmarks.images [--quick]``; the last line is a JSON object of all parts.

overhead_ms          processor time of our side beyond decoding and encoding, a question of 100 kB
restart_cpu_s        processor time of a child from its start to its first answer, the slower of the encoders
fuzz_deaths          children that ended in 100 000 mutated pictures (--quick: 2000)
fuzz_wrong           answers of a good picture in between that differ from its first one
hostile_as_expected  share of the hostile pictures of `tests.pictures` that get their code
hlc_ms, rnd_ms       processor time of a photo of 500 × 333 in a child, decoded and encoded
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageFilter

from app.encoders.faults import PictureFault
from app.encoders.pool import EncoderPool
from app.encoders.probes import probe_pictures
from app.encoders.specification import BUILT_IN, HLC, RND, EncoderSpecification
from lab.benchmarks import images_service
from tests.pictures import COSTLY, HOSTILE, encoded, good, mutated

_FUZZED: Final = {False: 100_000, True: 2000}
_BLOCK: Final = 500
_QUESTIONS: Final = {False: 300, True: 60}
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def main(arguments: list[str]) -> int:
    """Run all parts."""
    is_quick = "--quick" in arguments
    figures: dict[str, float] = {}
    for part in PARTS:
        start = time.monotonic()
        measured = part(is_quick)
        print(f"{part.__name__}: {measured} in {time.monotonic() - start:.0f} s", flush=True)
        figures |= measured
    print(json.dumps(figures))
    return 0


def overhead(is_quick: bool) -> Mapping[str, float]:
    """What a question costs in this process, and in the child beyond decoding and encoding."""
    photos = [_photo(seed) for seed in range(_QUESTIONS[is_quick])]
    figures: dict[str, float] = {}
    extra = []
    for encoder in (HLC, RND):
        pool = _warm(encoder)
        child, ours = _child_seconds(pool), time.process_time()
        pool.vectors(encoder, photos, tenant="t")
        ours = time.process_time() - ours
        child = _child_seconds(pool) - child
        pool.close_now()
        alone = _alone(encoder, photos)
        figures[f"{encoder.name}_ms"] = round(1e3 * child / len(photos), 2)
        extra.append(1e3 * (ours + child - alone) / len(photos))
    return {"overhead_ms": round(max(extra), 3), **figures}


def restarts(_is_quick: bool) -> Mapping[str, float]:
    """Processor time of children that are started, asked once and ended."""
    slowest = 0.0
    for encoder in BUILT_IN.values():
        before = _ended_seconds()
        _warm(encoder).close_now()
        slowest = max(slowest, _ended_seconds() - before)
    return {"restart_cpu_s": round(slowest, 2)}


def fuzz(is_quick: bool) -> Mapping[str, float]:
    """Mutated pictures, and a good one after every block."""
    pool = EncoderPool(cache_bytes=0)
    wanted = good()["jpeg"]
    [first] = pool.vectors(RND, [wanted], tenant="t")
    wrong = done = 0
    pictures = mutated(1)
    while done < _FUZZED[is_quick]:
        block = list(itertools.islice(pictures, _BLOCK))
        *answers, last = pool.vectors(RND, [*block, wanted], tenant="t")
        wrong += int(isinstance(last, PictureFault) or last.tobytes() != first.tobytes())
        done += len(answers)
        if done % (20 * _BLOCK) == 0:
            print(f"{done} mutated pictures, {pool.restarts} deaths, {wrong} wrong", flush=True)
    pool.close_now()
    return {"fuzz_deaths": pool.restarts, "fuzz_wrong": wrong, "fuzz_pictures": done}


def hostile(_is_quick: bool) -> Mapping[str, float]:
    """The table of hostile pictures with the costly ones."""
    pool = EncoderPool(cache_bytes=0)
    right = 0
    table = {**HOSTILE, **COSTLY}
    for name, (code, make) in table.items():
        [answer] = pool.vectors(RND, [make()], tenant="t")
        got = answer.code if isinstance(answer, PictureFault) else None
        right += got == code
        if got != code:
            print(f"{name}: {got}, not {code}", flush=True)
    pool.close_now()
    return {"hostile_as_expected": right / len(table), "hostile_deaths": pool.restarts}


PARTS: Final[tuple[Callable[[bool], Mapping[str, float]], ...]] = (
    overhead,
    restarts,
    fuzz,
    hostile,
    *images_service.PARTS,
)


def _photo(seed: int) -> bytes:
    """A picture of 500 × 333 of about 100 kB, as a photo has."""
    noise = np.random.default_rng(seed).integers(0, 256, (333, 500, 3), dtype=np.uint8)
    soft = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(1.2))
    return encoded(soft, "JPEG", quality=95)


def _warm(encoder: EncoderSpecification) -> EncoderPool:
    pool = EncoderPool(cache_bytes=0)
    pool.vectors(encoder, [probe_pictures()[0]], tenant="t")
    return pool


def _child_seconds(pool: EncoderPool) -> float:
    fields = Path(f"/proc/{pool.pids[0]}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _ended_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _alone(encoder: EncoderSpecification, photos: list[bytes]) -> float:
    """Processor time of decoding and encoding in a process of its own, which nobody asks."""
    code = f"""
import sys, time
from app.encoders import features
from app.encoders.pixels import decode
from lab.benchmarks.images import _photo
photos = [_photo(seed) for seed in range({len(photos)})]
encode, side = features.{encoder.name}, features.{encoder.name.upper()}_SIDE
encode(decode(photos[0], side))
start = time.process_time()
for photo in photos:
    encode(decode(photo, side))
print(time.process_time() - start)
"""
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=one_thread, text=True, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
