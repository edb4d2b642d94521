"""Test of the Compose project under failures: `make container`.

    python -m deploy.container.compose_smoke

Database, migration, API and worker are started from the project's Compose file. A second worker is added and
one is killed during a job; the database is stopped under a load of queries; everything is stopped and started
again. The last line is a JSON object. Exit code 3: there is no engine or no base image.
"""

from __future__ import annotations

import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deploy.container import inside
from deploy.container.compose import Compose, compose_for
from deploy.container.containers import Container, is_ready, until
from deploy.container.engines import ROOT, engine_with
from deploy.container.image import base_images, build
from deploy.container.report import Refuted, Report, tell
from deploy.container.samples import Digits, write_digits
from stms_client import Client, Retry, StmsError

SMALL: Final[Mapping[str, Any]] = {"features": {"kind": "nystroem", "n_components": 150}}
LARGE: Final[Mapping[str, Any]] = {
    "features": {"kind": "nystroem", "n_components": 300},
    "tuning": {
        "grid": {"C": [0.01, 0.1, 1, 10, 100, 1000], "margins": [0.3, 0.6, 1.0], "floors": [0.3, 0.5]},
        "strategy": "exhaustive",
        "folds": 20,
    },
    "evaluation": {"baselines": ["svm"]},
}
OVERRIDE: Final = """
services:
  worker:
    environment: {STMS_CLASSES_PER_CHUNK: "1", STMS_SOLVER_THREADS: "1"}
"""
"""Small units of work, so that a job of ten classes is split."""

JOB_SECONDS: Final = 240.0
LOAD_AFTER_SECONDS: Final = 6.0


def smoke(report: Report) -> None:
    """Run all tests in order. Raises Missing, Refuted, EngineFailed."""
    engine = engine_with(base_images(composed=True))
    image = build(engine)
    report.figure(engine=engine.name, build_s=round(image.seconds, 1))
    with tempfile.TemporaryDirectory() as folder:
        override = Path(folder) / "override.yml"
        override.write_text(OVERRIDE, encoding="utf-8")
        port = _free_port()
        environ = {
            "STMS_IMAGE": image.name,
            "STMS_PUBLISHED_PORT": str(port),
            "POSTGRES_PASSWORD": secrets.token_hex(16),
        }
        compose = Compose(engine, compose_for(engine), (ROOT / "docker-compose.yml", override), environ)
        compose.away()
        try:
            live(compose, f"http://127.0.0.1:{port}", write_digits(Path(folder)), report)
        except BaseException:
            for service in ("db", "api", "worker"):
                for container in compose.containers(service):
                    print(f"--- the end of what {container.name} said:\n{container.logs(25)}---", flush=True)
            raise
        finally:
            compose.away()


def live(compose: Compose, address: str, digits: Digits, report: Report) -> None:
    """Start the project, and test a worker crash and a database outage."""
    key = first_start(compose, address, report)
    with Client(address, key) as client:
        data = client.upload_dataset(digits.file, name="digits")["id"]
        started = time.monotonic()
        client.wait_for_job(client.submit_job(data, "digits", SMALL)["id"])
        report.figure(job_s=round(time.monotonic() - started, 1))
        answers = ask(client, digits)
        right = float(np.mean([found == (digits.y_test == label) for label, found in enumerate(answers)]))
        report.holds(
            right > 0.97, f"One worker trained the digits; {right:.1%} of the students' answers are right."
        )
        lose_a_worker(compose, client, data, report)
        lose_the_database(compose, client, address, key, digits, report)
        compose.run("down", "--remove-orphans")
        running = [each.name for service in ("db", "api", "worker") for each in compose.containers(service)]
        report.holds(running == [], "All is down.")
        compose.run("up", "--detach")
        until("the service is ready again", lambda: is_ready(address))
        same = all(
            np.array_equal(one, other) for one, other in zip(answers, ask(client, digits), strict=True)
        )
        report.holds(same, "Up again, the same key gets the same answers: the data has survived.")


def first_start(compose: Compose, address: str, report: Report) -> str:
    """Start the database, migrate it, and start the other services; returns the key that the API made."""
    started = time.monotonic()
    compose.run("up", "--detach", "db")
    until("the database is healthy", compose.container("db").is_healthy)
    compose.run("run", "--rm", "migrate")
    compose.run("up", "--detach")
    until("the API is ready", lambda: is_ready(address))
    key = inside.first_key(compose.container("api"))
    report.figure(up_s=round(time.monotonic() - started, 1))
    for service in ("api", "worker"):
        until(f"the {service} is healthy", compose.container(service).is_healthy)
    report.say("Database, API and worker are up and healthy.")
    return key


def lose_a_worker(compose: Compose, client: Client, data: str, report: Report) -> None:
    """Add a second worker, start a larger job, and kill one of the workers during the job."""
    compose.run("up", "--detach", "--scale", "worker=2", "--no-recreate")
    until("two workers are at work", lambda: _alive(client) == 2)
    report.say("A second worker has joined.")
    job = client.submit_job(data, "digits-tuned", LARGE)["id"]
    workers, busy = compose.containers("worker"), list[Container]()

    def in_its_middle() -> bool:
        if _finished(client, job) > 0:
            busy[:] = inside.busy(workers)
        return bool(busy)

    until("the job is in its middle", in_its_middle, JOB_SECONDS)
    victim, killed_at = busy[0], time.time()
    victim.kill("KILL")
    finished = _finished(client, job)
    report.say(f"{victim.name} is killed with {finished} of 20 students finished.")
    events = list(client.follow_job(job))
    ended = client.job(job)
    takers = [event.data for event in events if event.type == "worker_took_over"]
    report.holds(ended["state"] == "succeeded", "The job has succeeded.")
    report.holds(len(takers) > 0, "A worker took over from a dead one.")
    report.say(f"{takers[0]['by']} from {', '.join(takers[0]['from'])}.")
    finished_once = [event.data["label"] for event in events if event.type == "student_finished"]
    report.holds(len(finished_once) == 20, f"{len(finished_once)} students were finished, each once.")
    report.figure(kill_to_end_s=round(time.time() - killed_at, 1), took_over=len(takers))


def lose_the_database(
    compose: Compose, client: Client, address: str, key: str, digits: Digits, report: Report
) -> None:
    """Query loaded models continuously while the database is stopped and restarted."""
    database, api, worker = compose.container("db"), compose.container("api"), compose.containers("worker")[0]
    with load(address, key, digits) as asked:
        compose.engine.run("stop", "--time=30", database.name)
        until("the API says that it is not ready", lambda: not is_ready(address))
        until("the worker's health check fails", lambda: not worker.is_healthy())
        report.holds(
            api.is_healthy(),
            "Without the database the API, which answers queries, is healthy; workers are not.",
        )
        time.sleep(LOAD_AFTER_SECONDS)
        compose.engine.run("start", database.name)
        back = until("the API is ready again", lambda: is_ready(address))
        until("the worker is healthy again", worker.is_healthy)
    report.figure(queries_ok=len(asked.seconds), queries_failed=asked.failed, back_s=round(back, 1))
    if asked.seconds:
        report.figure(slowest_query_s=round(max(asked.seconds), 3))
    report.holds(
        asked.failed == 0 and len(asked.seconds) > 0,
        f"While the database was away {len(asked.seconds)} queries on loaded models were answered, "
        f"{asked.failed} were not.",
    )
    done = client.wait_for_job(
        client.submit_job(client_data(client), "digits-again", SMALL)["id"], patience=120.0
    )
    report.holds(done["state"] == "succeeded", "Jobs go on afterwards.")


def client_data(client: Client) -> str:
    """Id of the data set that was uploaded last."""
    return str(next(client.datasets())["id"])


class Asked:
    """Counts of a query load."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.failed = 0


@contextmanager
def load(address: str, key: str, digits: Digits) -> Iterator[Asked]:
    """Query continuously for the length of the block, without retries."""
    asked, over = Asked(), threading.Event()

    def ask_on() -> None:
        with Client(address, key, retry=Retry(attempts=1)) as client:
            while not over.wait(0.01):
                started = time.monotonic()
                try:
                    client.query("digits", "3", digits.X_test[0])
                    asked.seconds.append(time.monotonic() - started)
                except StmsError as error:
                    print(f"(a query failed: {error})", file=sys.stderr)
                    asked.failed += 1

    thread = threading.Thread(target=ask_on)
    thread.start()
    try:
        yield asked
    finally:
        over.set()
        thread.join()


def ask(client: Client, digits: Digits) -> Sequence[NDArray[np.bool_]]:
    """Decisions of every student for every row of the test part."""
    return [np.asarray(client.query_rows("digits", str(label), digits.X_test).matches) for label in range(10)]


def _finished(client: Client, job: str) -> int:
    """Finished students of a running job. Raises Refuted if it has ended."""
    if client.job(job)["state"] not in {"queued", "running"}:
        raise Refuted("The job ended before a worker could be killed in its middle.")
    return sum(row["state"] == "succeeded" for row in client.students(job) if row["method"] != "teacher")


def _alive(client: Client) -> int:
    return sum(worker["alive"] for worker in client.pages("/v1/workers"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(tell(smoke))
