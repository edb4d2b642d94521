"""Cost of large data sets: memory of the API during an upload, memory of a worker that loads one, and time.

``python -m lab.benchmarks.storage [GB]`` starts a service and uploads an .npy and an .npz file of that size
(2 by default) with different rows. The last line is one JSON object, memory in MB:

``*_upload_anonymous``: peak of the anonymous memory of the API process. ``*_upload_resident``: peak of its
resident memory, which includes mapped pages of files that the kernel can reclaim. ``*_load_…``: the same for
a process that loads the data set as a worker does, from the database (cold) and from its disk cache (warm),
and reads every value once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from app.processes.os_process import ProcessName
from tests.system.deployment import Deployment
from tests.system.processes import process_name

COLUMNS = 100
_BLOCK = 10_000
_SAMPLE_SECONDS = 0.05
_MB = 1024


def main() -> None:
    size = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    rows = int(size * 1e9 / 8 / (COLUMNS + 1))
    report: dict[str, Any] = {"bytes": rows * COLUMNS * 8}
    with tempfile.TemporaryDirectory(prefix="stms-storage-") as name:
        folder = Path(name)
        with Deployment(folder, serve=True, is_new=False) as server:
            report["idle_anonymous"] = memory(api_of(server))["RssAnon"] // _MB
            for kind, write in (("npy", write_npy), ("npz", write_npz)):
                file = folder / f"rows.{kind}"
                write(file, rows)
                report |= {f"{kind}_{what}": value for what, value in measured(server, file).items()}
                print(json.dumps(report), flush=True)
                file.unlink()


def measured(server: Deployment, file: Path) -> dict[str, float]:
    """Upload a file, load its data set in new processes, and delete it."""
    headers = {"Authorization": f"Bearer {server.first_key}"}
    client = httpx.Client(base_url=server.url, headers=headers, timeout=600, trust_env=False)
    with watched(api_of(server)) as most:
        begun = time.perf_counter()
        answer = client.post("/v1/datasets", params={"filename": file.name}, content=pieces_of(file))
        seconds = time.perf_counter() - begun
    answer.raise_for_status()
    found = {"upload_seconds": round(seconds, 1), **{f"upload_{name}": value for name, value in most.items()}}
    for state in ("cold", "warm"):
        command = [
            sys.executable,
            "-m",
            "lab.benchmarks.storage_load",
            str(server.data),
            answer.json()["id"],
            state,
        ]
        loaded = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        found |= {f"load_{state}_{name}": value for name, value in loaded.items()}
    begun = time.perf_counter()
    client.delete(f"/v1/datasets/{answer.json()['id']}").raise_for_status()
    found["delete_seconds"] = round(time.perf_counter() - begun, 1)
    return found


def write_npy(path: Path, rows: int) -> None:
    """Write one table whose last column is the label."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f8", "fortran_order": False, "shape": (rows, COLUMNS + 1)}
        )
        for block in blocks(rows, seed=0):
            labels = (block[:, :1] > 0).astype(np.float64)
            file.write(np.hstack([block, labels]).tobytes())


def write_npz(path: Path, rows: int) -> None:
    """Write X and y as `numpy.savez` does."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("X.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<f8", "fortran_order": False, "shape": (rows, COLUMNS)}
            )
            for block in blocks(rows, seed=1):
                file.write(block.tobytes())
        with archive.open("y.npy", "w") as file:
            np.lib.format.write_array(file, np.arange(rows) % 2)


def blocks(rows: int, seed: int) -> Iterator[np.ndarray[Any, np.dtype[np.float64]]]:
    """Blocks of some thousand rows: one random block, shifted a little each time, which is fast."""
    base = np.random.default_rng(seed).normal(size=(_BLOCK, COLUMNS))
    for start in range(0, rows, _BLOCK):
        yield base[: min(_BLOCK, rows - start)] + start


def pieces_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def api_of(server: Deployment) -> int:
    """Process id of the API, which is the control process. Raises StopIteration if it does not run."""
    return next(pid for pid in server.pids if process_name(pid) == ProcessName.CONTROL)


def memory(pid: int) -> dict[str, int]:
    """Current memory of a process in KiB, by field of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.split(":") for line in lines if line.startswith(("Rss", "VmRSS", "VmHWM")))
    return {name: int(value.split()[0]) for name, value in pairs}


@contextmanager
def watched(pid: int) -> Iterator[dict[str, int]]:
    """Peak memory of a process during the block, MB; the dictionary is filled at the end of the block."""
    most: dict[str, int] = {}
    found: dict[str, int] = {}
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            for name, value in memory(pid).items():
                found[name] = max(found.get(name, 0), value)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()
        most |= {"anonymous": found["RssAnon"] // _MB, "resident": found["VmRSS"] // _MB}


if __name__ == "__main__":
    main()
