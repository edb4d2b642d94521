"""Fixtures: a real server with API keys and a model of four classes, for clients in separate environments."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from app.services.keys import create_key
from app.settings import Settings
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from tests.app.serving.written_records import encoder
from tests.certificates import CertificateFiles
from tests.system.deployment import Deployment
from tests.system.published import linear_student, linear_teacher, publish

CLASSES = ("cat", "dog", "größe/1:x", "日本")
NAMES = ("a", "b", "c")
WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -1.0, -1.0]])


@dataclass(frozen=True)
class Service:
    """address: host:port. key: an API key that may do all but administer. log: what the server wrote."""

    address: str
    key: str
    log: Path


Start = Callable[..., Service]


@pytest.fixture(scope="package")
def service(start_service: Start) -> Service:
    """`stms api` over a database with version 1 of "pets": score of class k is x[k], of the last one −Σx.

    Its columns are called a, b and c. Version 1 of "people" takes records.
    """
    return start_service()


@pytest.fixture(scope="package")
def start_service(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts servers like `service`, with settings that are wanted different; all must end with 0."""
    with ExitStack() as stack:

        def start(**settings: str) -> Service:
            folder = tmp_path_factory.mktemp("clients")
            shutil.copy(_sqlite_template, folder / "stms.sqlite")
            return stack.enter_context(running_service(folder, settings))

        yield start


@contextmanager
def running_service(
    folder: Path, settings: dict[str, str], certificate: CertificateFiles | None = None
) -> Iterator[Service]:
    """A server over the database in a folder, which is filled. certificate: of the server and of clients."""
    key = _fill(folder, keyless=settings.get("STMS_REQUIRE_KEYS") == "false")
    verify = ssl.create_default_context(cafile=certificate and certificate.file)
    if certificate is not None:
        verify.load_cert_chain(certificate.file, certificate.key)
    given = settings | {"STMS_DATA_DIR": str(folder)}
    with Deployment(folder, api=1, is_new=False, settings=given, verify=verify, is_clean=True) as started:
        yield Service(f"127.0.0.1:{started.port}", key, started["api-0"].log)


def _fill(folder: Path, *, keyless: bool) -> str:
    """A database with the model; returns the text of a key, empty for a server without keys."""
    store = Store(open_engine(Settings(data_dir=folder).app_database_url))
    students = {
        label: linear_student(label, row, threshold=0.5) for label, row in zip(CLASSES, WEIGHTS, strict=True)
    }
    ranges = [[-10.0, 10.0]] * 3
    inputs = {"columns": list(NAMES), "label_column": "kind", "ranges": ranges, "means": [0.0] * 3}
    publish(store, "pets", students, linear_teacher(CLASSES, WEIGHTS), inputs=inputs)
    known = encoder()
    rows = np.random.default_rng(0).normal(size=(2, known.layout.columns))
    people = {label: linear_student(label, row) for label, row in zip("ab", rows, strict=True)}
    publish(store, "people", people, linear_teacher("ab", rows), encoder=known)
    # A server without keys does not start on a database for which keys were made.
    key = "" if keyless else create_key(store, "clients", {"train"}, set())[1]
    store.dispose()
    return key
