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

import msgspec
import numpy as np

from app.ingest.options import ReadingOptions
from app.ingest.reading import DatasetOrder, read_dataset
from app.store.unit_of_work import Store
from benchmarks.load import wrk
from benchmarks.published import linear_student, linear_teacher, publish
from benchmarks.serve.comparison import Pace, interleaved, print_figures, ratio, require_success
from benchmarks.serve.service import service
from core.data.schema import Kind, KindSpec, infer_schema
from core.data.table import NumberCells, Table, TextCells
from core.encoding.fit import fit_encoder
from core.packed.encoder import Encoder

NUMBERS: Final = 6
CATEGORIES: Final = 8
COLUMNS: Final = NUMBERS + CATEGORIES
WORDS: Final = 300
_VOCABULARY: Final = 30_000
_ROWS: Final = 2000
_CONNECTIONS: Final = 32
_MANY: Final = 1000


def _record_table(rng: np.random.Generator) -> Table:
    numbers = {f"number{k}": NumberCells(rng.normal(size=_ROWS).round(3)) for k in range(NUMBERS)}
    categories = {
        f"category{k}": TextCells.of([f"value {v}" for v in rng.integers(0, 4 + 3 * k, _ROWS)])
        for k in range(CATEGORIES)
    }
    columns: dict[str, Any] = numbers | categories
    return Table(tuple(columns), tuple(columns.values()))


def _texts(rng: np.random.Generator, n: int) -> list[str]:
    """Texts of words whose frequencies fall as those of English do."""
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = ["".join(rng.choice(letters, rng.integers(2, 11))) for _ in range(_VOCABULARY)]
    share = 1.0 / np.arange(1, _VOCABULARY + 1)
    return [" ".join(rng.choice(words, WORDS, p=share / share.sum())) for _ in range(n)]


class _Models:
    """A model of 14 numbers, one of records of 14 columns and one of texts, with random weights."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        table = _record_table(rng)
        self.records = [table.record(k) for k in range(_MANY)]
        self.rows = rng.normal(size=(_MANY, COLUMNS)).round(3).tolist()
        texts = _texts(rng, _ROWS)
        self.text = texts[0]
        notes = Table(("text",), (TextCells.of(texts),))
        self._encoders = {
            "records": fit_encoder(table, infer_schema(table)),
            "texts": fit_encoder(notes, infer_schema(notes, {"text": KindSpec(Kind.TEXT)})),
        }

    def publish(self, store: Store) -> None:
        """Store all three."""
        self._publish(store, "numbers", COLUMNS, None)
        for name, encoder in self._encoders.items():
            self._publish(store, name, encoder.layout.columns, encoder)

    @staticmethod
    def _publish(store: Store, name: str, columns: int, encoder: Encoder | None) -> None:
        weights = np.random.default_rng(1).normal(size=(2, columns))
        students = {label: linear_student(label, row) for label, row in zip("ab", weights, strict=True)}
        publish(store, name, students, linear_teacher(list(students), weights), encoder=encoder)


def queries(cores: tuple[int, int], pace: Pace) -> dict[str, float]:
    """The figures of queries. cores: of the server and of the load."""
    models = _Models()
    server_core, client_core = cores
    with service(models.publish, server_core) as ours:

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
        print_figures(f"requests of {_MANY} rows, one connection", "/s", many)
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
        **msgspec.structs.asdict(ReadingOptions.parse(label_column="label")),
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
