"""Throughput of records and texts over HTTP beside vectors, and reading of mixed tables beside numbers.

record_vs_x_throughput     a record of 14 mixed columns : a vector of 14 numbers, 32 connections
text_vs_x_throughput       a text of 300 words : the same vector
records_vs_rows            time of a request of 1000 records : of one of 1000 rows of 14 numbers
upload_mixed_vs_numeric    reading a CSV file of 20 mixed columns : of 20 columns of numbers

All are linear students; rounds alternate, and a figure is the median of the ratios of the rounds.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from app.ingest.options import ReadingOptions
from app.ingest.orders import DatasetOrder
from app.ingest.reading import read_dataset
from lab.benchmarks.load import wrk
from lab.benchmarks.mixed_models import MANY, MixedModels
from lab.benchmarks.serve.comparison import Pace, interleaved, print_figures, ratio, require_success
from tests.system.query_service import Service

_CONNECTIONS: Final = 32


def queries(cores: tuple[int, int], pace: Pace) -> dict[str, float]:
    """The figures of queries. cores: of the server and of the load."""
    models = MixedModels()
    server_core, client_core = cores
    with Service(prepare=models.publish, cores=server_core) as ours:

        def rate(model: str, body: Mapping[str, Any], connections: int = _CONNECTIONS) -> Callable[[], float]:
            data, url = json.dumps(body).encode(), ours.query(model, "a")
            ours.ask(url, data, ours.headers())
            return lambda: (
                require_success(
                    wrk(
                        url,
                        data,
                        ours.headers(),
                        connections=connections,
                        seconds=pace.seconds,
                        core=client_core,
                    )
                ).rate
            )

        single = interleaved(
            {
                "x": rate("numbers", {"x": models.rows[0]}),
                "record": rate("records", {"record": models.records[0]}),
                "text": rate("texts", {"text": models.text}),
            },
            pace.rounds,
        )
        print_figures(f"throughput, {_CONNECTIONS} connections", "/s", single)
        many = interleaved(
            {
                "rows": rate("numbers", {"rows": models.rows}, 1),
                "records": rate("records", {"records": models.records}, 1),
            },
            pace.rounds,
        )
        print_figures(f"requests of {MANY} rows, one connection", "/s", many)
    return {
        "record_vs_x_throughput": ratio(single, "record", "x"),
        "text_vs_x_throughput": ratio(single, "text", "x"),
        "records_vs_rows": round(1.0 / ratio(many, "records", "rows"), 3),
    }


def reading(rows: int, rounds: int) -> float:
    """Time to read a CSV file of 20 mixed columns, a third of them with gaps, over that of 20 of numbers."""
    with tempfile.TemporaryDirectory(prefix="stms-bench-") as name:
        folder = Path(name)
        files = {kind: folder / f"{kind}.csv" for kind in ("numeric", "mixed")}
        _write_numeric(files["numeric"], rows)
        _write_mixed(files["mixed"], rows)
        found = interleaved({kind: _reading(path, folder) for kind, path in files.items()}, rounds)
    print_figures(f"reading of {rows} rows", "s", found)
    return ratio(found, "mixed", "numeric")


def _reading(path: Path, folder: Path) -> Callable[[], float]:
    order = DatasetOrder(
        source=str(path),
        rows=str(folder / "rows"),
        declared="csv",
        filename=None,
        max_rows=10**8,
        max_columns=1000,
        max_bytes=10**11,
        temp_folder=str(folder),
        options=ReadingOptions.parse(label_column="label"),
    )

    def once() -> float:
        started = time.perf_counter()
        read_dataset(order)
        return time.perf_counter() - started

    return once


def _write_numeric(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    _write(path, [map(repr, rng.normal(size=rows).round(4).tolist()) for _ in range(20)], rows)


def _write_mixed(path: Path, rows: int) -> None:
    """Numbers, numbers with gaps, categories, dates and short texts."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{k}" for k in range(500)])
    columns: list[Any] = [map(repr, rng.normal(size=rows).round(4).tolist()) for _ in range(6)]
    for _ in range(5):
        numbers, is_gap = rng.normal(size=rows).round(4).tolist(), rng.random(rows) < 0.1
        columns.append("NA" if gap else repr(number) for number, gap in zip(numbers, is_gap, strict=True))
    columns += [[f"value {v}" for v in rng.integers(0, 5 + 10 * k, rows)] for k in range(6)]
    days = np.datetime64("2020-01-01") + rng.integers(0, 1500, rows)
    columns += [
        np.datetime_as_string(days).tolist(),
        ["true" if v else "false" for v in rng.random(rows) < 0.5],
    ]
    columns.append(" ".join(five) for five in words[rng.integers(0, 500, (rows, 5))])
    _write(path, columns, rows)


def _write(path: Path, columns: list[Any], rows: int) -> None:
    labels = ["ab"[k % 2] for k in range(rows)]
    with path.open("w") as file:
        file.write(",".join([f"c{k}" for k in range(len(columns))] + ["label"]) + "\n")
        file.writelines(",".join(cells) + "\n" for cells in zip(*columns, labels, strict=True))
