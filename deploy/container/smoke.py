"""Builds the image and tests the whole workflow with it: `make container`.

    python -m deploy.container.smoke

Uploads real data in every format, trains with every method, follows events, compares decisions with
scikit-learn's and with those after a restart on the same volume, and checks the restrictions from inside. An
image for serving answers the same from a bundle. The last line is a JSON object. Exit code 3: there is no
engine or no base image.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from deploy.container import inside
from deploy.container.containers import MEMORY, Container, is_ready, remove_volume, running, until
from deploy.container.engines import Engine, engine_with
from deploy.container.image import LARGEST_MB, Image, base_images, build, project_version
from deploy.container.report import Report, tell
from deploy.container.samples import Digits, write_digits, write_flowers
from deploy.container.tools import lint
from stms_client import Client

NAME: Final = "stms-smoke"
VOLUME: Final = "stms-smoke-data"
OPEN: Final = {"STMS_HOST": "0.0.0.0"}
"""Reached through a published port, so API keys are required."""

DIGITS: Final[Mapping[str, Any]] = {
    "features": {"kind": "nystroem", "n_components": 150},
    "evaluation": {"baselines": ["gsvm0", "svm"]},
}
"""The main job: a teacher, and for each class a gSVM student and two baselines."""

JOBS: Final[Mapping[str, Mapping[str, Any]]] = {
    "csv": {
        "features": {"kind": "nystroem", "n_components": 30},
        "tuning": {"grid": {"C": [1, 100], "margins": [1.0], "floors": [0.3, 0.5]}, "folds": 3},
        "threshold": {"rule": "f1"},
        "evaluation": {"test_fraction": 0.3},
    },
    "parquet": {
        "features": {"kind": "nystroem", "n_components": 30},
        "compact": {"n_landmarks": 5},
        "calibration": {"kind": "sigmoid"},
        "threshold": {"folds": 2},
    },
    "svmlight": {"features": {"scaling": "none"}, "student": {"method": "svm"}},
    "npy": {
        "features": {"kind": "fourier", "n_components": 50},
        "student": {"solver": "mm_irls"},
        "threshold": {"rule": "fpr", "folds": 2},
        "calibration": {"kind": "isotonic"},
    },
    "npz": {"student": {"method": "gsvm0"}, "threshold": {"rule": "accuracy", "folds": 2}},
}
"""One job for each format; together they use every kind of training."""


def smoke(report: Report) -> None:
    """Run all tests in order. Raises Missing, Refuted, EngineFailed."""
    engine = engine_with(base_images())
    report.figure(engine=engine.name)
    report.say(f"{engine.name} works and has the base images.")
    report.holds(lint() == "", "hadolint has nothing against the Dockerfile.")
    image = build(engine)
    look_at(image, report)
    small = build(engine, "serving")
    look_at(small, report, "serving_")
    remove_volume(engine, VOLUME)
    try:
        with tempfile.TemporaryDirectory() as folder:
            main_job(engine, image, small, Path(folder), report)
    finally:
        remove_volume(engine, VOLUME)


def look_at(image: Image, report: Report, prefix: str = "") -> None:
    """Checks of the image that do not start the service. prefix: of the names of its figures."""
    size, base = round(image.size_mb, 1), round(image.base_mb, 1)
    report.figure(**{f"{prefix}image_mb": size, f"{prefix}build_s": round(image.seconds, 1)}, base_mb=base)
    report.holds(
        size <= LARGEST_MB[image.lock],
        f"The image of {image.lock} has {size:.0f} MB, its base image {base:.0f} MB.",
    )
    version = image.labels.get("org.opencontainers.image.version")
    report.holds(version == project_version(), f"It is labelled version {version}.")
    report.holds(image.config["User"] == "10001:10001", "It is made to run as user 10001.")
    report.holds(bool(image.config["Healthcheck"]), "It has a health check.")


def main_job(engine: Engine, image: Image, small: Image, folder: Path, report: Report) -> None:
    """Start with an empty volume, train and query, then restart on the same volume and query again.

    small: the image for serving, which then answers from a bundle.
    """
    digits, flowers = write_digits(folder), write_flowers(folder)
    with serving(engine, image, report) as (container, client, key):
        report.say("An empty volume became a database, and a key was made.")
        inside.examine(container, report)
        before = train_and_ask(client, digits, report)
        train_every_kind(client, flowers, report)
        report.figure(memory_peak_mb=round(inside.memory_peak(container) / 1e6))
        health(container, report)
        end_in_order(container, client.address, key, digits.X_test, report)
    with serving(engine, image, report) as (container, client, again):
        report.holds(key == again, "After a restart the key is the same.")
        after = ask(client, digits)
        same = all(np.array_equal(before[label], after[label]) for label in before)
        report.holds(same, "After a restart on the same volume every answer is the same.")
        report.holds(len(list(client.models())) == 1 + len(JOBS), "All models are still there.")
        client.export_bundle("digits", folder / "digits.tar")
    serve_bundle(engine, small, folder, digits, before, report)


def serve_bundle(
    engine: Engine,
    image: Image,
    folder: Path,
    digits: Digits,
    before: Mapping[str, NDArray[np.bool_]],
    report: Report,
) -> None:
    """Serve the bundle of the folder with the image for serving, and ask it as before."""
    keys = folder / "keys.jsonl"
    made = [sys.executable, "-P", "-m", "app.cli", "keys", "create", "smoke", "--offline", str(keys)]
    key = subprocess.run(made, check=True, capture_output=True, text=True).stdout.split()[-1]
    for path in (folder, folder / "digits.tar", keys):
        path.chmod(0o755)
    command = ("api", "--bundle", "/models/digits.tar")
    environ = OPEN | {"STMS_KEYS_FILE": "/models/keys.jsonl"}
    options = (f"--volume={folder}:/models:ro",)
    started = time.monotonic()
    with running(
        engine, NAME, image.name, *command, volume=VOLUME, environ=environ, options=options
    ) as container:
        until("the server of the bundle is ready", lambda: is_ready(container.address()))
        report.figure(serving_ready_s=round(time.monotonic() - started, 2))
        with Client(container.address(), key) as client:
            after = ask(client, digits)
        same = all(np.array_equal(before[label], after[label]) for label in before)
        report.holds(same, "The image for serving gives the same answers from a bundle.")
        report.figure(serving_memory_peak_mb=round(inside.memory_peak(container) / 1e6))
        container.kill("SIGTERM")
        report.holds(container.wait() == 0, "After SIGTERM its exit code is 0.")


@contextmanager
def serving(engine: Engine, image: Image, report: Report) -> Iterator[tuple[Container, Client, str]]:
    """Run API and worker in a container until they are ready; yields a client and its API key."""
    started = time.monotonic()
    with running(engine, NAME, image.name, volume=VOLUME, environ=OPEN) as container:
        address = container.address()
        until("the server is ready", lambda: is_ready(address))
        ready = time.monotonic() - started
        report.figure(ready_s=min(round(ready, 1), report.figures.get("ready_s", float("inf"))))
        report.say(f"It is ready {ready:.1f} s after `run`.")
        key = inside.first_key(container)
        with Client(address, key) as client:
            yield container, client, key


def train_and_ask(client: Client, digits: Digits, report: Report) -> dict[str, NDArray[np.bool_]]:
    """The main job from upload to queries; returns the decisions by class."""
    data = client.upload_dataset(digits.file, name="digits")
    started = time.monotonic()
    job = client.submit_job(data["id"], "digits", DIGITS)
    events = [event.type for event in client.follow_job(job["id"])]
    ended = client.job(job["id"])
    report.figure(job_s=round(time.monotonic() - started, 1), events=len(events))
    report.holds(
        ended["state"] == "succeeded", f"The digits are trained: {len(events)} events were followed."
    )
    report.holds(events.count("student_finished") == 30, "Ten classes have three students each.")
    answers = ask(client, digits)
    scores = {label: f1_score(digits.y_test == int(label), found) for label, found in answers.items()}
    ours = float(np.mean(list(scores.values())))
    report.figure(
        queries_ok=len(digits.y_test) * len(answers), f1=round(ours, 4), f1_sklearn=round(digits.their_f1, 4)
    )
    report.holds(
        ours >= digits.their_f1 - 0.02,
        f"Ten students have a mean F of {ours:.3f} on the test part, ten of LinearSVC {digits.their_f1:.3f}.",
    )
    return answers


def ask(client: Client, digits: Digits) -> dict[str, NDArray[np.bool_]]:
    """Decisions of every student for every row of the test part."""
    return {
        str(label): np.asarray(client.query_rows("digits", str(label), digits.X_test).matches)
        for label in range(10)
    }


def train_every_kind(client: Client, files: Mapping[str, Path], report: Report) -> None:
    """Run one job for each file format concurrently, and query all of their students."""
    started = time.monotonic()
    jobs = {
        kind: client.submit_job(
            client.upload_dataset(file, file_format=kind)["id"], f"iris-{kind}", JOBS[kind]
        )
        for kind, file in files.items()
    }
    for kind, job in jobs.items():
        ended = client.wait_for_job(job["id"])
        version = client.model(ended["model"])["versions"][0]
        row = [5.0, 3.4, 1.5, 0.2]
        decisions = client.query_classes(ended["model"], version["classes"], row)
        report.holds(
            len(decisions) == 3,
            f"A {kind} file became model {ended['model']}, and its three students answer.",
        )
    report.figure(formats=len(jobs), formats_s=round(time.monotonic() - started, 1))


def health(container: Container, report: Report) -> None:
    """The health check reports the state of the server and of the worker."""
    until("the container is healthy", container.is_healthy)
    report.say("The health check says healthy.")
    if container.engine.name != "podman":
        return
    inside.signal_worker(container, "SIGSTOP")
    found = until("a frozen worker is seen", lambda: not container.is_healthy())
    inside.signal_worker(container, "SIGCONT")
    until("it is healthy again", container.is_healthy)
    report.say(
        f"With its worker frozen it says unhealthy ({found:.0f} s later), and healthy again afterwards."
    )


def end_in_order(
    container: Container, address: str, key: str, rows: NDArray[np.float64], report: Report
) -> None:
    """SIGTERM during a request: the request is answered and the exit code is 0."""
    where = urlsplit(address)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=30)
    body = json.dumps({"rows": rows.tolist()}).encode()
    connection.putrequest("POST", "/v1/models/digits/classes/3:query")
    for name, value in (("Authorization", f"Bearer {key}"), ("Content-Type", "application/json")):
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body[: len(body) // 2])
    time.sleep(0.3)
    container.kill("SIGTERM")
    time.sleep(0.5)
    connection.send(body[len(body) // 2 :])
    response = connection.getresponse()
    answered = len(json.loads(response.read()).get("results", ()))
    connection.close()
    report.holds(
        (response.status, answered) == (200, len(rows)), "A request under way at SIGTERM is answered in full."
    )
    started = time.monotonic()
    code = container.wait()
    report.figure(exit_code=code, drain_s=round(time.monotonic() - started, 1))
    report.holds(code == 0, "After SIGTERM the exit code is 0.")
    report.holds(not container.state().get("OOMKilled", False), f"The memory limit of {MEMORY} was enough.")


if __name__ == "__main__":
    sys.exit(tell(smoke))
