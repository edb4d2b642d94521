"""Accuracy of teacher, SVM, gSVM-0 and gSVM on letter and satimage, over HTTP on a real server and worker.

    python -m lab.studies.accuracy [letter] [satimage]

Each set is trained twice: with C = 1000, the end of the paper's grid, and with larger C ("open grid"). The
data sets are read from $STMS_DATA or ../shared/data. The last line is JSON, in percent on the open grid:
{"letter": {"teacher_f1": …, "gsvm_f1": …, …}, "satimage": {…}}. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from app.commands.datasets import send_file
from app.commands.demo.report import METHODS, means
from app.commands.job_progress import follow, report_end
from app.commands.output import CommandFailed, print_failure
from app.domain.shown_figures import share
from stms_client import Client
from tests.system.data import FEATURES, LOSS_WEIGHTS, data_folder
from tests.system.deployment import job_service

# Feature vectors as in the paper; ε = 1 and ϵ = 0.3 are the defaults.
TARGETS = {"letter": {"teacher": 95.0, "gsvm": 92.0}, "satimage": {"gsvm": 86.0}}


def train(client: Client, dataset_id: str, name: str, C: tuple[float, float]) -> list[dict[str, Any]]:
    """Train with loss weights ``C`` of teacher and students; returns the job's table of students."""
    hyperparameters = {
        "features": FEATURES[name],
        "teacher": {"C": C[0]},
        "student": {"method": "gsvm", "C": C[1]},
        "evaluation": {"baselines": ["svm", "gsvm0"]},
    }
    job = follow(client, client.submit_job(dataset_id, name, hyperparameters).id, quiet=True)
    report_end(job, quiet=True)
    return [dict(row) for row in client.students(job.id)]


def show(console: Console, title: str, students: list[dict[str, Any]]) -> dict[str, float]:
    """Print means over the classes; returns the mean F of each method in percent."""
    table = Table(title=title, title_justify="left")
    for column in ("mean over classes, %", *METHODS.values()):
        table.add_column(column, justify="right")
    found = {method: means(students, method) for method in METHODS}
    for measure in ("accuracy", "f1", "auc"):
        table.add_row(measure, *(share(found[method][measure]) for method in METHODS))
    console.print(table)
    return {f"{method}_f1": round(100 * (found[method]["f1"] or 0.0), 2) for method in METHODS}


def run(names: list[str]) -> dict[str, dict[str, float]]:
    """Run all data sets on one server. Returns the content of the last line."""
    console = Console(width=100, highlight=False)
    figures: dict[str, dict[str, float]] = {}
    with job_service() as (client, _):
        for name in names:
            dataset = send_file(client, data_folder() / f"{name}.npz")
            for grid, C in LOSS_WEIGHTS.items():
                started = time.monotonic()
                students = train(client, dataset["id"], name, C)
                seconds = time.monotonic() - started
                title = f"{name}, {grid}: C = {C[0]:g} teacher, {C[1]:g} students; {seconds:.0f} s"
                figures[name] = show(console, title, students)
    return figures


def missed(figures: dict[str, dict[str, float]]) -> list[str]:
    """One sentence for each target that was not reached."""
    return [
        f"{name}: mean F of {method} is {figures[name][f'{method}_f1']} %, below {least} %"
        for name, targets in TARGETS.items()
        if name in figures
        for method, least in targets.items()
        if figures[name][f"{method}_f1"] < least
    ]


def main(names: list[str]) -> int:
    """Exit code: 0 when every target is reached."""
    try:
        figures = run(names or list(FEATURES))
    except CommandFailed as failure:
        print_failure(failure)
        return 1
    failures = missed(figures)
    for line in failures:
        print(line, file=sys.stderr)
    print(json.dumps(figures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
