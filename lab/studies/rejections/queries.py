"""What several rejections add to a query over HTTP: the median time of p = 2, 4 and 8 to that of p = 1.

A student of 64 columns on linear features, and one of 16 columns on 300 landmarks. One connection asks for
one row in JSON, in short interleaved rounds. A figure is the median over the rounds of the quotient of the
two medians of the same round. The last line is a JSON object.

    python -m lab.studies.rejections.queries [--rounds N] [--seconds N]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence

import numpy as np

from app.store.unit_of_work import Store
from core.packed import LinearBasis, LinearForm, PackedMap, PackedStudent, PolytopeForm, RbfBasis
from lab.benchmarks.load import WrkMissing, wrk
from lab.benchmarks.peers import json_body
from lab.benchmarks.serve.comparison import interleaved, print_figures, ratio, require_success
from tests.system.processes import two_cores
from tests.system.published import linear_teacher, publish
from tests.system.query_service import Service, row

PIECES = (1, 2, 4, 8)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.studies.rejections.queries", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=1)
    options = parser.parse_args(arguments)
    cores = two_cores()
    # All that this process does itself belongs to the load.
    os.sched_setaffinity(0, {cores[1]})
    figures: dict[str, float] = {}
    try:
        with Service(prepare=publish_models, cores=cores[0]) as ours:

            def p50(model: str, pieces: int) -> Callable[[], float]:
                url, body = ours.query(model, f"p{pieces}"), json_body(row(MAPS[model].n_columns))
                return lambda: (
                    require_success(
                        wrk(
                            url,
                            body,
                            ours.headers(),
                            connections=1,
                            seconds=options.seconds,
                            core=cores[1],
                        )
                    ).p50_us
                )

            for model in MAPS:
                contestants = {f"p{pieces}": p50(model, pieces) for pieces in PIECES}
                found = interleaved(contestants, options.rounds)
                print_figures(f"p50 of one row, {model} features", "µs", found)
                figures |= {f"{model}_{name}_vs_p1": ratio(found, name, "p1") for name in found}
    except WrkMissing as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(figures))
    return 0


def publish_models(store: Store) -> None:
    """One model a map, whose classes ``p1`` to ``p8`` have so many rejections."""
    rng = np.random.default_rng(3)
    for name, basis in MAPS.items():
        students = {f"p{pieces}": student(rng, basis, pieces) for pieces in PIECES}
        publish(store, name, students, linear_teacher(list(students), np.eye(4, basis.n_columns)))


def student(rng: np.random.Generator, basis: PackedMap, pieces: int) -> PackedStudent:
    """A student with random weights; with one rejection it is a gated SVM as it is packed."""
    coef, gate = rng.normal(size=(pieces, basis.n_basis)), rng.normal(size=basis.n_basis)
    if pieces == 1:
        return PackedStudent(basis, LinearForm(coef[0], 0.1, gate, 0.2), 0.0, "p1")
    return PackedStudent(basis, PolytopeForm(coef, rng.normal(size=pieces), gate, 0.2), 0.0, f"p{pieces}")


def _landmarks(n: int, columns: int) -> RbfBasis:
    rng = np.random.default_rng(4)
    return RbfBasis(np.zeros(columns), np.full(columns, 0.2), 0.2 * rng.normal(size=(n, columns)))


MAPS: dict[str, PackedMap] = {"linear": LinearBasis(64), "kernel": _landmarks(300, 16)}


if __name__ == "__main__":
    sys.exit(main())
