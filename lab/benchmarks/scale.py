"""A linear head of a million classes against one of ten.

    python -m lab.benchmarks.scale [--classes N] [--columns D]

Both are imported over HTTP into separate services with their own folders, pinned to one core; the client runs
on another core. Keys, limits, validation and metrics are enabled. The last line is a JSON object:

million_import_vs_copy   time of the import : time to write, sync and hash the same bytes to the same disk
million_ready_vs_ten     time from the start of a process to its first answer, ratio of medians
million_p50_vs_ten       p50 of warm queries to a hundred random classes : p50 of queries to the service
                         with ten classes; both are measured alternately
million_new_p50_vs_ten   the same where nearly every query of the million is the first one to its class, and
                         has to read the class's row and build its student
fetch_seconds            the first query when the cache on disk is empty: all bytes come from the database
rss_*_mib                resident memory of the query process: at its start, after one class, after all
rss_per_class_kib        growth of what is mapped (RssFile) for each class asked
wal_mb, api_share_of_upload and those beside them: see `lab.benchmarks.object_storage`
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from lab.benchmarks import object_storage
from lab.benchmarks.connection import Connection, request
from tests.system.deployment import Deployment, prepare_database
from tests.system.processes import family, two_cores, wait_for_port

STARTS = 5
TURNS = 30
REQUESTS_A_TURN = 100
WORKING_SET = 100
_PIECE_BYTES = 4 << 20
_LABEL_BYTES = 16


def write_head(path: Path, classes: int, columns: int) -> None:
    """Write a head of random normal weights with labels ``person 0``, … as safetensors, block by block."""
    from core.packed.codec import encode_front

    shapes = {
        "weights": (np.dtype("<f4"), (classes, columns)),
        "bias": (np.dtype("<f4"), (classes,)),
        "labels": (np.dtype("u1"), (classes, _LABEL_BYTES)),
    }
    front, places = encode_front({}, shapes)
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(front)
        for name in places:
            for first in range(0, classes, 10_000):
                rows = min(10_000, classes - first)
                if name == "weights":
                    file.write(rng.standard_normal((rows, columns), dtype=np.float32).tobytes())
                elif name == "bias":
                    file.write(rng.standard_normal(rows, dtype=np.float32).tobytes())
                else:
                    names = (f"person {row}".encode() for row in range(first, first + rows))
                    file.write(b"".join(name.ljust(_LABEL_BYTES, b"\0") for name in names))


def copy_seconds(source: Path, target: Path) -> float:
    """Seconds to write, sync and hash the bytes of a file; the copy is removed."""
    sha = hashlib.sha256()
    started = time.perf_counter()
    with source.open("rb") as data, target.open("wb") as copy:
        while piece := data.read(_PIECE_BYTES):
            sha.update(piece)
            copy.write(piece)
        copy.flush()
        os.fsync(copy.fileno())
    seconds = time.perf_counter() - started
    target.unlink()
    return seconds


class Service(Deployment):
    """A server with its own folder, which can be started and stopped repeatedly. key: may everything."""

    def __init__(self, folder: Path, core: int) -> None:
        settings = {"STMS_LOG_LEVEL": "WARNING", "STMS_REQUIRE_KEYS": "true"}
        super().__init__(folder, api=1, settings=settings, cores=core)
        self.server = self["api-0"]
        self.data.mkdir(parents=True)
        self.key = prepare_database(self.database, {"admin": {"admin"}})["admin"]

    @contextmanager
    def running(self) -> Iterator[None]:
        self.server.start()
        try:
            wait_for_port(self.port, 60.0, 0.005)
            yield
        finally:
            self.server.end()

    def query(self, row: int, x: list[float]) -> bytes:
        body = json.dumps({"x": x}).encode()
        return request("POST", f"/v1/models/faces/classes/person%20{row}:query", body, self.key)

    def memory(self) -> dict[str, float]:
        """Resident memory of all processes in MiB: all of it, and the part that is mapped files."""
        sums = dict.fromkeys(("VmRSS", "RssAnon", "RssFile"), 0.0)
        for pid in family(self.server.pid):
            lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            for name in sums:
                sums[name] += int(fields[name].split()[0]) / 1024
        return sums


def import_seconds(service: Service, head: Path) -> float:
    """Seconds from the first byte sent until the classes can be queried."""
    from stms_client import Client

    with service.running(), Client(service.url, service.key) as client:
        started = time.perf_counter()
        version = client.import_head(head, "faces")
        seconds = time.perf_counter() - started
        print(f"imported {version['class_count']} classes in {seconds:.2f} s", flush=True)
        return seconds


def first_answer_seconds(service: Service, x: list[float]) -> float:
    """Seconds from the start of a process to its first answer; the process is stopped afterwards."""
    service.server.start()
    started = time.perf_counter()
    try:
        wait_for_port(service.port, 60.0, 0.005)
        Connection(service.port, service.query(7, x), timeout=120.0).close()
        return time.perf_counter() - started
    finally:
        service.server.end()


def p50s(million: Service, ten: Service, classes: int, x: list[float]) -> dict[str, float]:
    """Median latencies in µs, measured alternately, and the memory growth of the large service."""
    from stms_client import Client

    draw = random.Random(1)
    with million.running(), ten.running():
        with Client(million.url, million.key) as client:
            list(client.models())
            before = million.memory()
        connections = {
            name: Connection(service.port, service.query(7, x))
            for name, service in (("million", million), ("new", million), ("ten", ten))
        }
        one = million.memory()
        seconds: dict[str, list[float]] = {name: [] for name in connections}
        some = draw.sample(range(classes), min(classes, WORKING_SET))
        for row in some:
            connections["million"].ask(million.query(row, x))
        queries = {
            "million": lambda: million.query(draw.choice(some), x),
            "new": lambda: million.query(draw.randrange(classes), x),
            "ten": lambda: ten.query(draw.randrange(10), x),
        }
        for turn in range(TURNS + 3):
            for name, connection in draw.sample(list(connections.items()), len(connections)):
                prepared = [queries[name]() for _ in range(REQUESTS_A_TURN)]
                spent = [_timed(connection, query) for query in prepared]
                if turn >= 3:
                    seconds[name] += spent
        after = million.memory()
        for connection in connections.values():
            connection.close()
    asked = len(some) + (TURNS + 3) * REQUESTS_A_TURN
    found = {f"{name}_p50_us": round(statistics.median(values) * 1e6, 1) for name, values in seconds.items()}
    return found | {
        "rss_start_mib": round(before["VmRSS"], 1),
        "rss_one_class_mib": round(one["VmRSS"], 1),
        "rss_after_mib": round(after["VmRSS"], 1),
        "classes_asked": asked,
        "rss_per_class_kib": round((after["RssFile"] - one["RssFile"]) * 1024 / asked, 1),
    }


def measure(folder: Path, classes: int, columns: int) -> dict[str, float]:
    """Measure all figures. The disk of ``folder`` needs about four times the size of the head."""
    server_core, client_core = two_cores()
    os.sched_setaffinity(0, {client_core})
    x = np.random.default_rng(2).standard_normal(columns).round(4).tolist()
    services = {}
    results: dict[str, float] = {"classes": classes, "columns": columns}
    for name, count in (("ten", 10), ("million", classes)):
        head = folder / "head.safetensors"
        write_head(head, count, columns)
        services[name] = Service(folder / name, server_core)
        copied = copy_seconds(head, folder / "copy") if name == "million" else 0.0
        seconds = import_seconds(services[name], head)
        if name == "million":
            copied = (copied + copy_seconds(head, folder / "copy")) / 2
            results |= {"import_seconds": round(seconds, 2), "copy_seconds": round(copied, 2)}
            results["million_import_vs_copy"] = round(seconds / copied, 2)
            print(results, flush=True)
        head.unlink()
    million, ten = services["million"], services["ten"]
    ready: dict[str, list[float]] = {"ten": [], "million": []}
    for _ in range(STARTS):
        for name, service in services.items():
            ready[name].append(first_answer_seconds(service, x))
    medians = {name: statistics.median(values) for name, values in ready.items()}
    results |= {f"ready_{name}_seconds": round(value, 3) for name, value in medians.items()}
    results["million_ready_vs_ten"] = round(medians["million"] / medians["ten"], 3)
    print(results, flush=True)
    results |= p50s(million, ten, classes, x)
    for name in ("million", "new"):
        ratio = results[f"{name}_p50_us"] / results["ten_p50_us"]
        results[f"million{'' if name == 'million' else '_new'}_p50_vs_ten"] = round(ratio, 3)
    print(results, flush=True)
    shutil.rmtree(million.data / "cache")
    results["fetch_seconds"] = round(first_answer_seconds(million, x), 2)
    return results


def _timed(connection: Connection, query: bytes) -> float:
    started = time.perf_counter()
    connection.ask(query)
    return time.perf_counter() - started


def main(out: IO[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=512)
    parser.add_argument("--upload-mib", type=int, default=256, help="size of the data set that is uploaded")
    parser.add_argument("--folder", type=Path, default=None, help="where to put some gigabytes meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stms-scale-", dir=options.folder) as folder:
        results = object_storage.measure(Path(folder), options.upload_mib)
        print(results, flush=True)
        results |= measure(Path(folder), options.classes, options.columns)
        print(json.dumps(results), file=out)


if __name__ == "__main__":
    main(sys.stdout)
