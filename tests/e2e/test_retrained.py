"""Models are trained anew on shuffled and on fewer rows of public files, and their alias moves under load.

No query fails: the new version answers what the old one answered, or the move is refused by the names of what
it would refuse, before anything moves.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stms_client import Client, Conflict, StmsError
from tests.system.data import raw_folder
from tests.system.deployment import QUICK_SOLVERS, Deployment

FILES = {
    "titanic_train.csv": {"label_column": "Survived"},
    "telco_churn.csv": {"label_column": "Churn"},
    "penguins.csv": {"label_column": "sex"},
    "skyserver.csv": {"label_column": "class"},
    "student-por.csv": {"label_column": "sex"},
}
ALWAYS = ("titanic_train.csv", "penguins.csv")
"""Those that `make test` has, too: one file with many gaps and odd columns, and one with few of both."""
ROWS, FEWER = 200, 80
QUICK = {"automatic": False, "calibration": {"kind": "none"}, "guard": {"kind": "off"}, "alias": None}


@pytest.fixture(scope="module")
def stms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("retrained")
    with (
        Deployment(folder, serve=True, is_new=False, settings=QUICK_SOLVERS) as started,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("STMS_DATA_DIR", str(started.data))
        with Client(started.url) as client:
            yield client


def train(stms: Client, name: str, lines: list[str], folder: Path, **more: Any) -> dict[str, Any]:
    """The ended job of a file with these lines; its model has the name of the file."""
    path = folder / name
    path.write_text("".join(lines))
    dataset = stms.upload_dataset(path, rare_classes="drop", **FILES[name])
    job = stms.submit_job(dataset["id"], path.stem, QUICK | more)
    return stms.wait_for_job(job["id"])


class Load:
    """Threads that ask a model about rows until they are stopped. failed: what was not answered."""

    def __init__(self, stms: Client, model: str, label: str, rows: list[dict[str, Any]]) -> None:
        self.failed: list[str] = []
        self.answers: dict[int, int] = {}
        self._ask = lambda row: stms.query(f"{model}@production", label, row)
        self._rows, self._stop = rows, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(first,)) for first in range(3)]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def _run(self, first: int) -> None:
        place = first
        while not self._stop.is_set():
            try:
                version = self._ask(self._rows[place % len(self._rows)]).version
                self.answers[version] = self.answers.get(version, 0) + 1
            except StmsError as error:
                self.failed.append(str(error))
            place += 1

    def wait_for(self, version: int) -> None:
        """Until a version has answered every row."""
        before = self.answers.get(version, 0)
        while self.answers.get(version, 0) < before + 2 * len(self._rows) and not self.failed:
            self._stop.wait(0.05)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in FILES]
)
def test_no_query_fails_when_a_model_is_trained_anew(stms: Client, tmp_path: Path, name: str):
    path = raw_folder() / name
    if not path.is_file():
        pytest.skip(f"{path} is not there; STMS_RAW names the folder of public files")
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    model = path.stem
    chosen = sorted(random.Random(0).sample(range(len(lines)), ROWS))
    rows = [lines[number] for number in chosen]
    first = train(stms, name, [header, *rows], tmp_path)
    stms.point_alias(model, "production", first["version"])
    shuffled, fewer = random.Random(1).sample(rows, len(rows)), rows[:FEWER]
    kept = [train(stms, name, [header, *lines], tmp_path) for lines in (shuffled, fewer)]
    alone = train(stms, name, [header, *fewer], tmp_path, like="none")
    label = next(iter(stms.classes(model, 1)))["label"]
    asked = [row["x"] for row in stms.dataset_rows(first["dataset_id"], page=100)][:FEWER]
    load = Load(stms, model, label, asked)
    with load.running():
        load.wait_for(1)
        for job in kept:
            stms.point_alias(model, "production", job["version"])
            load.wait_for(job["version"])
        before = stms.alias(model, "production")
        refusal = None
        try:
            stms.point_alias(model, "production", alone["version"])
        except Conflict as error:
            refusal = error
        after = stms.alias(model, "production")
        load.wait_for(after["version"])
    assert load.failed == []
    assert sum(load.answers.values()) >= 8 * FEWER
    if refusal is None:
        assert after["version"] == alone["version"]
    else:
        assert after == before
        assert refusal.code == "schema_change"
        assert {fault["name"] for fault in refusal.faults if fault.get("name")}
