"""``python -m verification.differential``: the same generated requests to an older server and to this one.

Valid and invalid heads, framings, pipelines, bodies in pieces and errors, drawn from a seed, go to `stms api`
of a commit and of this tree, each on its copy of one database that the older program has created. Statuses,
headers, bodies, and whether the connection stays open, are the same but for the differences listed in
`listed`, each with its reason. Left out of the comparison are the header Date and ids of requests that the
server makes. A difference counts once it has been seen three times in a row.

The last line is JSON: numbers of ``requests`` and ``cases``, of cases with a difference of each ``listed``
kind and with an ``unexplained`` one, of ``passing`` differences, and the ``statuses`` of the older server.
The exit code is 0 if nothing is unexplained.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.deployment import ROOT
from verification.differential.comparison import compare
from verification.differential.listed import KINDS
from verification.differential.requests import Generator
from verification.differential.servers import both, knowing_and_not, worktree

_BEFORE_KNOWN_HEADS: Final = "448f484"


def main() -> int:
    """0 if every difference is a listed one."""
    parser = argparse.ArgumentParser(prog="python -m verification.differential", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="number of requests [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="random seed [%(default)s]")
    parser.add_argument("--old", default=_BEFORE_KNOWN_HEADS, help="commit of the older server [%(default)s]")
    parser.add_argument(
        "--heads", action="store_true", help="compare two processes of this tree: one keeps no heads"
    )
    options = parser.parse_args()

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="stms-differential-") as name:
        folder = Path(name)
        if options.heads:
            with knowing_and_not(folder) as (ports, keys):
                generator = Generator(keys, options.seed, only_queries=True)
                found = asyncio.run(compare(ports, generator, options.requests, report=report))
        else:
            with worktree(folder, options.old) as old, both(folder, old, ROOT) as (ports, keys):
                generator = Generator(keys, options.seed)
                found = asyncio.run(compare(ports, generator, options.requests, KINDS, report))
    for description in found.unexplained:
        print(description)
    print(json.dumps(found.document()))
    return int(found.unexplained_count > 0)


if __name__ == "__main__":
    sys.exit(main())
