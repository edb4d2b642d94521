"""Pictures in a whole service: accuracy, speed and what a second job saves. Parts of `lab.benchmarks.images`.

worst_vs_best_single    accuracy of the default job minus that of the better single encoder, in points of 100,
                        of the set of pictures where this is smallest
pictures_per_second     answers about pictures of one client over HTTP; picture_p99_ms: their 99th percentile
x_p99_ratio             99th percentile of queries of numbers beside these, by that without them
cached_training_ratio   time from the start of a second job to its rows, by that of the first, which encodes

Sets are folders of class folders in the folder ``STMS_PICTURE_SETS``. They are fetched for measuring and
are no part of this repository: Omniglot (brendenlake/omniglot, python/images_background_small1.zip), ORL
faces (Frank-qlu/ORL_faces), GTSRB (candice-wu/Vision_HW_02_GTSRB_CNN), flowers (Oldpel/flower_photos) and
rooms (emanhamed/Houses-dataset). Without the setting accuracy is not measured, and it is said.
"""

from __future__ import annotations

import io
import os
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import numpy as np

from stms_client import Client
from tests.made_pictures import members, packed
from tests.system.deployment import QUICK_SOLVERS, Deployment

_PER_CLASS: Final = 10
_MOST_TESTED: Final = 400
_SECONDS: Final = {False: 20.0, True: 4.0}
_MADE: Final = {False: 100, True: 20}
_KEY: Final = "admin"


def accuracy(is_quick: bool) -> Mapping[str, float]:
    """The default job against jobs with one encoder, on each set."""
    root = os.environ.get("STMS_PICTURE_SETS", "")
    sets = sorted(path for path in Path(root).iterdir() if path.is_dir()) if root else []
    if not sets:
        print("STMS_PICTURE_SETS names no folder with sets of pictures: accuracy is not measured.")
        return {}
    worst = np.inf
    figures: dict[str, float] = {}
    with _service() as (client, _):
        for folder in sets[: 1 if is_quick else None]:
            archive, tested = _divided(folder)
            dataset = client.upload_dataset(archive)["id"]
            found = {
                name: _accuracy(client, dataset, f"{folder.name}-{name}", name, tested)
                for name in ("auto", "hlc", "rnd")
            }
            print(f"{folder.name}: {found}", flush=True)
            gain = 100.0 * (found["auto"] - max(found["hlc"], found["rnd"]))
            figures |= {f"{folder.name}_{name}": round(one, 3) for name, one in found.items()}
            worst = min(worst, gain)
            archive.unlink()
    return {"worst_vs_best_single": round(float(worst), 2), **figures}


def speed(is_quick: bool) -> Mapping[str, float]:
    """Pictures and rows of numbers asked about at the same time, and a second job on the same pictures."""
    with _service() as (client, service), TemporaryDirectory() as folder:
        archive = Path(folder) / "shapes.zip"
        pictures = members(_MADE[is_quick])
        archive.write_bytes(packed(pictures))
        dataset = client.upload_dataset(archive)["id"]
        first = _seconds_to_rows(client, dataset, "shapes")
        second = _seconds_to_rows(client, dataset, "again")
        _train_numbers(client, service)
        ask_x = _asking(service, "numbers", "up", {"json": {"x": [0.5, 1.0]}})
        alone = _timed(ask_x, _SECONDS[is_quick])
        sent = [{"content": one, "headers": {"content-type": "image/jpeg"}} for one in pictures.values()]
        asks = [_asking(service, "shapes", "disc", one) for one in sent]
        asks[0]()
        times: list[float] = []
        thread = threading.Thread(target=lambda: times.extend(_timed_all(asks, _SECONDS[is_quick])))
        thread.start()
        beside = _timed(ask_x, _SECONDS[is_quick])
        thread.join()
    return {
        "cached_training_ratio": round(second / first, 3),
        "pictures_per_second": round(len(times) / sum(times), 1),
        "picture_p99_ms": round(1e3 * float(np.quantile(times, 0.99)), 1),
        "x_p99_ratio": round(float(np.quantile(beside, 0.99) / np.quantile(alone, 0.99)), 2),
    }


@contextmanager
def _service() -> Iterator[tuple[Client, Deployment]]:
    with (
        Deployment(serve=True, keys={_KEY: {_KEY}}, settings=dict(QUICK_SOLVERS)) as service,
        Client(service.urls[0], api_key=service.keys[_KEY]) as client,
    ):
        yield client, service


def _divided(folder: Path) -> tuple[Path, list[tuple[bytes, str]]]:
    """An archive with some pictures of each class to train on, and pictures to test with their classes."""
    rng = np.random.default_rng(0)
    archive = Path(f"{folder}.zip")
    tested: list[tuple[bytes, str]] = []
    with zipfile.ZipFile(archive, "w") as packed_set:
        for label in sorted(path for path in folder.iterdir() if path.is_dir()):
            files = sorted(label.iterdir())
            drawn = [files[int(place)] for place in rng.permutation(len(files))]
            trained = min(_PER_CLASS, len(files) // 2)
            for path in drawn[:trained]:
                packed_set.write(path, f"{label.name}/{path.name}")
            tested += [(path.read_bytes(), label.name) for path in drawn[trained:]]
    some = rng.permutation(len(tested))[:_MOST_TESTED]
    return archive, [tested[int(place)] for place in some]


def _accuracy(
    client: Client, dataset: str, model: str, encoder: str, tested: Sequence[tuple[bytes, str]]
) -> float:
    """Accuracy of a model of its own: an alias stays where a new version lacks a class of the present one."""
    spec: dict[str, Any] = {"evaluation": {"test_fraction": None}}
    if encoder != "auto":
        spec["inputs"] = {"columns": {"image": {"encoder": encoder}}}
    job = client.wait_for_job(client.submit_job(dataset, model, spec).id)
    if job["state"] != "succeeded":
        raise RuntimeError(f"The job ended {job['state']}: {job.get('error')}")
    right = sum(client.predict(model, image=one) == label for one, label in tested)
    return right / len(tested)


def _seconds_to_rows(client: Client, dataset: str, model: str) -> float:
    """Seconds from the start of a job until it reads its rows, whose vectors are there then."""
    spec = {"teacher": {"method": "ssvm"}}
    job = client.wait_for_job(client.submit_job(dataset, model, spec).id)
    started = rows = 0.0
    for event in client.job_events(job["id"]):
        if event["type"] == "job_started":
            started = datetime.fromisoformat(event["at"]).timestamp()
        if event["type"] == "stage_started" and event["data"]["stage"] == "data":
            rows = datetime.fromisoformat(event["at"]).timestamp()
            break
    return rows - started


def _train_numbers(client: Client, service: Deployment) -> None:
    rows = io.StringIO()
    rows.write("a,b,kind\n")
    rng = np.random.default_rng(0)
    for a, b in rng.normal(size=(300, 2)):
        rows.write(f"{a:.3f},{b:.3f},{'up' if a + b > 0 else 'down'}\n")
    with service.client(_KEY) as http:
        sent = http.post("/v1/datasets", content=rows.getvalue().encode(), params={"format": "csv"}).json()
    job = client.submit_job(sent["id"], "numbers", {"teacher": {"method": "ssvm"}})
    client.wait_for_job(job.id)


def _asking(service: Deployment, model: str, label: str, request: Mapping[str, Any]) -> Callable[[], None]:
    http = service.client(_KEY)

    def ask() -> None:
        response: httpx.Response = http.post(f"/v1/models/{model}/classes/{label}:query", **request)
        response.raise_for_status()

    return ask


def _timed(ask: Callable[[], None], seconds: float) -> list[float]:
    """Seconds of each question, as many as fit into some time."""
    return _timed_all([ask], seconds)


def _timed_all(asks: Sequence[Callable[[], None]], seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        asks[len(times) % len(asks)]()
        times.append(time.perf_counter() - start)
    return times


PARTS: Final = (accuracy, speed)
