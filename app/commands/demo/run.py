"""The steps of `stms demo`, in order."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from app.commands.datasets import send_file
from app.commands.demo.cost import measure_costs
from app.commands.demo.digits import DigitsFile, write_digits
from app.commands.demo.report import costs_table, print_timeline, say, students_table
from app.commands.demo.temporary_server import (
    TemporaryServer,
    sigterm_as_exit,
    temporary_server,
    with_log,
)
from app.commands.job_progress import follow, report_end
from app.commands.output import Json
from app.commands.remote import connect
from stms_client import Client, Job
from stms_client.calls import post

MODEL = "digits"
TARGET, OTHER = "8", "3"
HYPERPARAMETERS: Json = {
    "features": {"kind": "nystroem", "n_components": 500},
    "student": {"C": 1000},
    "evaluation": {"baselines": ["svm", "gsvm0"]},
}
_WIDTH = 110


def run() -> None:
    """Do what `stms demo` promises."""
    console = Console(highlight=False, width=_WIDTH)
    started = time.monotonic()
    with sigterm_as_exit(), tempfile.TemporaryDirectory(prefix="stms-demo-") as folder:
        say(console, "Starting `stms serve` (API and worker) in a temporary folder")
        with (
            temporary_server(Path(folder)) as server,
            with_log(server),
            connect(server.address, server.key) as client,
        ):
            digits = write_digits(Path(folder))
            job = _train(console, client, digits)
            _show_training(console, client, job)
            _query(console, client, digits)
            _show_costs(console, server, digits)
        say(console, f"Server and worker have ended; {time.monotonic() - started:.0f} s in total")
    console.print(
        "Next: `make serve` starts the service for your own data; README.md describes the first steps."
    )


def _train(console: Console, client: Client, digits: DigitsFile) -> Job:
    say(console, f"Uploading {digits.path.name} over HTTP to {client.address}")
    dataset = send_file(client, digits.path, name="digits")
    console.print(
        f"  {dataset['rows']} rows to train, {dataset['test_rows']} to test,"
        f" {dataset['columns']} columns, {len(dataset['classes'])} classes"
    )
    say(console, "Training one teacher, then for each class a gSVM student and two baselines")
    job = client.submit_job(dataset["id"], MODEL, HYPERPARAMETERS)
    job = follow(client, job.id, quiet=True)
    report_end(job, quiet=True)
    return job


def _show_training(console: Console, client: Client, job: Job) -> None:
    console.print(students_table(list(client.students(job.id))))
    console.print(
        "  teacher: scores all ten classes and takes the highest.   SVM: one class, without a teacher.\n"
        "  gSVM-0: a student gated by the teacher's score.          gSVM: also weighs examples by difficulty."
    )
    say(console, "The job's stored events")
    print_timeline(console, list(client.job_events(job.id)))


def _query(console: Console, client: Client, digits: DigitsFile) -> None:
    row = int(np.flatnonzero(digits.y_test == int(TARGET))[0])
    x = digits.X_test[row]
    say(console, f"Two queries: is this image (row {row} of the test part) an {TARGET}? And is it a {OTHER}?")
    for line in x.reshape(8, 8):
        console.print("    " + "".join(" ░▒▓█"[int(pixel) // 4] * 2 for pixel in line), markup=False)
    shown = json.dumps({"x": [*x[:4].tolist(), "…"]}, ensure_ascii=False)
    for label in (TARGET, OTHER):
        path = f"/v1/models/{MODEL}/classes/{label}:query"
        answer = client.do(post(path, {"x": x.tolist()}, dict[str, Any]))
        console.print(f"  POST {path}  {shown}\n  → {json.dumps(answer)}", markup=False)


def _show_costs(console: Console, server: TemporaryServer, digits: DigitsFile) -> None:
    say(console, "Latency of a query")
    console.print(costs_table(measure_costs(server, MODEL, TARGET, digits.X_test[0])))
