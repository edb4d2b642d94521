"""Load a data set as a worker does, read every value once, and print time and memory as JSON.

`lab.benchmarks.storage` starts this program:

``python -m lab.benchmarks.storage_load <data folder> <id> cold|warm``
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from app.services.datasets import load_dataset
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.engine import open_database
from app.store.private_files import installation_key
from app.store.unit_of_work import Store
from lab.benchmarks.storage import memory, watched


def main() -> None:
    settings = Settings(data_dir=Path(sys.argv[1]))
    key = installation_key(settings.data_dir)
    before = memory(os.getpid())["RssAnon"] // 1024
    with tempfile.TemporaryDirectory(dir=settings.data_dir) as empty:
        folder = Path(empty) if sys.argv[3] == "cold" else settings.cache_folder
        store = Store(open_database(settings, "benchmark"))
        with watched(os.getpid()) as most:
            begun = time.perf_counter()
            train, _ = load_dataset(store, BlobCache(folder, settings.cache_disk_bytes, key), sys.argv[2])
            seconds = time.perf_counter() - begun
            train.X.sum(axis=0)
        store.dispose()
    print(
        json.dumps(
            {
                "seconds": round(seconds, 1),
                "anonymous": most["anonymous"] - before,
                "resident": most["resident"],
            }
        )
    )


if __name__ == "__main__":
    main()
