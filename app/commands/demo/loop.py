"""`stms demo --loop`: a model in production, from the first query to a version that takes its place."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from app.commands.demo.report import say
from app.commands.demo.temporary_server import sigterm_as_exit, temporary_server, with_log
from app.commands.output import CommandFailed, Json
from app.commands.remote import connect
from stms_client import Client

MODEL: Final = "digits"
ALIAS: Final = "production"
WATCHED: Final = ("1", "3", "8")
SETTINGS: Final = {"STMS_QUERY_SAMPLES": "rows"}
"""Of the server."""
_PROMISES: Final = {"max_false_positive_rate": 0.01, "min_recall": 0.7}
_ASK: Final = {"yes": 1.0, "no": "uniform", "floor": 0.25}
_HYPERPARAMETERS: Final[Json] = {
    "features": {"kind": "nystroem", "n_components": 500},
    "student": {"C": 1000},
}
_TRAINED, _ASKED = 900, 500
"""Rows of the first training, and of each batch of queries; all others are kept to check versions on."""
_WRITTEN_SECONDS: Final = 120.0
"""How long a sample, an alarm or a count of the shadow may take."""
_WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class Images:
    """Images (n, 64) and their classes (n,)."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]

    def moved(self, seed: int) -> Images:
        """The same images from a scanner that has moved by one pixel, with a little noise."""
        images = np.zeros((len(self.y), 8, 8))
        images[:, :, 1:] = self.X.reshape(-1, 8, 8)[:, :, :-1]
        noise = np.random.default_rng(seed).normal(0.0, 0.5, (len(self.y), 64))
        return Images(np.clip(images.reshape(-1, 64) + noise, 0.0, 16.0), self.y)

    def part(self, first: int, stop: int) -> Images:
        """Some of them."""
        return Images(self.X[first:stop], self.y[first:stop])


def run() -> None:
    """Do what `stms demo --loop` promises."""
    console = Console(highlight=False, width=_WIDTH)
    started = time.monotonic()
    with sigterm_as_exit(), tempfile.TemporaryDirectory(prefix="stms-demo-") as folder:
        say(console, "Starting `stms serve` (API and worker) in a temporary folder")
        with (
            temporary_server(Path(folder), **SETTINGS) as server,
            with_log(server),
            connect(server.address, server.key) as client,
        ):
            show_loop(console, client)
        say(console, f"Server and worker have ended; {time.monotonic() - started:.0f} s in total")


def show_loop(console: Console, client: Client) -> None:
    """All steps, one after the other. Raises CommandFailed where a step does not end as it should."""
    images = _images()
    first, live = images.part(0, _TRAINED), images.part(_TRAINED, _TRAINED + _ASKED)
    check = images.part(_TRAINED + _ASKED, len(images.y)).moved(2)
    dataset = _train(console, client, first)
    _watch(console, client)
    say(console, f"{3 * _ASKED} queries as in training; people say what the sampled rows are")
    _ask(console, client, live)
    _figures(console, client)
    say(console, f"The scanner moves by one pixel. {3 * _ASKED} queries; people go on saying what rows are")
    _ask(console, client, live.moved(1))
    _alarm(console, client)
    candidate, rows = _retrain(console, client, dataset)
    _shadow(console, client, candidate, live.moved(1))
    _gate_and_move(console, client, candidate, check)
    say(console, f"The same {3 * _ASKED} queries with new noise, answered by version {candidate}")
    _ask(console, client, live.moved(3))
    _figures(console, client)
    broken = _broken(client)
    held = "no promise is broken" if not broken else f"still broken: {'; '.join(broken)}"
    console.print(f"  Trained on {rows} reviewed rows more; {held}.")


def _images() -> Images:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return Images(X[order], y[order])


def _train(console: Console, client: Client, first: Images) -> str:
    """Train and point the alias to version 1; returns the id of the data set."""
    say(console, f"Training on {len(first.y)} images; the alias {ALIAS} points to version 1")
    dataset = client.upload_rows(first.X, [str(label) for label in first.y], name="first images")
    job = client.submit_job(dataset["id"], MODEL, _HYPERPARAMETERS).wait()
    client.point_alias(MODEL, ALIAS, _version(job))
    return dataset["id"]


def _version(job: Any) -> int:
    """The version that a job has published. Raises CommandFailed."""
    if job.version is None:
        raise CommandFailed(f"Job {job.id} has published no version: {job.state}.")
    return int(job.version)


def _watch(console: Console, client: Client) -> None:
    say(console, f"A monitor: classes {', '.join(WATCHED)} promise ≤ 1 % wrong yes, ≥ 70 % found")
    classes = dict.fromkeys(WATCHED, _PROMISES)
    client.put_monitor(MODEL, ALIAS, classes=classes, ask=_ASK, store="rows")
    console.print(
        f"  Of each class, every yes and a quarter of the no answers are samples.   {client.address}"
        f"/ui/models/{MODEL}/aliases/{ALIAS}/live",
        markup=False,
    )


def _ask(console: Console, client: Client, images: Images) -> None:
    """Ask about all images and each watched class, and say of all samples of which class they are."""
    before = client.monitor(MODEL, ALIAS)["samples"]
    for label in WATCHED:
        client.query_rows(f"{MODEL}@{ALIAS}", label, images.X)
    _until(lambda: client.monitor(MODEL, ALIAS)["samples"] > before, "samples were written")
    # All of them are written with the next beat at the latest.
    time.sleep(2.0)
    items = [
        {"sample": one["id"], "truth": str(images.y[one["row"]])} for one in client.samples(MODEL, ALIAS)
    ]
    for start in range(0, len(items), 1000):
        client.give_feedback(items[start : start + 1000])
    console.print(f"  {len(items)} of {3 * len(images.y)} answers were sampled, and have feedback now.")


def _figures(console: Console, client: Client) -> None:
    for one in client.performance(MODEL, ALIAS)["classes"]:
        wrong, found = (_rate(one[name]) for name in ("false_positive_rate", "recall"))
        worst = max(promise["evidence"] / promise["alarm_at"] for promise in one["evidence"])
        console.print(
            f"  class {one['label']}: wrong yes {wrong}, found {found};"
            f" evidence {min(worst, 9.99):.0%} of an alarm"
        )


def _rate(found: Mapping[str, Any]) -> str:
    interval = found["interval"]
    if interval is None:
        return f"not known from {found['rows']} labels"
    return f"{interval['estimate']:.1%} ({interval['low']:.1%} to {interval['high']:.1%})"


def _alarm(console: Console, client: Client) -> None:
    _until(lambda: bool(_broken(client)), "an alarm was given")
    _figures(console, client)
    say(console, f"The alarm of a broken promise: {'; '.join(_broken(client))}")
    console.print("  At most one monitor of twenty ever gives a false one, however often one looks.")


def _broken(client: Client) -> list[str]:
    """The broken promises."""
    return [
        f"class {one['label']}, {promise['promise'].replace('_', ' ')}"
        for one in client.performance(MODEL, ALIAS)["classes"]
        for promise in one["evidence"]
        if promise["alarm_since"] is not None
    ]


def _retrain(console: Console, client: Client, dataset: str) -> tuple[int, int]:
    """Train a candidate on the first images and reviewed rows; returns its version and their number."""
    say(console, "A candidate is trained on the first images and the reviewed rows")
    reviewed = client.review_dataset(MODEL, ALIAS)["dataset"]
    revised = client.revise_dataset(dataset, append=reviewed["id"], note="the scanner moved")
    console.print(
        f"  {reviewed['rows']} rows of which people said the class; revision {revised['revision']} of the"
        f" data set has {revised['rows']} rows."
    )
    job = client.retrain(MODEL, revised["id"], base=ALIAS).wait()
    return _version(job), reviewed["rows"]


def _shadow(console: Console, client: Client, candidate: int, images: Images) -> None:
    say(console, f"Version {candidate} answers as a shadow; nobody sees what it says")
    client.put_shadow(MODEL, ALIAS, candidate, share=1.0, days=1.0)
    for label in WATCHED:
        for first in range(0, 150, 30):
            client.query_rows(f"{MODEL}@{ALIAS}", label, images.X[first : first + 30])
    _until(lambda: client.shadow(MODEL, ALIAS)["asked"] >= 3 * 150, "the shadow was counted")
    for one in client.shadow(MODEL, ALIAS)["classes"]:
        if (equal := one["agreement"]) is None:
            continue
        console.print(
            f"  class {one['label']}: {one['asked']} answers of both, {equal['estimate']:.0%} equal"
            f" ({equal['low']:.0%} to {equal['high']:.0%}); {one['only_candidate']} yes of version"
            f" {candidate} alone"
        )


def _gate_and_move(console: Console, client: Client, candidate: int, check: Images) -> None:
    say(console, f"The gate: {len(check.y)} checked images that neither version has seen, no class worse")
    dataset = client.upload_rows(check.X, [str(label) for label in check.y], name="checked images")["id"]
    client.set_gate(MODEL, ALIAS, dataset, rule="no_class_worse")
    waiting = client.evaluate(f"{MODEL}@{candidate}", dataset, baseline=f"{MODEL}@{ALIAS}")
    found = client.wait_for_evaluation(waiting["id"])
    after = float(np.mean([one["f1"] for one in found["classes"]]))
    before = float(np.mean([one["baseline"]["f1"] for one in found["classes"]]))
    worse = [one["class"] for one in found["classes"] if one["comparison"]["verdict"] == "worse"]
    console.print(
        f"  On {found['rows_used']} rows, mean F {before:.3f} before and {after:.3f} now;"
        f" classes worse: {worse}"
    )
    client.delete_shadow(MODEL, ALIAS)
    moved = client.point_alias(MODEL, ALIAS, candidate)
    say(console, f"The gate lets it pass: {MODEL}@{ALIAS} is version {moved['version']} now")


def _until(is_so: Any, what: str) -> None:
    """Wait. Raises CommandFailed after `_WRITTEN_SECONDS`."""
    deadline = time.monotonic() + _WRITTEN_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise CommandFailed(f"Within {_WRITTEN_SECONDS:.0f} s it was not seen that {what}.")
        time.sleep(0.2)
