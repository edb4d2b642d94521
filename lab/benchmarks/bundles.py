"""Bundles of more and more classes, seconds and memory of each step: ``python -m lab.benchmarks.bundles``.

Each step runs in a process of its own, whose largest resident size is taken; the last line is a JSON object.
Heads are exported as they are stored; students are those of a trained version, each a package of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from app.domain import bundle
from app.domain.entities import ModelVersion
from app.ingest.orders import BundleContent, BundleOrder, Place
from app.ingest.reading import check_bundle
from app.services.bundle_export import open_bundle
from app.services.bundle_import import import_bundle
from app.services.head_import import import_head
from app.services.models import get_version
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from tests.system.published import publish_linear

COLUMNS = 16
LIMITS = Settings(max_classes=2_000_000)


def apart(work: Callable[[], Any]) -> dict[str, Any]:
    """The result of ``work`` in a process of its own, with its seconds and the MiB that it grew by."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            before, start = _peak(), time.perf_counter()
            result = work()
            seconds = time.perf_counter() - start
            answer = {"result": result, "seconds": round(seconds, 2), "mib": round(_peak() - before, 1)}
            os.write(writing, json.dumps(answer).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        text = answers.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError("a step failed, see above")
    found: dict[str, Any] = json.loads(text)
    return found


def _peak() -> float:
    """Largest resident size of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def opened(path: Path) -> Store:
    """The store over a SQLite file, made if it does not exist."""
    if not path.exists():
        upgrade(f"sqlite:///{path}")
    return Store(open_engine(f"sqlite:///{path}"))


def a_head(folder: Path, store: Store, classes: int) -> ModelVersion:
    """A version with a head of so many classes."""
    weights = np.random.default_rng(0).normal(size=(classes, COLUMNS)).astype(np.float32)
    labels = json.dumps([f"class {number}" for number in range(classes)])
    path = folder / "head.safetensors"
    save_file({"weights": weights}, path, {"labels": labels})
    imported = import_head(store, BlobCache(folder / "cache", 2**34), path, model="faces", limits=LIMITS)
    path.unlink()
    return imported.version


def students(store: Store, classes: int) -> ModelVersion:
    """A trained version with a student for each of so many classes."""
    weights = np.random.default_rng(0).normal(size=(classes, COLUMNS))
    names = [f"class {number}" for number in range(classes)]
    return publish_linear(store, "faces", weights, names)


def export(path: Path, target: Path) -> str:
    """Write the bundle of the version in a database; returns the digest of its manifest."""
    store = opened(path)
    version = get_version(store, "faces", 1)
    with open_bundle(store, version) as file, target.open("wb") as output:
        for piece in file.pieces(store):
            output.write(piece)
        return file.digest


def check(tar: Path) -> dict[str, Any]:
    """What a reader process says of a bundle."""
    order = BundleOrder(str(tar), 1000, LIMITS.max_classes, LIMITS.max_columns)
    content = check_bundle(order)
    return {
        "manifest": content.manifest,
        "blobs": {digest: [place.start, place.size] for digest, place in content.blobs.items()},
        "students": content.students and [content.students.start, content.students.size],
        "first": content.first,
    }


def publish_again(path: Path, tar: Path, checked: dict[str, Any]) -> int:
    """Import a bundle that was checked; returns the number of its version."""
    content = BundleContent(
        checked["manifest"],
        bundle.digest_of(checked["manifest"].encode()),
        {digest: Place(*place) for digest, place in checked["blobs"].items()},
        checked["students"] and Place(*checked["students"]),
        checked["first"],
    )
    store = opened(path)
    made = import_bundle(store, tar, created_by="benchmark", limits=LIMITS, read=lambda _: content)
    return made.version.version


def measured(folder: Path, kind: str, classes: int) -> dict[str, Any]:
    """Export, check, import and export again one version."""
    first, second = folder / "first.sqlite", folder / "second.sqlite"
    tar, again = folder / "first.tar", folder / "second.tar"

    def make() -> None:
        if kind == "head":
            a_head(folder, opened(first), classes)
        else:
            students(opened(first), classes)

    apart(make)
    opened(second).dispose()
    steps = {"export": apart(lambda: export(first, tar)), "check": apart(lambda: check(tar))}
    checked = steps["check"].pop("result")
    steps["import"] = apart(lambda: publish_again(second, tar, checked))
    steps["export again"] = apart(lambda: export(second, again))
    same = steps["export"].pop("result") == steps["export again"].pop("result")
    equal = same and apart(lambda: tar.read_bytes() == again.read_bytes())["result"]
    row = {"kind": kind, "classes": classes, "bytes": tar.stat().st_size, "equal": equal} | steps
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    return row


def main() -> int:
    """Measure heads and trained versions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--students", type=int, nargs="*", default=[1000, 10_000, 100_000])
    chosen = parser.parse_args()
    rows = []
    for kind, sizes in (("head", chosen.heads), ("students", chosen.students)):
        for classes in sizes:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measured(Path(folder), kind, classes))
            print(json.dumps(rows[-1]), flush=True)
    summary: dict[str, Any] = {"bundle_equal": all(row["equal"] for row in rows)}
    for kind in ("head", "students"):
        of_kind = [row for row in rows if row["kind"] == kind]
        if of_kind:
            for step in ("export", "check", "import"):
                summary[f"{kind}_{step}_mib"] = [row[step]["mib"] for row in of_kind]
    print(json.dumps(summary))
    return 0 if summary["bundle_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
