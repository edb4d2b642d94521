"""An installation of `requirements/serving.txt`: all other packages are hidden from the processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.app.api.conftest import publish_pets
from tests.e2e.test_bundle_server import export, make_key, serving
from tests.system.deployment import ROOT, Deployment
from tests.test_supply_chain import LOCKS, locked

pytestmark = pytest.mark.timeout(300)

SITE = """
import sys
from importlib.machinery import PathFinder

HIDDEN = {hidden}

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH of processes that find the packages of the lock file alone."""
    folder = tmp_path_factory.mktemp("site")
    packages = {name for name, _ in locked(LOCKS / "serving.txt")} | {"stms"}
    hidden = {
        module
        for module, names in packages_distributions().items()
        if not {canonicalize_name(name) for name in names} & packages
    }
    assert {"dbos", "joblib", "numba", "pyarrow", "scipy", "sklearn"} <= hidden
    (folder / "sitecustomize.py").write_text(SITE.format(hidden=hidden), encoding="utf-8")
    return os.pathsep.join([str(folder), str(ROOT)])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, installed: str) -> Iterator[Deployment]:
    """A server with a database, and a model in it."""
    keys = {"trainer": {"train", "query", "download"}}
    with Deployment(
        api=1, keys=keys, prepare=publish_pets, settings={"PYTHONPATH": installed}, is_clean=True
    ) as deployment:
        yield deployment


def test_a_server_of_bundles_answers(sqlite_store, tmp_path: Path, installed: str):
    bundle, keys = export(sqlite_store, tmp_path, "pets.tar"), tmp_path / "keys"
    key = make_key(keys)
    with serving(tmp_path, bundle, keys, PYTHONPATH=installed) as up:
        assert up.ask("pets", "cat", [0.5, -1.0, 2.0], key).status_code == 200
        up.http.headers["Authorization"] = f"Bearer {key}"
        predicted = up.http.post(f"{up.address}/v1/models/pets:predict", json={"x": [0.5, -1.0, 2.0]})
        assert predicted.status_code == 200, predicted.text
        checks = up.http.get(f"{up.address}/readyz?verbose").json()["checks"]
        assert {check["name"] for check in checks} & {"job_engine", "workers"} == set()
        assert all(check["ok"] for check in checks)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/v1/datasets", {"content": b"a,label\n1,x\n2,y\n"}),
        ("/v1/datasets:fetch", {"json": {"url": "https://example.com/a.csv"}}),
        ("/v1/teachers?model=head", {"content": b"PK"}),
        ("/v1/training-jobs", {"json": {"dataset_id": "ds_1", "model": "m", "hyperparameters": {}}}),
        ("/v1/training-jobs/job_1/cancel", {}),
        ("/v1/training-jobs/job_1/retry", {}),
        ("/v1/training-jobs/job_1/labels", {"json": {"corrections": [], "rename": {"a": "b"}}}),
        ("/v1/training-jobs/job_1/suspects", {"json": {"corrections": [{"row": 1, "keep": True}]}}),
    ],
)
def test_what_trains_is_refused(server: Deployment, path: str, options: dict):
    with server.client("trainer") as client:
        answer = client.post(path, **options)
    assert (answer.status_code, answer.json()["code"]) == (501, "only_serves"), answer.text
    assert "LOCK=serving" in answer.json()["detail"]


def test_everything_else_goes_on(server: Deployment):
    with server.client("trainer") as client:
        bundle = client.get("/v1/models/pets/versions/1/bundle").raise_for_status().content
        imported = client.post("/v1/bundles", params={"model": "copy"}, content=bundle)
        assert imported.status_code == 201, imported.text
        answers = [
            client.post(f"/v1/models/{model}/classes/cat:query", json={"x": [0.5, -1.0, 2.0]}).json()["score"]
            for model in ("pets", "copy")
        ]
        assert answers[0] == answers[1]
        for path in ("/v1/training-jobs", "/v1/datasets", "/v1/models", "/openapi.json", "/readyz"):
            assert client.get(path).status_code == 200, path


@pytest.mark.parametrize("command", [["serve"], ["worker"], ["demo"]])
def test_commands_that_train_say_so(server: Deployment, command: list[str]):
    done = server.run(*command)
    assert done.returncode == 1
    assert "only answers queries" in done.stderr
    assert "Traceback" not in done.stderr
